package chaos

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Scenarios that kill, stop and hold up ranks. All of them compare answers with
// those of an undisturbed appliance and want everything given back.
//
// Not here: a device that is busy after its process was reaped (F30) and a
// peer-to-peer self-test that fails (F32). Both are about GPUs; the CPU backend has
// neither.

var pull = []string{`kv.transport="pull"`, "restart.budget=1000"}

// F1: a decode rank is stopped while thirty requests transfer. One generation
// follows, all resume.
func TestF01_DecodeStoppedWhileTransferring(t *testing.T) {
	a := startFaulty(t, append(pull, `deadlines.progress="700ms"`)...)
	before := a.gen()
	a.inject("at=take rank=decode ms=50 do=late") // so that many are under way at once
	a.storm(t, "transferring", 3, func() {
		a.signal("decode/0.0", syscall.SIGSTOP)
		a.calm()
	})
	a.changed(before, 1)
	a.settled()
}

// F2: a prefill rank is stopped while it computes.
func TestF02_PrefillStopped(t *testing.T) {
	a := startFaulty(t, append(pull, `deadlines.progress="700ms"`, "prefill.chunk_tokens=64")...)
	before := a.gen()
	a.storm(t, "prefilling", 3, func() { a.signal("prefill/0.0", syscall.SIGSTOP) })
	a.changed(before, 1)
	a.settled()
}

// F3: a stopped rank wakes up around the moment at which it is killed: earlier,
// later, or never. Nothing of an old generation changes anything.
func TestF03_StoppedRankWakesUp(t *testing.T) {
	a := startFaulty(t, `deadlines.progress="500ms"`, "restart.budget=1000")
	end := a.oneGeneration()
	moments := []time.Duration{530}
	if *all {
		moments = []time.Duration{499, 510, 530, 550, 560, 570}
	}
	for _, after := range moments {
		a.storm(t, "decoding", 3, func() {
			pid := a.signal("decode/0.0", syscall.SIGSTOP)
			time.Sleep(after * time.Millisecond)
			_ = syscall.Kill(pid, syscall.SIGCONT)
		})
	}
	end()
	a.settled()
}

// F4: a decode rank is killed while thirty streams run. Each pauses and goes on.
func TestF04_DecodeKilled(t *testing.T) {
	a := startFaulty(t)
	before := a.gen()
	a.storm(t, "decoding", clients()/3, func() { a.signal("decode/0.0", syscall.SIGKILL) })
	a.changed(before, 1)
	a.settled()
}

// F5: prefill is killed while decode is idle. Decode is replaced with it.
func TestF05_PrefillKilledDecodeReplaced(t *testing.T) {
	a := startFaulty(t)
	before, old := a.gen(), map[int]bool{}
	for _, r := range a.status().Ranks {
		old[r.PID] = true
	}
	end := a.oneGeneration()
	a.signal("prefill/0.0", syscall.SIGKILL)
	a.within(10*time.Second, "the next generation", func() bool { s := a.status(); return uint64(s.Generation) > before && s.Ready })
	end()
	for _, r := range a.status().Ranks {
		if old[r.PID] {
			t.Errorf("%s is process %d, which the last generation had", r.Ident(), r.PID)
		}
	}
	a.changed(before, 1)
	if got := a.mustGet(questions[1]).text; got != want(t)[1] {
		t.Errorf("answered %q", got)
	}
	a.settled()
}

// F6: prefill and decode are killed at once. One generation follows, not two.
func TestF06_BothKilledAtOnce(t *testing.T) {
	a := startFaulty(t)
	before := a.gen()
	p, d := a.pid("prefill/0.0"), a.pid("decode/0.0")
	end := a.oneGeneration()
	a.storm(t, "decoding", 5, func() {
		_ = syscall.Kill(p, syscall.SIGKILL)
		_ = syscall.Kill(d, syscall.SIGKILL)
	})
	end()
	a.changed(before, 1)
	a.settled()
}

// F7: a rank does not come up. Starts are repeated with growing pauses, the reason
// is told, and when the cause is gone it serves, by itself.
func TestF07_DiesDuringStartUp(t *testing.T) {
	a := prepare(t, faulty, []string{"log.format=json", `restart.backoff_min="50ms"`, `restart.backoff_max="400ms"`})
	a.inject("at=start rank=decode/0.0 do=exit")
	a.run()
	a.within(20*time.Second, "five failed starts", func() bool { return len(a.events("generation.backoff")) >= 5 })
	s := a.status()
	if s.Ready || !strings.Contains(s.LastEndText, "decode/0.0") || !strings.Contains(s.LastEndText, "exit status 3") {
		t.Errorf("ready %v, and the last end was %q", s.Ready, s.LastEndText)
	}
	if _, err := a.get(context.Background(), questions[0]); err == nil || !strings.HasPrefix(err.Error(), "503") {
		t.Errorf("a request meanwhile: %v", err)
	}
	var pauses []time.Duration
	for i, e := range a.events("generation.backoff") {
		if i > 0 {
			pauses = append(pauses, e.Time.Sub(a.events("generation.backoff")[i-1].Time))
		}
	}
	for i := 1; i < 3; i++ {
		if pauses[i] < pauses[i-1] {
			t.Errorf("the pauses do not grow: %v", pauses)
		}
	}
	a.mustInject()
	a.calm()
	a.waitReady()
	if got := a.mustGet(questions[1]).text; got != want(t)[1] {
		t.Errorf("answered %q", got)
	}
	a.settled()
}

// F7: a rank dies during the start of the generation that is to resume thirty
// streams.
func TestF07_DiesDuringStartUpUnderLoad(t *testing.T) {
	a := startFaulty(t)
	before := a.gen()
	a.inject("at=start rank=prefill/0.0 do=die once")
	a.storm(t, "decoding", 5, func() { a.signal("decode/0.0", syscall.SIGKILL) })
	a.mustInject()
	a.changed(before, 2)
	a.settled()
}

// F8: workers die with the daemon, whatever kills it, and the next daemon on that
// state begins with a larger generation. The shared memory has no name; it went
// with the processes.
func TestF08_DaemonKilled(t *testing.T) {
	a := start(t)
	before := a.gen()
	done := a.begin(questions)
	a.await("decoding", 1)
	pids := workers(a.cmd.Process.Pid)
	if len(pids) < 2 {
		t.Fatalf("%d workers", len(pids))
	}
	_ = a.cmd.Process.Kill()
	<-a.done
	end := time.Now().Add(2 * time.Second)
	for _, pid := range pids {
		for exists(pid) {
			if time.Now().After(end) {
				t.Fatalf("worker %d outlived the daemon by 2 s", pid)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	if o := <-done; o.err == nil {
		t.Error("answers of a daemon that was killed")
	}
	a.run()
	a.waitReady()
	if now := a.gen(); now != before+1 {
		t.Errorf("generation %d after %d", now, before)
	}
	if got := a.mustGet(questions[1]).text; got != want(t)[1] {
		t.Errorf("answered %q", got)
	}
	a.settled()
}

// F24: a rank stops reading its socket, and its orders pile up. It is found by the
// limits of those who wait for it; the daemon serves on, and answers meanwhile.
func TestF24_RankDoesNotRead(t *testing.T) {
	for _, rank := range []string{"prefill/0.0", "decode/0.0"} {
		t.Run(rank[:6], func(t *testing.T) {
			a := startFaulty(t, `deadlines.prefill_stall="1s"`, `deadlines.reserve="500ms"`, `deadlines.quarantine="1s"`, "restart.budget=1000")
			before := a.gen()
			a.inject("at=hear rank=" + rank + " do=hang once")
			var qs []question
			for i := range 30 {
				p := make([]int32, 3000)
				for j := range p {
					p[j] = int32(100 + (i*7+j)%20000)
				}
				qs = append(qs, question{prompt: p, tokens: 1})
			}
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			for _, q := range qs { // 12 kB of orders each, beyond what a socket holds
				wg.Add(1)
				go func() {
					defer wg.Done()
					_, _ = a.get(ctx, q)
				}()
			}
			var worst time.Duration
			a.within(20*time.Second, "the next generation", func() bool {
				t0 := time.Now()
				s := a.status()
				worst = max(worst, time.Since(t0))
				return uint64(s.Generation) > before
			})
			cancel()
			wg.Wait()
			a.mustInject()
			a.calm()
			a.waitReady()
			t.Logf("ended because: %s; slowest answer of the loop meanwhile %s", a.status().LastEndText, worst)
			if got := a.mustGet(questions[1]).text; got != want(t)[1] {
				t.Errorf("answered %q", got)
			}
			a.settled()
		})
	}
}

// F25: what comes from a rank is no frame, or not one that it may send. Its
// generation ends; streams go on in the next. A frame of an older generation is
// dropped and counted, and nothing else.
func TestF25_BadFrames(t *testing.T) {
	a := startFaulty(t, "restart.budget=1000")
	for _, do := range []string{"garbage", "truncated", "oversized", "unknown", "newer", "absurd", "older"} {
		for _, at := range []string{"rank=decode/0.0 kind=Step", "rank=prefill/0.0 kind=Sealed", "rank=decode/0.0 kind=Landed"} {
			if at[len(at)-4:] != "Step" && !*all {
				continue
			}
			t.Run(do+" "+at[strings.Index(at, "kind=")+5:], func(t *testing.T) {
				a.waitReady()
				before, fenced := a.gen(), a.sum("tandem_fenced_messages_total")
				a.inject("at=say once do=" + do + " " + at)
				if *all {
					a.storm(t, "decoding", 1, func() {})
				} else if got := a.mustGet(questions[1]).text; got != want(t)[1] {
					t.Errorf("answered %q", got)
				}
				a.waitReady()
				n := uint64(1)
				if do == "older" || do == "newer" {
					n = 0
				}
				a.changed(before, n)
				if now := a.sum("tandem_fenced_messages_total"); n == 0 && now < fenced+1 {
					t.Errorf("%v messages were fenced, and then %v", fenced, now)
				}
			})
		}
	}
	if n := len(a.injected()); n != 7 && n != 21 {
		t.Errorf("%d faults", n)
	}
	a.settled()
}

// F31: a worker that was killed does not end. What can be had here is one whose
// parent cannot reap it, because somebody traces it: no other generation starts, and
// that is said, until it is gone.
func TestF31_WorkerIsNotReaped(t *testing.T) {
	long(t, "it waits for the daemon's patience, 5 s")
	a := startFaulty(t)
	before := a.gen()
	pid := a.pid("decode/0.0")
	traced, release, released := make(chan error), make(chan struct{}), make(chan struct{})
	go func() { // one thread traces
		defer close(released)
		lockThread()
		err := unix.PtraceSeize(pid)
		traced <- err
		if err != nil {
			return
		}
		<-release
		var ws unix.WaitStatus
		_, _ = unix.Wait4(pid, &ws, unix.WALL, nil)
	}()
	if err := <-traced; err != nil {
		t.Skipf("processes cannot be traced here: %v", err)
	}
	done := a.begin(questions[:3])
	a.await("decoding", 1)
	_ = syscall.Kill(pid, syscall.SIGKILL)
	a.within(20*time.Second, "unreaped", func() bool { return strings.Contains(a.status().Reason, "unreaped") })
	if e := a.events("generation.unreaped"); len(e) != 1 || !strings.Contains(e[0].Msg, fmt.Sprint(pid)) {
		t.Errorf("%+v", e)
	}
	if s := a.status(); uint64(s.Generation) != before || s.Ready {
		t.Errorf("generation %d, ready %v", s.Generation, s.Ready)
	}
	close(release)
	<-released
	a.waitReady()
	compare(t, "resumed", want(t)[:3], texts((<-done).must(t)))
	a.changed(before, 1)
	a.settled()
}

// F33: generations are replaced again and again. Each request ends, nothing leaks.
func TestF33_ManyGenerations(t *testing.T) {
	every, total := 700*time.Millisecond, 7*time.Second
	if *all {
		every, total = 2*time.Second, time.Minute
	}
	a := startFaulty(t, "restart.budget=1000", "limits.max_attempts=100")
	qs, answers := crowd(t, clients())
	a.all(qs)
	a.settled()
	before := a.holds()
	end := a.oneGeneration()
	quit := a.traffic(t, len(qs), func(i int) (question, func(string) bool) {
		return qs[i], func(got string) bool { return got == answers[i] }
	})
	g := a.gen()
	for t0 := time.Now(); time.Since(t0) < total; {
		time.Sleep(every)
		_ = a.post("/restart", "reason=again")
	}
	quit()
	end()
	a.waitReady()
	if a.gen() < g+5 {
		t.Errorf("only %d generations", a.gen()-g)
	}
	a.settled()
	a.leaksNothing(before)
}

// F33: beyond the budget generations wait, and requests with them.
func TestF33_BudgetTrips(t *testing.T) {
	a := startFaulty(t, "restart.budget=2", `restart.backoff_min="300ms"`, `restart.backoff_max="600ms"`, "limits.max_attempts=100")
	qs, answers := crowd(t, 6)
	done := a.begin(qs)
	a.await("decoding", 3)
	for range 4 {
		g := a.gen()
		a.signal("decode/0.0", syscall.SIGKILL)
		a.within(20*time.Second, "the next generation", func() bool { s := a.status(); return uint64(s.Generation) > g && s.State == "up" })
	}
	compare(t, "resumed", answers, texts((<-done).must(t)))
	if n := len(a.events("generation.backoff")); n < 2 {
		t.Errorf("%d pauses", n)
	}
	a.waitReady()
	a.settled()
}

// F35: one of two decode replicas hangs while it takes a page. What the other
// serves does not notice until the generation is replaced, which is when the pages
// of the stuck one have waited long enough for proof; its own requests are run again.
func TestF35_OneLaneHangs(t *testing.T) {
	a := startFaulty(t, `decode.devices=["cpu:0","cpu:1"]`, "decode.tensor_parallel=1", `kv.transport="pull"`, `deadlines.handoff="500ms"`, `deadlines.transfer="1s"`, `deadlines.quarantine="2s"`)
	before := a.gen()
	a.inject("at=take rank=decode/1.0 do=hang once")
	a.storm(t, "decoding", 1, func() {})
	for _, i := range a.mustInject() {
		if i.rank != "decode/1.0" {
			t.Errorf("%+v", i)
		}
	}
	a.calm()
	a.within(20*time.Second, "the next generation", func() bool { return a.gen() > before })
	a.waitReady()
	if e := append(a.events("slot.overdue"), a.events("edge.suspect")...); len(e) == 0 || !strings.Contains(e[0].Msg, "decode/1") {
		t.Errorf("what ended the generation: %+v", e)
	}
	a.settled()
}
