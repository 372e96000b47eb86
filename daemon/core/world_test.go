package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tandem/daemon/admit"
	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
	"tandem/gpu/pagepool"
	"tandem/kernels"
	"tandem/model"
)

// A world is a Core, as shipped, among processes, clients and a clock that do
// whatever they could do. It is a value to be cloned: each thing that could happen
// next is done to a clone.
//
// The processes are a model of package worker: what a rank may touch and what it
// says, not what it computes. The token that a step brings is its place in the
// answer, so that a lost, doubled or misplaced one shows.
type world struct {
	cfg     *config
	c       *Core
	number  ident.Generation // latest that was spawned
	launch  bool             // its launch has not been reported
	procs   []proc
	sealed  map[uint64]transfer.Mask // ranks of the source that published an attempt: shared memory
	clients []client
	budget  budget
	hurt    bool   // something happened that a generation may end of
	harm    bool   // something happened that an answer may end of
	blows   int    // that cost an attempt each, at most
	bad     string // what went wrong
	scratch []byte
	listens bool // to events that are dear to make
}

// config is a small world's shape.
type config struct {
	name      string
	transport transfer.Transport
	p, d      int // ranks of the prefill and of the decode replica
	idle      int // decode rank that owns no unit; -1: none
	pages     int // of each pool
	slots     int
	requests  []size
	attempts  int
	starting  bool // the first generation has yet to come up
	budget    budget
}

type size struct{ prompt, tokens int }

// budget is how much may go wrong on one path.
type budget struct {
	faults                  int // of all kinds together
	lose, double, overtake  int // of what ranks say
	mislay                  int // of what ranks are told
	kill, freeze, misfire   int // processes that die, that stop; launches that fail
	fail                    int // attempts that a rank gives up
	leave, stop, wait, oper int // clients that go, stop strings, limits that pass, restarts on request
}

type proc struct {
	alive, gone, frozen bool
	ready               bool // it said so, and that was heard
	know                []entry
	tombs               []uint64
	joined              []sequence // of decode's leader
	steps               uint64     // of decode's leader
	down, up, plan      []wire.Message
}

// entry is what a rank knows of an attempt.
type entry struct {
	seq      uint64
	src, dst []pagepool.Page
	verified bool
}

type sequence struct {
	seq    uint64
	next   int // place of its next token in the answer
	left   int
	length int
	pages  []pagepool.Page
}

// plans of a leader for the other ranks of its replica.
type (
	planCompute struct {
		wire.Quiesce // for the type
		e            entry
	}
	planStep struct {
		wire.Quiesce
		seqs []sequence
	}
	planQuiet struct{ wire.Quiesce }
)

type client struct {
	ticket            Ticket
	got               int
	finish            request.Finish
	fault             *fault.Error
	ended, gone, left bool
}

const second = time.Second

func (cfg *config) options() *Options {
	o := &Options{
		Layout:  model.Layout{Geometry: kernels.Geometry{Layers: 1, Units: 3, HeadDim: 1, PageTokens: 2}, UnitPageBytes: 1},
		Context: 16, Transport: cfg.transport, DecodePages: cfg.pages, PrefillPages: cfg.pages, Slots: cfg.slots, MaxBatch: 4,
		Supervise: supervise.Limits{Start: 20 * second, Reap: 5 * second, Budget: 2, Window: time.Minute, BackoffMin: second, BackoffMax: 4 * second},
		Request: request.Limits{Queue: 30 * second, Reserve: 2 * second, PrefillStall: 20 * second, Handoff: 2 * second, Transfer: 5 * second, Verify: second,
			FirstToken: 10 * second, TokenStall: 10 * second, Drain: 30 * second, Request: 100 * second, MaxAttempts: cfg.attempts},
		Admit: admit.Limits{Running: 2, Queued: 1}, Progress: 3 * second, Quarantine: 5 * second, Headroom: 1,
	}
	for i := range cfg.p {
		o.Ranks = append(o.Ranks, ident.Rank{Replica: ident.Replica{Role: ident.Prefill}, Rank: i})
	}
	for i := range cfg.d {
		o.Ranks = append(o.Ranks, ident.Rank{Replica: ident.Replica{Role: ident.Decode}, Rank: i})
	}
	return o
}

func newWorld(cfg *config) *world {
	w := &world{cfg: cfg, budget: cfg.budget, sealed: map[uint64]transfer.Mask{}}
	w.c = New(cfg.options(), w, 6)
	w.c.Start(1)
	for i, s := range cfg.requests {
		spec := request.Spec{ID: ident.Request(fmt.Sprint("r", i)), Prompt: make([]int32, s.prompt), MaxTokens: s.tokens}
		t, err := w.c.Submit(1, spec)
		if err != nil {
			w.bad = err.Error()
		}
		w.clients = append(w.clients, client{ticket: t})
	}
	return w
}

func (w *world) clone() *world {
	v := *w
	v.c = w.c.clone(&v)
	v.procs = slices.Clone(w.procs)
	for i := range v.procs {
		p := &v.procs[i]
		p.know, p.tombs, p.joined = slices.Clone(p.know), slices.Clone(p.tombs), slices.Clone(p.joined)
		p.down, p.up, p.plan = slices.Clone(p.down), slices.Clone(p.up), slices.Clone(p.plan)
		for j := range p.joined {
			p.joined[j].pages = slices.Clone(p.joined[j].pages)
		}
	}
	v.sealed = maps.Clone(w.sealed)
	v.clients = slices.Clone(w.clients)
	v.scratch = nil
	return &v
}

// clone copies the state; nothing is shared that either may change.
func (c *Core) clone(out Outside) *Core {
	d := *c
	d.out = out
	d.requests, d.names, d.ended = map[Ticket]*live{}, maps.Clone(c.names), newRecords(1)
	lives := map[*live]*live{}
	twin := func(r *live) *live {
		if r == nil {
			return nil
		}
		t := lives[r]
		if t == nil {
			cp := *r
			t = &cp
			t.tokens = slices.Clone(r.tokens)
			t.rec = &Record{ID: r.spec.ID}
			lives[r] = t
		}
		return t
	}
	for k, r := range c.requests {
		d.requests[k] = twin(r)
	}
	d.order = slices.Clone(c.order)
	for i, r := range d.order {
		d.order[i] = twin(r)
	}
	d.queue = slices.Clone(c.queue)
	for i, r := range d.queue {
		d.queue[i] = twin(r)
	}
	d.canary = twin(c.canary)
	attempts := map[*attempt]*attempt{}
	d.attempts = map[uint64]*attempt{}
	for k, a := range c.attempts {
		b := *a
		b.request = twin(a.request)
		b.computed, b.landed = slices.Clone(a.computed), slices.Clone(a.landed)
		attempts[a] = &b
		d.attempts[k] = &b
	}
	for old, r := range lives {
		if old.attempt != nil {
			r.attempt = attempts[old.attempt]
		}
	}
	replicas := map[*replica]*replica{}
	for role := range c.replicas {
		d.replicas[role] = nil
		for _, r := range c.replicas[role] {
			s := *r
			s.held = slices.Clone(r.held)
			if r.pool != nil {
				var leases []**pagepool.Lease
				for _, b := range d.attempts {
					leases = append(leases, &b.target, &b.source)
				}
				s.pool = r.pool.Clone(leases...)
			}
			replicas[r] = &s
			d.replicas[role] = append(d.replicas[role], &s)
		}
	}
	for _, b := range d.attempts {
		b.src, b.dst = replicas[b.src], replicas[b.dst]
	}
	d.slots = make([][]bool, len(c.slots))
	for i := range c.slots {
		d.slots[i] = slices.Clone(c.slots[i])
	}
	d.lately, d.verdicts, d.health = slices.Clone(c.lately), slices.Clone(c.verdicts), slices.Clone(c.health)
	d.strikes = map[edge][]strike{}
	for e, s := range c.strikes {
		d.strikes[e] = slices.Clone(s)
	}
	d.ignored = map[string]int{}
	return &d
}

func (w *world) fail(format string, args ...any) {
	if w.bad == "" {
		w.bad = fmt.Sprintf(format, args...)
	}
}

// What the core asks of its outside.

func (w *world) Send(rank int, m wire.Message) error {
	p := &w.procs[rank]
	if j, ok := m.(*wire.Join); ok {
		a := w.c.attempts[j.Attempt]
		if !a.t.Empty {
			for i := range w.cfg.d {
				if e := w.procs[w.cfg.p+i].find(j.Attempt); w.procs[w.cfg.p+i].alive && (e == nil || !e.verified) {
					w.fail("I4: attempt %d decodes before decode rank %d verified", j.Attempt, i)
				}
			}
		}
	}
	if p.alive {
		p.down = append(p.down, m)
	}
	return nil
}

func (w *world) Spawn(g ident.Generation) {
	for i, p := range w.procs {
		if p.alive || !p.gone {
			w.fail("I8: generation %d is spawned while rank %d of %d lives", g, i, w.number)
		}
	}
	if g <= w.number {
		w.fail("I17: generation %d after %d", g, w.number)
	}
	w.number, w.launch = g, true
	w.procs, w.sealed = nil, map[uint64]transfer.Mask{}
}

func (w *world) Kill() {
	for i := range w.procs {
		w.procs[i].die()
	}
}

func (p *proc) die() {
	p.alive, p.frozen = false, false
	p.know, p.tombs, p.joined, p.down, p.plan = nil, nil, nil, nil, nil
}

func (w *world) Reaped() error {
	for i, p := range w.procs {
		if p.alive || !p.gone {
			w.fail("I5: reaped, and rank %d lives", i)
		}
	}
	return nil
}

func (w *world) client(t Ticket) *client {
	for i := range w.clients {
		if w.clients[i].ticket == t {
			return &w.clients[i]
		}
	}
	// During Submit, before the ticket is known.
	w.fail("I17: ticket %d is nobody's", t)
	return &client{}
}

func (w *world) Token(t Ticket, token int32) {
	c := w.client(t)
	if c.ended || c.gone {
		w.fail("I14: request %d gets a token after its end", t)
	}
	if int(token) != c.got {
		w.fail("I4: request %d gets token %d where token %d belongs", t, token, c.got)
	}
	c.got++
}

func (w *world) End(t Ticket, f request.Finish, err *fault.Error) {
	c := w.client(t)
	if c.ended {
		w.fail("I1: request %d ends again", t)
	}
	if (f == 0) == (err == nil) {
		w.fail("I1: request %d ends with %v and %v", t, f, err)
	}
	c.ended, c.finish, c.fault = true, f, err
	if f == request.FinishLength && c.got != w.cfg.requests[t-1].tokens {
		w.fail("I1: request %d ends complete after %d of %d tokens", t, c.got, w.cfg.requests[t-1].tokens)
	}
	if r := w.c.requests[t]; r != nil && w.c.now > r.m.Expires.Add(second) && !c.left {
		w.fail("I1: request %d ends %v after its limit", t, time.Duration(w.c.now-r.m.Expires))
	}
}

func (w *world) Forget(t Ticket) {
	c := w.client(t)
	if !c.ended || c.gone {
		w.fail("I1: request %d is forgotten before its end, or twice", t)
	}
	c.gone = true
}

func (w *world) Wants(observe.Kind) bool                          { return w.listens }
func (w *world) Stuck(ident.Request, request.State)               {}
func (w *world) Notify(string, bool)                              {}
func (w *world) DeadlineExceeded(string)                          {}
func (w *world) Transferred(string, string, time.Duration, int64) {}
func (w *world) TransferFailed(string, string, fault.Kind)        {}
func (w *world) VerifyFailed(string)                              {}
func (w *world) Rejected(fault.Kind)                              {}
func (w *world) Fenced(string)                                    { w.c.ignored["fenced"]++ }
func (w *world) Resumed(int)                                      {}
func (w *world) PromptTokens(string, int)                         {}
func (w *world) OutputTokens(int)                                 {}

// The processes.

func (p *proc) find(seq uint64) *entry {
	for i := range p.know {
		if p.know[i].seq == seq {
			return &p.know[i]
		}
	}
	return nil
}

func (p *proc) say(m wire.Message) { p.up = append(p.up, m) }

// leave makes a rank forget an attempt for good.
func (p *proc) leave(seq uint64) {
	p.know = slices.DeleteFunc(p.know, func(e entry) bool { return e.seq == seq })
	p.joined = slices.DeleteFunc(p.joined, func(s sequence) bool { return s.seq == seq })
	if !slices.Contains(p.tombs, seq) {
		p.tombs = append(p.tombs, seq)
	}
	p.say(&wire.Quiet{Attempt: seq})
}

// followers are the other ranks of a leader's replica.
func (w *world) followers(rank int) []*proc {
	lo, hi := 0, w.cfg.p
	if rank >= w.cfg.p {
		lo, hi = w.cfg.p, w.cfg.p+w.cfg.d
	}
	var out []*proc
	for i := lo + 1; i < hi; i++ {
		if w.procs[i].alive {
			out = append(out, &w.procs[i])
		}
	}
	return out
}

// obey has a rank take in the next thing that it was told.
func (w *world) obey(rank int) {
	p := &w.procs[rank]
	m := p.down[0]
	p.down = p.down[1:]
	switch m := m.(type) {
	case *wire.Expect:
		if slices.Contains(p.tombs, m.Attempt) {
			return
		}
		e := entry{seq: m.Attempt, src: m.Src, dst: m.Dst}
		if w.cfg.transport == transfer.Push {
			e.src = nil
		}
		p.say(&wire.Reserved{Attempt: m.Attempt})
		if rank-w.cfg.p == w.cfg.idle && len(m.Dst) > 0 {
			e.verified, e.src = true, nil
			p.say(&wire.Landed{Attempt: m.Attempt, Pages: uint32(len(m.Dst))})
			p.say(&wire.Verified{Attempt: m.Attempt})
		}
		p.know = append(p.know, e)
	case *wire.Prefill:
		if !slices.Contains(p.tombs, m.Attempt) {
			p.know = append(p.know, entry{seq: m.Attempt, src: m.Src, dst: m.Dst})
		}
	case *wire.Join:
		if !slices.Contains(p.tombs, m.Attempt) {
			p.joined = append(p.joined, sequence{seq: m.Attempt, next: len(m.Tokens) - int(m.Prompt), left: int(m.MaxTokens), length: len(m.Tokens), pages: slices.Clone(m.Pages)})
		}
	case *wire.Grow:
		for i := range p.joined {
			if p.joined[i].seq == m.Attempt && int(m.At) == len(p.joined[i].pages) {
				p.joined[i].pages = append(p.joined[i].pages, m.Pages...)
			}
		}
	case *wire.Quiesce:
		p.leave(m.Attempt)
		for _, f := range w.followers(rank) {
			f.plan = append(f.plan, &planQuiet{*m})
		}
	}
}

// compute has prefill's leader do all of an attempt, in one plan.
func (w *world) compute(seq uint64) {
	p := &w.procs[0]
	e := *p.find(seq)
	for _, f := range w.followers(0) {
		f.plan = append(f.plan, &planCompute{wire.Quiesce{Attempt: seq}, e})
	}
	w.computed(0, e)
	p.know = slices.DeleteFunc(p.know, func(e entry) bool { return e.seq == seq })
}

func (w *world) computed(rank int, e entry) {
	w.sealed[e.seq] |= 1 << rank
	pages := len(e.src)
	w.procs[rank].say(&wire.Sealed{Attempt: e.seq, Tokens: uint32(w.tokensOf(e.seq, pages)), Pages: uint32(pages), Done: true})
}

// tokensOf is how many tokens prefill was told to compute for an attempt.
func (w *world) tokensOf(seq uint64, pages int) int {
	if a := w.c.attempts[seq]; a != nil {
		return a.tokens
	}
	return 2 * pages // the attempt is closed; nobody looks
}

// follow has a rank execute the next plan of its leader.
func (w *world) follow(rank int) {
	p := &w.procs[rank]
	m := p.plan[0]
	p.plan = p.plan[1:]
	switch m := m.(type) {
	case *planCompute:
		w.computed(rank, m.e)
	case *planQuiet:
		p.leave(m.Attempt)
	}
}

// receive has a decode rank take an attempt's pages.
func (w *world) receive(rank int, seq uint64) {
	p := &w.procs[rank]
	e := p.find(seq)
	e.verified, e.src = true, nil
	p.say(&wire.Landed{Attempt: seq, Pages: uint32(len(e.dst))})
	p.say(&wire.Verified{Attempt: seq})
}

func (w *world) ready(rank int, seq uint64) bool {
	e := w.procs[rank].find(seq)
	return e != nil && !e.verified && len(e.dst) > 0 && w.sealed[seq] == transfer.All(w.cfg.p)
}

func (s *sequence) runs() bool { return (s.length+1)/2 <= len(s.pages) }

// decode has decode's leader bring a token of every sequence that has room.
func (w *world) decode() {
	p := &w.procs[w.cfg.p]
	step := &wire.Step{}
	plan := &planStep{}
	var ended []uint64
	for i := range p.joined {
		s := &p.joined[i]
		if !s.runs() {
			continue
		}
		plan.seqs = append(plan.seqs, *s)
		r := wire.Result{Attempt: s.seq, Token: int32(s.next)}
		s.next, s.left, s.length = s.next+1, s.left-1, s.length+1
		if s.left == 0 {
			r.Finish = uint8(request.FinishLength)
			ended = append(ended, s.seq)
		}
		step.Results = append(step.Results, r)
	}
	p.steps++
	step.Seq = p.steps
	p.say(step)
	for _, f := range w.followers(w.cfg.p) {
		f.plan = append(f.plan, plan)
		for _, seq := range ended {
			f.plan = append(f.plan, &planQuiet{wire.Quiesce{Attempt: seq}})
		}
	}
	for _, seq := range ended {
		p.leave(seq)
	}
}

// touched is what a rank may touch: for each attempt, pages.
func (w *world) touched(rank int, f func(seq uint64, pages []pagepool.Page, prefill bool)) {
	p := &w.procs[rank]
	pre := rank < w.cfg.p
	for _, e := range p.know {
		if pre {
			f(e.seq, e.src, w.cfg.transport != transfer.Handover)
			f(e.seq, e.dst, false)
		} else {
			f(e.seq, e.src, w.cfg.transport == transfer.Pull)
			f(e.seq, e.dst, false)
		}
	}
	for _, s := range p.joined {
		f(s.seq, s.pages, false)
	}
	for _, m := range p.plan {
		switch m := m.(type) {
		case *planCompute:
			f(m.e.seq, m.e.src, w.cfg.transport != transfer.Handover)
			f(m.e.seq, m.e.dst, false)
		case *planStep:
			for _, s := range m.seqs {
				f(s.seq, s.pages, false)
			}
		}
	}
}

// limit is how long a request may be in a state without progress.
func (w *world) limit(s request.State) time.Duration {
	o := &w.c.o.Request
	return [...]time.Duration{request.Queued: o.Queue, request.Reserving: o.Reserve, request.Prefilling: o.PrefillStall, request.Handoff: o.Handoff,
		request.Transferring: o.Transfer, request.Verifying: o.Verify, request.Decoding: max(o.FirstToken, o.TokenStall), request.Draining: o.Drain}[s]
}

// check looks for what must not be.
func (w *world) check() {
	owner := map[bool]map[pagepool.Page]uint64{true: {}, false: {}}
	index := map[bool]map[uint32]uint64{true: {}, false: {}}
	for seq, a := range w.c.attempts {
		for _, l := range []*pagepool.Lease{a.target, a.source} {
			if l == nil || l.Ended() {
				continue
			}
			for _, pg := range l.Pages() {
				if other, twice := index[l == a.source][pg.Index]; twice {
					w.fail("I3: page %d belongs to attempts %d and %d", pg.Index, other, seq)
				}
				index[l == a.source][pg.Index] = seq
				owner[l == a.source][pg] = seq
			}
		}
	}
	for i := range w.procs {
		if !w.procs[i].alive {
			continue
		}
		w.touched(i, func(seq uint64, pages []pagepool.Page, prefill bool) {
			for _, pg := range pages {
				if owner[prefill][pg] != seq {
					w.fail("I5: rank %d may touch page %d of attempt %d, which is free or of attempt %d", i, pg.Index, seq, owner[prefill][pg])
				}
			}
		})
	}
	for _, list := range w.c.replicas {
		for _, r := range list {
			if r.pool != nil && r.pool.Drift() != 0 {
				w.fail("I2: pool %s is off by %d", r.pool.Name(), r.pool.Drift())
			}
		}
	}
	for t, r := range w.c.requests {
		if limit := w.limit(r.m.State); w.c.now >= r.m.Armed.Add(limit) || w.c.now >= r.m.Expires && r.m.State < request.Draining {
			w.fail("I1: request %d is %s for longer than it may be", t, r.m.State)
		}
	}
	for i := range w.procs {
		if w.c.sup.State == supervise.Up && !w.procs[i].ready {
			w.fail("I13: up, and rank %d is not ready", i)
		}
	}
	n, suspects := 0, 0
	for _, r := range w.c.order {
		if r.holds() {
			n++
		}
		if w.c.suspect(r) {
			suspects++
		}
	}
	if suspects != w.c.suspects {
		w.fail("I18: %d suspects, and %d are counted", suspects, w.c.suspects)
	}
	if n > w.c.o.Admit.Running {
		w.fail("I9: %d running, at most %d", n, w.c.o.Admit.Running)
	}
	// What is kept beside the tables, so that nobody need go through them, agrees.
	if n != w.c.running() {
		w.fail("I18: %d hold a place beyond the queue, and %d are counted", n, w.c.running())
	}
	all := len(w.c.requests)
	if w.c.canary != nil {
		all++
	}
	if len(w.c.order) != all || !slices.IsSortedFunc(w.c.order, arrival) {
		w.fail("%d requests, %d in order", all, len(w.c.order))
	}
	for _, a := range w.c.attempts {
		if a.starving && a.request != nil && !w.c.hungry {
			w.fail("attempt %s starves and is not fed", a.id)
		}
	}
}

// encode writes all that decides what can happen next. Times are relative to now,
// and attempts are named by their order.
func (w *world) encode(b []byte) []byte {
	c := w.c
	seqs := slices.Sorted(maps.Keys(c.attempts))
	name := func(seq uint64) byte {
		i, ok := slices.BinarySearch(seqs, seq)
		if !ok {
			return 255
		}
		return byte(i)
	}
	at := func(t request.Instant) {
		d := max(min(int64(c.now-t)/int64(100*time.Millisecond), 32000), -32000)
		b = append(b, byte(d), byte(d>>8))
	}
	flag := func(fs ...bool) {
		n := byte(0)
		for i, f := range fs {
			if f {
				n |= 1 << i
			}
		}
		b = append(b, n)
	}
	msgs := func(ms []wire.Message) {
		b = append(b, byte(len(ms)))
		for _, m := range ms {
			b = append(b, byte(m.Type()))
			switch m := m.(type) {
			case *wire.Expect:
				b = append(b, name(m.Attempt))
			case *wire.Prefill:
				b = append(b, name(m.Attempt))
			case *wire.Join:
				b = append(b, name(m.Attempt), byte(len(m.Tokens)), byte(len(m.Pages)))
			case *wire.Grow:
				b = append(b, name(m.Attempt))
			case *wire.Quiesce:
				b = append(b, name(m.Attempt))
			case *planQuiet:
				b = append(b, 'q', name(m.Attempt))
			case *planCompute:
				b = append(b, 'c', name(m.e.seq))
			case *planStep:
				b = append(b, 's')
				for _, s := range m.seqs {
					b = append(b, name(s.seq))
				}
			case *wire.Reserved:
				b = append(b, name(m.Attempt))
			case *wire.Sealed:
				b = append(b, name(m.Attempt))
			case *wire.Landed:
				b = append(b, name(m.Attempt))
			case *wire.Verified:
				b = append(b, name(m.Attempt))
			case *wire.Quiet:
				b = append(b, name(m.Attempt))
			case *wire.Failed:
				b = append(b, name(m.Attempt), byte(m.Kind))
			case *wire.Step:
				b = append(b, byte(m.Seq))
				for _, r := range m.Results {
					b = append(b, name(r.Attempt), byte(r.Token), r.Finish)
				}
			}
		}
	}
	b = append(b, byte(c.sup.State), byte(c.sup.Ready), byte(c.sup.Failed), byte(c.sup.Over(&c.o.Supervise)), byte(c.exited))
	flag(c.sup.Late, c.sup.Stop, c.launching, w.launch)
	at(request.Instant(c.sup.Entered))
	at(request.Instant(c.sup.Until))
	for _, t := range slices.Sorted(maps.Keys(c.requests)) {
		r := c.requests[t]
		b = append(b, byte(t), byte(r.m.State), byte(r.m.Barren), byte(len(r.tokens)), byte(r.m.Finish), byte(r.m.Fault))
		flag(r.m.Fresh, r.m.Landed, r.m.AllIn)
		at(r.m.Armed)
		at(r.m.Expires)
		if r.attempt != nil {
			b = append(b, name(r.attempt.id.Seq))
		}
	}
	b = append(b, 'a')
	for _, s := range seqs {
		a := c.attempts[s]
		t := &a.t
		b = append(b, byte(t.State), byte(t.Reserved), byte(t.Verified), byte(t.Sealed), byte(t.SourceMute), byte(t.TargetMute), byte(a.slot), byte(a.room))
		flag(t.SourceTold, t.TargetTold, t.SourceFree, t.TargetFree, a.joined, a.starving, a.nudged, a.request != nil)
		for _, l := range []*pagepool.Lease{a.target, a.source} {
			if l != nil {
				b = append(b, byte(l.State()))
				flag(l.Ended())
				for _, pg := range l.Pages() {
					b = append(b, byte(pg.Index))
				}
			}
		}
		for _, n := range a.computed {
			b = append(b, byte(n))
		}
		for _, n := range a.landed {
			b = append(b, byte(n))
		}
		at(a.idle)
		at(a.arrived)
	}
	for _, list := range c.replicas {
		for _, r := range list {
			b = append(b, 'r', byte(r.work), byte(r.step), byte(len(r.held)))
			for _, m := range r.held {
				msgs([]wire.Message{m})
			}
			at(r.gap)
			if r.pool != nil {
				b = append(b, byte(r.pool.Free()))
			}
		}
	}
	for _, q := range c.queue {
		b = append(b, byte(q.ticket))
	}
	for _, s := range c.strikes {
		b = append(b, byte(len(s)))
	}
	for i := range w.procs {
		p := &w.procs[i]
		flag(p.alive, p.gone, p.frozen, p.ready)
		if i < len(c.health) {
			flag(c.health[i].ready, c.health[i].gone)
			at(c.health[i].pulsed)
		}
		b = append(b, byte(p.steps))
		for _, e := range p.know {
			b = append(b, name(e.seq))
			flag(e.verified)
		}
		b = append(b, 't')
		for _, s := range p.tombs {
			if n := name(s); n != 255 {
				b = append(b, n)
			}
		}
		b = append(b, 'j')
		for _, s := range p.joined {
			b = append(b, name(s.seq), byte(s.next), byte(s.left), byte(len(s.pages)))
		}
		msgs(p.down)
		msgs(p.up)
		msgs(p.plan)
	}
	for _, s := range seqs {
		b = append(b, byte(w.sealed[s]))
	}
	for _, cl := range w.clients {
		b = append(b, byte(cl.got))
		flag(cl.ended, cl.gone, cl.left, w.hurt, w.harm, cl.fault != nil)
	}
	g := &w.budget
	return append(b, byte(w.blows), byte(g.faults), byte(g.lose), byte(g.double), byte(g.overtake), byte(g.mislay), byte(g.kill), byte(g.freeze), byte(g.misfire),
		byte(g.fail), byte(g.leave), byte(g.stop), byte(g.wait), byte(g.oper))
}

func (w *world) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "generation %d %s", w.number, w.c.sup)
	for _, t := range slices.Sorted(maps.Keys(w.c.requests)) {
		fmt.Fprintf(&b, "; r%d %s", t, w.c.requests[t].m)
	}
	for _, s := range slices.Sorted(maps.Keys(w.c.attempts)) {
		fmt.Fprintf(&b, "; %s %s", w.c.attempts[s].id, w.c.attempts[s].t.State)
	}
	return b.String()
}
