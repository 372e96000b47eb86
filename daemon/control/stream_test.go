package control

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
)

// inWorld runs do beside a loop, and stops it.
func inWorld(t *testing.T, p *plan, do func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, p)
		dir, err := os.MkdirTemp(shm(), "tandem-sim-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		w.open(dir)
		w.start()
		do(w)
		w.stop()
		w.report()
	})
}

func (w *world) ready() {
	w.await("ready", time.Minute, func() bool { return w.loop.Ready() == nil })
}

// ask asks for n tokens.
func (w *world) ask(id string, n int) *Stream {
	s, err := w.loop.Submit(request.Spec{ID: ident.Request(id), Prompt: []int32{1, 2, 3}, MaxTokens: n})
	if err != nil {
		w.t.Fatalf("submit %s: %v", id, err)
	}
	return s
}

// whole reads an answer to its end.
func whole(s *Stream) (got []int32, out request.Output) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	for !out.Ended() {
		var err error
		if out, err = s.Next(ctx); err != nil {
			panic("an answer that does not end")
		}
		got = append(got, out.Tokens...)
	}
	return got, out
}

func TestSlowClientKeepsNobodyWaiting(t *testing.T) {
	inWorld(t, quiet(transfer.Handover), func(w *world) {
		w.ready()
		slow := w.ask("slow", 200)
		w.pause(time.Second)
		for i := range 5 {
			began := w.now()
			s := w.ask(fmt.Sprint("quick", i), 10)
			if got, out := whole(s); len(got) != 10 || out.Finish != request.FinishLength {
				w.fail("%d tokens, %v %v", len(got), out.Finish, out.Err)
			}
			s.Close()
			if took := w.now() - began; took > time.Second {
				w.fail("an answer beside a client that does not read took %v", took)
			}
		}
		w.pause(5 * time.Second)
		got, out := whole(slow)
		if len(got) != 200 || out.Finish != request.FinishLength {
			w.fail("the slow client got %d tokens, %v %v", len(got), out.Finish, out.Err)
		}
		slow.Close()
		if n := w.loop.Behind(); n > 0 {
			w.fail("the loop was %v behind", n)
		}
	})
}

// A client that does not take its answer loses its place, and may still take it.
func TestAnswerOutlivesItsPlace(t *testing.T) {
	p := quiet(transfer.Pull)
	inWorld(t, p, func(w *world) {
		w.ready()
		s := w.ask("a", 5)
		w.pause(p.limits.Drain + time.Second)
		if rs, err := w.loop.Requests(time.Second); err != nil || len(rs) != 0 {
			w.fail("%d requests hold a place, %v", len(rs), err)
		}
		if got, out := whole(s); len(got) != 5 || out.Finish != request.FinishLength {
			w.fail("%d tokens, %v %v", len(got), out.Finish, out.Err)
		}
		s.Close()
	})
}

func TestStreamFromManyGoroutines(t *testing.T) {
	inWorld(t, quiet(transfer.Push), func(w *world) {
		w.ready()
		for i := range 30 {
			s := w.ask(fmt.Sprint("r", i), 100)
			var wg sync.WaitGroup
			ctx, cancel := context.WithCancel(context.Background())
			wg.Go(func() {
				for {
					out, err := s.Next(ctx)
					if err != nil || out.Ended() {
						return
					}
				}
			})
			for j, do := range []func(){s.Stop, func() { s.Cancel("enough") }, s.Flushed, s.Close, s.Close} {
				a := w.actor(20, uint64(i*10+j))
				wg.Go(func() {
					a.sleep(time.Duration(i*j)*time.Millisecond, nil)
					do()
				})
			}
			wg.Go(func() { time.Sleep(200 * time.Millisecond); cancel() })
			wg.Wait()
			cancel()
		}
		w.settle()
	})
}

// block keeps the loop busy until the function that it returns is called.
func (w *world) block() (unblock func()) {
	gate, in := make(chan struct{}), make(chan struct{})
	w.loop.post(func() { close(in); <-gate })
	<-in
	return func() { close(gate) }
}

func TestSubmitWhileTheLoopIsBlocked(t *testing.T) {
	for name, more := range map[string]int{"room for events": 0, "no room for events": maxEvents} {
		t.Run(name, func(t *testing.T) {
			p := quiet(transfer.Handover)
			inWorld(t, p, func(w *world) {
				w.ready()
				unblock := w.block()
				for range more {
					select {
					case w.loop.events <- event{time.Now(), func() {}}:
					default: // ranks and the canary have taken some of it
					}
				}
				began := w.now()
				_, err := w.loop.Submit(request.Spec{ID: "a", Prompt: []int32{1, 2, 3}, MaxTokens: 50})
				if took := w.now() - began; err == nil || fault.KindOf(err) != fault.NotReady || took > 2*time.Second+time.Millisecond {
					w.fail("refused after %v with %v", took, err)
				}
				unblock()
				// If it was admitted after all, nobody holds it.
				w.settle()
			})
		})
	}
}

// What is asked of a loop that answers too late must not touch what its caller has
// gone on with. The race detector looks, so here time is real: the fake clock orders
// everything.
func TestAnswersThatComeTooLate(t *testing.T) {
	l := New(Options{Store: &Store{}})
	var wg sync.WaitGroup
	late := func(ask func()) {
		for range 3 {
			wg.Go(ask)
			wg.Go(func() {
				ev := <-l.events
				time.Sleep(20 * time.Millisecond)
				ev.do()
			})
			wg.Wait()
		}
	}
	late(func() { _, _ = l.View(time.Millisecond) })
	late(func() { _, _ = l.Requests(time.Millisecond) })
	late(func() { _, _ = l.Story("a", time.Millisecond) })
}

// An end that was told stays, also when the daemon stops before the client took it.
func TestEndIsNotTakenBackByStop(t *testing.T) {
	var s *Stream
	inWorld(t, quiet(transfer.Handover), func(w *world) {
		w.ready()
		s = w.ask("a", 5)
		w.pause(2 * time.Second)
		w.stop()
		if got, out := whole(s); len(got) != 5 || out.Finish != request.FinishLength || out.Err != nil {
			w.fail("a complete answer of %d tokens is told to have ended with %v %v", len(got), out.Finish, out.Err)
		}
		s.Close()
		w.ended <- nil // stop is called again
	})
}

// A request may end within the call that admits it.
func TestRequestEndsWhileItIsAdmitted(t *testing.T) {
	p := quiet(transfer.Handover)
	p.canary = nil
	p.limits.MaxAttempts = 1
	p.unread = 1
	inWorld(t, p, func(w *world) {
		w.await("up", time.Minute, func() bool { v, err := w.loop.View(time.Second); return err == nil && v.State == "up" })
		g := w.live()
		for _, q := range g.procs {
			q.freeze()
		}
		for range 2 { // the first is on its way when the second comes: it is one too many
			for i := range g.procs {
				_ = g.Send(i, &wire.Dump{})
			}
		}
		s := w.ask("a", 5)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if out, err := s.Next(ctx); err != nil || out.Err == nil || out.Err.Kind != fault.Generation {
			w.fail("it ended with %v %v, %v", out.Finish, out.Err, err)
		}
		s.Close()
	})
}

func TestAfterRunReturned(t *testing.T) {
	inWorld(t, quiet(transfer.Handover), func(w *world) {
		w.ready()
		s := w.ask("a", 200)
		w.stop()
		if _, out := whole(s); out.Err == nil || out.Err.Kind != fault.Draining {
			w.fail("the request that ran ended with %v %v", out.Finish, out.Err)
		}
		for range 2 * maxEvents { // more than there is room for
			if w.loop.post(func() { w.fail("an event ran after Run returned") }) {
				w.fail("an event was taken after Run returned")
				break
			}
		}
		s.Cancel("enough")
		s.Stop()
		s.Flushed()
		s.Close()
		if _, err := w.loop.Submit(request.Spec{ID: "b", Prompt: []int32{1}, MaxTokens: 1}); fault.KindOf(err) != fault.NotReady {
			w.fail("submit: %v", err)
		}
		if _, err := w.loop.View(time.Second); err == nil {
			w.fail("there is a view after Run returned")
		}
		w.loop.Drain()
		w.ended <- nil // stop is called again
	})
}

// Run returns only when everything that it started is over: a launch in flight, its
// processes, and what prepares.
func TestStopWhileSomethingIsInFlight(t *testing.T) {
	for name, c := range map[string]struct {
		change func(p *plan)
		after  time.Duration
	}{
		"preparing":              {func(p *plan) { p.prepare, p.prepareEnds = 3*time.Second, time.Second }, time.Second},
		"launching":              {func(p *plan) { p.launchAs = func(int) launchFault { return launchFault{takes: 3 * time.Second} } }, time.Second},
		"launched, not reported": {func(p *plan) { p.launchAs = func(int) launchFault { return launchFault{lingers: 3 * time.Second} } }, time.Second},
		"a launch that fails": {func(p *plan) {
			p.launchAs = func(int) launchFault { return launchFault{takes: 3 * time.Second, nothing: true} }
		}, time.Second},
		"half a launch": {func(p *plan) {
			p.launchAs = func(int) launchFault { return launchFault{takes: 3 * time.Second, half: true} }
		}, time.Second},
		"starting up": {func(p *plan) { p.launchAs = func(int) launchFault { return launchFault{who: 2, how: "never ready"} } }, time.Second},
		"waiting":     {func(p *plan) { p.launchAs = func(int) launchFault { return launchFault{who: 1, how: "dies"} } }, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			p := quiet(transfer.Handover)
			c.change(p)
			inWorld(t, p, func(w *world) { w.pause(c.after) })
		})
	}
}

// M16: the daemon stops while a generation is being replaced, at every moment of that.
func TestStopDuringGenerationChange(t *testing.T) {
	for after := time.Duration(0); after < 80*time.Millisecond; after += 1700 * time.Microsecond {
		p := quiet(transfer.Pull)
		p.slowLaunches = true
		p.seed = uint64(after)
		inWorld(t, p, func(w *world) {
			w.ready()
			s := w.ask("a", 100)
			w.pause(100 * time.Millisecond)
			w.live().procs[1].die("signal: killed")
			w.pause(after)
			w.cancel()
			if _, out := whole(s); out.Err == nil {
				w.fail("it ended with %v", out.Finish)
			}
			s.Close()
		})
	}
}

// M11: whenever a daemon dies, the next one's generations are new.
func TestGenerationsRiseOverDaemons(t *testing.T) {
	dir, err := os.MkdirTemp(shm(), "tandem-sim-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	last := uint64(0)
	for life := range 12 {
		synctest.Test(t, func(t *testing.T) {
			p := quiet(transfer.Handover)
			p.seed = uint64(life)
			w := newWorld(t, p)
			w.open(dir)
			if life%3 == 1 {
				// As if the last daemon had died between recording a generation and
				// starting it.
				if err := w.store.Record(w.store.Last() + 1); err != nil {
					t.Fatal(err)
				}
				last++
				w.store.Close()
				w.open(dir)
			}
			w.start()
			w.pause(time.Duration(life) * 10 * time.Millisecond)
			w.stop()
			for _, g := range w.gens {
				if uint64(g.number) <= last {
					w.fail("generation %d after %d", g.number, last)
				}
				last = uint64(g.number)
			}
			w.report()
		})
	}
	if last < 10 {
		t.Errorf("only %d generations in all", last)
	}
}

// F28: without a place for the counter no generation starts, and it is said why.
func TestStoreThatCannotBeWritten(t *testing.T) {
	inWorld(t, quiet(transfer.Handover), func(w *world) {
		w.ready()
		if err := os.RemoveAll(w.store.Dir()); err != nil {
			w.t.Fatal(err)
		}
		s := w.ask("a", 30)
		if got, out := whole(s); len(got) != 30 || out.Finish != request.FinishLength {
			w.fail("the running generation does not serve: %d tokens, %v", len(got), out.Err)
		}
		s.Close()
		w.live().procs[0].die("signal: killed")
		w.pause(10 * time.Second)
		if len(w.gens) != 1 {
			w.fail("a generation was launched without a record")
		}
		if n := w.count(observe.StateFailed); n == 0 {
			w.fail("nobody is told")
		}
		v, err := w.loop.View(time.Second)
		if err != nil || v.Ready || v.LastEnd != "generation_file" {
			w.fail("ready %v, %q, %v", v.Ready, v.LastEnd, err)
		}
		if _, err := w.loop.Submit(request.Spec{ID: "b", Prompt: []int32{1}, MaxTokens: 1}); fault.KindOf(err) != fault.NotReady {
			w.fail("submit: %v", err)
		}
		if err := os.MkdirAll(w.store.Dir(), 0o700); err != nil {
			w.t.Fatal(err)
		}
		w.ready()
	})
}

// F26: a jump of the wall clock moves no deadline, for they are measured on the
// monotonic one.
func TestInstantsAreMonotonic(t *testing.T) {
	l := New(Options{Store: &Store{}})
	l.post(func() {})
	for _, at := range []time.Time{l.origin, (<-l.events).at} {
		if at.Round(0) == at {
			t.Errorf("%v has no monotonic reading", at)
		}
	}
}
