package control

import (
	"context"
	"sync"

	"tandem/daemon/core"
	"tandem/daemon/fault"
	"tandem/daemon/request"
)

// Stream carries one request's output from the loop to the goroutine that serves
// the client, and that goroutine's wishes back. What it holds is bounded by the
// request's token limit; the loop never waits for it.
type Stream struct {
	loop *Loop

	mu     sync.Mutex  // guards what follows
	ticket core.Ticket // 0 until it is admitted
	tokens []int32
	finish request.Finish
	err    *fault.Error
	ring   chan struct{} // one token: there is output
	closed bool
}

func newStream(l *Loop) *Stream { return &Stream{loop: l, ring: make(chan struct{}, 1)} }

// admitted gives the stream its request's name. It reports false if nobody waits for
// it any more.
func (s *Stream) admitted(t core.Ticket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ticket = t
	return !s.closed
}

func (s *Stream) push(token int32) {
	s.mu.Lock()
	s.tokens = append(s.tokens, token)
	s.mu.Unlock()
	s.wake()
}

// end tells how the answer ended. The first word is the last.
func (s *Stream) end(f request.Finish, err *fault.Error) {
	s.mu.Lock()
	if s.finish == 0 && s.err == nil {
		s.finish, s.err = f, err
	}
	s.mu.Unlock()
	s.wake()
}

func (s *Stream) wake() {
	select {
	case s.ring <- struct{}{}:
	default:
	}
}

// Next implements api.Stream.
func (s *Stream) Next(ctx context.Context) (request.Output, error) {
	for {
		s.mu.Lock()
		out := request.Output{Tokens: s.tokens, Finish: s.finish, Err: s.err}
		s.tokens = nil
		s.mu.Unlock()
		if len(out.Tokens) > 0 || out.Ended() {
			return out, nil
		}
		select {
		case <-s.ring:
		case <-ctx.Done():
			return request.Output{}, ctx.Err()
		}
	}
}

// Stop implements api.Stream.
func (s *Stream) Stop() { s.loop.tell(s, request.Event{Kind: request.Stop}, "stop string") }

// Cancel implements api.Stream.
func (s *Stream) Cancel(reason string) {
	s.loop.tell(s, request.Event{Kind: request.Cancel, Fault: fault.Cancelled}, reason)
}

// Flushed implements api.Stream. The loop has a use for it only once the answer
// has ended.
func (s *Stream) Flushed() {
	s.mu.Lock()
	ended := s.finish != 0 || s.err != nil
	s.mu.Unlock()
	if ended {
		s.loop.tell(s, request.Event{Kind: request.Flushed}, "")
	}
}

// Close implements api.Stream. It is also right for a stream whose request may yet be
// admitted: nothing comes of that then.
func (s *Stream) Close() {
	s.mu.Lock()
	again, known := s.closed, s.ticket != 0
	s.closed = true
	s.mu.Unlock()
	if known && !again {
		s.loop.tell(s, request.Event{Kind: request.Closed}, "")
	}
}
