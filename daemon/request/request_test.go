package request

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/daemon/fault"
)

var limits = Limits{Queue: 30 * time.Second, Reserve: 2 * time.Second, PrefillStall: 20 * time.Second, Handoff: 2 * time.Second, Transfer: 15 * time.Second,
	Verify: time.Second, FirstToken: 10 * time.Second, TokenStall: 10 * time.Second, Drain: 30 * time.Second, Request: time.Hour, MaxAttempts: 3}

// play applies events, a second apart, and writes a line each.
func play(t *testing.T, m Machine, evs ...Event) (Machine, string) {
	t.Helper()
	now := m.Entered
	var out strings.Builder
	for _, ev := range evs {
		now = now.Add(time.Second / 2)
		next, acts, ignored := m.Step(&limits, ev, now)
		fmt.Fprintf(&out, "%s: %s → %s", ev.Kind, m.State, next.State)
		for _, a := range acts {
			fmt.Fprintf(&out, ", %s", a)
		}
		if ignored {
			out.WriteString(" (ignored)")
		}
		out.WriteString("\n")
		m = next
	}
	return m, out.String()
}

func check(t *testing.T, got, want string) {
	t.Helper()
	if want = strings.TrimLeft(want, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func kinds(ks ...Kind) (evs []Event) {
	for _, k := range ks {
		evs = append(evs, Event{Kind: k})
	}
	return evs
}

func TestUndisturbed(t *testing.T) {
	m, got := play(t, New(&limits, 0), append(kinds(Placed, Reserved, Progress, Moved, Progress, Prefilled, Landed, Arrived, Token, Token),
		Event{Kind: Token, Finish: FinishLength}, Event{Kind: Closed})...)
	check(t, got, `
placed: queued → reserving
reserved: reserving → prefilling
progress: prefilling → prefilling
moved: prefilling → prefilling
progress: prefilling → prefilling
prefilled: prefilling → transferring
landed: transferring → verifying
arrived: verifying → decoding, join
token: decoding → decoding
token: decoding → decoding
token: decoding → draining, release, end
closed: draining → gone, forget
`)
	if m.Outcome() != "length" || m.Tokens != 3 {
		t.Errorf("%v %s", m, m.Outcome())
	}
}

// Decode has everything and prefill's last word is lost: nobody waits for it.
func TestPrefillNeverSaysDone(t *testing.T) {
	_, got := play(t, New(&limits, 0), kinds(Placed, Reserved, Moved, Landed, Arrived, Token, Prefilled)...)
	check(t, got, `
placed: queued → reserving
reserved: reserving → prefilling
moved: prefilling → prefilling
landed: prefilling → prefilling
arrived: prefilling → decoding, join
token: decoding → decoding
prefilled: decoding → decoding (ignored)
`)
}

func TestGenerationChangeWhileDecodingGoesOn(t *testing.T) {
	m, got := play(t, New(&limits, 0), kinds(Placed, Reserved, Prefilled, Landed, Arrived, Token, GenerationEnded, GenerationEnded, Placed, Reserved, Prefilled, Landed, Arrived, Token)...)
	check(t, got, `
placed: queued → reserving
reserved: reserving → prefilling
prefilled: prefilling → handoff
landed: handoff → verifying
arrived: verifying → decoding, join
token: decoding → decoding
generation ended: decoding → queued, abandon, requeue
generation ended: queued → queued (ignored)
placed: queued → reserving
reserved: reserving → prefilling
prefilled: prefilling → handoff
landed: handoff → verifying
arrived: verifying → decoding, join
token: decoding → decoding
`)
	if m.Tokens != 2 || m.Tries != 2 || m.Barren != 0 {
		t.Errorf("%+v", m)
	}
}

// A request whose every attempt ends a generation is not tried for ever.
func TestPoisonRequestFailsByName(t *testing.T) {
	m := New(&limits, 0)
	for range limits.MaxAttempts {
		if m.State != Queued {
			t.Fatalf("gave up early: %v", m)
		}
		m, _ = play(t, m, kinds(Placed, Reserved, GenerationEnded)...)
	}
	if m.State != Draining || m.Outcome() != "generation_changed" {
		t.Errorf("%v: %s", m, m.Outcome())
	}
}

// Attempts that brought a token are not held against the request.
func TestAttemptsThatBringTokensAreFree(t *testing.T) {
	m := New(&limits, 0)
	for i := range 50 {
		m, _ = play(t, m, kinds(Placed, Reserved, Prefilled, Landed, Arrived, Token, GenerationEnded)...)
		if m.State != Queued {
			t.Fatalf("change %d: %v: %s", i, m, m.Outcome())
		}
	}
}

func TestEachStateHasItsLimit(t *testing.T) {
	for _, c := range []struct {
		to   []Event
		wait time.Duration
		want string
	}{
		{nil, limits.Queue, "queue_timeout"},
		{kinds(Placed, Reserved), limits.PrefillStall, "prefill_stall"},
		{kinds(Placed, Reserved, Progress), limits.PrefillStall, "prefill_stall"},
		{kinds(Placed, Reserved, Moved, Prefilled), limits.Transfer, "kv_transfer_timeout"},
		{kinds(Placed, Reserved, Prefilled, Landed, Arrived), limits.FirstToken, "first_token_timeout"},
		{kinds(Placed, Reserved, Prefilled, Landed, Arrived, Token), limits.TokenStall, "token_stall"},
	} {
		m, _ := play(t, New(&limits, 0), c.to...)
		due := m.Due(&limits)
		if due != m.Armed.Add(c.wait) {
			t.Errorf("%s: due %v after it was armed, want %v", m.State, due-m.Armed, c.wait)
		}
		if early, acts, _ := m.Step(&limits, Event{Kind: Tick}, due-1); early != m || acts != nil {
			t.Errorf("%s: ended a nanosecond early", m.State)
		}
		end, acts, _ := m.Step(&limits, Event{Kind: Tick}, due)
		if end.State != Draining || end.Outcome() != c.want || !slices.Contains(acts, End) {
			t.Errorf("%s at its limit: %v %s %v, want %s", m.State, end, end.Outcome(), acts, c.want)
		}
	}
}

// Waits that another attempt may not meet are tried again, as often as attempts are.
func TestWaitsWorthAnotherAttempt(t *testing.T) {
	for _, to := range [][]Event{kinds(Placed), kinds(Placed, Reserved, Prefilled), kinds(Placed, Reserved, Prefilled, Landed)} {
		m := New(&limits, 0)
		for try := 1; ; try++ {
			m, _ = play(t, m, to...)
			waiting := m
			m, _, _ = m.Step(&limits, Event{Kind: Tick}, m.Due(&limits))
			if m.State == Draining {
				if try != limits.MaxAttempts {
					t.Errorf("%s ended after %d attempts", waiting.State, try)
				}
				break
			}
			if m.State != Queued {
				t.Fatalf("%v", m)
			}
		}
	}
}

func TestProgressRearmsAndHeartbeatDoesNot(t *testing.T) {
	m, _ := play(t, New(&limits, 0), kinds(Placed, Reserved)...)
	was := m.Due(&limits)
	later, _, _ := m.Step(&limits, Event{Kind: Tick}, was-1)
	if later.Due(&limits) != was {
		t.Error("time alone re-armed a limit")
	}
	later, _, _ = m.Step(&limits, Event{Kind: Progress}, was-1)
	if later.Due(&limits) <= was {
		t.Error("progress did not re-arm the limit")
	}
}

func TestNothingOutlivesTheRequestsOwnLimit(t *testing.T) {
	m, _ := play(t, New(&limits, 0), kinds(Placed, Reserved, Prefilled, Landed, Arrived)...)
	now := m.Armed
	for m.State == Decoding {
		m, _, _ = m.Step(&limits, Event{Kind: Token}, now)
		now = min(now.Add(9*time.Second), m.Due(&limits))
		m, _, _ = m.Step(&limits, Event{Kind: Tick}, now)
	}
	if now != m.Expires {
		t.Errorf("ended %v after its limit", now-m.Expires)
	}
	if m.Outcome() != "request_timeout" {
		t.Error(m.Outcome())
	}
}

// Every reachable state under every order of events: one End, never anything for
// the client after it, Forget exactly at Gone, and no attempt without an end.
func TestEveryReachableState(t *testing.T) {
	type world struct {
		m        Machine
		ended    bool
		attempts bool // an attempt is out
	}
	evs := []Event{}
	for k := Placed; k <= Tick; k++ {
		evs = append(evs, Event{Kind: k})
	}
	evs = append(evs, Event{Kind: Token, Finish: FinishStop}, Event{Kind: Failed, Fault: fault.WorkerLost}, Event{Kind: Failed, Fault: fault.DigestMismatch},
		Event{Kind: Cancel, Fault: fault.Cancelled})
	norm := func(m Machine) Machine { // time and counts do not matter for which states exist
		m.Entered, m.Armed, m.Expires, m.Tokens, m.Tries = 0, 0, 1<<62, min(m.Tokens, 1), min(m.Tries, 1)
		return m
	}
	start := world{m: norm(New(&limits, 0))}
	seen := map[world]bool{start: true}
	for todo := []world{start}; len(todo) > 0; {
		w := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, ev := range evs {
			for _, now := range []Instant{1, 1 << 61} {
				next, acts, ignored := w.m.Step(&limits, ev, now)
				n := w
				n.m = norm(next)
				if ignored && (next != w.m || acts != nil) {
					t.Fatalf("%v: %s was ignored with an effect", w.m, ev.Kind)
				}
				if ev.Kind == Placed && !ignored {
					n.attempts = true
				}
				for _, a := range acts {
					switch a {
					case End:
						if n.ended {
							t.Fatalf("%v: %s ends it again", w.m, ev.Kind)
						}
						n.ended = true
						if (next.Finish == 0) == (next.Fault == 0) && next.Fault != fault.Internal {
							t.Fatalf("%v: ended with finish %v and fault %v", w.m, next.Finish, next.Fault)
						}
					case Join, Requeue:
						if w.ended {
							t.Fatalf("%v: %s after the end", w.m, a)
						}
					case Abandon, Release:
						if !n.attempts {
							t.Fatalf("%v: %s without an attempt", w.m, a)
						}
						n.attempts = false
					case Forget:
						if next.State != Gone || !n.ended {
							t.Fatalf("%v: forgotten in %s", w.m, next.State)
						}
					}
				}
				if n.attempts != (next.State > Queued && next.State < Draining) {
					t.Fatalf("%v: %s leaves an attempt behind or loses one: %v", w.m, ev.Kind, next)
				}
				if n.ended != (next.State >= Draining) {
					t.Fatalf("%v: %s: ended %v in %s", w.m, ev.Kind, n.ended, next.State)
				}
				if (next.State == Gone) != slices.Contains(acts, Forget) && w.m.State != Gone {
					t.Fatalf("%v: %s → gone without Forget", w.m, ev.Kind)
				}
				if !seen[n] {
					seen[n] = true
					todo = append(todo, n)
				}
			}
		}
	}
	t.Logf("%d states", len(seen))
}
