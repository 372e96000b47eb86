package transfer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// run applies "event rank" lines and returns what happened, a line each.
func run(t Transfer, script ...Event) (Transfer, string) {
	var out strings.Builder
	for _, ev := range script {
		next, acts, ignored := t.Step(ev)
		fmt.Fprintf(&out, "%s %d: %s → %s", ev.Kind, ev.Rank, t.State, next.State)
		for _, a := range acts {
			fmt.Fprintf(&out, ", %s", a)
		}
		if ignored {
			out.WriteString(" (ignored)")
		}
		out.WriteString("\n")
		t = next
	}
	return t, out.String()
}

func check(t *testing.T, got, want string) {
	t.Helper()
	if want = strings.TrimLeft(want, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestHandoverFromStartToEnd(t *testing.T) {
	end, got := run(New(Handover, 2, 2, false),
		Event{Start, 0}, Event{Reserved, 0}, Event{Reserved, 1}, Event{SourceDone, 1}, Event{SourceDone, 0},
		Event{Verified, 0}, Event{Verified, 1}, Event{Release, 0}, Event{TargetQuiet, 1}, Event{TargetQuiet, 0})
	check(t, got, `
start 0: idle → reserving, tell target
reserved 0: reserving → reserving
reserved 1: reserving → moving, tell source
source done 1: moving → moving
source done 0: moving → moving
verified 0: moving → moving
verified 1: moving → arrived, deliver, free source
release 0: arrived → releasing, retire target
target quiet 1: releasing → releasing
target quiet 0: releasing → closed, free target
`)
	if end.State != Closed {
		t.Error("not closed")
	}
}

// Prefill's last report is lost. The client is served all the same, but no page
// that the silent rank might still write is given away.
func TestCompletionReportIsLost(t *testing.T) {
	_, got := run(New(Handover, 1, 1, false),
		Event{Start, 0}, Event{Reserved, 0}, Event{Verified, 0}, Event{SourceLate, 0}, Event{Release, 0}, Event{TargetQuiet, 0},
		Event{SourceQuiet, 0})
	check(t, got, `
start 0: idle → reserving, tell target
reserved 0: reserving → moving, tell source
verified 0: moving → arrived, deliver
source late 0: arrived → arrived, quiesce source
release 0: arrived → releasing, retire target
target quiet 0: releasing → releasing
source quiet 0: releasing → closed, free source, free target
`)
}

// With pull, the target's pages depend on the target alone; the source's stay
// until the target has stopped reading.
func TestPullGivenUpWhileReading(t *testing.T) {
	_, got := run(New(Pull, 1, 2, false),
		Event{Start, 0}, Event{Reserved, 0}, Event{Reserved, 1}, Event{Verified, 0}, Event{GiveUp, 0},
		Event{SourceQuiet, 0}, Event{TargetQuiet, 0}, Event{TargetQuiet, 1})
	check(t, got, `
start 0: idle → reserving, tell target
reserved 0: reserving → reserving
reserved 1: reserving → moving, tell source
verified 0: moving → moving
give up 0: moving → draining, quiesce source, quiesce target
source quiet 0: draining → draining
target quiet 0: draining → draining
target quiet 1: draining → closed, free source, free target
`)
}

// With push, the target's pages wait for the source, which writes them.
func TestPushGivenUpWaitsForTheWriter(t *testing.T) {
	_, got := run(New(Push, 1, 1, false),
		Event{Start, 0}, Event{Reserved, 0}, Event{GiveUp, 0}, Event{TargetQuiet, 0}, Event{SourceQuiet, 0})
	check(t, got, `
start 0: idle → reserving, tell target
reserved 0: reserving → moving, tell source
give up 0: moving → draining, quiesce source, quiesce target
target quiet 0: draining → draining
source quiet 0: draining → closed, free source, free target
`)
}

// A decode rank that owns no unit confirms at once, before others have even
// acknowledged; its word must not be lost.
func TestRankWithNothingToTakeIsEarly(t *testing.T) {
	_, got := run(New(Handover, 1, 2, false), Event{Start, 0}, Event{Reserved, 1}, Event{Verified, 1}, Event{Reserved, 0}, Event{Verified, 0})
	check(t, got, `
start 0: idle → reserving, tell target
reserved 1: reserving → reserving
verified 1: reserving → reserving
reserved 0: reserving → moving, tell source
verified 0: moving → arrived, deliver
`)
}

func TestNothingToMove(t *testing.T) {
	_, got := run(New(Handover, 2, 1, true), Event{Start, 0}, Event{Reserved, 0}, Event{Release, 0}, Event{TargetQuiet, 0})
	check(t, got, `
start 0: idle → reserving, tell target
reserved 0: reserving → arrived, deliver, free source
release 0: arrived → releasing, retire target
target quiet 0: releasing → closed, free target
`)
}

func TestLateAndDoubledReportsAreIgnored(t *testing.T) {
	tr := New(Handover, 1, 1, false)
	for _, ev := range []Event{{Reserved, 0}, {Verified, 0}, {SourceDone, 0}, {SourceQuiet, 0}, {TargetQuiet, 0}, {Release, 0}} {
		if next, acts, ignored := tr.Step(ev); !ignored || len(acts) != 0 || next != tr {
			t.Errorf("%s before the start: %v %v", ev.Kind, acts, ignored)
		}
	}
	moving, _ := run(tr, Event{Start, 0}, Event{Reserved, 0})
	for _, ev := range []Event{{Start, 0}, {Reserved, 0}, {Reserved, 5}, {Verified, 5}, {SourceDone, 5}, {TargetQuiet, 0}, {Release, 0}} {
		if next, _, ignored := moving.Step(ev); !ignored || next != moving {
			t.Errorf("%s of rank %d while moving was not ignored", ev.Kind, ev.Rank)
		}
	}
}

// Every reachable state under every order of events, for small replicas: pages
// are never freed while somebody who was told of them has not been silenced, and
// decoding starts only when every rank verified.
func TestEveryReachableState(t *testing.T) {
	for _, tr := range []Transport{Handover, Pull, Push} {
		for _, n := range [][2]int{{1, 1}, {2, 1}, {1, 2}, {2, 2}} {
			seen := explore(t, New(tr, n[0], n[1], false))
			closed := 0
			for s := range seen {
				if s.State == Closed {
					closed++
				}
			}
			if closed == 0 {
				t.Errorf("%s %v: never closes", tr, n)
			}
			t.Logf("%s, %d source and %d target ranks: %d states", tr, n[0], n[1], len(seen))
		}
	}
}

func explore(t *testing.T, start Transfer) map[Transfer]bool {
	var events []Event
	for k := Start; k <= GiveUp; k++ {
		events = append(events, Event{k, 0}, Event{k, 1})
	}
	seen := map[Transfer]bool{start: true}
	for todo := []Transfer{start}; len(todo) > 0; {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, ev := range events {
			next, acts, ignored := s.Step(ev)
			if ignored {
				if next != s || len(acts) > 0 {
					t.Fatalf("%+v: %s ignored but not without effect", s, ev.Kind)
				}
				continue
			}
			sourceSilent := !next.SourceTold || next.SourceMute == next.Source
			targetSilent := !next.TargetTold || next.TargetMute == next.Target
			if slices.Contains(acts, FreeTarget) && (!targetSilent || next.Transport != Pull && !sourceSilent) {
				t.Fatalf("%+v: target pages freed while somebody may touch them", next)
			}
			if slices.Contains(acts, FreeSource) && (!sourceSilent || !targetSilent && next.Verified|next.TargetMute != next.Target) {
				t.Fatalf("%+v: source pages freed while somebody may touch them", next)
			}
			if slices.Contains(acts, Deliver) && next.Verified != next.Target {
				t.Fatalf("%+v: delivered before every rank verified", next)
			}
			if s.State == Closed {
				t.Fatalf("%+v: %s does something after the end: %v", s, ev.Kind, acts)
			}
			if !seen[next] {
				seen[next] = true
				todo = append(todo, next)
			}
		}
	}
	return seen
}
