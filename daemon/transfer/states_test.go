package transfer

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write STATES.md anew")

// STATES.md is what the code does, over every reachable transfer between two source
// and two target ranks. A change of either without the other fails.
func TestStatesAreWrittenDown(t *testing.T) {
	out := map[State]map[Kind][]string{}
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
						if out[x.State] == nil {
							out[x.State] = map[Kind][]string{}
						}
						if !slices.Contains(out[x.State][k], what) {
							out[x.State][k] = append(out[x.State][k], what)
						}
						if !seen[next] {
							seen[next] = true
							todo = append(todo, next)
						}
					}
				}
			}
		}
	}
	var b strings.Builder
	b.WriteString("# What a transfer does with each event in each state\n\nWritten by `go test ./daemon/transfer -run States -update`, from the code, over every reachable transfer of all transports,\n" +
		"with two ranks on each side, with pages to move and without; the same test without the flag compares. \"a **or** b\" means\nthat it depends on what other ranks said before. What is *ignored* changes nothing and is counted: a rank that says a\nthing twice, or says it too late.\n")
	for s := Idle; s <= Closed; s++ {
		if out[s] == nil {
			t.Errorf("%s is not reachable", s)
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n| event | leads to |\n|---|---|\n", s)
		var ignored []string
		for k := Start; k <= GiveUp; k++ {
			what := out[s][k]
			slices.Sort(what)
			if slices.Equal(what, []string{"ignored"}) {
				ignored = append(ignored, k.String())
				continue
			}
			fmt.Fprintf(&b, "| %s | %s |\n", k, strings.Join(what, " **or** "))
		}
		if len(ignored) > 0 {
			fmt.Fprintf(&b, "\n*Ignored:* %s.\n", strings.Join(ignored, "; "))
		}
	}
	if *update {
		if err := os.WriteFile("STATES.md", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("STATES.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Errorf("STATES.md is not what the code does. If that is on purpose: go test . -run States -update, and read the difference")
	}
}
