package core

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
	"unsafe"

	"tandem/daemon/admit"
	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
)

// mute is an outside that does nothing and remembers what the tests ask for.
type mute struct {
	stuck int
	ended int
}

func (*mute) Send(int, wire.Message) error                     { return nil }
func (*mute) Spawn(ident.Generation)                           {}
func (*mute) Kill()                                            {}
func (*mute) Reaped() error                                    { return nil }
func (*mute) Token(Ticket, int32)                              {}
func (m *mute) End(Ticket, request.Finish, *fault.Error)       { m.ended++ }
func (*mute) Forget(Ticket)                                    {}
func (*mute) Event(observe.Kind, string, ...observe.Field)     {}
func (*mute) Wants(observe.Kind) bool                          { return false }
func (m *mute) Stuck(ident.Request, request.State)             { m.stuck++ }
func (*mute) Notify(string, bool)                              {}
func (*mute) DeadlineExceeded(string)                          {}
func (*mute) GenerationEnded(string)                           {}
func (*mute) Transferred(string, string, time.Duration, int64) {}
func (*mute) TransferFailed(string, string, fault.Kind)        {}
func (*mute) VerifyFailed(string)                              {}
func (*mute) Rejected(fault.Kind)                              {}
func (*mute) Fenced(string)                                    {}
func (*mute) Resumed(int)                                      {}
func (*mute) PromptTokens(string, int)                         {}
func (*mute) OutputTokens(int)                                 {}

// crowd is a Core whose ranks never answer, with so many requests that have a place
// beyond the queue and so many in it.
func crowd(t testing.TB, running, queued int) (*Core, *mute) {
	t.Helper()
	cfg := &config{transport: transfer.Handover, p: 1, d: 1, idle: -1, pages: 2*running + 16, slots: running + 8, attempts: 3}
	o := cfg.options()
	o.Admit = admit.Limits{Running: running, Queued: queued}
	o.MaxBatch = 256
	out := new(mute)
	c := New(o, out, 0)
	c.Start(1)
	c.Launched(1, 1, make([]Proc, 2), "", nil)
	for i := range 2 {
		c.Frame(1, 1, 1, i, &wire.Ready{})
	}
	for i := range running + queued {
		if _, err := c.Submit(2, request.Spec{ID: ident.Request(fmt.Sprint("r", i)), Prompt: make([]int32, 2), MaxTokens: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.running(); n != running || len(c.queue) != queued {
		t.Fatalf("%d running and %d queued, want %d and %d", n, len(c.queue), running, queued)
	}
	return c, out
}

// What one look at everything costs, and one event that concerns nobody, with many
// requests about.
func BenchmarkCrowd(b *testing.B) {
	for _, n := range []struct{ running, queued int }{{16, 16}, {32, 3000}, {3000, 1000}} {
		c, _ := crowd(b, n.running, n.queued)
		now := request.Instant(3)
		b.Run(fmt.Sprintf("watch/%d+%d", n.running, n.queued), func(b *testing.B) {
			for range b.N {
				now++
				c.Watch(now, nil)
			}
		})
		b.Run(fmt.Sprintf("event/%d+%d", n.running, n.queued), func(b *testing.B) {
			for range b.N {
				now++
				c.Frame(now, 1, 1, 1, &wire.Quiet{Attempt: 1})
			}
		})
	}
}

// All requests of a stuck prefill pass their limit at the same look: the stacks are
// gathered once for all of them, not once for each.
func TestEvidenceIsGatheredOnceForAll(t *testing.T) {
	c, out := crowd(t, 200, 0)
	now := request.Instant(2)
	for range 12 { // seconds: past the limit of Reserving, and the attempts after it
		now = now.Add(time.Second)
		c.Watch(now, nil)
	}
	if out.ended+len(c.queue) == 0 {
		t.Fatal("no request passed a limit")
	}
	if most := 1 + int(12*time.Second/evidenceEvery); out.stuck < 1 || out.stuck > most {
		t.Errorf("stacks were gathered %d times in 12 s, want 1 to %d", out.stuck, most)
	}
}

// What is remembered of requests that ended does not grow with their number, and
// the wait that a refused client is told is still the right one.
func TestEndedRequestsAreForgotten(t *testing.T) {
	c, _ := crowd(t, 0, 0)
	c.o.Admit.Queued = 8
	now := request.Instant(time.Second)
	const each = time.Millisecond // a request ends
	for i := range 3 * maxLately {
		now = now.Add(each)
		ticket, err := c.Submit(now, request.Spec{ID: ident.Request(fmt.Sprint("q", i)), Prompt: make([]int32, 2), MaxTokens: 1})
		if err != nil {
			t.Fatal(err)
		}
		c.Tell(now, ticket, request.Event{Kind: request.Closed}, "")
	}
	if len(c.lately) != maxLately || len(c.ended.list) != maxRecords || len(c.requests)+len(c.names)+len(c.order)+len(c.queue) != 0 {
		t.Errorf("%d ends, %d stories, %d requests, %d names, %d in order, %d queued are kept", len(c.lately), len(c.ended.list), len(c.requests), len(c.names), len(c.order), len(c.queue))
	}
	if got := c.RetryAfter(); got != time.Second {
		t.Errorf("a place is free within milliseconds, and a client is told to wait %s", got)
	}
}

// A story is bounded in lines and in what a line holds, whoever wrote it.
func TestStoryIsBounded(t *testing.T) {
	r := new(Record)
	long := strings.Repeat("é", 1<<20)
	for range 10 * maxNotes {
		r.note(1, "failed", request.Queued, long)
	}
	size := 0
	for _, n := range r.Events {
		size += int(unsafe.Sizeof(n)) + len(n.Text)
	}
	if len(r.Events) != maxNotes || size > 72<<10 || r.Dropped != 9*maxNotes {
		t.Errorf("%d lines in %d bytes, %d dropped", len(r.Events), size, r.Dropped)
	}
	if s := r.Events[0].Text; !utf8.ValidString(s) {
		t.Errorf("a cut text ends within a character: %q", s[len(s)-8:])
	}
}

// A request is admitted and placed at the same cost, however many are there already.
func BenchmarkArrival(b *testing.B) {
	for _, n := range []int{16, 3000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, _ := crowd(b, n, 0)
			c.o.Admit.Running++
			now := request.Instant(3)
			for i := range b.N {
				now++
				t, err := c.Submit(now, request.Spec{ID: ident.Request(fmt.Sprint("q", i)), Prompt: make([]int32, 2), MaxTokens: 1})
				if err != nil {
					b.Fatal(err)
				}
				r := c.requests[t]
				if r.attempt == nil {
					b.Fatal("not placed")
				}
				seq := r.attempt.id.Seq
				c.Tell(now, t, request.Event{Kind: request.Closed}, "")
				c.Frame(now, 1, 1, 1, &wire.Quiet{Attempt: seq})
			}
		})
	}
}

// The dearest single events: a generation ends under all its requests, and what they
// have passed limits at the same look.
func BenchmarkDearest(b *testing.B) {
	b.Run("generation ends/3000", func(b *testing.B) {
		for range b.N {
			b.StopTimer()
			c, _ := crowd(b, 3000, 0)
			b.StartTimer()
			c.Exited(3, 1, 1, Exit{Text: "signal: killed", Killed: true})
		}
	})
	b.Run("limits pass/3000", func(b *testing.B) {
		for range b.N {
			b.StopTimer()
			c, _ := crowd(b, 3000, 0)
			b.StartTimer()
			c.Watch(request.Instant(time.Minute), nil)
		}
	})
}
