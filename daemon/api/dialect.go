package api

import (
	"encoding/json"
	"strconv"

	"tandem/daemon/api/jsonout"
	"tandem/daemon/request"
)

// dialect writes one answer in one protocol. It appends to a buffer and does
// nothing else; one dialect value serves one answer. A streamed answer is start,
// any number of text, then end or fail; quiet may come anywhere. Other answers
// are whole.
type dialect interface {
	start(b []byte) []byte
	text(b, s []byte) []byte
	end(b []byte, f request.Finish, u usage) []byte
	fail(b []byte, p *problem) []byte
	quiet(b []byte) []byte
	whole(b, s []byte, f request.Finish, u usage) []byte
}

// done is the last event of every OpenAI stream.
const done = "data: [DONE]\n\n"

// openAI is what the two OpenAI routes have in common. The frame of a text is
// before + the text, escaped + after, made ready once.
type openAI struct {
	head   string // {"id":…,"object":…,"created":…,"model":…, up to the choices
	before string
	after  string
	usage  bool // the client asked for a frame with the usage
}

func newOpenAI(prefix, object string, who identity, usage bool, before, after string) openAI {
	head := []byte(`{"id":`)
	head = jsonout.AppendString(head, prefix+string(who.id))
	head = append(head, `,"object":"`+object+`","created":`...)
	head = strconv.AppendInt(head, who.created, 10)
	head = append(head, `,"model":`...)
	head = jsonout.AppendString(head, who.model)
	head = append(head, `,"choices":[`...)
	d := openAI{head: string(head), usage: usage}
	d.before = "data: " + d.head + before
	d.after = after + d.tail()
	return d
}

// tail closes the choices of a frame and the frame. Clients that asked for the
// usage find null in all frames but its own.
func (d *openAI) tail() string {
	if d.usage {
		return `],"usage":null}` + "\n\n"
	}
	return "]}\n\n"
}

func (d *openAI) text(b, s []byte) []byte {
	b = append(b, d.before...)
	b = jsonout.AppendInner(b, s)
	return append(b, d.after...)
}

// finish appends the frame with the last choice, the usage and the end mark.
func (d *openAI) finish(b []byte, choice string, u usage) []byte {
	b = append(b, "data: "...)
	b = append(b, d.head...)
	b = append(b, choice...)
	b = append(b, d.tail()...)
	if d.usage {
		b = append(b, "data: "...)
		b = append(b, d.head...)
		b = append(b, `],"usage":`...)
		b = appendUsage(b, u)
		b = append(b, "}\n\n"...)
	}
	return append(b, done...)
}

func (d *openAI) fail(b []byte, p *problem) []byte {
	b = append(b, "data: "...)
	b = append(b, p.body()...)
	b = append(b, "\n\n"...)
	return append(b, done...)
}

// quiet is a comment. It ends with one line end, not two: a blank line would end
// an event, and some clients then try to read one.
func (d *openAI) quiet(b []byte) []byte { return append(b, ": keep-alive\n"...) }

func appendUsage(b []byte, u usage) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(u.prompt), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(u.completion), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(u.prompt+u.completion), 10)
	return append(b, `,"prompt_tokens_details":{"cached_tokens":0}}`...)
}

// chatDialect is POST /v1/chat/completions.
type chatDialect struct{ openAI }

func newChat(who identity, stream, usage bool) dialect {
	object := "chat.completion"
	if stream {
		object = "chat.completion.chunk"
	}
	return &chatDialect{newOpenAI("chatcmpl-", object, who, usage,
		`{"index":0,"delta":{"content":"`, `"},"logprobs":null,"finish_reason":null}`)}
}

// start is a frame of its own with the role: the SDKs expect the first to have it.
func (d *chatDialect) start(b []byte) []byte {
	b = append(b, "data: "...)
	b = append(b, d.head...)
	b = append(b, `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`...)
	return append(b, d.tail()...)
}

func (d *chatDialect) end(b []byte, f request.Finish, u usage) []byte {
	return d.finish(b, `{"index":0,"delta":{},"logprobs":null,"finish_reason":"`+f.String()+`"}`, u)
}

func (d *chatDialect) whole(b, s []byte, f request.Finish, u usage) []byte {
	b = append(b, d.head...)
	b = append(b, `{"index":0,"message":{"role":"assistant","content":`...)
	b = jsonout.AppendString(b, s)
	b = append(b, `,"refusal":null},"logprobs":null,"finish_reason":"`+f.String()+`"}],"usage":`...)
	b = appendUsage(b, u)
	return append(b, "}\n"...)
}

// completionDialect is POST /v1/completions.
type completionDialect struct{ openAI }

func newCompletion(who identity, usage bool) dialect {
	return &completionDialect{newOpenAI("cmpl-", "text_completion", who, usage,
		`{"index":0,"text":"`, `","logprobs":null,"finish_reason":null}`)}
}

func (d *completionDialect) start(b []byte) []byte { return b }

func (d *completionDialect) end(b []byte, f request.Finish, u usage) []byte {
	return d.finish(b, `{"index":0,"text":"","logprobs":null,"finish_reason":"`+f.String()+`"}`, u)
}

func (d *completionDialect) whole(b, s []byte, f request.Finish, u usage) []byte {
	b = append(b, d.head...)
	b = append(b, `{"index":0,"text":`...)
	b = jsonout.AppendString(b, s)
	b = append(b, `,"logprobs":null,"finish_reason":"`+f.String()+`"}],"usage":`...)
	b = appendUsage(b, u)
	return append(b, "}\n"...)
}

// mustJSON is for values of ours, which always marshal.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return append(b, '\n')
}
