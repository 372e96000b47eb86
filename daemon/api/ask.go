package api

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/request"
	"tandem/model/chat"
	"tandem/model/sample"
)

// ask is what a client wants, the same for all dialects. Decoding fills it and
// has checked each field; what depends on the model is checked by prepare.
type ask struct {
	model string // empty: the served one

	// Exactly one of these is the prompt.
	chat   []Message
	text   *string
	tokens *promptTokens

	maxTokens  int // 0: unset
	params     sample.Params
	seeded     bool // params.Seed was set by the client
	stops      []string
	stopTokens []int32
	ignoreEOS  bool

	stream       bool
	includeUsage bool
	session      string

	ignored map[string]struct{} // fields without effect, for the metric

	newest bool // maxTokens came from max_completion_tokens
}

// promptTokens is a prompt that the client tokenized. Of one that is too long
// only as much is kept as shows that.
type promptTokens struct {
	ids   []int32
	count int
}

// prompt names the field that holds the prompt.
func (a *ask) prompt() string {
	if a.text != nil || a.tokens != nil {
		return "prompt"
	}
	return "messages"
}

// prepared is an ask that may be submitted.
type prepared struct {
	spec    request.Spec
	model   string // the name by which the client calls the model
	lowered bool   // MaxTokens is less than the client asked for
}

// prepare resolves the model's name, makes the prompt's tokens and fits the
// answer into the window. The spec lacks ID and Arrived.
func (h *handler) prepare(a *ask) (prepared, error) {
	m := &h.Model
	p := prepared{model: m.Name}
	if a.model != "" {
		if !h.serves(a.model) {
			return p, unknownModel(a.model, m.Name)
		}
		p.model = a.model
	}

	var prompt []int32
	count := 0
	switch {
	case a.tokens != nil:
		prompt, count = a.tokens.ids, a.tokens.count
	case a.text != nil:
		prompt = h.Text.Encode(*a.text, true, true)
		count = len(prompt)
	default:
		var err error
		if prompt, err = h.Text.Render(a.chat); err != nil {
			return p, refused(err)
		}
		count = len(prompt)
	}
	if count == 0 {
		return p, invalid(a.prompt(), "%s: the prompt has no tokens", a.prompt())
	}
	if count >= m.Context {
		return p, tooLong(a.prompt(), count, m.Context)
	}

	limit := min(m.MaxOutput, m.Context-count)
	want := a.maxTokens
	if want == 0 {
		want = min(m.DefaultOutput, limit)
	}
	p.lowered = want > limit
	p.spec = request.Spec{
		Prompt:    prompt,
		MaxTokens: min(want, limit),
		Stop:      a.stopTokens,
		Params:    a.params,
		Session:   a.session,
	}
	if !a.ignoreEOS {
		p.spec.Stop = slices.Concat(a.stopTokens, h.Text.EndTokens())
	}
	if !a.seeded {
		p.spec.Params.Seed = rand.Uint64()
	}
	return p, nil
}

// refused says that a chat cannot be rendered.
func refused(err error) *problem {
	var e *chat.Error
	if errors.As(err, &e) {
		return invalid(e.Field, "%s", e.Error())
	}
	return invalid("messages", "messages: the chat template cannot render this conversation: %v", err)
}

// serves says whether name is the model's or an alias of it.
func (h *handler) serves(name string) bool {
	return name == h.Model.Name || slices.Contains(h.Model.Aliases, name)
}

func unknownModel(name, served string) *problem {
	const limit = 128
	if len(name) > limit {
		name = name[:limit]
	}
	return problemf(fault.UnknownModel, "model", "model: the model %q does not exist here; this server has %q", name, served)
}

// sessionOf finds what ties a client's requests together, where the body does not say.
func sessionOf(h http.Header) string {
	for _, name := range []string{"X-Session-Id", "X-Session-Affinity", "Session-Id", "X-Claude-Code-Session-Id"} {
		if s := header(h, name); s != "" {
			return s
		}
	}
	return ""
}

// usage is what an answer cost.
type usage struct {
	prompt, completion int
}

// identity is what every frame of an answer repeats.
type identity struct {
	id      ident.Request
	model   string
	created int64
}
