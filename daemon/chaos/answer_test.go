package chaos

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The questions whose answers are compared: of several lengths, one of them over
// several pages and chunks, and with sampling.
var questions = []question{
	{user: "What is the capital of France?", tokens: 24},
	{user: "Why is the sky blue?", tokens: 40},
	{user: "Write a Python function that reverses a list.", tokens: 48},
	{user: strings.Repeat("List five rivers and say where each of them ends. ", 40), tokens: 40},
	{user: "Tell me a story about a lighthouse.", tokens: 48, temperature: 0.8, topP: 0.9, seed: 7},
	{user: "Name three colours.", tokens: 32, temperature: 1, seed: 11, more: map[string]any{"top_k": 40, "frequency_penalty": 0.5, "repetition_penalty": 1.1}},
}

func texts(as []answer) []string {
	out := make([]string, len(as))
	for i, a := range as {
		out[i] = a.text
	}
	return out
}

func compare(t *testing.T, what string, want, got []string) {
	t.Helper()
	for i := range want {
		if want[i] != got[i] {
			t.Errorf("%s: question %d was answered\n%q\ninstead of\n%q", what, i, got[i], want[i])
		}
	}
}

// undisturbed is the answers of a plain appliance, one question at a time.
func undisturbed(t *testing.T) []string {
	t.Helper()
	a := start(t)
	var out []string
	for _, q := range questions {
		out = append(out, a.mustGet(q).text)
	}
	if !strings.Contains(out[0], "Paris") {
		t.Errorf("the capital of France: %q", out[0])
	}
	a.settled()
	a.stop()
	return out
}

// One prompt, one answer: for every chunk size, rank count of either group,
// number of replicas, transport and batch.
func TestOnePromptOneAnswer(t *testing.T) {
	want := undisturbed(t)
	cores := func(n int) string {
		var c []string
		for i := range n {
			c = append(c, fmt.Sprintf(`"cpu:%d"`, i))
		}
		return "[" + strings.Join(c, ",") + "]"
	}
	tp := func(group string, n int) []string {
		return []string{group + ".devices=" + cores(n), fmt.Sprintf("%s.tensor_parallel=%d", group, n)}
	}
	cases := map[string][]string{
		"chunk 1":          {"prefill.chunk_tokens=1"},
		"chunk 7":          {"prefill.chunk_tokens=7"},
		"chunk 64":         {"prefill.chunk_tokens=64"},
		"1+1":              append(tp("prefill", 1), tp("decode", 1)...),
		"2+1 pull":         append(append(tp("prefill", 2), tp("decode", 1)...), `kv.transport="pull"`),
		"1+2 push":         append(append(tp("prefill", 1), tp("decode", 2)...), `kv.transport="push"`),
		"4+4":              append(tp("prefill", 4), tp("decode", 4)...),
		"4+2 pull":         append(append(tp("prefill", 4), tp("decode", 2)...), `kv.transport="pull"`),
		"3+4 push":         append(append(tp("prefill", 3), tp("decode", 4)...), `kv.transport="push"`),
		"replicas 2×1+2×1": {`prefill.devices=["cpu:0","cpu:1"]`, "prefill.tensor_parallel=1", `decode.devices=["cpu:0","cpu:1"]`, "decode.tensor_parallel=1"},
		"replicas, pull":   {`prefill.devices=["cpu:0","cpu:1"]`, "prefill.tensor_parallel=1", `decode.devices=["cpu:0","cpu:1"]`, "decode.tensor_parallel=1", `kv.transport="pull"`},
		"no digest":        {"kv.digest=false"},
		"batch of 2":       {"decode.max_batch=2"},
	}
	for name, settings := range cases {
		t.Run(name, func(t *testing.T) {
			a := start(t, settings...)
			compare(t, "together", want, texts(a.all(questions)))
			a.settled()
		})
	}
}

// kill -9 of any rank, at any token: the stream pauses and goes on, and the text is
// the undisturbed one.
func TestKilledRankCostsAPause(t *testing.T) {
	a := start(t)
	var want []string
	for _, q := range questions {
		want = append(want, a.mustGet(q).text)
	}
	ranks := []string{"prefill/0.0", "decode/0.0"}
	if len(a.status().Ranks) == 4 {
		ranks = []string{"prefill/0.0", "prefill/0.1", "decode/0.0", "decode/0.1"}
	}
	worst := time.Duration(0)
	for _, rank := range ranks {
		for _, at := range []int{1, 2, 9, 20} {
			for _, i := range []int{1, 4} {
				q := questions[i]
				before := a.status().Generation
				killed := false
				q.on = func(pieces int, _ string) {
					if pieces >= at && !killed {
						killed = true
						_ = syscall.Kill(a.pid(rank), syscall.SIGKILL)
					}
				}
				got := a.mustGet(q)
				if !killed {
					t.Fatalf("the answer ended before piece %d", at)
				}
				if got.text != want[i] {
					t.Errorf("%s killed at piece %d: question %d was answered\n%q\ninstead of\n%q", rank, at, i, got.text, want[i])
				}
				a.waitReady()
				if after := a.status().Generation; after != before+1 {
					t.Errorf("%s killed at piece %d: generation %d follows %d", rank, at, after, before)
				}
				worst = max(worst, got.gap)
			}
		}
	}
	a.settled()
	t.Logf("longest pause %s", worst.Round(time.Millisecond))
}

// A rank is killed while a long prompt is being read, before anything was said.
func TestKilledDuringPrefill(t *testing.T) {
	a := start(t, "prefill.chunk_tokens=32")
	q := questions[3]
	want := a.mustGet(q).text
	for _, rank := range []string{"prefill/0.0", "decode/0.0"} {
		done := a.begin([]question{q})
		a.within(10*time.Second, "prefilling", func() bool {
			for _, s := range a.status().States {
				if s.State == "prefilling" && s.Count > 0 {
					return true
				}
			}
			return false
		})
		if err := syscall.Kill(a.pid(rank), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if got := (<-done).must(t)[0]; got.text != want {
			t.Errorf("%s: answered\n%q\ninstead of\n%q", rank, got.text, want)
		}
		a.waitReady()
	}
	a.settled()
}

// A rank that is stopped, not dead, is fenced and replaced; when it wakes up it
// changes nothing.
func TestStoppedRankIsFenced(t *testing.T) {
	a := start(t, `deadlines.progress="500ms"`)
	q := questions[1]
	want := a.mustGet(q).text
	for _, rank := range []string{"decode/0.0", "prefill/0.0"} {
		pid, before := a.pid(rank), a.status().Generation
		stopped := false
		q.on = func(pieces int, _ string) {
			if pieces >= 5 && !stopped {
				stopped = true
				_ = syscall.Kill(pid, syscall.SIGSTOP)
				t0 := time.Now()
				go func() {
					for exists(pid) && time.Since(t0) < time.Minute {
						time.Sleep(2 * time.Millisecond)
					}
					t.Logf("%s was gone %s after it was stopped, with a limit of 500ms", rank, time.Since(t0).Round(time.Millisecond))
				}()
			}
		}
		if got := a.mustGet(q); got.text != want {
			t.Errorf("%s stopped: answered\n%q\ninstead of\n%q", rank, got.text, want)
		}
		a.within(10*time.Second, "a new generation", func() bool { return a.status().Generation > before })
		if exists(pid) {
			a.within(5*time.Second, "the stopped process reaped", func() bool { return !exists(pid) })
		}
		a.waitReady()
	}
	a.settled()
}
