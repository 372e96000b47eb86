package request

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/statetest"
)

// variants are the events with what tells them apart.
var variants = []struct {
	name string
	ev   Event
}{
	{"placed", Event{Kind: Placed}}, {"reserved", Event{Kind: Reserved}}, {"progress", Event{Kind: Progress}}, {"prefilled", Event{Kind: Prefilled}}, {"moved", Event{Kind: Moved}},
	{"landed", Event{Kind: Landed}}, {"arrived", Event{Kind: Arrived}}, {"token", Event{Kind: Token}}, {"token, the last", Event{Kind: Token, Finish: FinishLength}},
	{"failed, worth another attempt", Event{Kind: Failed, Fault: fault.WorkerLost}}, {"failed", Event{Kind: Failed, Fault: fault.DigestMismatch}}, {"retracted", Event{Kind: Retracted}},
	{"generation ended", Event{Kind: GenerationEnded}}, {"stop", Event{Kind: Stop}}, {"cancel", Event{Kind: Cancel, Fault: fault.Cancelled}}, {"flushed", Event{Kind: Flushed}}, {"closed", Event{Kind: Closed}},
	{"tick", Event{Kind: Tick}}, {"tick at the limit of the state", Event{Kind: Tick}}, {"tick at the limit of the request", Event{Kind: Tick}},
}

// outcomes is all that each event leads to in each state, over every reachable
// machine.
func outcomes() statetest.Outcomes {
	out := statetest.Outcomes{}
	norm := func(m Machine) Machine { // of time, only what came last matters
		m.Entered, m.Armed, m.Expires, m.Tokens, m.Tries = 0, 0, Instant(limits.Request), min(m.Tokens, 1), min(m.Tries, 1)
		return m
	}
	start := norm(New(&limits, 0))
	seen := map[Machine]bool{start: true}
	for todo := []Machine{start}; len(todo) > 0; {
		m := todo[0]
		todo = todo[1:]
		for _, v := range variants {
			now := Instant(time.Millisecond)
			switch {
			case strings.HasSuffix(v.name, "of the state"):
				now = m.Armed.Add(m.Limit(&limits))
			case strings.HasSuffix(v.name, "of the request"):
				now = m.Expires
			}
			next, acts, ignored := m.Step(&limits, v.ev, now)
			what := "ignored"
			if !ignored {
				what = next.State.String()
				switch {
				case next == m && len(acts) == 0:
					what = "nothing"
				case next.State == m.State:
					what = "stays"
					if next.Armed != m.Armed {
						what = "stays, the limit is re-armed"
					}
				case next.State == Draining && m.State != Draining:
					what += " (" + next.Outcome() + ")"
				}
				for _, a := range acts {
					what += ", " + a.String()
				}
			}
			out.Add(m.State.String(), v.name, what)
			if n := norm(next); !seen[n] {
				seen[n] = true
				todo = append(todo, n)
			}
		}
	}
	return out
}

// STATES.md is what the code does. A change of either without the other fails.
func TestStatesAreWrittenDown(t *testing.T) {
	var kinds []Kind
	for _, v := range variants {
		kinds = append(kinds, v.ev.Kind)
	}
	for k := Placed; k <= Tick; k++ {
		if !slices.Contains(kinds, k) {
			t.Errorf("the table lacks the event %s", k)
		}
	}
	var names, events []string
	for s := Queued; s < states; s++ {
		names = append(names, s.String())
	}
	for _, v := range variants {
		events = append(events, v.name)
	}
	statetest.Compare(t, "# What a request does with each event in each state\n\nWritten by `go test ./daemon/request -run States -update`, from the code, over every reachable machine; the same test\n"+
		"without the flag compares. \"a **or** b\" means that it depends on what the machine remembers: attempts used up, pages\nthat landed before prefill was done, whether a first token came. What is *ignored* changes nothing and is counted.\n", names, events, outcomes())
}

// ARCHITECTURE.md has a table of states, limits and what passing them means.
func TestArchitectureTellsTheLimits(t *testing.T) {
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for _, l := range strings.Split(string(text), "\n") {
		if cells := strings.Split(l, "|"); len(cells) == 6 {
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows[cells[1]] = cells
		}
	}
	keys := map[string]string{"queue": "Queue", "reserve": "Reserve", "prefill_stall": "PrefillStall", "handoff": "Handoff", "transfer": "Transfer", "verify": "Verify",
		"first_token": "FirstToken", "token_stall": "TokenStall"} // of the configuration → field of Limits
	// Each field gets a value of its own, so that the machine itself says which one it uses.
	var l Limits
	names := map[time.Duration]string{}
	v := reflect.ValueOf(&l).Elem()
	for i := range v.NumField() {
		if v.Field(i).Type() == reflect.TypeFor[time.Duration]() {
			v.Field(i).SetInt(int64(i+1) * int64(time.Second))
			names[time.Duration(i+1)*time.Second] = v.Type().Field(i).Name
		}
	}
	for _, s := range LiveStates() {
		row := rows[s.String()]
		if row == nil {
			t.Errorf("no row for %s", s)
			continue
		}
		for _, fresh := range []bool{true, false} {
			m := Machine{State: s, Fresh: fresh}
			limit, kind := l.of(&m)
			if s == Draining {
				if names[limit] != "Drain" || !strings.Contains(row[3], "32 s") {
					t.Errorf("%s: its limit is %s, the table says %q", s, names[limit], row[3])
				}
				continue
			}
			key := ""
			for k, field := range keys {
				if field == names[limit] && regexp.MustCompile(`\b`+k+`\b`).MatchString(row[3]) {
					key = k
				}
			}
			if key == "" {
				t.Errorf("%s: its limit is %s, the table says %q", s, names[limit], row[3])
			}
			if !regexp.MustCompile(`\b` + kind.String() + `\b`).MatchString(row[4]) {
				t.Errorf("%s: passing it is %s, the table says %q", s, kind, row[4])
			}
			if again(kind) != strings.Contains(row[4], "another attempt") {
				t.Errorf("%s: another attempt after %s: %v, the table says %q", s, kind, again(kind), row[4])
			}
		}
	}
}
