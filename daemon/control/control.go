// Package control is the loop that owns all control state: requests, transfers,
// page ledgers and the life of generations. One goroutine takes events from a
// channel, steps the pure machines (request, transfer, supervise) and performs
// their actions. Nothing else changes that state, and the loop never waits for
// anything: what it sends is queued without blocking, and slow work (starting
// processes, syncing a file) runs in goroutines that report back as events.
package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"tandem/daemon/admit"
	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/spawn"
	"tandem/daemon/supervise"
	"tandem/daemon/wire"
)

// Options say what to run.
type Options struct {
	Plan      supervise.Plan // Image is filled in by Prepare
	Supervise supervise.Limits
	Request   request.Limits
	Admit     admit.Limits
	MaxBatch  int // sequences of a decode replica's step

	Progress   time.Duration // a rank that has work and shows no progress for so long is stuck
	Quarantine time.Duration // pages given up must be proven quiet within this
	Headroom   int           // tokens for which a new sequence gets pages beyond its prompt

	Canary []int32 // prompt of the request that proves that requests complete

	Store *Store
	Log   *observe.Log
	Meter Meter

	// Prepare makes the weights image. It runs once, before the first generation;
	// progress is bytes. An error ends Run.
	Prepare func(ctx context.Context, sp *spawn.Spawner, progress func(done, total int64)) (image *os.File, key []byte, err error)
	// Notify gets a line about the state of the appliance, when it changes.
	Notify func(status string, ready bool)
}

// Meter counts. Gauges are not here: they are read from Loop.View.
type Meter interface {
	DeadlineExceeded(state string)
	GenerationEnded(reason string)
	Transferred(src, dst string, took time.Duration, bytes int64)
	TransferFailed(src, dst string, k fault.Kind)
	VerifyFailed(reason string)
	Rejected(k fault.Kind)
	Fenced(kind string)
	Resumed(n int)
	PromptTokens(source string, n int)
	OutputTokens(n int)
}

// Loop is the control loop. Make it with New, run it with Run; the other methods
// may be called from any goroutine while it runs.
type Loop struct {
	o      Options
	origin time.Time
	events chan event
	done   chan struct{} // closed when Run returns
	sp     *spawn.Spawner
	ranks  []ident.Rank // of every generation, in order

	// All below belongs to the goroutine of Run.
	now      request.Instant
	requests map[ident.Request]*live
	queue    []*live // waiting for a place, oldest first
	arrivals uint64
	ended    *records
	lately   []request.Instant // ends of requests within the last half minute

	sup        supervise.Machine
	number     ident.Generation
	gen        *supervise.Generation // nil while it is being launched, and between
	launching  bool
	exited     int
	killing    time.Time
	first      *death
	health     []vital
	replicas   [2][]*replica // by role: prefill, decode
	attempts   map[uint64]*attempt
	attemptSeq uint64
	slots      [][]bool // of each prefill replica: taken

	verdicts   []verdict
	canary     *live
	canaryAt   request.Instant // when the last one was begun
	completed  request.Instant // when a request last completed, or brought a token
	proven     bool            // this generation has completed a request
	unready    *fault.Error    // why requests would not complete now; nil: they would
	drain      bool
	stopping   bool
	fatal      error
	status     string
	prepared   bool
	packing    [2]int64
	lastWhy    string // how the last generation ended, for people
	lastChange time.Time
	ignored    map[string]int // events that changed nothing, by what they were
	behind     time.Duration  // the longest that an event has waited for the loop
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

// live is a request that holds a place.
type live struct {
	spec    request.Spec
	m       request.Machine
	stream  *Stream
	arrival uint64
	began   request.Instant
	tokens  []int32  // delivered
	attempt *attempt // nil while queued and once ended
	hidden  bool     // the canary: it holds no place and is in no gauge
	rec     *Record
	resumed bool // the attempt began after tokens were delivered
}

// New makes a loop.
func New(o Options) *Loop {
	l := &Loop{o: o, origin: time.Now(), events: make(chan event, maxEvents), done: make(chan struct{}), sp: spawn.NewSpawner(),
		ranks: o.Plan.Ranks(), requests: map[ident.Request]*live{}, ended: newRecords(1000), attempts: map[uint64]*attempt{}, ignored: map[string]int{}}
	l.sup = supervise.New(len(l.ranks))
	l.number = o.Store.Last()
	l.unready = fault.New(fault.NotReady, "starting")
	return l
}

// instant is t on the loop's clock.
func (l *Loop) instant(t time.Time) request.Instant { return request.Instant(t.Sub(l.origin)) }

// post gives the loop an event. It waits while the loop is far behind, and drops
// the event once Run has returned.
func (l *Loop) post(do func()) bool {
	select {
	case l.events <- event{time.Now(), do}:
		return true
	case <-l.done:
		return false
	}
}

// ask runs do in the loop and waits for it, for so long.
func (l *Loop) ask(limit time.Duration, do func()) bool {
	ran := make(chan struct{})
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case l.events <- event{time.Now(), func() { do(); close(ran) }}:
	case <-l.done:
		return false
	case <-t.C:
		return false
	}
	select {
	case <-ran:
		return true
	case <-l.done:
		return false
	case <-t.C:
		return false
	}
}

// tick is how often time is looked at.
const tick = 50 * time.Millisecond

// Run runs the appliance until ctx ends (then it drains nothing: the caller has
// closed the doors and waited) or something makes it useless. Every worker is
// reaped when it returns.
func (l *Loop) Run(ctx context.Context) error {
	defer close(l.done)
	l.say()
	go l.prepare(ctx)
	t := time.NewTicker(tick)
	defer t.Stop()
	stop := ctx.Done()
	for l.sup.State != supervise.Stopped {
		var ev event
		select {
		case ev = <-l.events:
		case at := <-t.C:
			ev = event{time.Now(), l.watch}
			_ = at
		case <-stop:
			stop = nil
			ev = event{time.Now(), l.stop}
		}
		now := time.Now()
		l.now = l.instant(now)
		l.behind = max(l.behind, now.Sub(ev.at))
		ev.do()
		l.judge()
		l.place()
		l.judge()
	}
	for _, r := range l.requests {
		r.stream.end(0, fault.New(fault.Draining, "the appliance is stopping"))
	}
	return l.fatal
}

// stop ends everything.
func (l *Loop) stop() {
	l.stopping = true
	for _, r := range l.inOrder() {
		l.step(r, request.Event{Kind: request.Cancel, Fault: fault.Draining}, "the appliance is stopping")
	}
	l.supervise(supervise.Event{Kind: supervise.Stop})
}

// inOrder is every request, oldest first.
func (l *Loop) inOrder() []*live {
	out := make([]*live, 0, len(l.requests)+1)
	for _, r := range l.requests {
		out = append(out, r)
	}
	if l.canary != nil {
		out = append(out, l.canary)
	}
	slices.SortFunc(out, func(a, b *live) int { return int(int64(a.arrival) - int64(b.arrival)) })
	return out
}

func (l *Loop) prepare(ctx context.Context) {
	image, key, err := l.o.Prepare(ctx, l.sp, func(done, total int64) {
		l.post(func() {
			l.packing = [2]int64{done, total}
			l.say()
		})
	})
	l.post(func() {
		if err != nil {
			if !l.stopping {
				l.fatal = err
			}
			l.supervise(supervise.Event{Kind: supervise.Stop})
			return
		}
		l.prepared = true
		l.o.Plan.Image, l.o.Plan.ImageKey = image, key
		l.supervise(supervise.Event{Kind: supervise.Start})
	})
}

// Submit implements api.Engine.
func (l *Loop) Submit(spec request.Spec) (*Stream, error) {
	s := newStream(l)
	var err *fault.Error
	// A loop that does not answer within this is not ready by any measure.
	if !l.ask(2*time.Second, func() { err = l.admit(spec, s) }) {
		// If the loop comes to it after all, nobody holds the stream.
		s.Close()
		return nil, fault.New(fault.NotReady, "the control loop does not answer")
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (l *Loop) admit(spec request.Spec, s *Stream) *fault.Error {
	switch {
	case l.stopping || l.drain:
		l.o.Meter.Rejected(fault.Draining)
		return fault.New(fault.Draining, "the appliance is stopping")
	case l.sup.State == supervise.Waiting && l.sup.Failed > 0:
		// Generations do not come up. Otherwise one is there in moments, and the
		// request waits for it under its own deadline.
		l.o.Meter.Rejected(fault.NotReady)
		return fault.New(fault.NotReady, "%s", l.unready.Error())
	case !l.o.Admit.Admit(len(l.requests)):
		l.o.Meter.Rejected(fault.QueueFull)
		l.o.Log.Event(observe.AdmissionReject, fmt.Sprintf("request %s refused: %d of %d places are taken", spec.ID, len(l.requests), l.o.Admit.Total()),
			observe.Request(spec.ID), observe.Int("limit", l.o.Admit.Total()), observe.Reason(fault.QueueFull.String()))
		return fault.New(fault.QueueFull, "all %d places are taken", l.o.Admit.Total())
	}
	if _, twice := l.requests[spec.ID]; twice {
		return fault.New(fault.Internal, "request id %s is in use", spec.ID)
	}
	if err := l.fits(&spec); err != nil {
		return err
	}
	l.enter(spec, s, false)
	return nil
}

// fits checks what admission by tokens should have made sure of.
func (l *Loop) fits(spec *request.Spec) *fault.Error {
	p := &l.o.Plan
	n := len(spec.Prompt) + spec.MaxTokens
	if len(spec.Prompt) == 0 || spec.MaxTokens < 1 || n > p.Context {
		return fault.New(fault.Internal, "%d prompt tokens and %d to come in a window of %d", len(spec.Prompt), spec.MaxTokens, p.Context)
	}
	return nil
}

func (l *Loop) enter(spec request.Spec, s *Stream, hidden bool) *live {
	l.arrivals++
	r := &live{spec: spec, m: request.New(&l.o.Request, l.now), stream: s, arrival: l.arrivals, began: l.now, hidden: hidden}
	s.live = r
	r.rec = &Record{ID: spec.ID, Session: spec.Session, Prompt: len(spec.Prompt), MaxTokens: spec.MaxTokens, Arrived: time.Now()}
	r.rec.note(l.now-r.began, "admitted", request.Queued, "")
	if hidden {
		l.canary = r
	} else {
		l.requests[spec.ID] = r
		l.o.Meter.PromptTokens(observe.Computed, len(spec.Prompt))
	}
	l.queue = append(l.queue, r)
	return r
}

// tell passes a stream's wish to its request.
func (l *Loop) tell(s *Stream, ev request.Event, why string) {
	l.post(func() {
		if s.live != nil {
			l.step(s.live, ev, why)
		}
	})
}

// Ready implements api.Engine.
func (l *Loop) Ready() error {
	var err *fault.Error
	if !l.ask(time.Second, func() { err = l.unready }) {
		return fault.New(fault.NotReady, "the control loop does not answer")
	}
	if err == nil {
		return nil
	}
	return err
}

// Generation implements api.Engine.
func (l *Loop) Generation() ident.Generation { return ident.Generation(l.o.Store.Live()) }

// RetryAfter implements api.Engine.
func (l *Loop) RetryAfter() time.Duration {
	d := 2 * time.Second
	l.ask(time.Second, func() {
		d = admit.RetryAfter(len(l.queue), len(l.lately), 30*time.Second, 5*time.Second)
	})
	return d
}

// Restart ends the live generation; the next takes over its requests.
func (l *Loop) Restart(reason string) error {
	ok := false
	if !l.ask(2*time.Second, func() {
		if ok = l.sup.State == supervise.Up || l.sup.State == supervise.Starting; ok {
			l.condemn("operator", "an operator asked for it: "+reason, nil, observe.GenerationEnd)
		}
	}) {
		return ErrNoAnswer
	}
	if !ok {
		return errors.New("no generation is running")
	}
	return nil
}

// Drain refuses new requests from now on.
func (l *Loop) Drain() {
	l.ask(2*time.Second, func() {
		l.drain = true
		l.say()
	})
}

// Cancel ends a request on an operator's word.
func (l *Loop) Cancel(id ident.Request) error {
	found := false
	if !l.ask(2*time.Second, func() {
		if r := l.requests[id]; r != nil {
			found = true
			l.step(r, request.Event{Kind: request.Cancel, Fault: fault.Cancelled}, "cancelled by an operator")
		}
	}) {
		return ErrNoAnswer
	}
	if !found {
		return fault.New(fault.NotFound, "no live request %s", id)
	}
	return nil
}

// DumpWorkers asks every worker for its stacks; they go to the log.
func (l *Loop) DumpWorkers() error {
	running := false
	if !l.ask(2*time.Second, func() {
		if running = l.gen != nil; running {
			for i := range l.gen.Ranks {
				l.send(i, &wire.Dump{})
			}
		}
	}) {
		return ErrNoAnswer
	}
	if !running {
		return errors.New("no generation is running")
	}
	return nil
}
