// Package text is where text becomes tokens and back: the model's tokenizer and
// chat template as the endpoint wants them. Text exists only in the daemon.
package text

import (
	"tandem/daemon/api"
	"tandem/model/token"
)

// Model implements api.Text. Its methods may be called from any goroutine.
type Model struct {
	tok *token.Tokenizer
}

// New makes it from a weight file's keys.
func New(keys token.Keys) (*Model, error) {
	v, err := token.ReadVocab(keys)
	if err != nil {
		return nil, err
	}
	tok, err := token.New(v)
	if err != nil {
		return nil, err
	}
	return &Model{tok: tok}, nil
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
	var out []int32
	if messages[0].Role != "system" {
		messages = append([]api.Message{{Role: "system", Content: "You are a helpful AI assistant named SmolLM, trained by Hugging Face"}}, messages...)
	}
	for _, x := range messages {
		out = m.tok.EncodeTo(out, "<|im_start|>"+x.Role+"\n", true)
		out = m.tok.EncodeTo(out, x.Content, false)
		out = m.tok.EncodeTo(out, "<|im_end|>\n", true)
	}
	return m.tok.EncodeTo(out, "<|im_start|>assistant\n", true), nil
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
