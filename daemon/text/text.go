// Package text is where text becomes tokens and back: the model's tokenizer and
// chat template as the endpoint wants them. Text exists only in the daemon.
package text

import (
	"errors"
	"fmt"

	"tandem/daemon/api"
	"tandem/model/chat"
	"tandem/model/token"
)

// Model implements api.Text. Its methods may be called from any goroutine.
type Model struct {
	tok      *token.Tokenizer
	template *chat.Template // nil: the file has none, and chats are refused
}

// Keys are a weight file's keys.
type Keys interface {
	token.Keys
	Name() string
	StringOr(key, absent string) (string, error)
}

// New makes it from a weight file's keys. A file without a chat template is
// served, but not for chats.
func New(keys Keys) (*Model, error) {
	v, err := token.ReadVocab(keys)
	if err != nil {
		return nil, err
	}
	m := new(Model)
	if m.tok, err = token.New(v); err != nil {
		return nil, fmt.Errorf("%s: %w", keys.Name(), err)
	}
	source, err := keys.StringOr("tokenizer.chat_template", "")
	if err != nil {
		return nil, err
	}
	m.template, err = chat.New(source, chat.SpecialOf(m.tok))
	if err != nil && !errors.Is(err, chat.ErrNoTemplate) {
		return nil, fmt.Errorf("%s: %w", keys.Name(), err)
	}
	return m, nil
}

// Encode implements api.Text.
func (m *Model) Encode(text string, addSpecial, parseSpecial bool) []int32 {
	var out []int32
	if addSpecial && m.tok.AddBos() {
		out = append(out, m.tok.Bos())
	}
	return m.tok.EncodeTo(out, text, parseSpecial)
}

// Render implements api.Text.
func (m *Model) Render(messages []api.Message) ([]int32, error) {
	if m.template == nil {
		return nil, fmt.Errorf("%w; use /v1/completions", chat.ErrNoTemplate)
	}
	turns := make([]chat.Message, len(messages))
	for i, x := range messages {
		turns[i] = chat.Message{Role: x.Role, Content: x.Content, Name: x.Name, ToolCallID: x.ToolCallID}
	}
	segments, err := m.template.Render(turns, chat.Options{AddGenerationPrompt: true})
	if err != nil {
		return nil, err
	}
	return chat.Prompt(m.tok, segments), nil
}

// Decode implements api.Text.
func (m *Model) Decode(tokens []int32) string { return m.tok.Text(tokens, true) }

// EndTokens implements api.Text.
func (m *Model) EndTokens() []int32 { return m.tok.Ends() }

// Vocab implements api.Text.
func (m *Model) Vocab() int { return m.tok.Len() }

// Reader implements api.Text.
func (m *Model) Reader(stops []string) api.Reader {
	r := &reader{stream: m.tok.NewStream(false)}
	if len(stops) > 0 {
		s, err := token.NewStops(stops)
		if err != nil {
			panic(err) // the endpoint has checked them
		}
		r.stops = s
	}
	return r
}

type reader struct {
	stream *token.Stream
	stops  *token.Stops // nil if there are none
}

// Append implements api.Reader.
func (r *reader) Append(b []byte, t int32) ([]byte, bool) {
	text := r.stream.Next(t)
	if r.stops == nil {
		return append(b, text...), false
	}
	visible, stop := r.stops.Push(text)
	return append(b, visible...), stop >= 0
}

// Flush implements api.Reader.
func (r *reader) Flush(b []byte) []byte {
	text := r.stream.Flush()
	if r.stops == nil {
		return append(b, text...)
	}
	visible, stop := r.stops.Push(text)
	b = append(b, visible...)
	if stop < 0 {
		b = append(b, r.stops.Flush()...)
	}
	return b
}
