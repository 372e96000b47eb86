// Package statetest writes down what a pure machine does with each event in each
// state, and compares that with what is written. Tests only.
package statetest

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write STATES.md anew")

// Outcomes are what each event led to, by the names of state and event.
type Outcomes map[string]map[string][]string

// Add notes that an event led to something once; "ignored" stands apart.
func (o Outcomes) Add(state, event, what string) {
	if o[state] == nil {
		o[state] = map[string][]string{}
	}
	if !slices.Contains(o[state][event], what) {
		o[state][event] = append(o[state][event], what)
	}
}

// Compare wants the STATES.md beside the test to be intro and a table for each state,
// all in the orders given. A state without outcomes is not reachable, which is an error.
func Compare(t *testing.T, intro string, states, events []string, o Outcomes) {
	t.Helper()
	var b strings.Builder
	b.WriteString(intro)
	for _, s := range states {
		if o[s] == nil {
			t.Errorf("%s is not reachable", s)
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n| event | leads to |\n|---|---|\n", s)
		var ignored []string
		for _, ev := range events {
			what := o[s][ev]
			slices.Sort(what)
			if slices.Equal(what, []string{"ignored"}) {
				ignored = append(ignored, ev)
				continue
			}
			fmt.Fprintf(&b, "| %s | %s |\n", ev, strings.Join(what, " **or** "))
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
