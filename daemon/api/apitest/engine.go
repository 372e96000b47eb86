// Package apitest holds an Engine and a Text that do as they are told, for tests
// of the endpoint and of clients. They are honest about the contract: an Engine
// counts what was called on each of its streams, and calls that break the rules.
package apitest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"tandem/daemon/api"
	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/request"
)

// Step is one output of a stream, and when it comes.
type Step struct {
	Wait time.Duration   // before the output
	Gate <-chan struct{} // if not nil, the output waits for this as well
	Out  request.Output
	Err  error // if not nil, Next returns it, against the contract, and Out is to come
}

// Engine answers each request with the steps that Script gives for it; after
// the last, if that ended nothing, its stream is silent until it is cancelled.
// Fields are set before use.
type Engine struct {
	Script     func(request.Spec) []Step
	Refuse     func(request.Spec) error // if it gives an error, Submit returns it
	NotReady   error                    // what Ready says
	Life       ident.Generation
	Retry      time.Duration
	OnSubmit   func(*Stream) // sees each stream before Submit returns
	PanicAfter int           // if above 0, a stream's Next panics after so many calls

	mu      sync.Mutex
	streams []*Stream // guarded by mu
}

var _ api.Engine = (*Engine)(nil)

// Submit admits the request unless Refuse says otherwise.
func (e *Engine) Submit(s request.Spec) (api.Stream, error) {
	if e.Refuse != nil {
		if err := e.Refuse(s); err != nil {
			return nil, err
		}
	}
	st := &Stream{Spec: s, engine: e, steps: slices.Clone(e.Script(s)), gone: make(chan struct{}), closed: make(chan struct{})}
	e.mu.Lock()
	e.streams = append(e.streams, st)
	e.mu.Unlock()
	if e.OnSubmit != nil {
		e.OnSubmit(st)
	}
	return st, nil
}

// Ready gives NotReady.
func (e *Engine) Ready() error { return e.NotReady }

// Generation gives Life.
func (e *Engine) Generation() ident.Generation { return e.Life }

// RetryAfter gives Retry.
func (e *Engine) RetryAfter() time.Duration { return e.Retry }

// Streams gives all streams in the order of their requests.
func (e *Engine) Streams() []*Stream {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*Stream(nil), e.streams...)
}

// Calls says what was called on a stream.
type Calls struct {
	Nexts, Stops, Closes, Flushes int
	Cancels                       []string // the reasons
	Ended                         bool     // Next gave an output that ended the stream
	Wrong                         []string // calls that the contract forbids
}

// Stream is one answer.
type Stream struct {
	Spec   request.Spec
	engine *Engine
	steps  []Step
	at     int
	timer  <-chan time.Time // of the current step
	waited bool             // the current step's time has passed

	gone   chan struct{} // closed by the first Cancel or Stop
	closed chan struct{} // closed by the first Close

	mu    sync.Mutex
	calls Calls // guarded by mu
}

// Calls gives what has been called so far.
func (s *Stream) Calls() Calls {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls
	c.Cancels = append([]string(nil), c.Cancels...)
	c.Wrong = append([]string(nil), c.Wrong...)
	return c
}

// Done is closed by Close.
func (s *Stream) Done() <-chan struct{} { return s.closed }

func (s *Stream) note(f func(c *Calls)) Calls {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.calls)
	return s.calls
}

// Next waits for the next step.
func (s *Stream) Next(ctx context.Context) (request.Output, error) {
	c := s.note(func(c *Calls) {
		c.Nexts++
		if c.Ended || c.Closes > 0 || c.Stops > 0 {
			c.Wrong = append(c.Wrong, "Next after the end")
		}
	})
	if n := s.engine.PanicAfter; n > 0 && c.Nexts > n {
		panic("apitest: told to")
	}
	if s.at == len(s.steps) {
		return s.silence(ctx)
	}
	step := s.steps[s.at]
	if step.Wait > 0 && !s.waited {
		if s.timer == nil {
			s.timer = time.After(step.Wait)
		}
		select {
		case <-s.timer:
			s.waited = true
		case <-s.gone:
			return s.silence(ctx)
		case <-ctx.Done():
			return request.Output{}, ctx.Err()
		}
	}
	if step.Gate != nil {
		select {
		case <-step.Gate:
		case <-s.gone:
			return s.silence(ctx)
		case <-ctx.Done():
			return request.Output{}, ctx.Err()
		}
	}
	if err := step.Err; err != nil {
		s.steps[s.at].Err = nil
		return request.Output{}, err
	}
	s.at++
	s.timer, s.waited = nil, false
	if step.Out.Ended() {
		s.note(func(c *Calls) { c.Ended = true })
	}
	return step.Out, nil
}

func (s *Stream) silence(ctx context.Context) (request.Output, error) {
	select {
	case <-s.gone:
		s.note(func(c *Calls) { c.Ended = true })
		return request.Output{Err: fault.New(fault.Cancelled, "cancelled")}, nil
	case <-ctx.Done():
		return request.Output{}, ctx.Err()
	}
}

func (s *Stream) end(f func(c *Calls)) {
	c := s.note(f)
	if c.Stops+len(c.Cancels) == 1 {
		close(s.gone)
	}
}

// Stop notes that the answer met a stop string.
func (s *Stream) Stop() {
	s.end(func(c *Calls) {
		c.Stops++
		if c.Ended || c.Closes > 0 {
			c.Wrong = append(c.Wrong, "Stop after the end")
		}
	})
}

// Cancel notes that nobody wants the rest.
func (s *Stream) Cancel(reason string) {
	s.end(func(c *Calls) {
		c.Cancels = append(c.Cancels, reason)
		if c.Closes > 0 {
			c.Wrong = append(c.Wrong, "Cancel after Close")
		}
	})
}

// Close notes that the answer is delivered or never will be.
func (s *Stream) Close() {
	c := s.note(func(c *Calls) {
		c.Closes++
		if c.Closes > 1 {
			c.Wrong = append(c.Wrong, "Close twice")
		}
		if !c.Ended && c.Stops == 0 && len(c.Cancels) == 0 {
			c.Wrong = append(c.Wrong, "Close of a live request")
		}
	})
	if c.Closes == 1 {
		close(s.closed)
	}
}

// Flushed notes that the client took bytes.
func (s *Stream) Flushed() { s.note(func(c *Calls) { c.Flushes++ }) }

// Tokens is an output of tokens.
func Tokens(ids ...int32) request.Output { return request.Output{Tokens: ids} }

// Say is the steps that say text, one token each, and end with finish.
func Say(text string, finish request.Finish) []Step {
	var steps []Step
	for _, t := range Encode(text) {
		steps = append(steps, Step{Out: Tokens(t)})
	}
	return append(steps, Step{Out: request.Output{Finish: finish}})
}

// Fail is an output that ends a stream with an error.
func Fail(k fault.Kind, format string, args ...any) request.Output {
	return request.Output{Err: &fault.Error{Kind: k, Op: "apitest", Err: fmt.Errorf(format, args...)}}
}
