package control

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/generation"
	"tandem/daemon/ident"
	"tandem/daemon/request"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
)

// plan says what a world is made of and what goes wrong in it.
type plan struct {
	seed uint64

	transport                 transfer.Transport
	p, d                      shape
	units, pageTokens         int
	decodePages, prefillPages int // of each replica
	slots, maxBatch, context  int
	chunk                     int
	headroom                  int
	perToken, perStep         time.Duration
	running, queued           int
	limits                    request.Limits
	supervise                 supervise.Limits
	progress, quarantine      time.Duration
	prepare                   time.Duration
	prepareEnds               time.Duration // once it is told to
	canary                    []int32
	look                      time.Duration // between looks at the gauges

	down, up            map[wire.Type]odds // what happens to messages; the key 0 stands for the others
	maxLate             time.Duration
	tamper              func(l *link, m wire.Message) fate        // instead of all that, if set
	damaged, giveUp     float64                                   // of copied units of pages; of tokens
	copyAs              func(l *fakeLane, have int) time.Duration // instead of what follows, if set
	stalled             func(tokens []int32) bool                 // prompts that prefill does not compute
	broken              func(tokens []int32) bool                 // sequences that bring no number
	early               bool                                      // prefill says done before it is
	slowCopies          float64
	maxCopy             time.Duration
	unread              int // messages that may wait for a rank; 0: any number
	launchFaults        float64
	launchAs            func(n int) launchFault // instead of that, if set
	slowLaunches        bool
	maxReap, reapAtMost time.Duration
	reapAs              func(a *actor) time.Duration // instead of that, if set
	events              []mishap
	stopAt              time.Duration // 0: at rest
	restsWithin         time.Duration

	harmless bool // nothing may end a generation, and nobody may notice anything
	judge    func(w *world)
}

type shape struct{ replicas, degree int }

// odds of what happens to a message.
type odds struct{ lost, twice, late, overtaken float64 }

// fate is what does.
type fate struct {
	lost, twice     bool
	late, overtaken time.Duration
}

// mishap is something that is done to a world once.
type mishap struct {
	at   time.Duration
	name string
	do   func(w *world, a *actor)
}

// fate decides on one message. It is called with the link's lock.
func (w *world) fate(l *link, m wire.Message) (f fate) {
	if !w.stormy() {
		return f
	}
	p := w.plan
	if p.tamper != nil {
		return p.tamper(l, m)
	}
	all := p.up
	if l.down {
		all = p.down
	}
	o, ok := all[m.Type()]
	if !ok {
		o = all[0]
	}
	switch {
	case l.chance(o.lost):
		f.lost = true
	case l.chance(o.twice):
		f.twice = true
	case l.chance(o.late):
		f.late = l.between(0, p.maxLate)
	case l.chance(o.overtaken):
		f.overtaken = l.between(0, min(p.maxLate, 100*time.Millisecond))
	}
	return f
}

// damage changes a byte of a page that was just copied.
func (w *world) damage(a *actor, cells []uint64) {
	if w.stormy() && a.chance(w.plan.damaged) {
		cells[a.rnd.IntN(len(cells))] ^= 1 << a.rnd.IntN(64)
		meter{w}.add("damaged", 1)
	}
}

// copying is how long a lane takes over some pages.
func (p *plan) copying(l *fakeLane, have, pages int) time.Duration {
	switch {
	case !l.w.stormy():
	case p.copyAs != nil:
		return p.copyAs(l, have)
	case l.chance(p.slowCopies):
		return l.between(0, p.maxCopy)
	}
	return time.Duration(pages) * 10 * time.Microsecond
}

// launchFault is how a generation starts.
type launchFault struct {
	takes, lingers time.Duration // until the processes exist, and until that is known
	startsIn       time.Duration // at most, of a process
	nothing, half  bool          // no process is started; some are
	who            int           // a rank, from 1, that starts up otherwise
	how            string        // "dies", "never ready", "wrong process"
}

func (p *plan) launch(a *actor, n int) launchFault {
	f := launchFault{takes: a.between(0, 5*time.Millisecond), startsIn: 50 * time.Millisecond}
	if p.slowLaunches && a.chance(0.3) {
		f.lingers = a.between(0, 200*time.Millisecond)
	}
	if !a.w.stormy() {
		return f
	}
	if p.launchAs != nil {
		g := p.launchAs(n)
		if g.startsIn == 0 {
			g.startsIn = f.startsIn
		}
		return g
	}
	if a.chance(p.launchFaults) {
		switch a.rnd.IntN(5) {
		case 0:
			f.nothing = true
		case 1:
			f.half = true
		default:
			f.who = 1 + a.rnd.IntN(len(a.w.ranks))
			f.how = []string{"dies", "never ready", "wrong process"}[a.rnd.IntN(3)]
		}
	}
	return f
}

// reap is how long a dead process takes to be reaped.
func (p *plan) reap(a *actor) time.Duration {
	if p.reapAs != nil {
		return p.reapAs(a)
	}
	if a.w.stormy() && p.maxReap > 0 && a.chance(0.1) {
		return a.between(0, p.maxReap)
	}
	return a.between(100*time.Microsecond, 10*time.Millisecond)
}

// endsWithin is when every client must have its end.
func (p *plan) endsWithin(w *world) time.Duration {
	last := time.Duration(0)
	for _, c := range w.clients {
		last = max(last, c.arrive+c.rest+time.Duration(c.spec.MaxTokens)*c.slow)
	}
	return last + p.limits.Request + 5*time.Second
}

// quiet is a plan in which nothing goes wrong.
func quiet(tr transfer.Transport) *plan {
	s := time.Second
	return &plan{
		transport: tr, p: shape{1, 2}, d: shape{1, 2}, units: 3, pageTokens: 4, decodePages: 400, prefillPages: 400, slots: 40, maxBatch: 16, context: 256,
		chunk: 16, headroom: 8, perToken: 200 * time.Microsecond, perStep: 10 * time.Millisecond, running: 32, queued: 64,
		limits: request.Limits{Queue: 30 * s, Reserve: 2 * s, PrefillStall: 8 * s, Handoff: 2 * s, Transfer: 4 * s, Verify: s, FirstToken: 5 * s, TokenStall: 5 * s,
			Drain: 10 * s, Request: 60 * s, MaxAttempts: 3},
		supervise: supervise.Limits{Start: 10 * s, Reap: 5 * s, Budget: 20, Window: 60 * s, BackoffMin: s / 10, BackoffMax: 4 * s},
		progress:  3 * s, quarantine: 5 * s, prepare: 5 * time.Millisecond, canary: []int32{1, 2}, look: 500 * time.Millisecond, restsWithin: 60 * s,
	}
}

// fill adds clients.
func (w *world) fill(n int, within time.Duration, maxPrompt, maxTokens int) {
	rnd := rand.New(rand.NewPCG(w.plan.seed, 99))
	for range n {
		prompt := make([]int32, 1+rnd.IntN(maxPrompt))
		for i := range prompt {
			prompt[i] = rnd.Int32N(vocabulary)
		}
		c := &client{arrive: time.Duration(rnd.Int64N(int64(within) + 1)), rest: time.Duration(rnd.IntN(20)) * time.Millisecond}
		c.spec = request.Spec{Prompt: prompt, MaxTokens: 1 + rnd.IntN(maxTokens)}
		w.add(c)
	}
}

var transports = []transfer.Transport{transfer.Handover, transfer.Pull, transfer.Push}

// scenario makes a world from a seed: what it is made of, who asks, and what goes wrong.
// How much may go wrong is in the seed too: a quarter of the worlds have only clients
// that change their minds, a quarter also messages that come twice, late and out of turn.
func scenario(seed uint64) *plan {
	r := rand.New(rand.NewPCG(seed, 7))
	pick := func(n ...int) int { return n[r.IntN(len(n))] }
	p := quiet(transports[r.IntN(3)])
	p.seed = seed
	p.p, p.d = shape{pick(1, 1, 2), pick(1, 2, 3)}, shape{pick(1, 1, 2), pick(1, 2, 3)}
	p.units, p.pageTokens = pick(2, 3, 4), pick(2, 4, 8)
	p.maxBatch, p.chunk, p.headroom = pick(2, 8, 32), pick(4, 16, 64), pick(1, 8, 16)
	p.perStep = time.Duration(pick(2, 10, 50)) * time.Millisecond
	p.slowLaunches = r.IntN(2) == 0
	few := r.IntN(3) == 0 // pages
	if few {
		p.decodePages = (90+r.IntN(100))/p.pageTokens + 1
		p.prefillPages = p.decodePages
		p.slots = pick(1, 3, 40)
	}
	p.running, p.queued = pick(2, 8, 32), 40

	kind := r.IntN(4)
	if kind == 0 || kind == 1 {
		p.harmless = true
		p.limits.Queue = p.limits.Request
	}
	little := odds{twice: 0.1, late: 0.05, overtaken: 0.1}
	switch kind {
	case 0:
	case 1:
		// The core keeps 32 steps that came before their turn.
		p.up, p.maxLate = map[wire.Type]odds{0: little}, min(80*time.Millisecond, 12*p.perStep)
	default:
		p.storm(r)
	}
	return p
}

// storm adds what may end generations.
func (p *plan) storm(r *rand.Rand) {
	some := func(chance, most float64) float64 {
		if r.Float64() < chance {
			return r.Float64() * most
		}
		return 0
	}
	one := func(most float64) odds {
		return odds{lost: some(0.4, most), twice: some(0.5, 0.3), late: some(0.5, 0.2), overtaken: some(0.5, 0.3)}
	}
	p.maxLate = []time.Duration{50 * time.Millisecond, time.Second, 6 * time.Second}[r.IntN(3)]
	p.up, p.down = map[wire.Type]odds{0: one(0.03)}, map[wire.Type]odds{0: one(0.03)}
	if r.IntN(2) == 0 { // one kind fares worse
		up := []wire.Type{wire.THello, wire.TReady, wire.TReserved, wire.TSealed, wire.TLanded, wire.TVerified, wire.TStep, wire.TQuiet, wire.TFailed}
		down := []wire.Type{wire.TExpect, wire.TPrefill, wire.TJoin, wire.TGrow, wire.TQuiesce}
		if r.IntN(2) == 0 {
			p.up[up[r.IntN(len(up))]] = one(1)
		} else {
			p.down[down[r.IntN(len(down))]] = one(1)
		}
	}
	p.damaged, p.giveUp = some(0.3, 0.02), some(0.3, 0.02)
	if p.slowCopies = some(0.3, 0.2); p.slowCopies > 0 {
		p.maxCopy = 8 * time.Second
	}
	p.launchFaults = some(0.4, 0.5)
	p.supervise.Budget = []int{2, 20}[r.IntN(2)]
	if r.IntN(4) == 0 {
		p.maxReap = 12 * time.Second
	}
	p.reapAtMost = p.maxReap
	for range r.IntN(6) {
		p.events = append(p.events, anyMishap(r))
	}
	if r.IntN(6) == 0 {
		p.stopAt = time.Duration(r.Int64N(int64(15 * time.Second)))
	}
}

// populate adds the clients of a scenario.
func (w *world) populate() {
	p := w.plan
	r := rand.New(rand.NewPCG(p.seed, 8))
	n := 1 + r.IntN(30)
	within := []time.Duration{time.Millisecond, time.Second, 10 * time.Second}[r.IntN(3)]
	long := 1 + r.IntN(40)
	w.fill(n, within, long, 1+r.IntN(40))
	leavers := []float64{0, 0.2, 0.8}[r.IntN(3)]
	for _, c := range w.clients {
		c.spec.Stop = nil
		if r.IntN(3) == 0 {
			c.spec.Stop = []int32{-1, c.want[r.IntN(len(c.want))]}
			c.want = c.want[:slices.Index(c.want, c.spec.Stop[1])]
		}
		if r.IntN(10) == 0 {
			c.slow = time.Duration(r.IntN(500)) * time.Millisecond
		}
		if r.Float64() < leavers {
			c.leave.how = []string{"close", "cancel", "operator", "stop"}[r.IntN(4)]
			if r.IntN(2) == 0 {
				c.leave.tokens = 1 + r.IntN(c.spec.MaxTokens)
			} else {
				c.leave.after = time.Duration(r.Int64N(int64([]time.Duration{2 * time.Millisecond, 50 * time.Millisecond, 5 * time.Second}[r.IntN(3)]))) + 1
			}
		}
	}
}

// anyMishap is something that befalls one rank, or an operator.
func anyMishap(r *rand.Rand) mishap {
	at := time.Duration(r.Int64N(int64(12 * time.Second)))
	if r.IntN(2) == 0 {
		at /= 20 // while much goes on
	}
	all := []mishap{
		{name: "dies", do: onRank(func(p *fakeProc, a *actor) { p.die("signal: killed") })},
		{name: "exits", do: onRank(func(p *fakeProc, a *actor) { p.die("exit status 2") })},
		{name: "two die", do: func(w *world, a *actor) {
			if g := w.live(); g != nil {
				for range 2 {
					g.any(a).die("signal: killed")
				}
			}
		}},
		{name: "stops", do: onRank(func(p *fakeProc, a *actor) { p.freeze() })},
		{name: "stops for a while", do: onRank(func(p *fakeProc, a *actor) {
			p.freeze()
			a.sleep(a.between(0, 4*time.Second), nil)
			p.goOn()
		})},
		{name: "hangs", do: onRank(func(p *fakeProc, a *actor) {
			p.gen.mu.Lock()
			p.replica.hung = true
			p.gen.mu.Unlock()
		})},
		{name: "lies", do: onRank(func(p *fakeProc, a *actor) { lies[a.rnd.IntN(len(lies))].tell(p, a) })},
		{name: "restart", do: func(w *world, a *actor) { _ = w.loop.Restart("to see") }}, // there may be nothing to restart
		{name: "stacks", do: func(w *world, a *actor) { _ = w.loop.DumpWorkers() }},
	}
	e := all[r.IntN(len(all))]
	e.at = at
	return e
}

func (g *fakeGen) any(a *actor) *fakeProc {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.procs) == 0 {
		return &fakeProc{gen: g}
	}
	return g.procs[a.rnd.IntN(len(g.procs))]
}

func onRank(do func(p *fakeProc, a *actor)) func(*world, *actor) {
	return func(w *world, a *actor) {
		if g := w.live(); g != nil {
			if p := g.any(a); p.actor != nil {
				do(p, a)
			}
		}
	}
}

// A lie is something that no rank may say. protocol lies end the generation.
type lie struct {
	name     string
	protocol bool
	tell     func(p *fakeProc, a *actor)
}

// saying makes a lie of a message about some attempt that may be live.
func saying(name string, protocol bool, m func(p *fakeProc, attempt uint64) wire.Message) lie {
	return lie{name, protocol, func(p *fakeProc, a *actor) { p.say(m(p, 1+a.rnd.Uint64N(8))) }}
}

var lies = []lie{
	saying("an attempt that never was", true, func(p *fakeProc, _ uint64) wire.Message { return &wire.Quiet{Attempt: 1 << 40} }),
	saying("attempt 0", true, func(p *fakeProc, _ uint64) wire.Message { return &wire.Failed{} }),
	saying("more pages than there are", false, func(p *fakeProc, n uint64) wire.Message { return &wire.Landed{Attempt: n, Pages: 1 << 30} }),
	saying("more tokens than there are", false, func(p *fakeProc, n uint64) wire.Message { return &wire.Sealed{Attempt: n, Tokens: 1 << 30} }),
	saying("another's words", false, func(p *fakeProc, n uint64) wire.Message {
		if p.rank.Role == ident.Decode {
			return &wire.Sealed{Attempt: n, Done: true}
		}
		return &wire.Verified{Attempt: n}
	}),
	saying("an order", true, func(p *fakeProc, n uint64) wire.Message { return &wire.Quiesce{Attempt: n} }),
	saying("another process", true, func(p *fakeProc, _ uint64) wire.Message { return &wire.Hello{PID: 1} }),
	saying("a step far ahead", false, func(p *fakeProc, n uint64) wire.Message {
		return &wire.Step{Seq: 1 << 20, Results: []wire.Result{{Attempt: n, Token: -7}}}
	}),
	saying("ready again", false, func(p *fakeProc, _ uint64) wire.Message { return &wire.Ready{} }),
	saying("last words", false, func(p *fakeProc, _ uint64) wire.Message { return &wire.Fatal{Text: "that was all"} }),
	saying("given up", false, func(p *fakeProc, n uint64) wire.Message {
		return &wire.Failed{Attempt: n, Kind: fault.Kind(n) + fault.QueueTimeout, Text: "no reason"}
	}),
	{"a frame of the last generation", false, func(p *fakeProc, a *actor) { p.foreign(p.gen.number-1, &wire.Quiet{Attempt: 1}) }},
	{"a frame of the next generation", false, func(p *fakeProc, a *actor) {
		p.foreign(p.gen.number+1, &wire.Step{Seq: 1, Results: []wire.Result{{Attempt: 1, Token: -7}}})
	}},
	{"no frame", true, func(p *fakeProc, a *actor) {
		err := fmt.Errorf("%w: magic 0x0000", wire.ErrFrame)
		p.gen.sink(generation.Report{Generation: p.gen.number, Rank: p.index, Lost: &err})
	}},
}

// foreign says something in a frame of another generation.
func (p *fakeProc) foreign(g ident.Generation, m wire.Message) {
	f := copied(g, m)
	p.gen.sink(generation.Report{Generation: p.gen.number, Rank: p.index, Frame: &f})
}

func (p *plan) String() string {
	var names []string
	for _, e := range p.events {
		names = append(names, fmt.Sprintf("%s at %v", e.name, e.at.Round(time.Millisecond)))
	}
	return fmt.Sprintf("%s, prefill %d×%d, decode %d×%d, %d units, %d pages of %d, up %v, down %v, late by %v, damaged %.3f, given up %.3f, slow copies %.2f, launches %.2f, reaped in %v, stop at %v; %s",
		p.transport, p.p.replicas, p.p.degree, p.d.replicas, p.d.degree, p.units, p.decodePages, p.pageTokens, p.up, p.down, p.maxLate, p.damaged, p.giveUp, p.slowCopies, p.launchFaults,
		p.maxReap, p.stopAt, strings.Join(names, ", "))
}
