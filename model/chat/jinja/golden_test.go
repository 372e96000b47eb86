package jinja_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"tandem/model/chat/jinja"
	"tandem/model/golden"
)

const budget = 1 << 22

// given turns a golden request into a template's variables.
func given(t testing.TB, request []byte, bos, eos string) map[string]jinja.Value {
	t.Helper()
	var r struct {
		Messages json.RawMessage
		Tools    json.RawMessage
		Kwargs   map[string]json.RawMessage
		Prompt   *bool `json:"add_generation_prompt"`
	}
	if err := json.Unmarshal(request, &r); err != nil {
		t.Fatal(err)
	}
	vars := map[string]jinja.Value{
		"bos_token":             jinja.Own(bos),
		"eos_token":             jinja.Own(eos),
		"add_generation_prompt": r.Prompt == nil || *r.Prompt,
	}
	add := func(name string, data []byte) {
		v, err := jinja.FromJSON(data)
		if err != nil {
			t.Fatal(err)
		}
		vars[name] = v
	}
	add("messages", r.Messages)
	if r.Tools != nil {
		add("tools", r.Tools)
	}
	for name, data := range r.Kwargs {
		add(name, data)
	}
	return vars
}

func TestTemplatesRenderAsTheReferenceDoes(t *testing.T) {
	raised := 0
	for _, c := range golden.Chats(t) {
		name := c.Template
		bos, eos := "<s>", "</s>"
		if name == "" {
			name, bos, eos = "demo", "<|im_start|>", "<|im_end|>"
		}
		tmpl, err := jinja.Parse(name, c.Source)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		out, err := tmpl.Render(given(t, c.Request, bos, eos), jinja.Env{Budget: budget, Now: time.Date(2026, 3, 4, 15, 6, 7, 0, time.UTC)})
		if c.Error != "" {
			raised++
			var r *jinja.RaisedError
			if !errors.As(err, &r) || !strings.HasSuffix(c.Error, r.Message) {
				t.Errorf("%s, %s: error %v, want %s", name, c.Name, err, c.Error)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s, %s: %v", name, c.Name, err)
			continue
		}
		if got := out.String(); got != c.Text {
			t.Errorf("%s, %s:\n got %q\nwant %q", name, c.Name, got, c.Text)
		}
	}
	if raised == 0 {
		t.Error("no template raised an error")
	}
}
