// Package fake is the endpoint with an engine behind it that does what the last
// message says, for tests of clients that need exact answers and errors which a
// real model gives only by chance.
package fake

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"tandem/daemon/api"
	"tandem/daemon/api/apitest"
	"tandem/daemon/fault"
	"tandem/daemon/request"
)

// Answer is what the fake says to everything that is not one of the commands
// below. Its characters are cut into bytes, one token each.
const Answer = "Hello from the fake: \"é\", 한국어, 😀.\nThat is all."

// Commands, as the last message or the prompt.
const (
	// Refuse, with the code of a fault behind it, makes the engine refuse.
	Refuse = "refuse "
	// Die, with the code of a fault behind it, says DieText and then fails.
	Die = "die "
	// Hang says HangText and then nothing until the client leaves.
	Hang = "hang"
	// Wait is silent for WaitTime, which is several keep-alives, and then answers.
	Wait = "wait"
)

// What the commands say before they do what they do.
const (
	DieText  = "Half an ans"
	HangText = "I begin"
	WaitTime = 350 * time.Millisecond
)

// Model is the name of the model, and Window its window in tokens.
const (
	Model  = "fake-model"
	Alias  = "fake-alias"
	Window = 2048
)

// Server is a fake endpoint.
type Server struct {
	http.Handler
	Engine *apitest.Engine
}

// New makes a fake endpoint. Beside the product's routes it answers GET /metrics
// with fake_cancelled, the number of requests that were cancelled.
func New() *Server {
	s := &Server{}
	s.Engine = &apitest.Engine{
		Life:   3,
		Retry:  2 * time.Second,
		Refuse: func(r request.Spec) error { return named(command(r), Refuse) },
		Script: script,
	}
	s.Handler = api.New(api.Options{
		Engine:    s.Engine,
		Text:      apitest.Text{},
		Model:     api.Model{Name: Model, Aliases: []string{Alias}, Context: Window, DefaultOutput: 256},
		Keepalive: 50 * time.Millisecond,
		Metrics:   http.HandlerFunc(s.metrics),
	})
	return s
}

func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	n := 0
	for _, st := range s.Engine.Streams() {
		n += len(st.Calls().Cancels)
	}
	fmt.Fprintf(w, "fake_cancelled %d\n", n)
}

// command is the last message's content, or the prompt.
func command(r request.Spec) string {
	text := apitest.Text{}.Decode(r.Prompt)
	text = strings.TrimPrefix(text, "<|start|>")
	text = strings.TrimSuffix(text, "<|end|><|start|>assistant\n")
	if i := strings.LastIndex(text, "<|start|>"); i >= 0 {
		text = text[i+len("<|start|>"):]
	}
	if _, content, ok := strings.Cut(text, "\n"); ok {
		return content
	}
	return text
}

// named is the fault whose code stands behind the prefix, nil without the prefix.
func named(command, prefix string) error {
	code, ok := strings.CutPrefix(command, prefix)
	if !ok {
		return nil
	}
	for _, k := range fault.Kinds() {
		if k.String() == code {
			return fault.New(k, "the fake was told to %s", command)
		}
	}
	return fault.New(fault.Invalid, "no fault has the code %q", code)
}

func script(r request.Spec) []apitest.Step {
	c := command(r)
	switch {
	case strings.HasPrefix(c, Die):
		steps := apitest.Say(DieText, request.FinishStop)
		steps[len(steps)-1].Out = request.Output{Err: named(c, Die).(*fault.Error)}
		return steps
	case c == Hang:
		steps := apitest.Say(HangText, request.FinishStop)
		return steps[:len(steps)-1]
	}
	text, finish := Answer, request.FinishStop
	if r.MaxTokens < len(text) {
		text, finish = text[:r.MaxTokens], request.FinishLength
	}
	steps := apitest.Say(text, finish)
	if c == Wait {
		steps[0].Wait = WaitTime
	}
	return steps
}
