package core

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var mutant = flag.String("mutant", "", "only mutants with this in their name")

// mutants are faults that somebody could put into what decides. Each replaces a text
// that occurs once in a file as shipped, and the explorer must notice.
var mutants = []struct {
	name     string
	file     string // below the module's root
	old, new string
}{
	{"pushed pages are free although prefill may write", "daemon/transfer/transfer.go", "(t.Transport == Pull || sourceMute)", "true"},
	{"one quiet decode rank is all of them", "daemon/transfer/transfer.go", "targetMute := !t.TargetTold || t.TargetMute == t.Target", "targetMute := !t.TargetTold || t.TargetMute != 0"},
	{"one quiet prefill rank is all of them", "daemon/transfer/transfer.go", "sourceMute := !t.SourceTold || t.SourceMute == t.Source", "sourceMute := !t.SourceTold || t.SourceMute != 0"},
	{"one rank that verified is all of them", "daemon/transfer/transfer.go", "if t.State == Moving && t.Verified == t.Target {", "if t.State == Moving && t.Verified != 0 {"},
	{"pages are free while decode reads them", "daemon/transfer/transfer.go", "doneReading := t.Empty || t.Verified|t.TargetMute == t.Target", "doneReading := true"},
	{"what is given up is free at once", "daemon/transfer/transfer.go", "ending && targetMute &&", "ending &&"},
	{"decode is not told that an attempt is given up", "daemon/transfer/transfer.go", "acts = append(acts, QuiesceTarget)", "acts = append(acts, RetireTarget)"},
	{"a rank's quiet silences its whole replica", "daemon/transfer/transfer.go", "t.TargetMute |= bit", "t.TargetMute = t.Target"},
	{"a rank's done silences its whole replica", "daemon/transfer/transfer.go", "t.Sealed |= bit\n\t\tt.SourceMute |= bit", "t.Sealed |= bit\n\t\tt.SourceMute = t.Source"},
	{"prefill begins before every decode rank knows", "daemon/transfer/transfer.go", "case t.Reserved != t.Target:", "case t.Reserved == 0:"},
	{"an early end forgets the attempt", "daemon/request/request.go", "m, acts, _ := m.end(started, now)", "m, acts, _ := m.end(false, now)"},
	{"a stop string forgets the attempt", "daemon/request/request.go", "m.Finish = FinishStop\n\t\treturn m.end(started, now)", "m.Finish = FinishStop\n\t\treturn m.end(false, now)"},
	{"an attempt that failed is run again by nobody", "daemon/request/request.go", "if again(ev.Fault) && m.Barren < l.MaxAttempts && now < m.Expires {\n\t\t\treturn m.enter(Queued, now), []Action{Abandon, Requeue}, false", "if again(ev.Fault) && m.Barren < l.MaxAttempts && now < m.Expires {\n\t\t\treturn m.enter(Queued, now), []Action{Abandon}, false"},
	{"the client waits for prefill's word", "daemon/request/request.go", "case Reserving, Prefilling, Handoff, Transferring, Verifying:", "case Reserving, Verifying:"},
	{"no limit while pages move", "daemon/request/request.go", "return l.Transfer, fault.TransferTimeout", "return l.Request, fault.TransferTimeout"},
	{"tokens do not re-arm the limit", "daemon/request/request.go", "m.Fresh, m.Barren = false, 0\n\t\tm.Armed = now", "m.Fresh, m.Barren = false, 0\n\t\tm.Armed = m.Entered - Instant(time.Hour)"},
	{"a generation's end is the request's", "daemon/request/request.go", "if m.Barren >= l.MaxAttempts {\n\t\t\tm.Fault = fault.Generation", "if m.Barren >= 0 {\n\t\t\tm.Fault = fault.Generation"},
	{"one ready rank is all of them", "daemon/supervise/machine.go", "if m.Ready++; m.Ready == m.Ranks {", "if m.Ready++; m.Ready >= 1 {"},
	{"the next generation does not wait", "daemon/supervise/machine.go", "return m.end(l, ev.Reason, now), []Action{Kill}\n\t\t}\n\n\tcase Reaped:", "return m.end(l, ev.Reason, now).enter(Starting, now), []Action{Kill, Spawn}\n\t\t}\n\n\tcase Reaped:"},
	{"an answer begins anew after a restart", "daemon/core/attempt.go", "Tokens: r.history(len(r.spec.Prompt) + len(r.tokens)), Stop", "Tokens: r.history(len(r.spec.Prompt)), Stop"},
	{"a resumed answer grows longer", "daemon/core/attempt.go", "MaxTokens: uint32(r.spec.MaxTokens - len(r.tokens))", "MaxTokens: uint32(r.spec.MaxTokens)"},
	{"a slot of the board is not given back", "daemon/core/attempt.go", "c.slots[a.src.Index][a.slot] = false", ""},
	{"only the leader is told what to expect", "daemon/core/attempt.go", "for _, r := range a.dst.ranks {\n\t\t\t\tc.send(r, exp)", "for _, r := range a.dst.ranks[:1] {\n\t\t\t\tc.send(r, exp)"},
	{"a name is never given back", "daemon/core/attempt.go", "delete(c.names, r.spec.ID)", ""},
	{"an end is told twice", "daemon/core/attempt.go", "c.out.Forget(r.ticket)", "c.out.End(r.ticket, 1, nil)\n\tc.out.Forget(r.ticket)"},
	{"exits of another generation count", "daemon/core/generation.go", "if c.stale(g, rank, \"exit\") {", "if c.stale(g, rank, \"exit\") && false {"},
	{"an exit that is said twice counts twice", "daemon/core/generation.go", "if c.health[rank].gone {", "if false {"},
	{"one reaped process is all of them", "daemon/core/generation.go", "c.launching || c.exited < len(c.procs) {", "c.launching || c.exited == 0 && len(c.procs) > 0 {"},
	{"readiness that is said twice counts twice", "daemon/core/generation.go", "if c.health[rank].ready {", "if false {"},
	{"requests do not learn that their generation ended", "daemon/core/generation.go", "c.step(r, request.Event{Kind: request.GenerationEnded}", "c.step(r, request.Event{Kind: request.Progress}"},
	{"a step that is missing is not missed", "daemon/core/frames.go", "len(d.held) > 0 && d.held[0].Seq == d.step+1", "len(d.held) > 0"},
	{"a step that is said twice counts twice", "daemon/core/frames.go", "case twice || m.Seq <= d.step:", "case twice:"},
	{"frames of another generation count", "daemon/core/frames.go", "c.stale(from, rank, word(m)) || ", ""},
	{"a step that never comes is waited for", "daemon/core/watch.go", "if d.gap != 0 && c.now", "if d.gap < 0 && c.now"},
	{"a process that stopped is not missed", "daemon/core/watch.go", "if c.now > h.pulsed.Add(c.o.Progress) && silent < 0 {", "if false {"},
	{"pages may wait for ever", "daemon/core/watch.go", "if c.now > a.idle.Add(c.o.Quarantine) {", "if false {"},
	{"more run than may", "daemon/core/place.go", "case !c.o.Admit.Start(c.running()):", "case false:"},
	{"a sequence without a page starves", "daemon/core/place.go", "a.starving = length >= a.room\n", "a.starving = false\n"},
	{"nobody gives pages up for an older request", "daemon/core/place.go", "c.step(last, request.Event{Kind: request.Retracted}", "c.step(last, request.Event{Kind: request.Flushed}"},
	{"pages of prefill are taken and not returned", "daemon/core/attempt.go", "if a.source != nil {\n\t\t\t\tfree(a.source, pagepool.Quiet)", "if a.source != nil && false {\n\t\t\t\tfree(a.source, pagepool.Quiet)"},
	{"frames that carry another generation count", "daemon/core/frames.go", " || c.stale(g, rank, word(m)) {", " {"},
	{"sockets of another generation count", "daemon/core/frames.go", "if !c.stale(g, rank, \"broken socket\") {", "if true {"},
	{"attempts are wasted on a process that stopped", "daemon/core/place.go", "if c.faltering() {", "if false {"},
	{"those who may be poison run beside others", "daemon/core/place.go", "o != nil && o.m.Fresh && !o.hidden && (c.suspect(r)", "false && o.m.Fresh && !o.hidden && (c.suspect(r)"},
	{"what is unproven is free", "gpu/pagepool/pagepool.go", "p.count[l.state] -= len(l.pages)\n\tp.count[0] += len(l.pages)", "p.count[l.state] -= len(l.pages) - 1\n\tp.count[0] += len(l.pages)"},
}

// TestMutants breaks what is shipped, one fault at a time, and wants the explorer to
// find each. It builds this test anew for every mutant, with the go command.
func TestMutants(t *testing.T) {
	if *mutant == "-" {
		t.Skip("this is a mutant")
	}
	if testing.Short() {
		t.Skip("builds 40 programs: run it without -short")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	for _, m := range mutants {
		if !strings.Contains(m.name, *mutant) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(root, m.file)
			src, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(src), m.old); n != 1 {
				t.Fatalf("%q occurs %d times in %s: the mutant needs to follow the code", m.old, n, m.file)
			}
			dir := t.TempDir()
			changed, overlay, bin := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "test")
			if err := os.WriteFile(changed, []byte(strings.Replace(string(src), m.old, m.new, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			js, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(overlay, js, 0o644); err != nil {
				t.Fatal(err)
			}
			mu.Lock() // one build at a time is quicker than two
			out, err := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-overlay", overlay, "-vet=off", "-o", bin, ".").CombinedOutput()
			mu.Unlock()
			if err != nil {
				t.Fatalf("does not build: %v\n%s", err, out)
			}
			run := exec.Command(bin, "-test.run", "^(TestExplore|TestWander|TestRace|TestPoison)", "-test.failfast", "-mutant", "-", "-explore.states", "15000", "-test.timeout", "5m")
			out, err = run.CombinedOutput()
			if err == nil {
				t.Fatalf("the explorer finds nothing wrong with: %s", m.name)
			}
			t.Log(firstFinding(string(out)))
		})
	}
}

// firstFinding is the line that says what the explorer found.
func firstFinding(out string) string {
	for _, line := range strings.Split(out, "\n") {
		if strings.Contains(line, "_test.go:") || strings.HasPrefix(line, "panic:") {
			return strings.TrimSpace(line)
		}
	}
	return strings.TrimSpace(out)
}
