package supervise

import (
	"fmt"
	"testing"
	"time"

	"tandem/daemon/statetest"
)

// STATES.md is what the code does, over every reachable supervisor of two ranks. A
// change of either without the other fails.
func TestStatesAreWrittenDown(t *testing.T) {
	l := Limits{Start: 20 * time.Second, Reap: 5 * time.Second, Budget: 2, Window: time.Minute, BackoffMin: time.Second, BackoffMax: 4 * time.Second}
	variants := []struct {
		name string
		kind Kind
		wait time.Duration // since the state was entered
	}{
		{"start", Start, 0}, {"ready", Ready, 0}, {"exited", Exited, 0}, {"condemned", Condemned, 0}, {"reaped", Reaped, 0}, {"stop", Stop, 0},
		{"tick", Tick, time.Millisecond}, {"tick after a long time", Tick, time.Hour},
	}
	out := statetest.Outcomes{}
	key := func(m Machine) string {
		return fmt.Sprint(m.State, m.Ready, min(m.Failed, 2), len(m.recent), m.Late, m.Stop, m.Until-m.Entered)
	}
	start := New(2)
	seen := map[string]bool{key(start): true}
	for todo := []Machine{start}; len(todo) > 0; {
		m := todo[0]
		todo = todo[1:]
		for _, v := range variants {
			next, acts := m.Step(&l, Event{Kind: v.kind, Reason: "test"}, m.Entered+Instant(v.wait))
			what := next.State.String()
			switch {
			case next.State == m.State && len(acts) == 0 && key(next) == key(m):
				what = "ignored"
			case next.State == m.State:
				what = "stays"
			}
			for _, a := range acts {
				what += ", " + actionNames[a]
			}
			out.Add(m.State.String(), v.name, what)
			if len(next.recent) > l.Budget+2 {
				continue
			}
			if k := key(next); !seen[k] {
				seen[k] = true
				todo = append(todo, next)
			}
		}
	}
	var states, events []string
	for s := Down; s <= Stopped; s++ {
		states = append(states, s.String())
	}
	for _, v := range variants {
		events = append(events, v.name)
	}
	statetest.Compare(t, "# What the supervisor does with each event in each state\n\nWritten by `go test ./daemon/supervise -run States -update`, from the code, over every reachable machine of two ranks; the same\n"+
		"test without the flag compares. \"a **or** b\" means that it depends on what the machine remembers: ranks that are ready,\ngenerations that ended lately, starts that failed, that it is to stop. What is *ignored* changes nothing.\n", states, events, out)
}
