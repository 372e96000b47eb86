// Package control gives package core a goroutine, a clock and processes. One
// goroutine takes events from a channel and hands them to the core; nothing else
// touches it. The loop never waits for anything: what it sends is queued without
// blocking, and slow work (starting processes, syncing a file) runs in goroutines
// that report back as events.
package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"tandem/daemon/core"
	"tandem/daemon/fault"
	"tandem/daemon/generation"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/wire"
)

// Options say what to run.
type Options struct {
	Core core.Options // Origin is set by New

	Store *Store
	Log   *observe.Log
	Meter core.Meter

	// Prepare makes what every generation needs. It runs once, before the first;
	// progress is for people. An error ends Run.
	// It returns soon after ctx has ended, and leaves nothing running.
	Prepare func(ctx context.Context, progress func(text string)) error
	// Launch starts the processes of a generation. It may take long; reports go to
	// sink, which may block. The error may come with those that were started.
	Launch func(g ident.Generation, sink func(generation.Report)) (Generation, error)
	// Notify gets a line about the state of the appliance, when it changes. It may
	// block: then it gets the latest line when it is done, and not those before.
	Notify func(status string, ready bool)
}

// Generation is the processes of one generation: *generation.Generation, or what
// stands for it in a test.
type Generation interface {
	Procs() []core.Proc
	Send(rank int, m wire.Message) error // queues, and does not wait
	Vitals(into []core.Vital) []core.Vital
	Kill()        // does not wait; exits are reported
	Close() error // after all exits
}

// Loop is the control loop. Make it with New, run it with Run; the other methods
// may be called from any goroutine while it runs.
type Loop struct {
	o      Options
	origin time.Time
	events chan event
	done   chan struct{}  // closed when the loop takes no more events
	work   sync.WaitGroup // goroutines that Run started
	behind atomic.Int64   // the longest that an event has waited for the loop, since it was last asked
	late   lateness
	news   chan news // for Notify: the latest

	// All below belongs to the goroutine of Run.
	core     *core.Core
	now      request.Instant
	gen      Generation // nil while it is being launched, and between
	streams  map[core.Ticket]*Stream
	entering *Stream // of the request that is being admitted: its ticket is not known yet
	vitals   []core.Vital
	fatal    error
}

// news is a line about the state of the appliance.
type news struct {
	status string
	ready  bool
}

// event is anything that the loop is told. at is when, so that the loop knows how
// far behind it is.
type event struct {
	at time.Time
	do func()
}

// maxEvents is how many events may wait for the loop. Those who send them wait
// when it is full; they are goroutines of one rank's socket, or of one client.
const maxEvents = 8192

// New makes a loop.
func New(o Options) *Loop {
	l := &Loop{o: o, origin: time.Now(), events: make(chan event, maxEvents), done: make(chan struct{}), news: make(chan news, 1), streams: map[core.Ticket]*Stream{}}
	l.o.Core.Origin = l.origin
	l.core = core.New(&l.o.Core, outside{l, o.Meter}, o.Store.Last())
	return l
}

// instant is t on the loop's clock.
func (l *Loop) instant(t time.Time) request.Instant { return request.Instant(t.Sub(l.origin)) }

// post gives the loop an event. It waits while the loop is far behind, and drops
// the event once Run has returned.
func (l *Loop) post(do func()) bool {
	select {
	case <-l.done:
		return false
	default:
	}
	select {
	case l.events <- event{time.Now(), do}:
		return true
	case <-l.done:
		return false
	}
}

// ErrNoAnswer is returned when the loop does not answer in time.
var ErrNoAnswer = errors.New("the control loop does not answer")

// ask runs do in the loop and gives what it returned, unless that takes longer than
// limit. Then do may run later still, so all that it says is in what it returns.
func ask[T any](l *Loop, limit time.Duration, do func() T) (answer T, err error) {
	answers := make(chan T, 1)
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case l.events <- event{time.Now(), func() { answers <- do() }}:
	case <-l.done:
		return answer, ErrNoAnswer
	case <-t.C:
		return answer, ErrNoAnswer
	}
	select {
	case answer = <-answers:
		return answer, nil
	case <-l.done:
		return answer, ErrNoAnswer
	case <-t.C:
		return answer, ErrNoAnswer
	}
}

// tick is how often time is looked at.
const tick = 50 * time.Millisecond

// Run runs the appliance until ctx ends (then it drains nothing: the caller has
// closed the doors and waited) or something makes it useless. When it returns every
// worker is reaped, and nothing that it started still runs.
func (l *Loop) Run(ctx context.Context) error {
	defer l.work.Wait()
	defer close(l.done)
	defer close(l.news)
	l.work.Go(func() {
		for n := range l.news {
			l.o.Notify(n.status, n.ready)
		}
	})
	outside{Loop: l}.Notify("starting", false)
	l.work.Go(func() { l.prepare(ctx) })
	t := time.NewTicker(tick)
	defer t.Stop()
	stop := ctx.Done()
	for !l.core.Stopped() {
		var ev event
		select {
		case ev = <-l.events:
		case at := <-t.C:
			ev = event{at, l.watch}
		case <-stop:
			stop = nil
			ev = event{time.Now(), func() { l.core.Stop(l.now) }}
		}
		now := time.Now()
		l.now = l.instant(now)
		if late := int64(now.Sub(ev.at)); late > l.behind.Load() {
			l.behind.Store(late)
		}
		ev.do()
		l.late.add(time.Since(ev.at))
	}
	for _, s := range l.streams {
		s.end(0, fault.New(fault.Draining, "the appliance is stopping"))
	}
	return l.fatal
}

func (l *Loop) watch() {
	if l.gen != nil {
		l.vitals = l.gen.Vitals(l.vitals[:0])
	}
	l.core.Watch(l.now, l.vitals)
}

func (l *Loop) prepare(ctx context.Context) {
	err := l.o.Prepare(ctx, func(text string) {
		l.post(func() { l.core.Loading(l.now, text) })
	})
	l.post(func() {
		if err != nil {
			if ctx.Err() == nil {
				l.fatal = err
			}
			l.core.Stop(l.now)
			return
		}
		l.core.Start(l.now)
	})
}

// sink is where the ranks of a generation report to, each from goroutines of its
// own. Lines go to the log from there. Of a rank's frames only so many wait for the
// loop: one that says more than the loop can hear delays itself, and nobody else.
func (l *Loop) sink() func(generation.Report) {
	unheard := make([]chan struct{}, len(l.o.Core.Ranks))
	gates := make([]gate, len(l.o.Core.Ranks))
	for i := range unheard {
		unheard[i], gates[i] = make(chan struct{}, maxUnheard), newGate(time.Now())
	}
	return func(r generation.Report) {
		switch {
		case r.Line != nil:
			ok, said := gates[r.Rank].pass(time.Now())
			if said != "" {
				l.line(r, said)
			}
			if ok {
				l.line(r, *r.Line)
			}
		case r.Frame != nil:
			select {
			case unheard[r.Rank] <- struct{}{}:
			case <-l.done:
				return
			}
			if !l.post(func() { <-unheard[r.Rank]; l.report(r) }) {
				<-unheard[r.Rank]
			}
		default:
			l.post(func() { l.report(r) })
		}
	}
}

// line tells what a worker wrote.
func (l *Loop) line(r generation.Report, text string) {
	rank := l.o.Core.Ranks[r.Rank]
	l.o.Log.Event(observe.WorkerLog, fmt.Sprintf("%s: %s", rank, text), observe.Generation(r.Generation), observe.Rank(rank))
}

// report takes in what a rank did.
func (l *Loop) report(r generation.Report) {
	switch {
	case r.Exit != nil:
		l.core.Exited(l.now, r.Generation, r.Rank, core.Exit{Text: r.Exit.Text, Last: r.Exit.Last, Killed: r.Exit.Sig != 0})
	case r.Lost != nil:
		// A closed socket is followed by the exit, which says more.
		if err := *r.Lost; err != nil {
			l.core.Broken(l.now, r.Generation, r.Rank, err)
		}
	case r.Frame != nil:
		l.core.Frame(l.now, r.Generation, r.Frame.Generation, r.Rank, r.Frame.Message)
	}
}

// launch records a generation and starts it, in a goroutine of its own.
func (l *Loop) launch(g ident.Generation) {
	l.o.Store.live.Store(uint64(g))
	var gen Generation
	reason := "generation_file"
	err := l.o.Store.Record(g)
	if err == nil {
		reason = "spawn"
		gen, err = l.o.Launch(g, l.sink())
	}
	l.post(func() { // the loop runs: a launch in flight holds it
		l.gen = gen
		var procs []core.Proc
		if gen != nil {
			procs = gen.Procs()
		}
		l.core.Launched(l.now, g, procs, reason, err)
	})
}

// Behind is the longest that an event has waited for the loop, since it was asked
// last.
func (l *Loop) Behind() time.Duration { return time.Duration(l.behind.Swap(0)) }

// Submit implements api.Engine.
func (l *Loop) Submit(spec request.Spec) (*Stream, error) {
	s := newStream(l)
	// A loop that does not answer within this is not ready by any measure.
	refused, err := ask(l, 2*time.Second, func() *fault.Error { return l.submit(s, spec) })
	switch {
	case err != nil:
		s.Close()
		return nil, fault.New(fault.NotReady, "the control loop does not answer")
	case refused != nil:
		return nil, refused
	}
	return s, nil
}

func (l *Loop) submit(s *Stream, spec request.Spec) *fault.Error {
	l.entering = s // it may end before its ticket is known
	t, err := l.core.Submit(l.now, spec)
	l.entering = nil
	if err != nil {
		return err
	}
	l.streams[t] = s
	if !s.admitted(t) {
		l.core.Tell(l.now, t, request.Event{Kind: request.Closed}, "nobody waits for it")
	}
	return nil
}

// tell passes a stream's wish to its request.
func (l *Loop) tell(s *Stream, ev request.Event, why string) {
	l.post(func() { l.core.Tell(l.now, s.ticket, ev, why) })
}

// Ready implements api.Engine.
func (l *Loop) Ready() error {
	unready, err := ask(l, time.Second, func() *fault.Error { return l.core.Ready() })
	switch {
	case err != nil:
		return fault.New(fault.NotReady, "the control loop does not answer")
	case unready != nil:
		return unready
	}
	return nil
}

// Generation implements api.Engine.
func (l *Loop) Generation() ident.Generation { return ident.Generation(l.o.Store.Live()) }

// RetryAfter implements api.Engine.
func (l *Loop) RetryAfter() time.Duration {
	d, err := ask(l, time.Second, func() time.Duration { return l.core.RetryAfter() })
	if err != nil {
		return 2 * time.Second
	}
	return d
}

// Restart ends the live generation; the next takes over its requests.
func (l *Loop) Restart(reason string) error {
	return l.must(errors.New("no generation is running"), func() bool { return l.core.Restart(l.now, reason) })
}

// Drain refuses new requests from now on.
func (l *Loop) Drain() {
	_ = l.must(nil, func() bool { l.core.Drain(l.now); return true })
}

// Cancel ends a request on an operator's word.
func (l *Loop) Cancel(id ident.Request) error {
	return l.must(fault.New(fault.NotFound, "no live request %s", id), func() bool { return l.core.Cancel(l.now, id) })
}

// DumpWorkers asks every worker for its stacks; they go to the log.
func (l *Loop) DumpWorkers() error {
	return l.must(errors.New("no generation is running"), l.dump)
}

// must has the loop do something for an operator. otherwise is the error if it cannot.
func (l *Loop) must(otherwise error, do func() bool) error {
	ok, err := ask(l, 2*time.Second, do)
	if err == nil && !ok {
		return otherwise
	}
	return err
}

func (l *Loop) dump() bool {
	if l.gen == nil {
		return false
	}
	for i := range l.gen.Procs() {
		_ = l.gen.Send(i, &wire.Dump{}) // one that does not read is found by other means
	}
	return true
}

// View gives a picture of now.
func (l *Loop) View(limit time.Duration) (core.View, error) {
	v, err := ask(l, limit, func() core.View { return l.core.View(l.now) })
	v.PID, v.Loop = os.Getpid(), l.late.view()
	return v, err
}

// Requests lists the live requests, oldest first.
func (l *Loop) Requests(limit time.Duration) ([]core.RequestView, error) {
	return ask(l, limit, func() []core.RequestView { return l.core.Requests(l.now) })
}

// Story is one request's record, also after it ended; nil if it is not known.
func (l *Loop) Story(id ident.Request, limit time.Duration) (*core.Record, error) {
	return ask(l, limit, func() *core.Record { return l.core.Story(id) })
}
