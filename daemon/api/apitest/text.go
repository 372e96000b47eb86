package apitest

import (
	"errors"
	"strings"
	"unicode/utf8"

	"tandem/daemon/api"
)

// Tokens of Text beyond the 256 bytes.
const (
	Start = 256 + iota // <|start|>, before each message
	End                // <|end|>, after each message
	Vocab              // the number of tokens
)

// Text is a tokenizer whose tokens are bytes and whose chat template writes
// <|start|>role\ncontent<|end|>. It refuses chats with Refuse in them.
type Text struct{}

// Refuse makes the chat template fail.
const Refuse = "{% raise %}"

var _ api.Text = Text{}

// Encode gives the bytes of text, one token each.
func Encode(text string) []int32 {
	ids := make([]int32, len(text))
	for i := range len(text) {
		ids[i] = int32(text[i])
	}
	return ids
}

// Encode gives one token for each byte or, if asked, control token.
func (Text) Encode(text string, addSpecial, parseSpecial bool) []int32 {
	var ids []int32
	if addSpecial {
		ids = append(ids, Start)
	}
	for text != "" {
		switch {
		case parseSpecial && strings.HasPrefix(text, "<|start|>"):
			ids, text = append(ids, Start), text[len("<|start|>"):]
		case parseSpecial && strings.HasPrefix(text, "<|end|>"):
			ids, text = append(ids, End), text[len("<|end|>"):]
		default:
			ids, text = append(ids, int32(text[0])), text[1:]
		}
	}
	return ids
}

// Render writes the chat and opens the assistant's turn.
func (Text) Render(messages []api.Message) ([]int32, error) {
	var ids []int32
	for _, m := range messages {
		if strings.Contains(m.Content, Refuse) {
			return nil, errors.New("refused as told")
		}
		ids = append(ids, Start)
		ids = append(ids, Encode(m.Role+"\n"+m.Content)...)
		ids = append(ids, End)
	}
	ids = append(ids, Start)
	return append(ids, Encode("assistant\n")...), nil
}

// Decode gives the text of tokens.
func (Text) Decode(ids []int32) string {
	var b []byte
	for _, id := range ids {
		switch {
		case id < 256:
			b = append(b, byte(id))
		case id == Start:
			b = append(b, "<|start|>"...)
		case id == End:
			b = append(b, "<|end|>"...)
		}
	}
	return strings.ToValidUTF8(string(b), "\ufffd")
}

// EndTokens is End.
func (Text) EndTokens() []int32 { return []int32{End} }

// Vocab is the number of tokens.
func (Text) Vocab() int { return Vocab }

// Reader reads one answer.
func (Text) Reader(stops []string) api.Reader { return &reader{stops: stops} }

// reader is the plain way to hold back: look at all that is held after each byte.
type reader struct {
	stops []string
	held  []byte
	met   bool
}

func (r *reader) Append(b []byte, id int32) ([]byte, bool) {
	if r.met || id >= 256 {
		return b, r.met
	}
	r.held = append(r.held, byte(id))
	at := len(r.held) // where the stop string begins that begins first
	for _, s := range r.stops {
		if i := strings.Index(string(r.held), s); i >= 0 && i < at {
			r.met, at = true, i
		}
	}
	if r.met {
		return r.release(b, at), true
	}
	// What may still become a stop string, or a character, waits.
	keep := 0
	for _, s := range r.stops {
		for n := min(len(s)-1, len(r.held)); n > keep; n-- {
			if strings.HasSuffix(string(r.held), s[:n]) {
				keep = n
			}
		}
	}
	for n := 1; n < utf8.UTFMax && n <= len(r.held); n++ {
		tail := r.held[len(r.held)-n:]
		if utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				keep = max(keep, n)
			}
			break
		}
	}
	return r.release(b, len(r.held)-keep), false
}

func (r *reader) release(b []byte, n int) []byte {
	b = append(b, strings.ToValidUTF8(string(r.held[:n]), "\ufffd")...)
	r.held = append(r.held[:0], r.held[n:]...)
	return b
}

func (r *reader) Flush(b []byte) []byte {
	if r.met {
		return b
	}
	return r.release(b, len(r.held))
}
