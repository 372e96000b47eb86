package api

// Text is what the dialects need of the model's tokenizer and chat template.
// Its methods may be called from any goroutine.
type Text interface {
	// Encode gives the tokens of text. addSpecial puts the tokens around it with
	// which the model wants a text to begin or end; parseSpecial makes what is
	// written like a control token that token, and is for text that its author
	// meant so, never for a chat message.
	Encode(text string, addSpecial, parseSpecial bool) []int32
	// Render gives the prompt of a chat, up to where the assistant begins to
	// speak. An error is about the messages and is the client's to mend.
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
