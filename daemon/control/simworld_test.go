package control

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tandem/daemon/admit"
	"tandem/daemon/core"
	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/wire"
	"tandem/kernels"
	"tandem/model"
)

// A world is the real Loop and Streams with their goroutines, under a fake clock, among
// fake processes and clients. Make and run it within synctest.
type world struct {
	t         testing.TB
	plan      *plan
	ranks     []ident.Rank
	loop      *Loop
	store     *Store
	origin    time.Time
	actors    atomic.Uint64
	goes      sync.WaitGroup // what the fake processes run in
	calm      atomic.Bool    // nothing goes wrong any more
	cancel    context.CancelFunc
	preparing atomic.Bool
	ended     chan error // of Run

	clients []*client

	mu     sync.Mutex // guards what follows
	bad    []string
	gens   []*fakeGen
	trace  hash.Hash64
	script io.Writer // what is said, for people; may be nil
	events map[string]int
	texts  map[string][]string // of the events that tests look at
	done   map[string]int      // request.done, by request
	counts map[string]int      // of the Meter
	status string
	worst  worst
}

// worst is the most that was ever seen.
type worst struct {
	running, held int
	queued        int
	quarantine    float64
}

func newWorld(t testing.TB, p *plan) *world {
	w := &world{t: t, plan: p, origin: time.Now(), trace: fnv.New64a(), events: map[string]int{}, texts: map[string][]string{}, done: map[string]int{}, counts: map[string]int{}, ended: make(chan error, 1)}
	for role, s := range map[ident.Role]shape{ident.Prefill: p.p, ident.Decode: p.d} {
		for i := range s.replicas * s.degree {
			w.ranks = append(w.ranks, ident.Rank{Replica: ident.Replica{Role: role, Index: i / s.degree}, Rank: i % s.degree})
		}
	}
	slices.SortFunc(w.ranks, func(a, b ident.Rank) int {
		return (int(a.Role)-int(b.Role))<<16 + (a.Index-b.Index)<<8 + a.Rank - b.Rank
	})
	return w
}

func (w *world) layout() model.Layout {
	return model.Layout{Geometry: kernels.Geometry{Layers: 1, Units: w.plan.units, HeadDim: 1, PageTokens: w.plan.pageTokens}, UnitPageBytes: 8}
}

// now is how long the world has existed.
func (w *world) now() time.Duration { return time.Since(w.origin) }

func (w *world) stormy() bool { return !w.calm.Load() }

func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.bad) < 10 {
		w.bad = append(w.bad, fmt.Sprintf("%v: ", w.now())+fmt.Sprintf(format, args...))
	}
}

// open makes the loop. The folder of its store is on a file system without a disk.
func (w *world) open(dir string) {
	var err error
	if w.store, err = OpenStore(dir); err != nil {
		w.t.Fatal(err)
	}
	p := w.plan
	a := w.actor(7, 0)
	w.loop = New(Options{
		Core: core.Options{Ranks: w.ranks, Layout: w.layout(), Context: p.context, Transport: p.transport, DecodePages: p.decodePages, PrefillPages: p.prefillPages,
			Slots: p.slots, MaxBatch: p.maxBatch, Supervise: p.supervise, Request: p.limits, Admit: admit.Limits{Running: p.running, Queued: p.queued},
			Progress: p.progress, Quarantine: p.quarantine, Headroom: p.headroom, Canary: p.canary},
		Store: w.store, Log: observe.New(eventHandler{w}), Meter: meter{w},
		Prepare: func(ctx context.Context, progress func(string)) error {
			progress("loading")
			w.preparing.Store(true)
			defer w.preparing.Store(false)
			if !a.sleep(p.prepare, ctx.Done()) {
				time.Sleep(p.prepareEnds)
				return ctx.Err()
			}
			return nil
		},
		Launch: w.launch,
		Notify: func(status string, _ bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.status = status
		},
	})
}

// start runs the loop.
func (w *world) start() {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	go func() { w.ended <- w.loop.Run(ctx) }()
}

// stop ends the loop, and looks whether all is gone.
func (w *world) stop() {
	w.cancel()
	w.await("Run returns", w.plan.reapAtMost+w.plan.supervise.Reap+30*time.Second, func() bool { return len(w.ended) > 0 })
	if len(w.ended) == 0 {
		return // the goroutines that are left say where it hangs
	}
	if err := <-w.ended; err != nil {
		w.fail("Run: %v", err)
	}
	if w.preparing.Load() {
		w.fail("Run returned while something is being prepared")
	}
	w.mu.Lock()
	gens := slices.Clone(w.gens)
	w.mu.Unlock()
	for _, g := range gens {
		g.mu.Lock()
		for _, p := range g.procs {
			if p.alive || !p.gone {
				w.mu.Lock()
				w.bad = append(w.bad, fmt.Sprintf("I8: Run returned and %s of generation %d lives", p.rank, g.number))
				w.mu.Unlock()
			}
		}
		g.mu.Unlock()
	}
	w.store.Close()
	w.goes.Wait()
}

// await looks again and again, at instants of the main goroutine's own.
func (w *world) await(what string, limit time.Duration, ok func() bool) bool {
	a := &actor{w: w, id: grain - 1}
	for end := w.now() + limit; !ok(); {
		if w.now() > end {
			w.fail("not within %v: %s", limit, what)
			return false
		}
		a.sleep(20*time.Millisecond, nil)
	}
	return true
}

// pause lets time pass for the main goroutine.
func (w *world) pause(d time.Duration) { (&actor{w: w, id: grain - 1}).sleep(d, nil) }

// begin takes note of a generation, before any process of it exists.
func (w *world) begin(g *fakeGen) {
	w.mu.Lock()
	gens := slices.Clone(w.gens)
	w.gens = append(w.gens, g)
	fmt.Fprintln(w.trace, "generation", g.number, w.now())
	w.mu.Unlock()
	if n := len(gens); n > 0 && gens[n-1].number >= g.number {
		w.fail("I17: generation %d after %d", g.number, gens[n-1].number)
	}
	for _, o := range gens {
		o.mu.Lock()
		for _, p := range o.procs {
			if p.alive || !p.gone {
				w.fail("I8: generation %d is launched and %s of %d lives", g.number, p.rank, o.number)
			}
		}
		o.mu.Unlock()
	}
	if b, err := os.ReadFile(w.store.Dir() + "/" + counterFile); err != nil || strings.TrimSpace(string(b)) != g.number.String() {
		w.fail("I19: generation %d is launched, on disk is %q, %v", g.number, b, err)
	}
}

// live is the latest generation.
func (w *world) live() *fakeGen {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.gens) == 0 {
		return nil
	}
	return w.gens[len(w.gens)-1]
}

// told takes note of what the daemon is told.
func (w *world) told(p *fakeProc, c parcel) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.script == nil:
	case c.exit != nil:
		fmt.Fprintf(w.script, "%v %s of %d is reaped: %s\n", w.now(), p.rank, p.gen.number, c.exit.Text)
	case c.lost != nil:
		fmt.Fprintf(w.script, "%v %s of %d closes its socket\n", w.now(), p.rank, p.gen.number)
	default:
		fmt.Fprintf(w.script, "%v %s of %d says %T%+v\n", w.now(), p.rank, p.gen.number, c.frame.Message, c.frame.Message)
	}
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(w.now()))
	w.trace.Write(b[:])
	w.trace.Write([]byte{byte(p.index), byte(p.gen.number)})
	if c.frame.Message != nil {
		f, err := wire.Append(nil, c.frame.Generation, c.frame.Message)
		if err == nil {
			w.trace.Write(f)
		}
	}
}

// heard takes note of what a process is told.
func (w *world) heard(p *fakeProc, c parcel) {
	if w.script != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		fmt.Fprintf(w.script, "%v %s of %d is told %T%+v\n", w.now(), p.rank, p.gen.number, c.frame.Message, c.frame.Message)
	}
}

// eventHandler counts events, and makes all the texts.
type eventHandler struct{ w *world }

func (eventHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h eventHandler) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h eventHandler) WithGroup(string) slog.Handler          { return h }

func (h eventHandler) Handle(_ context.Context, r slog.Record) error {
	kind, id := "", ""
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "event":
			kind = a.Value.String()
		case "request":
			id = a.Value.String()
		}
		return true
	})
	w := h.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events[kind]++
	switch kind {
	case observe.RequestDone.String():
		w.done[id]++
	case observe.LedgerDrift.String():
		w.bad = append(w.bad, fmt.Sprintf("I2: %v: %s", w.now(), r.Message))
	case observe.RequestState.String(), observe.DaemonStacks.String():
		return nil
	}
	w.texts[kind] = append(w.texts[kind], r.Message)
	if w.script != nil {
		fmt.Fprintf(w.script, "%v event %s: %s\n", w.now(), kind, r.Message)
	}
	return nil
}

// count is how often an event was told.
func (w *world) count(k observe.Kind) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events[k.String()]
}

func (w *world) said(k observe.Kind) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.texts[k.String()])
}

// meter counts.
type meter struct{ w *world }

func (m meter) add(k string, n int) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.w.counts[k] += n
}

func (m meter) DeadlineExceeded(state string)                         { m.add("deadline "+state, 1) }
func (m meter) GenerationEnded(reason string)                         { m.add("ended "+reason, 1) }
func (m meter) Transferred(_, _ string, _ time.Duration, bytes int64) { m.add("bytes", int(bytes)) }
func (m meter) TransferFailed(_, _ string, k fault.Kind)              { m.add("transfer "+k.String(), 1) }
func (m meter) VerifyFailed(reason string)                            { m.add("verify "+reason, 1) }
func (m meter) Rejected(k fault.Kind)                                 { m.add("rejected "+k.String(), 1) }
func (m meter) Fenced(string)                                         { m.add("fenced", 1) }
func (m meter) Resumed(n int)                                         { m.add("resumed", n) }
func (m meter) PromptTokens(_ string, n int)                          { m.add("prompt", n) }
func (m meter) OutputTokens(n int)                                    { m.add("output", n) }

func (w *world) metric(k string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[k]
}

// client is one who asks.
type client struct {
	*actor
	spec   request.Spec
	arrive time.Duration
	want   []int32 // the whole undisturbed answer
	leave  leave
	slow   time.Duration // between looks
	rest   time.Duration // from the end to Close

	// Its own until it is done.
	stream    *Stream
	refused   *fault.Error
	submitted time.Duration
	ended     time.Duration
	first     time.Duration // the first token
	gap       time.Duration // the longest between two tokens
	last      time.Duration
	got       []int32
	out       request.Output
	left      bool // by its own choice
	done      chan struct{}
}

// leave is how a client goes before the end: after so many tokens or so long.
type leave struct {
	how    string // "": it stays; "close", "cancel", "operator", "stop"
	tokens int
	after  time.Duration
}

func (w *world) add(c *client) *client {
	n := uint64(len(w.clients))
	c.actor, c.done = w.actor(8, n), make(chan struct{})
	if c.spec.ID == "" {
		c.spec.ID = ident.Request(fmt.Sprint("r", n))
	}
	c.want = undisturbed(c.spec.Prompt, c.spec.MaxTokens, w.plan.units)
	for i, tok := range c.want {
		if slices.Contains(c.spec.Stop, tok) {
			c.want = c.want[:i]
			break
		}
	}
	w.clients = append(w.clients, c)
	return c
}

func (c *client) run() {
	defer close(c.done)
	c.sleep(c.arrive-c.w.now(), nil)
	c.submitted = c.w.now()
	s, err := c.w.loop.Submit(c.spec)
	if err != nil {
		c.refused = err.(*fault.Error)
		return
	}
	c.stream, c.last = s, c.w.now()
	ctx, cancel := context.WithCancel(context.Background())
	if c.leave.how != "" && c.leave.after > 0 {
		var stop context.CancelFunc
		now := c.w.now()
		ctx, stop = context.WithTimeout(ctx, c.instant(now+c.leave.after)-now)
		defer stop()
	}
	defer cancel()
	past, over := context.WithCancel(context.Background())
	over()
	for {
		out, err := s.Next(ctx)
		if err != nil { // it is time to leave
			ctx = context.Background()
		} else {
			// How much of what was said at one instant Next gives at once is up to the
			// scheduler. At the next instant all of it is there.
			c.sleep(0, nil)
			if !out.Ended() {
				if more, err := s.Next(past); err == nil {
					more.Tokens = append(out.Tokens, more.Tokens...)
					out = more
				}
			}
		}
		if now := c.w.now(); len(out.Tokens) > 0 {
			if c.first == 0 {
				c.first = now
			} else {
				c.gap = max(c.gap, now-c.last)
			}
			c.last = now
			c.got = append(c.got, out.Tokens...)
		}
		if out.Ended() {
			c.out, c.ended = out, c.w.now()
			break
		}
		if how := c.leave.how; how != "" && !c.left && (err != nil || c.leave.tokens > 0 && len(c.got) >= c.leave.tokens) {
			c.left = true
			c.sleep(0, nil)
			switch how {
			case "close":
				s.Close()
				c.ended = c.w.now()
				return
			case "cancel":
				s.Cancel("enough")
			case "operator":
				_ = c.w.loop.Cancel(c.spec.ID) // it may have ended by itself
			case "stop":
				s.Stop()
			}
		}
		s.Flushed()
		if c.slow > 0 {
			c.sleep(c.slow, nil)
		}
	}
	c.sleep(c.rest, nil)
	s.Close()
}

// judge says what is wrong with a client's answer.
func (c *client) judge() {
	w, l := c.w, &c.w.plan.limits
	bad := func(format string, args ...any) {
		w.fail("request %s of %d+%d tokens, submitted at %v, ended at %v with %v %v after %d of %d tokens: %s", c.spec.ID, len(c.spec.Prompt), c.spec.MaxTokens,
			c.submitted, c.ended, c.out.Finish, c.out.Err, len(c.got), len(c.want), fmt.Sprintf(format, args...))
	}
	if c.refused != nil {
		switch c.refused.Kind {
		case fault.QueueFull, fault.NotReady, fault.Draining:
		default:
			w.fail("request %s is refused: %v", c.spec.ID, c.refused)
		}
		return
	}
	if n := min(len(c.got), len(c.want)); n != len(c.got) || !slices.Equal(c.got, c.want[:n]) {
		bad("another answer than the undisturbed one: %v, not %v", c.got, c.want)
		return
	}
	if c.left && c.leave.how == "close" {
		return
	}
	w.mu.Lock()
	times := w.done[string(c.spec.ID)]
	w.mu.Unlock()
	if times != 1 {
		bad("I1: it ended %d times", times)
	}
	if c.ended > c.submitted+l.Request+time.Second+c.slow {
		bad("I1: %v is its limit", l.Request)
	}
	if (c.out.Finish != 0) == (c.out.Err != nil) {
		bad("I1: one of finish and error is an end")
	}
	switch {
	case c.out.Finish == request.FinishLength && (len(c.got) != len(c.want) || len(c.want) != c.spec.MaxTokens):
		bad("the answer is incomplete")
	case c.out.Finish == request.FinishStop && !c.left && (len(c.got) != len(c.want) || len(c.want) == c.spec.MaxTokens):
		bad("the answer is incomplete")
	case c.out.Err != nil:
		switch k := c.out.Err.Kind; {
		case k == fault.Internal:
			bad("our bug")
		case k == fault.Cancelled && !c.left:
			bad("nobody cancelled it")
		}
	}
	c.stream.mu.Lock()
	defer c.stream.mu.Unlock()
	if len(c.stream.tokens) > 0 || c.stream.finish != c.out.Finish || c.stream.err != c.out.Err {
		bad("I14: after its end it is told more: %v %v %v", c.stream.tokens, c.stream.finish, c.stream.err)
	}
}

// complete reports whether the client has the whole answer.
func (c *client) complete() bool { return c.refused == nil && c.out.Finish != 0 }

// look looks at the gauges.
func (w *world) look() {
	v, err := w.loop.View(time.Second)
	if err != nil {
		select {
		case <-w.loop.done:
		default:
			w.fail("no view: %v", err)
		}
		return
	}
	w.ledgers(v)
	o := &w.plan.limits
	held := 0
	for _, s := range v.States {
		held += s.Count
	}
	w.mu.Lock()
	w.worst.running, w.worst.held = max(w.worst.running, v.Running), max(w.worst.held, held)
	w.worst.queued, w.worst.quarantine = max(w.worst.queued, v.Queued), max(w.worst.quarantine, v.QuarantineAge)
	w.mu.Unlock()
	if v.Running > v.MaxRunning || held > v.MaxRunning+v.MaxQueued {
		w.fail("I9: %d running of %d, %d in all of %d", v.Running, v.MaxRunning, held, v.MaxRunning+v.MaxQueued)
	}
	if limit := w.plan.quarantine + 100*time.Millisecond; v.State == "up" && v.QuarantineAge > limit.Seconds() {
		w.fail("I5: pages are in quarantine for %vs", v.QuarantineAge)
	}
	rs, err := w.loop.Requests(time.Second)
	if err != nil {
		return
	}
	for _, r := range rs {
		if r.Deadline < -0.1 {
			w.fail("I1: request %s is %s for %.3fs longer than it may", r.ID, r.State, -r.Deadline)
		}
		if r.Age > (o.Request+o.Drain+time.Second).Seconds()+100 {
			w.fail("I1: request %s holds its place for %.0fs", r.ID, r.Age)
		}
	}
}

// ledgers checks that pools add up.
func (w *world) ledgers(v core.View) {
	for _, p := range v.Pools {
		sum := 0
		for _, n := range p.States {
			sum += n
		}
		if p.Drift != 0 || sum != p.Total {
			w.fail("I2: pool %s: %v of %d, off by %d", p.Name, p.States, p.Total, p.Drift)
		}
	}
}

// atRest says what is not: "" if every gauge is 0 and every pool full.
func atRest(v core.View) string {
	if v.State != "up" {
		return v.State
	}
	for _, s := range v.States {
		if s.Count != 0 || s.Oldest != 0 {
			return fmt.Sprintf("%d %s", s.Count, s.State)
		}
	}
	if v.Running != 0 || v.Queued != 0 || v.QuarantineAge != 0 {
		return fmt.Sprintf("%d running, %d queued, quarantine of %v", v.Running, v.Queued, v.QuarantineAge)
	}
	for _, p := range v.Pools {
		if p.States["free"] != p.Total {
			return fmt.Sprintf("pool %s: %v of %d", p.Name, p.States, p.Total)
		}
	}
	return ""
}

// settle lets the world run on with nothing going wrong, and checks that it comes to
// rest and stays there.
func (w *world) settle() {
	w.calm.Store(true)
	why := ""
	rest := func() bool {
		v, err := w.loop.View(time.Second)
		if err != nil {
			why = err.Error()
			return false
		}
		w.ledgers(v)
		why = atRest(v)
		return why == ""
	}
	ready := func() bool { return rest() && w.loop.Ready() == nil }
	if !w.await("rest", w.plan.restsWithin, ready) {
		w.fail("I15: not at rest: %s, %v", why, w.loop.Ready())
		return
	}
	w.pause(5 * time.Second)
	// A canary may be on its way just now, and find what nobody met before: a step that
	// was lost, say, so that its own comes out of turn.
	if !w.await("rest after 5 s", w.plan.progress+2*time.Second, rest) {
		w.fail("I15: not at rest after 5 s: %s", why)
	}
}

// play runs the whole scenario, and judges it.
func (w *world) play() {
	dir, err := os.MkdirTemp(shm(), "tandem-sim-")
	if err != nil {
		w.t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	w.open(dir)
	watcher, doers := w.actor(9, 0), make([]*actor, len(w.plan.events))
	for i := range doers {
		doers[i] = w.actor(10, uint64(i))
	}
	w.start()
	stopped := make(chan struct{})
	w.goes.Go(func() {
		for watcher.sleep(w.plan.look, stopped) {
			w.look()
		}
	})
	for _, c := range w.clients {
		w.goes.Go(c.run)
	}
	for i, f := range w.plan.events {
		a := doers[i]
		w.goes.Go(func() {
			if a.sleep(f.at, stopped) && w.stormy() {
				f.do(w, a)
			}
		})
	}
	if w.plan.stopAt > 0 {
		w.pause(w.plan.stopAt)
		w.calm.Store(true)
	} else {
		w.await("every client has its end", w.plan.endsWithin(w), func() bool {
			for _, c := range w.clients {
				select {
				case <-c.done:
				default:
					return false
				}
			}
			return true
		})
		w.settle()
	}
	close(stopped)
	w.stop()
	for _, c := range w.clients {
		<-c.done
		c.judge()
	}
	if w.plan.judge != nil {
		w.plan.judge(w)
	}
	for _, c := range w.clients {
		fmt.Fprintln(w.trace, c.spec.ID, c.submitted, c.ended, c.out.Finish, c.out.Err, c.refused)
	}
	w.report()
}

func (w *world) report() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.bad {
		w.t.Error(b)
	}
}

// shm is a folder in memory, if there is one: what is synced there costs nothing.
func shm() string {
	if s, err := os.Stat("/dev/shm"); err == nil && s.IsDir() {
		return "/dev/shm"
	}
	return ""
}
