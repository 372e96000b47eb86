package control

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"tandem/daemon/admit"
	"tandem/daemon/core"
	"tandem/daemon/generation"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/spawn"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
	"tandem/kernels"
	"tandem/model"
)

// mutes stand for the processes of a generation: two ranks that do nothing, and end
// when they are killed.
type mutes struct{ sink func(generation.Report) }

func (mutes) Procs() []core.Proc                    { return make([]core.Proc, 2) }
func (mutes) Send(int, wire.Message) error          { return nil }
func (mutes) Vitals(into []core.Vital) []core.Vital { return into }
func (mutes) Close() error                          { return nil }
func (m mutes) Kill() {
	go func() {
		for i := range 2 {
			m.sink(generation.Report{Generation: 1, Rank: i, Exit: &spawn.Status{Text: "signal: killed"}})
		}
	}()
}

// quietLoop runs a loop over mutes until the test ends, and gives what they report to.
func quietLoop(t testing.TB, notify func(string, bool)) (*Loop, func(generation.Report)) {
	t.Helper()
	store, err := OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := time.Hour
	launched := make(chan func(generation.Report), 1)
	l := New(Options{
		Core: core.Options{
			Ranks:  []ident.Rank{{Replica: ident.Replica{Role: ident.Prefill}}, {Replica: ident.Replica{Role: ident.Decode}}},
			Layout: model.Layout{Geometry: kernels.Geometry{Layers: 1, Units: 1, HeadDim: 1, PageTokens: 2}, UnitPageBytes: 1}, Context: 16,
			Transport: transfer.Handover, DecodePages: 64, Slots: 64, MaxBatch: 32,
			Supervise: supervise.Limits{Start: d, Reap: d, Budget: 2, Window: d, BackoffMin: d, BackoffMax: d},
			Request: request.Limits{Queue: d, Reserve: d, PrefillStall: d, Handoff: d, Transfer: d, Verify: d, FirstToken: d, TokenStall: d, Drain: d,
				Request: d, MaxAttempts: 3},
			Admit: admit.Limits{Running: 8, Queued: 8}, Progress: d, Quarantine: d,
		},
		Store: store, Meter: observe.NewMetrics(observe.MetricsOptions{Snapshot: func() observe.Snapshot { return observe.Snapshot{} }}),
		Prepare: func(context.Context, func(string)) error { return nil },
		Launch: func(_ ident.Generation, sink func(generation.Report)) (Generation, error) {
			launched <- sink
			return mutes{sink}, nil
		},
		Notify: notify,
	})
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		store.Close()
	})
	sink := <-launched
	for {
		if v, err := l.View(time.Minute); err != nil || len(v.Ranks) == 2 {
			return l, sink
		}
	}
}

// A rank that says more than the loop can hear has few frames in the loop's queue: it
// delays itself. Its lines never get there.
func TestTalkativeRankDelaysItself(t *testing.T) {
	l, sink := quietLoop(t, func(string, bool) {})
	hold, held := make(chan struct{}), make(chan struct{})
	l.post(func() { close(held); <-hold })
	<-held
	const frames = 4 * maxUnheard
	var said sync.WaitGroup
	said.Add(1)
	go func() {
		defer said.Done()
		for range frames {
			sink(generation.Report{Generation: 1, Rank: 1, Frame: &wire.Frame{Generation: 1, Message: &wire.Hello{}}})
		}
	}()
	line := "chatter"
	for range 2 * maxEvents { // does not wait for the loop, which is held up
		sink(generation.Report{Generation: 1, Rank: 0, Line: &line})
	}
	for len(l.events) < maxUnheard {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // in which more would come, if there were room
	if n := len(l.events); n != maxUnheard {
		t.Errorf("%d events wait for the loop; %d frames of one rank may", n, maxUnheard)
	}
	close(hold)
	said.Wait()
	if _, err := l.View(time.Minute); err != nil {
		t.Error(err)
	}
}

// Whoever is told of the appliance's state may take as long as it likes: the loop goes
// on, and what is told next is the latest.
func TestLoopDoesNotWaitForThoseItTells(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	told := make(chan string, 1000)
	var once sync.Once
	l, _ := quietLoop(t, func(status string, _ bool) {
		once.Do(func() { close(entered); <-release })
		told <- status
	})
	<-entered
	const last = "the last"
	for i := range 100 {
		text := fmt.Sprint("status ", i)
		if i == 99 {
			text = last
		}
		if _, err := ask(l, time.Minute, func() bool { outside{Loop: l}.Notify(text, false); return true }); err != nil {
			t.Fatal(err)
		}
	}
	close(release)
	var all []string
	for len(all) == 0 || all[len(all)-1] != last {
		all = append(all, <-told)
	}
	if len(all) != 2 {
		t.Errorf("told %q, want the one that took long and the last", all)
	}
}

func TestLinesHaveARate(t *testing.T) {
	now := time.Unix(0, 0)
	g := newGate(now)
	through, said := 0, []string{}
	for range 100_000 { // a thousand a second
		now = now.Add(time.Millisecond)
		ok, text := g.pass(now)
		if ok {
			through++
		}
		if text != "" {
			said = append(said, text)
		}
	}
	if most := linesAtOnce + 100*linesASecond; through < most-2 || through > most {
		t.Errorf("%d lines of 100 s went through, want %d", through, most)
	}
	if len(said) < 9 || len(said) > 11 {
		t.Errorf("what was left out was told %d times in 100 s: %q", len(said), said)
	}
	g = newGate(now)
	for range 1000 { // ten a second: fewer than are allowed
		now = now.Add(100 * time.Millisecond)
		if ok, text := g.pass(now); !ok || text != "" {
			t.Fatal("a worker that writes little is cut short")
		}
	}
}

func TestLatenessPercentiles(t *testing.T) {
	var l lateness
	if v := l.view(); v != (core.LoopView{}) {
		t.Errorf("of nothing: %+v", v)
	}
	for i := range 1000 {
		l.add(time.Duration(i+1) * time.Millisecond)
	}
	v := l.view()
	near := func(got, want float64) bool { return got >= want && got <= want*1.13 }
	if v.Events != 1000 || v.Max != 1 || !near(v.P50, 0.5) || !near(v.P99, 0.99) || !near(v.P999, 0.999) {
		t.Errorf("%+v", v)
	}
	// Buckets follow one another without a gap, from nothing to beyond the last.
	for i := range l.buckets {
		if i > 0 && bucket(upper(i-1)) != i || bucket(upper(i)-1) != i && i > 0 {
			t.Fatalf("bucket %d ends at %d, which is in bucket %d", i, upper(i), bucket(upper(i)))
		}
		if i == len(l.buckets)-2 {
			break
		}
	}
	if !slices.Equal([]int{bucket(-1), bucket(0), bucket(1 << 62)}, []int{0, 0, len(l.buckets) - 1}) {
		t.Error("what is out of range is not in the outermost buckets")
	}
}
