package transfer

import (
	"testing"

	"tandem/daemon/statetest"
)

// STATES.md is what the code does, over every reachable transfer between two source
// and two target ranks. A change of either without the other fails.
func TestStatesAreWrittenDown(t *testing.T) {
	out := statetest.Outcomes{}
	for _, tr := range []Transport{Handover, Pull, Push} {
		for _, empty := range []bool{false, true} {
			start := New(tr, 2, 2, empty)
			seen := map[Transfer]bool{start: true}
			for todo := []Transfer{start}; len(todo) > 0; {
				x := todo[0]
				todo = todo[1:]
				for k := Start; k <= GiveUp; k++ {
					for rank := range 2 {
						next, acts, ignored := x.Step(Event{Kind: k, Rank: rank})
						what := "ignored"
						if !ignored {
							if what = next.State.String(); next.State == x.State {
								what = "stays"
							}
							for _, a := range acts {
								what += ", " + a.String()
							}
						}
						out.Add(x.State.String(), k.String(), what)
						if !seen[next] {
							seen[next] = true
							todo = append(todo, next)
						}
					}
				}
			}
		}
	}
	var states, events []string
	for s := Idle; s <= Closed; s++ {
		states = append(states, s.String())
	}
	for k := Start; k <= GiveUp; k++ {
		events = append(events, k.String())
	}
	statetest.Compare(t, "# What a transfer does with each event in each state\n\nWritten by `go test ./daemon/transfer -run States -update`, from the code, over every reachable transfer of all transports,\n"+
		"with two ranks on each side, with pages to move and without; the same test without the flag compares. \"a **or** b\" means\nthat it depends on what other ranks said before. What is *ignored* changes nothing and is counted: a rank that says a\nthing twice, or says it too late.\n", states, events, out)
}
