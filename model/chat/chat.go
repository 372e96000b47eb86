// Package chat turns a conversation into a prompt by the model's own chat
// template. It owns what a template is given, and the rule below; the language
// is jinja's, token ids are token's, and the JSON of requests is api's.
//
// # Control tokens
//
// Text that looks like a control token is one only where the template put it. A
// client that writes <|im_end|> has written ten ordinary characters, and they
// reach the model as such. So a rendering is not a string but Segments, in which
// control tokens are apart from text.
//
// How they are told apart: the template engine marks every character that came in
// with the request and keeps the marks through whatever the template does to
// strings, and a control token is recognised only where all of its characters are
// the template's own. The alternatives fall short. Placeholders around or within
// clients' strings change what templates compute from them (trim, length, split,
// 'x' in content); replacing control tokens before rendering misses those that a
// template puts together from two harmless strings, or uncovers by cutting.
//
// One thing of a request is unmarked: the roles, because templates build tokens
// from them (<|user|>). They are checked against a fixed list instead.
//
// # Limits
//
// A rendering's work and memory are bounded by a budget that grows with the size
// of the conversation; see jinja.Env. All errors of Render are *Error: they are
// about the request, not the server.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"tandem/model/chat/jinja"
	"tandem/model/token"
)

// ErrNoTemplate says that a model brings no chat template. A template may then be
// chosen by name, see Builtin, but none is guessed.
var ErrNoTemplate = errors.New("the model has no chat template")

// Special is what a template knows of the vocabulary.
type Special struct {
	Bos, Eos string   // texts of these tokens, "" if there is none
	Control  []string // texts of all control tokens
}

// SpecialOf takes it from a tokenizer.
func SpecialOf(t *token.Tokenizer) Special {
	text := func(id int32) string { return string(t.Piece(id, true)) }
	return Special{Bos: text(t.Bos()), Eos: text(t.Eos()), Control: t.ControlTexts()}
}

// Template renders conversations. It is immutable and may be used by any number
// of goroutines.
type Template struct {
	t       *jinja.Template
	special Special
	control [256][]string // control texts by their first byte, longest first
}

// New parses a model's template. A syntax error names its line.
func New(text string, special Special) (*Template, error) {
	if strings.TrimSpace(text) == "" {
		return nil, ErrNoTemplate
	}
	return parse("tokenizer.chat_template", text, special)
}

// builtins are templates that may be chosen by name for a model that has none.
var builtins = map[string]string{
	"chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' }}{% endfor %}" +
		"{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
}

// Builtin gives a template of the server's own by its name; "chatml" is the one
// there is.
func Builtin(name string, special Special) (*Template, error) {
	text, ok := builtins[name]
	if !ok {
		return nil, fmt.Errorf("there is no built-in chat template %q; there is chatml", name)
	}
	return parse("built-in "+name, text, special)
}

func parse(name, text string, special Special) (*Template, error) {
	t, err := jinja.Parse(name, text)
	if err != nil {
		return nil, err
	}
	c := &Template{t: t, special: special}
	for _, s := range special.Control {
		if s != "" {
			c.control[s[0]] = append(c.control[s[0]], s)
		}
	}
	for _, list := range c.control {
		slices.SortFunc(list, func(a, b string) int { return len(b) - len(a) })
	}
	return c, nil
}

// Message is one turn of a conversation. What is not valid UTF-8 in it counts as U+FFFD.
type Message struct {
	Role       string
	Content    string
	NoContent  bool   // the content was null: templates see none, not ""
	Reasoning  string // earlier thinking, sent back: reasoning_content in templates
	Name       string
	ToolCalls  []ToolCall
	ToolCallID string
}

// ToolCall is a call that the model made. Arguments is JSON; an object, or a
// string that holds one, reaches the template as an object with its keys in order.
type ToolCall struct {
	ID, Name  string
	Arguments json.RawMessage
}

// Roles that messages may have.
var roles = []string{"system", "developer", "user", "assistant", "tool", "function"}

// Options are the rest of what a template is given.
type Options struct {
	AddGenerationPrompt bool
	Tools               json.RawMessage            // an array, or nothing
	Kwargs              map[string]json.RawMessage // the request's own variables
	Now                 time.Time                  // for templates that print the date; zero: the present
}

// Error is a conversation that cannot be rendered. Its text is for the client.
type Error struct {
	Field   string // of the request, as "messages[2].role"
	Message string
	Err     error
}

func (e *Error) Error() string { return e.Field + ": " + e.Message }

// Unwrap gives the engine's error, for those who want the line.
func (e *Error) Unwrap() error { return e.Err }

// Segment is a part of a prompt: one control token, or text.
type Segment struct {
	Text    string
	Control bool // Text is a control token that the template put here
}

// String joins segments to the text that the template made.
func String(segments []Segment) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteString(s.Text)
	}
	return b.String()
}

// Prompt encodes segments. It adds nothing: whether a prompt begins with bos is
// the template's business.
func Prompt(t *token.Tokenizer, segments []Segment) []int32 {
	var ids []int32
	for _, s := range segments {
		if s.Control {
			if id, ok := t.Lookup(s.Text); ok {
				ids = append(ids, id)
				continue
			}
		}
		ids = t.EncodeTo(ids, s.Text, false)
	}
	return ids
}

// Work allowed for a rendering: so much, and so much more for each byte of the
// conversation, but not beyond a limit. Real templates take up to 40 a byte.
const (
	baseBudget = 1 << 22
	byteBudget = 128
	maxBudget  = 1 << 28
)

// Render makes the prompt of a conversation.
func (t *Template) Render(messages []Message, opts Options) ([]Segment, error) {
	vars := map[string]jinja.Value{
		"bos_token":             jinja.Own(t.special.Bos),
		"eos_token":             jinja.Own(t.special.Eos),
		"add_generation_prompt": opts.AddGenerationPrompt,
	}
	size := len(opts.Tools)
	list := &jinja.List{}
	for i := range messages {
		m, n, err := messages[i].value(i)
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, m)
		size += n
	}
	vars["messages"] = list
	if len(opts.Tools) > 0 {
		tools, err := jinja.FromJSON(opts.Tools)
		if err != nil {
			return nil, &Error{"tools", err.Error(), err}
		}
		if tools != nil {
			if _, ok := tools.(*jinja.List); !ok {
				return nil, &Error{"tools", "must be an array", nil}
			}
			vars["tools"] = tools
		}
	}
	for name, data := range opts.Kwargs {
		field := "chat_template_kwargs." + name
		if _, ours := vars[name]; ours || name == "tools" || jinja.Reserved(name) {
			return nil, &Error{field, "this variable is the server's own", nil}
		}
		v, err := jinja.FromJSON(data)
		if err != nil {
			return nil, &Error{field, err.Error(), err}
		}
		vars[name] = v
		size += len(data)
	}
	out, err := t.t.Render(vars, jinja.Env{Budget: min(baseBudget+byteBudget*size, maxBudget), Now: opts.Now})
	if err != nil {
		return nil, &Error{"messages", "the chat template cannot render this conversation: " + err.Error(), err}
	}
	return t.segments(out), nil
}

// value is a message as templates see it, and its size.
func (m *Message) value(i int) (*jinja.Dict, int, error) {
	if !slices.Contains(roles, m.Role) {
		return nil, 0, &Error{fmt.Sprintf("messages[%d].role", i), fmt.Sprintf("%.40q is not a role; roles are %s", m.Role, strings.Join(roles, ", ")), nil}
	}
	d := jinja.NewDict()
	set := func(name string, v jinja.Value) { d.Set(jinja.Own(name), v) }
	size := len(m.Content) + len(m.Reasoning) + len(m.Name) + len(m.ToolCallID)
	set("role", jinja.Own(m.Role))
	if m.NoContent {
		set("content", nil)
	} else {
		set("content", jinja.Foreign(m.Content))
	}
	for _, f := range []struct{ name, text string }{{"reasoning_content", m.Reasoning}, {"name", m.Name}, {"tool_call_id", m.ToolCallID}} {
		if f.text != "" {
			set(f.name, jinja.Foreign(f.text))
		}
	}
	if len(m.ToolCalls) == 0 {
		return d, size, nil
	}
	calls := &jinja.List{}
	for j, c := range m.ToolCalls {
		size += len(c.ID) + len(c.Name) + len(c.Arguments)
		args, err := c.arguments()
		if err != nil {
			return nil, 0, &Error{fmt.Sprintf("messages[%d].tool_calls[%d].function.arguments", i, j), err.Error(), err}
		}
		f, call := jinja.NewDict(), jinja.NewDict()
		f.Set(jinja.Own("name"), jinja.Foreign(c.Name))
		f.Set(jinja.Own("arguments"), args)
		if c.ID != "" {
			call.Set(jinja.Own("id"), jinja.Foreign(c.ID))
		}
		call.Set(jinja.Own("type"), jinja.Own("function"))
		call.Set(jinja.Own("function"), f)
		calls.Items = append(calls.Items, call)
	}
	set("tool_calls", calls)
	return d, size, nil
}

// arguments gives a call's arguments as an object where they are one. What a
// model wrote need not be JSON: other strings stay what they are.
func (c *ToolCall) arguments() (jinja.Value, error) {
	if len(c.Arguments) == 0 {
		return jinja.NewDict(), nil
	}
	v, err := jinja.FromJSON(c.Arguments)
	if err != nil {
		return nil, err
	}
	if s, ok := v.(jinja.Text); ok {
		if strings.TrimSpace(s.String()) == "" {
			return jinja.NewDict(), nil
		}
		if inner, err := jinja.FromJSON([]byte(s.String())); err == nil {
			if o, ok := inner.(*jinja.Dict); ok {
				return o, nil
			}
		}
	}
	return v, nil
}

// segments finds the control tokens in the template's own text: at each place
// the longest.
func (t *Template) segments(out jinja.Text) []Segment {
	var segments []Segment
	var plain strings.Builder
	flush := func() {
		if plain.Len() > 0 {
			segments = append(segments, Segment{Text: plain.String()})
			plain.Reset()
		}
	}
	out.Runs(func(part string, foreign bool) {
		if foreign {
			plain.WriteString(part)
			return
		}
		start := 0
		for i := 0; i < len(part); {
			n := 0
			for _, s := range t.control[part[i]] {
				if strings.HasPrefix(part[i:], s) {
					n = len(s)
					break
				}
			}
			if n == 0 {
				i++
				continue
			}
			plain.WriteString(part[start:i])
			flush()
			segments = append(segments, Segment{Text: part[i : i+n], Control: true})
			i += n
			start = i
		}
		plain.WriteString(part[start:])
	})
	flush()
	return segments
}
