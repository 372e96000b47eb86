// Package core is all that the appliance decides: who is admitted, which request
// runs where, whose pages are free, when a generation must end. A Core holds every
// request, transfer, page ledger and the life of generations; an event from outside
// steps the pure machines (request, transfer, supervise), and what follows from that
// is asked of Outside.
//
// It is pure: no clock, lock, I/O or goroutine. The same events at the same instants
// lead to the same state, which is why what the daemon runs can be explored state by
// state (see explore_test.go). Package control gives it a goroutine, a clock and
// processes.
package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"tandem/daemon/admit"
	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
	"tandem/model"
)

// Options say what to decide on. They do not change.
type Options struct {
	Ranks        []ident.Rank // of every generation; a rank's index is its name to Outside
	Layout       model.Layout
	Context      int // tokens of the longest sequence
	Transport    transfer.Transport
	DecodePages  int // of each replica's pool
	PrefillPages int // of each replica's pool; unused with handover
	Slots        int // of each prefill replica
	MaxBatch     int // sequences of a decode replica's step

	Supervise supervise.Limits
	Request   request.Limits
	Admit     admit.Limits

	Progress   time.Duration // a rank that has work and shows no progress for so long is stuck
	Quarantine time.Duration // pages given up must be proven quiet within this
	Headroom   int           // tokens for which a new sequence gets pages beyond its prompt

	Canary []int32   // prompt of the request that proves that requests complete; nil: none is sent
	Origin time.Time // what the clock on the wall said at instant 0
}

// Ticket names an admitted request, between a Core and its outside. It is never
// used again; a request's name may be, by a client that likes it.
type Ticket uint64

// Outside performs what a Core decides. None of its methods may wait, or call the
// Core.
type Outside interface {
	// Send queues a message for a rank of the live generation. An error says that the
	// rank does not take it.
	Send(rank int, m wire.Message) error
	// Spawn records generation g, then starts its ranks. Launched reports how it went.
	Spawn(g ident.Generation)
	// Kill kills every process of the live generation. Each is reported by Exited.
	Kill()
	// Reaped: no process of the generation is left, and its memory can go.
	Reaped() error
	// Token delivers a token of an answer, End its end: one of f and err. Forget says
	// that nothing more will be said of the request.
	Token(t Ticket, token int32)
	End(t Ticket, f request.Finish, err *fault.Error)
	Forget(t Ticket)
	// Event tells what happened; Wants says whether anybody listens to such events.
	Event(k observe.Kind, text string, fields ...observe.Field)
	Wants(k observe.Kind) bool
	// Stuck: a request's state passed its limit. What every process is doing right now
	// is worth writing down.
	Stuck(id ident.Request, state request.State)
	// Notify tells in a line how the appliance is, when that changed.
	Notify(status string, ready bool)
	Meter
}

// Meter counts. Gauges are not here: they are read from a View.
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

// Proc is one process of a generation.
type Proc struct {
	PID     int
	Device  string
	Started time.Time
}

// Exit is how a process ended.
type Exit struct {
	Text   string // "exit status 2", "signal: killed"
	Last   string // its last words, if it had any
	Killed bool   // by a signal
}

// Vital is a rank's vital signs, read from memory that it shares.
type Vital struct {
	Pulse uint64 // stands still when the process does
	Steps uint64 // moves while the rank computes
	Plans uint64
	Busy  bool   // it computes: Steps must move
	Doing string // for people
}

// Core is the state. Make it with New. It belongs to one goroutine.
type Core struct {
	o     *Options
	out   Outside
	ranks []ident.Rank

	now     request.Instant
	tickets Ticket
	// requests hold a place, from admission until the last byte is sent.
	requests map[Ticket]*live
	names    map[ident.Request]Ticket
	order    []*live // all of them and the canary, oldest first
	queue    []*live // waiting to be placed, oldest first
	placed   int     // how many hold a place beyond the queue
	suspects int     // how many may be what ends generations
	hungry   bool    // some attempt may be starving
	ended    *records
	lately   []request.Instant // ends of requests within the last half minute, at most maxLately

	sup         supervise.Machine
	number      ident.Generation
	launching   bool
	procs       []Proc // of the live generation; nil while it is being launched, and between
	begun       request.Instant
	exited      int
	killed      request.Instant
	first       *death // the first rank of this generation that ended
	health      []vital
	replicas    [2][]*replica // by role: prefill, decode
	slots       [][]bool      // of each prefill replica: taken
	attempts    map[uint64]*attempt
	seq         uint64 // of the latest attempt
	strikes     map[edge][]strike
	evidence    request.Instant // when it was last gathered
	evidenceFor ident.Request   // about whom
	fenced      map[string]bool // kinds of stale messages that were told of in this generation

	verdicts  []verdict
	canary    *live           // a request of our own that is under way
	canaryAt  request.Instant // when the last one was begun
	readiness readiness
	drain     bool
	stopping  bool
	loading   string // how far the weights are, for people
	status    string
	lastWhy   string         // how the last generation ended, for people
	ignored   map[string]int // events that changed nothing, by what they were
}

// live is a request that holds a place.
type live struct {
	ticket  Ticket // in the order of arrival
	spec    request.Spec
	m       request.Machine
	began   request.Instant
	tokens  []int32  // delivered
	attempt *attempt // nil while queued and once ended
	hidden  bool     // the canary: it holds no place and is in no gauge
	resumed bool     // the attempt began after tokens were delivered
	slow    request.Instant
	last    ident.Attempt // the attempt, also after it ended
	rec     *Record
}

// New makes the state before anything happened. last is the generation that was
// recorded last.
func New(o *Options, out Outside, last ident.Generation) *Core {
	return &Core{o: o, out: out, ranks: o.Ranks, sup: supervise.New(len(o.Ranks)), number: last,
		requests: map[Ticket]*live{}, names: map[ident.Request]Ticket{}, attempts: map[uint64]*attempt{}, ended: newRecords(maxRecords),
		strikes: map[edge][]strike{}, ignored: map[string]int{}, fenced: map[string]bool{},
		readiness: readiness{unready: fault.New(fault.NotReady, "starting"), condition: "starting"}}
}

// at does something at an instant, and all that follows from it.
func (c *Core) at(now request.Instant, do func()) {
	c.now = now
	do()
	c.judge()
	c.place()
	c.judge()
}

// wall is an instant on the clock on the wall.
func (c *Core) wall(t request.Instant) time.Time { return c.o.Origin.Add(time.Duration(t)) }

// Start begins the first generation.
func (c *Core) Start(now request.Instant) {
	c.at(now, func() { c.supervise(supervise.Event{Kind: supervise.Start}) })
}

// Loading tells how far the weights are, before Start.
func (c *Core) Loading(now request.Instant, text string) {
	c.at(now, func() { c.loading = text; c.say() })
}

// Stop ends everything: requests with an error, then the generation. Stopped tells
// when nothing is left.
func (c *Core) Stop(now request.Instant) {
	c.at(now, func() {
		c.stopping = true
		for _, r := range c.inOrder() {
			c.step(r, request.Event{Kind: request.Cancel, Fault: fault.Draining}, "the appliance is stopping")
		}
		c.supervise(supervise.Event{Kind: supervise.Stop})
	})
}

// Stopped reports whether everything has ended.
func (c *Core) Stopped() bool { return c.sup.State == supervise.Stopped }

// Drain refuses new requests from now on.
func (c *Core) Drain(now request.Instant) {
	c.at(now, func() { c.drain = true; c.assess() })
}

// Submit admits a request or refuses it.
func (c *Core) Submit(now request.Instant, spec request.Spec) (t Ticket, err *fault.Error) {
	c.at(now, func() { t, err = c.admit(spec) })
	return t, err
}

func (c *Core) admit(spec request.Spec) (Ticket, *fault.Error) {
	switch {
	case c.stopping || c.drain:
		c.out.Rejected(fault.Draining)
		return 0, fault.New(fault.Draining, "the appliance is stopping")
	case c.sup.State == supervise.Waiting && c.sup.Failed > 0:
		// Generations do not come up. Otherwise one is there in moments, and the
		// request waits for it under its own deadline.
		c.out.Rejected(fault.NotReady)
		return 0, fault.New(fault.NotReady, "%s", c.readiness.unready.Error())
	case !c.o.Admit.Admit(len(c.requests)):
		c.out.Rejected(fault.QueueFull)
		c.out.Event(observe.AdmissionReject, fmt.Sprintf("request %s refused: %d of %d places are taken", spec.ID, len(c.requests), c.o.Admit.Total()),
			observe.Request(spec.ID), observe.Str("limit", "limits.max_requests + limits.max_queued"), observe.Int("value", c.o.Admit.Total()), observe.Reason(fault.QueueFull.String()))
		return 0, fault.New(fault.QueueFull, "all %d places are taken", c.o.Admit.Total())
	}
	if _, twice := c.names[spec.ID]; twice {
		return 0, fault.New(fault.Internal, "request id %s is in use", spec.ID)
	}
	// What admission by tokens should have made sure of.
	if n := len(spec.Prompt) + spec.MaxTokens; len(spec.Prompt) == 0 || spec.MaxTokens < 1 || n > c.o.Context {
		return 0, fault.New(fault.Internal, "%d prompt tokens and %d to come in a window of %d", len(spec.Prompt), spec.MaxTokens, c.o.Context)
	}
	return c.enter(spec, false).ticket, nil
}

func (c *Core) enter(spec request.Spec, hidden bool) *live {
	c.tickets++
	r := &live{ticket: c.tickets, spec: spec, m: request.New(&c.o.Request, c.now), began: c.now, hidden: hidden}
	r.rec = &Record{ID: spec.ID, Session: spec.Session, Prompt: len(spec.Prompt), MaxTokens: spec.MaxTokens, Arrived: c.wall(c.now)}
	r.rec.note(c.now-r.began, "admitted", request.Queued, "")
	if hidden {
		c.canary = r
	} else {
		c.requests[r.ticket] = r
		c.names[spec.ID] = r.ticket
		c.out.PromptTokens(observe.Computed, len(spec.Prompt))
	}
	c.order = append(c.order, r)
	c.queue = append(c.queue, r)
	return r
}

// inOrder is every request and the canary, oldest first. The list is the caller's:
// requests may end while it goes through.
func (c *Core) inOrder() []*live { return slices.Clone(c.order) }

// arrival orders requests by when they came.
func arrival(a, b *live) int { return cmp.Compare(a.ticket, b.ticket) }

// suspect reports whether the last attempt of the request is out, or due.
func (c *Core) suspect(r *live) bool {
	return r.m.State < request.Draining && r.m.LastTry(&c.o.Request)
}

// holds reports whether the request holds a place beyond the queue: it has begun, and
// its answer has not been taken.
func (r *live) holds() bool {
	return !r.hidden && r.m.State != request.Queued && r.m.State.Live() && r.m.Tries > 0
}

// tries is every attempt, oldest first. What is done to several of them at once is done
// in this order: a map's own differs each time.
func (c *Core) tries() []*attempt {
	out := make([]*attempt, 0, len(c.attempts))
	for _, seq := range slices.Sorted(maps.Keys(c.attempts)) {
		out = append(out, c.attempts[seq])
	}
	return out
}

// Tell passes the wish of the one who asked: Stop, Cancel, Flushed or Closed. A
// request that is gone has no use for it.
func (c *Core) Tell(now request.Instant, t Ticket, ev request.Event, why string) {
	c.at(now, func() {
		if r := c.requests[t]; r != nil {
			c.step(r, ev, why)
		}
	})
}

// Cancel ends a request on an operator's word. It reports whether there was one.
func (c *Core) Cancel(now request.Instant, id ident.Request) (found bool) {
	c.at(now, func() {
		var t Ticket
		if t, found = c.names[id]; found {
			r := c.requests[t]
			c.out.Event(observe.RequestCancel, fmt.Sprintf("request %s: an operator cancels it while %s", id, r.m.State), append(r.fields(), observe.State(r.m.State), observe.Reason("operator"))...)
			c.step(r, request.Event{Kind: request.Cancel, Fault: fault.Cancelled}, "cancelled by an operator")
		}
	})
	return found
}

// Restart ends the live generation; the next takes over its requests. It reports
// whether there was one.
func (c *Core) Restart(now request.Instant, reason string) (ok bool) {
	c.at(now, func() {
		if ok = c.sup.State == supervise.Up || c.sup.State == supervise.Starting; ok {
			c.condemn("operator", "an operator asked for it: "+reason, nil, observe.GenerationEnd)
		}
	})
	return ok
}

// Ready is nil if requests complete, and says why they would not.
func (c *Core) Ready() *fault.Error { return c.readiness.unready }

// lateWindow and maxLately bound what is remembered of requests that ended.
const (
	lateWindow = 30 * time.Second
	maxLately  = 4096
)

// RetryAfter is how long a client that was refused should wait.
func (c *Core) RetryAfter() time.Duration {
	window := lateWindow
	if len(c.lately) == maxLately { // and more, which are forgotten
		window = max(time.Duration(c.now-c.lately[0]), time.Millisecond)
	}
	return admit.RetryAfter(len(c.queue), len(c.lately), window, 5*time.Second)
}

// Ignored counts the events that changed nothing, by what they were.
func (c *Core) Ignored() map[string]int { return c.ignored }
