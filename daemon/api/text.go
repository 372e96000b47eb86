package api

import (
	"errors"

	"tandem/model/chat"
	"tandem/model/token"
)

// Text is what the dialects need of the model's tokenizer and chat template.
// Its methods may be called from any goroutine.
type Text interface {
	// Encode gives the tokens of text. addSpecial puts the tokens around it with
	// which the model wants a text to begin or end; parseSpecial makes what is
	// written like a control token that token, and is for text that its author
	// meant so, never for a chat message.
	Encode(text string, addSpecial, parseSpecial bool) []int32
	// Render gives the prompt of a chat, up to where the assistant begins to
	// speak. An error is about the messages and is the client's to mend; a
	// *chat.Error names the field.
	Render(messages []Message) ([]int32, error)
	// Decode gives the text of tokens, control tokens included, as valid UTF-8.
	Decode(tokens []int32) string
	// Reader reads one answer and ends it at any of the stop strings.
	Reader(stops []string) Reader
	// EndTokens are the tokens with which the model ends its turn.
	EndTokens() []int32
	// Vocab is the number of tokens: ids are 0…Vocab-1.
	Vocab() int
}

// Reader turns the tokens of one answer into text. It holds back bytes that are
// no whole character yet and text that may become a stop string.
type Reader interface {
	// Append appends to b the text that is certain after token t. stopped says
	// that a stop string was met: the text before it has been appended, and there
	// is no more.
	Append(b []byte, t int32) (out []byte, stopped bool)
	// Flush appends what is held back, because no token follows.
	Flush(b []byte) []byte
}

// Message is one turn of a chat.
type Message struct {
	Role    string // "system", "user", "assistant" or "tool"
	Content string
	Name    string // of the speaker, if the client gave one
	// ToolCallID says which call a tool's message answers.
	ToolCallID string
}

// modelText is a Text of a model's tokenizer and template.
type modelText struct {
	tok  *token.Tokenizer
	tpl  *chat.Template // nil: the model has none
	ends []int32
}

// NewText makes a Text of a model's tokenizer and chat template. A model without
// a template, nil, is served all the same; but chats are refused.
func NewText(tok *token.Tokenizer, tpl *chat.Template) Text {
	return &modelText{tok: tok, tpl: tpl, ends: tok.Ends()}
}

// ReadText makes a Text of what a weight file says of its tokenizer and template.
func ReadText(keys token.Keys) (Text, error) {
	v, err := token.ReadVocab(keys)
	if err != nil {
		return nil, err
	}
	tok, err := token.New(v)
	if err != nil {
		return nil, err
	}
	const key = "tokenizer.chat_template"
	if !keys.Has(key) {
		return NewText(tok, nil), nil
	}
	source, err := keys.String(key)
	if err != nil {
		return nil, err
	}
	tpl, err := chat.New(source, chat.SpecialOf(tok))
	if err != nil && !errors.Is(err, chat.ErrNoTemplate) {
		return nil, err
	}
	return NewText(tok, tpl), nil
}

func (t *modelText) Encode(text string, addSpecial, parseSpecial bool) []int32 {
	ids := make([]int32, 0, len(text)/3+2)
	if addSpecial && t.tok.AddBos() {
		ids = append(ids, t.tok.Bos())
	}
	return t.tok.EncodeTo(ids, text, parseSpecial)
}

func (t *modelText) Render(messages []Message) ([]int32, error) {
	if t.tpl == nil {
		return nil, &chat.Error{Field: "messages", Message: "the model has no chat template, so it takes no chats; /v1/completions takes a prompt", Err: chat.ErrNoTemplate}
	}
	turns := make([]chat.Message, len(messages))
	for i, m := range messages {
		turns[i] = chat.Message{Role: m.Role, Content: m.Content, Name: m.Name, ToolCallID: m.ToolCallID}
	}
	segments, err := t.tpl.Render(turns, chat.Options{AddGenerationPrompt: true})
	if err != nil {
		return nil, err
	}
	return chat.Prompt(t.tok, segments), nil
}

func (t *modelText) Decode(ids []int32) string { return t.tok.Text(ids, true) }

func (t *modelText) EndTokens() []int32 { return t.ends }

func (t *modelText) Vocab() int { return t.tok.Len() }

func (t *modelText) Reader(stops []string) Reader {
	r := &modelReader{text: t.tok.NewStream(false)}
	if len(stops) > 0 {
		s, err := token.NewStops(stops)
		if err != nil {
			panic(err) // decoding has checked them by the same limits
		}
		r.stops = s
	}
	return r
}

// modelReader repairs first and searches then, so that a stop string is looked
// for in what the client would see.
type modelReader struct {
	text  *token.Stream
	stops *token.Stops // nil: none
}

func (r *modelReader) Append(b []byte, id int32) ([]byte, bool) {
	return r.push(b, r.text.Next(id))
}

func (r *modelReader) push(b []byte, s string) ([]byte, bool) {
	if r.stops == nil {
		return append(b, s...), false
	}
	visible, met := r.stops.Push(s)
	return append(b, visible...), met >= 0
}

// Flush can meet a stop string as well, one with U+FFFD in it; then that is not
// shown, and that the answer ended for another reason stays true.
func (r *modelReader) Flush(b []byte) []byte {
	b, met := r.push(b, r.text.Flush())
	if met || r.stops == nil {
		return b
	}
	return append(b, r.stops.Flush()...)
}
