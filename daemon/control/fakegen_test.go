package control

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"tandem/daemon/batch"
	"tandem/daemon/core"
	"tandem/daemon/fault"
	"tandem/daemon/generation"
	"tandem/daemon/ident"
	"tandem/daemon/request"
	"tandem/daemon/spawn"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
)

// fakeGen stands for the processes of a generation: what package worker does with
// orders, plans, pages and messages, and none of the arithmetic. A replica's ranks
// execute a plan together, as at the barriers of the real ones; each has its own
// sockets, and on the decode side its own lane.
type fakeGen struct {
	w      *world
	number ident.Generation
	sink   func(generation.Report)

	mu              sync.Mutex // guards all that the fake processes are and know
	procs           []*fakeProc
	prefill, decode arena
	boards          [][][]column // by prefill replica, slot, unit
	computed        int          // tokens of prompts
}

// fakeProc is one process.
type fakeProc struct {
	*actor
	gen     *fakeGen
	index   int
	rank    ident.Rank
	pid     int
	replica *fakeReplica
	lane    *fakeLane
	up      *link
	down    *link
	dead    chan struct{} // closed when it is

	// Guarded by gen.mu.
	alive    bool
	gone     bool // its exit was reported
	frozen   bool
	thaw     chan struct{} // closed when it goes on
	pulse    uint64        // when it stopped
	pulses   uint64        // what its clock begins with
	backward bool          // and whether it goes backwards
}

// fakeBox is a mailbox. It is guarded by gen.mu.
type fakeBox struct {
	mail []wire.Message
	ring chan struct{}
}

func newBox() fakeBox { return fakeBox{ring: make(chan struct{}, 1)} }

func (b *fakeBox) put(m wire.Message) {
	b.mail = append(b.mail, m)
	b.wake()
}

func (b *fakeBox) wake() {
	select {
	case b.ring <- struct{}{}:
	default:
	}
}

func (b *fakeBox) take() []wire.Message {
	m := b.mail
	b.mail = nil
	return m
}

// launch is Options.Launch.
func (w *world) launch(g ident.Generation, sink func(generation.Report)) (Generation, error) {
	n := uint64(g)
	a := w.actor(1, n)
	f := w.plan.launch(a, len(w.gens))
	gen := &fakeGen{w: w, number: g, sink: sink}
	w.begin(gen)
	a.sleep(f.takes, nil)
	if f.nothing {
		return nil, errors.New("no memory for it")
	}
	o := w.plan
	gen.decode = newArena(o.units, o.decodePages*o.d.replicas, o.pageTokens)
	gen.prefill = gen.decode
	if o.transport != transfer.Handover {
		gen.prefill = newArena(o.units, o.prefillPages*o.p.replicas, o.pageTokens)
	}
	for range o.p.replicas {
		b := make([][]column, o.slots)
		for i := range b {
			b[i] = make([]column, o.units)
		}
		gen.boards = append(gen.boards, b)
	}
	var rep *fakeReplica
	for i, r := range w.ranks {
		p := &fakeProc{actor: w.actor(2, n<<8|uint64(i)), gen: gen, index: i, rank: r, pid: int(n)*100 + i, dead: make(chan struct{}), alive: true}
		p.up, p.down = newLink(w.actor(3, n<<8|uint64(i)), i, false), newLink(w.actor(4, n<<8|uint64(i)), i, true)
		p.down.limit = o.unread
		p.pulses, p.backward = p.rnd.Uint64(), p.rnd.IntN(2) == 0
		if r.Rank == 0 {
			rep = &fakeReplica{actor: w.actor(5, n<<8|uint64(i)), gen: gen, role: r.Role, index: r.Index, box: newBox(), gone: map[uint64]bool{}}
		}
		p.replica = rep
		rep.procs = append(rep.procs, p)
		if r.Role == ident.Decode {
			p.lane = &fakeLane{actor: w.actor(6, n<<8|uint64(i)), proc: p, box: newBox(), gone: map[uint64]bool{}}
			p.lane.lo, p.lane.hi = w.layout().Owner(r.Rank, o.d.degree)
		}
		gen.procs = append(gen.procs, p)
	}
	started := gen.procs
	if f.half {
		started = started[:1+a.rnd.IntN(len(started)-1)]
	}
	gen.mu.Lock()
	gen.procs = started
	gen.mu.Unlock()
	for _, p := range started {
		w.goes.Go(p.listen)
		w.goes.Go(p.speak)
		w.goes.Go(func() { p.live(f) })
	}
	if f.half {
		gen.Kill()
		return gen, errors.New("no more processes")
	}
	a.sleep(f.lingers, nil)
	return gen, nil
}

// listen takes what the daemon sends to where it is for.
func (p *fakeProc) listen() {
	p.down.run(p.dead, func(c parcel) bool {
		if !p.running(p.down.actor) {
			return false
		}
		p.gen.mu.Lock()
		defer p.gen.mu.Unlock()
		p.w.heard(p, c)
		switch m := c.frame.Message.(type) {
		case *wire.Expect:
			p.lane.box.put(m)
		case *wire.Prefill, *wire.Join, *wire.Grow, *wire.Quiesce:
			p.replica.box.put(m)
		case *wire.Dump:
			p.sayLocked(&wire.Dumped{Text: "goroutine 1"})
		}
		return true
	})
}

// speak takes what the process said to the daemon, also when it is no more.
func (p *fakeProc) speak() {
	p.up.run(nil, func(c parcel) bool {
		r := generation.Report{Generation: p.gen.number, Rank: p.index, Lost: c.lost, Exit: c.exit}
		if c.frame.Message != nil {
			r.Frame = &c.frame
		}
		p.gen.w.told(p, c)
		if c.exit != nil {
			p.gen.mu.Lock()
			p.gone = true
			p.gen.mu.Unlock()
		}
		p.gen.sink(r)
		p.gen.mu.Lock()
		defer p.gen.mu.Unlock()
		return !p.gone || p.up.left() > 0
	})
}

// live starts up, and then leads the replica if it is the leader.
func (p *fakeProc) live(f launchFault) {
	if p.lane != nil {
		p.w.goes.Go(p.lane.run)
	}
	if !p.sleep(p.between(time.Millisecond, 20*time.Millisecond), p.dead) || !p.running(p.actor) {
		return
	}
	p.say(&wire.Hello{PID: uint32(p.pid)})
	if !p.sleep(p.between(time.Millisecond, f.startsIn), p.dead) || !p.running(p.actor) {
		return
	}
	if f.who == p.index+1 {
		switch f.how {
		case "dies":
			p.die("exit status 1")
			return
		case "never ready":
			return
		case "wrong process":
			p.say(&wire.Hello{PID: uint32(p.pid + 1)})
		}
	}
	p.say(&wire.Ready{Backend: "fake"})
	if p.rank.Rank == 0 {
		p.replica.run()
	}
}

// running waits while the process is stopped, and then for the instant of the actor that
// asks; false if the process is dead.
func (p *fakeProc) running(a *actor) bool {
	for {
		p.gen.mu.Lock()
		alive, frozen, thaw := p.alive, p.frozen, p.thaw
		p.gen.mu.Unlock()
		switch {
		case !alive:
			return false
		case !frozen:
			return true
		}
		select {
		case <-thaw:
		case <-p.dead:
			return false
		}
		if !a.sleep(0, p.dead) {
			return false
		}
	}
}

func (p *fakeProc) say(m wire.Message) {
	p.gen.mu.Lock()
	defer p.gen.mu.Unlock()
	p.sayLocked(m)
}

func (p *fakeProc) sayLocked(m wire.Message) {
	if p.alive {
		p.up.put(copied(p.gen.number, m))
	}
}

// copied takes a message over the wire, so that nothing is shared.
func copied(g ident.Generation, m wire.Message) wire.Frame {
	b, err := wire.Append(nil, g, m)
	if err != nil {
		panic(err)
	}
	f, err := wire.NewDecoder(bytes.NewReader(b)).Next()
	if err != nil {
		panic(err)
	}
	return f
}

// die ends the process. That it is reaped is reported in time.
func (p *fakeProc) die(how string) {
	p.gen.mu.Lock()
	defer p.gen.mu.Unlock()
	if !p.alive {
		return
	}
	p.pulse = p.pulseLocked()
	p.alive = false
	close(p.dead)
	st := &spawn.Status{Text: how}
	if how == "signal: killed" {
		st.Code, st.Sig = -1, syscall.SIGKILL
	}
	var closed error
	p.up.mu.Lock()
	defer p.up.mu.Unlock()
	p.up.insert(parcel{due: p.w.now() + p.up.between(0, time.Millisecond), lost: &closed})
	p.up.insert(parcel{due: p.w.now() + p.w.plan.reap(p.up.actor), exit: st})
}

func (p *fakeProc) freeze() {
	p.gen.mu.Lock()
	defer p.gen.mu.Unlock()
	if p.alive && !p.frozen {
		p.pulse = p.pulseLocked()
		p.frozen, p.thaw = true, make(chan struct{})
	}
}

func (p *fakeProc) goOn() {
	p.gen.mu.Lock()
	defer p.gen.mu.Unlock()
	if p.frozen {
		p.frozen = false
		close(p.thaw)
	}
}

// pulseLocked is what the process's own clock says. Nobody's clock agrees with it.
func (p *fakeProc) pulseLocked() uint64 {
	if !p.alive || p.frozen {
		return p.pulse
	}
	n := uint64(p.w.now() / (100 * time.Millisecond))
	if p.backward {
		return p.pulses - n
	}
	return p.pulses + n
}

// What control.Generation wants.

func (g *fakeGen) Procs() []core.Proc {
	out := make([]core.Proc, len(g.procs))
	for i, p := range g.procs {
		out[i] = core.Proc{PID: p.pid, Device: fmt.Sprint("fake:", i)}
	}
	return out
}

func (g *fakeGen) Send(rank int, m wire.Message) error {
	p := g.procs[rank]
	g.mu.Lock()
	gone := p.gone
	g.mu.Unlock()
	if gone {
		return os.ErrClosed
	}
	if !p.down.put(copied(g.number, m)) {
		return spawn.ErrBehind
	}
	return nil
}

func (g *fakeGen) Vitals(into []core.Vital) []core.Vital {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.procs {
		r := p.replica
		into = append(into, core.Vital{Pulse: p.pulseLocked(), Steps: r.executed, Plans: r.executed, Busy: r.busy, Doing: "computing"})
	}
	return into
}

func (g *fakeGen) Kill() {
	for _, p := range g.procs {
		p.die("signal: killed")
	}
}

func (g *fakeGen) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.procs {
		if p.alive || !p.gone {
			g.w.fail("I5: the memory of generation %d is given back while %s lives", g.number, p.rank)
		}
	}
	return nil
}

// fakeReplica is what the leader of a replica knows, and the engine of all its ranks.
type fakeReplica struct {
	turn int // steps of prefill
	*actor
	gen   *fakeGen
	role  ident.Role
	index int
	procs []*fakeProc

	// Guarded by gen.mu.
	box      fakeBox
	gone     map[uint64]bool // attempts that were given up
	jobs     []*fakeJob
	seqs     []*fakeSeq
	retire   []uint64
	steps    uint64
	executed uint64
	busy     bool
	hung     bool
}

type fakeJob struct {
	wire.Prefill
	done int
}

type fakeSeq struct {
	wire.Join
	pages []uint32
}

type fakeSpan struct {
	job      *fakeJob
	seq      *fakeSeq
	from, to int // of a job
}

func (r *fakeReplica) run() {
	lead := r.procs[0]
	idle := true
	for {
		if idle {
			select {
			case <-r.box.ring:
			case <-lead.dead:
				return
			}
		}
		if !r.sleep(r.between(0, 200*time.Microsecond), lead.dead) || !lead.running(r.actor) {
			return
		}
		r.gen.mu.Lock()
		retire, err := r.order(r.box.take())
		plan := r.next()
		retire = append(retire, r.retire...)
		r.retire = nil
		idle = len(plan) == 0 && len(retire) == 0
		r.busy = !idle
		r.gen.mu.Unlock()
		if err != nil {
			lead.say(&wire.Fatal{Text: err.Error()})
			lead.die("exit status 1")
			return
		}
		if idle {
			continue
		}
		if r.w.plan.early {
			r.boast(plan)
		}
		if !r.sleep(r.takes(plan), lead.dead) || !r.together() {
			return
		}
		r.gen.mu.Lock()
		r.execute(plan, retire)
		r.executed++
		r.busy = false
		r.gen.mu.Unlock()
	}
}

// boast says that prompts are done which will be only when the plan is.
func (r *fakeReplica) boast(plan []fakeSpan) {
	r.gen.mu.Lock()
	defer r.gen.mu.Unlock()
	for _, s := range plan {
		if s.job != nil && s.to == len(s.job.Tokens) {
			for _, p := range r.procs {
				p.sayLocked(&wire.Sealed{Attempt: s.job.Attempt, Tokens: uint32(s.to), Pages: uint32(len(s.job.Src)), Done: true})
			}
		}
	}
}

// takes is how long a plan takes to compute.
func (r *fakeReplica) takes(plan []fakeSpan) time.Duration {
	d := 50 * time.Microsecond
	for _, s := range plan {
		if s.job != nil {
			d += time.Duration(s.to-s.from) * r.w.plan.perToken
		} else {
			d = r.w.plan.perStep
		}
	}
	return r.between(d/2, d)
}

// together waits at the barrier until every rank of the replica is there; false if
// the leader dies meanwhile.
func (r *fakeReplica) together() bool {
	lead := r.procs[0]
	for i := 0; i < len(r.procs); {
		p := r.procs[i]
		r.gen.mu.Lock()
		stuck := r.hung || !p.alive
		r.gen.mu.Unlock()
		switch {
		case stuck && p != lead || r.hung:
			<-lead.dead
			return false
		case p.running(r.actor):
			i++
		case p == lead:
			return false
		}
	}
	r.gen.mu.Lock()
	defer r.gen.mu.Unlock()
	return lead.alive
}

// order takes in what the daemon told the leader. An error is one of those for which
// a real rank gives up.
func (r *fakeReplica) order(mail []wire.Message) (retire []uint64, err error) {
	find := func(a uint64) int { return slices.IndexFunc(r.seqs, func(s *fakeSeq) bool { return s.Attempt == a }) }
	for _, m := range mail {
		switch m := m.(type) {
		case *wire.Prefill:
			if r.gone[m.Attempt] {
				break
			}
			if slices.ContainsFunc(r.jobs, func(j *fakeJob) bool { return j.Attempt == m.Attempt }) {
				return nil, fmt.Errorf("prefill of attempt %d, again", m.Attempt)
			}
			r.jobs = append(r.jobs, &fakeJob{Prefill: *m})
		case *wire.Join:
			if r.gone[m.Attempt] {
				break
			}
			if find(m.Attempt) >= 0 {
				return nil, fmt.Errorf("join of attempt %d, again", m.Attempt)
			}
			s := &fakeSeq{Join: *m}
			for _, pg := range m.Pages {
				s.pages = append(s.pages, pg.Index)
			}
			r.seqs = append(r.seqs, s)
		case *wire.Grow:
			if k := find(m.Attempt); k >= 0 && int(m.At) >= len(r.seqs[k].pages) {
				if int(m.At) > len(r.seqs[k].pages) {
					return nil, fmt.Errorf("grow of attempt %d after %d pages, it has %d", m.Attempt, m.At, len(r.seqs[k].pages))
				}
				for _, pg := range m.Pages {
					r.seqs[k].pages = append(r.seqs[k].pages, pg.Index)
				}
			}
		case *wire.Quiesce:
			r.gone[m.Attempt] = true
			retire = append(retire, m.Attempt)
			r.jobs = slices.DeleteFunc(r.jobs, func(j *fakeJob) bool { return j.Attempt == m.Attempt })
			r.seqs = slices.DeleteFunc(r.seqs, func(s *fakeSeq) bool { return s.Attempt == m.Attempt })
		}
	}
	return retire, nil
}

// next is what the replica computes next.
func (r *fakeReplica) next() (plan []fakeSpan) {
	left := make([]int, len(r.jobs))
	for i, j := range r.jobs {
		if stalled := r.w.plan.stalled; stalled == nil || !r.w.stormy() || !stalled(j.Tokens) {
			left[i] = len(j.Tokens) - j.done
		}
	}
	r.turn++
	for i, n := range batch.Prefill(left, r.w.plan.chunk, r.turn) {
		if n > 0 {
			plan = append(plan, fakeSpan{job: r.jobs[i], from: r.jobs[i].done, to: r.jobs[i].done + n})
		}
	}
	for _, s := range r.seqs {
		if r.w.layout().Pages(len(s.Tokens)) <= len(s.pages) && len(plan) < r.w.plan.maxBatch {
			plan = append(plan, fakeSpan{seq: s})
		}
	}
	return plan
}

// execute computes a plan, says what came of it, and retires attempts.
func (r *fakeReplica) execute(plan []fakeSpan, retire []uint64) {
	step := &wire.Step{}
	for _, s := range plan {
		if s.job != nil {
			r.compute(s)
		} else {
			r.decode(s.seq, step)
		}
	}
	if n := r.w.plan.maxBatch; len(r.seqs) > n { // those that had to wait are first next time
		r.seqs = append(slices.Clone(r.seqs[n:]), r.seqs[:n]...)
	}
	if len(step.Results) > 0 {
		r.steps++
		step.Seq = r.steps
		r.procs[0].sayLocked(step)
	}
	for _, a := range retire {
		for _, p := range r.procs {
			if p.lane != nil {
				p.lane.box.put(&wire.Quiesce{Attempt: a})
			} else {
				p.sayLocked(&wire.Quiet{Attempt: a})
			}
		}
	}
}

func (r *fakeReplica) compute(s fakeSpan) {
	j, pt, mem := s.job, r.w.plan.pageTokens, r.gen.prefill
	pages := make([]uint32, len(j.Src))
	for i, pg := range j.Src {
		pages[i] = pg.Index
	}
	board := r.gen.boards[r.index][j.Slot]
	acc := mem.read(pages, s.from, pt)
	first, end := (s.from+pt-1)/pt, (s.to+pt-1)/pt
	for u := range mem {
		if s.from == 0 {
			board[u] = column{attempt: j.Attempt}
		}
		for i := first; i < end; i++ {
			pg := &mem[u][pages[i]]
			pg.epoch, pg.sealed = j.Src[i].Epoch, false
		}
	}
	for pos := s.from; pos < s.to; pos++ {
		acc = mem.write(pages, pos, pt, j.Tokens[pos], acc)
	}
	last := s.to == len(j.Tokens)
	from, to := s.from/pt, s.to/pt
	if last {
		to = len(pages)
	}
	for u := range mem {
		for i := from; i < to; i++ {
			pg := &mem[u][pages[i]]
			pg.sealed = true
			board[u].digests = append(board[u].digests, digestOf(j.Attempt, u, i, pg.cells))
			if len(j.Dst) > 0 {
				dst := &r.gen.decode[u][j.Dst[i].Index]
				copy(dst.cells, pg.cells)
				dst.epoch, dst.sealed = j.Dst[i].Epoch, true
				r.w.damage(r.actor, dst.cells)
			}
		}
	}
	r.gen.computed += s.to - j.done
	j.done = s.to
	for _, p := range r.procs {
		p.sayLocked(&wire.Sealed{Attempt: j.Attempt, Tokens: uint32(s.to), Pages: uint32(to), Done: last})
	}
	for _, p := range r.gen.procs {
		if p.lane != nil {
			p.lane.box.wake()
		}
	}
	if last {
		r.gone[j.Attempt] = true
		r.jobs = slices.DeleteFunc(r.jobs, func(o *fakeJob) bool { return o == j })
	}
}

func (r *fakeReplica) decode(s *fakeSeq, step *wire.Step) {
	n, pt, mem := len(s.Tokens), r.w.plan.pageTokens, r.gen.decode
	acc := mem.read(s.pages, n-1, pt)
	acc = mem.write(s.pages, n-1, pt, s.Tokens[n-1], acc)
	res := wire.Result{Attempt: s.Attempt, Token: tokenOf(acc, n)}
	s.MaxTokens--
	switch {
	case r.w.stormy() && (r.chance(r.w.plan.giveUp) || r.w.plan.broken != nil && r.w.plan.broken(s.Tokens)):
		r.procs[0].sayLocked(&wire.Failed{Attempt: s.Attempt, Kind: fault.Numerics, Text: "no number"})
		r.end(s)
		return
	case slices.Contains(s.Stop, res.Token):
		res.Finish = uint8(request.FinishStop)
	case s.MaxTokens == 0:
		res.Finish = uint8(request.FinishLength)
	}
	step.Results = append(step.Results, res)
	if res.Finish != 0 {
		r.end(s)
		return
	}
	s.Tokens = append(s.Tokens, res.Token)
}

// end has the next plan retire a sequence that ended by itself.
func (r *fakeReplica) end(s *fakeSeq) {
	r.seqs = slices.DeleteFunc(r.seqs, func(o *fakeSeq) bool { return o == s })
	r.gone[s.Attempt] = true
	r.retire = append(r.retire, s.Attempt)
	r.box.wake()
}

// fakeLane receives pages for one decode rank.
type fakeLane struct {
	*actor
	proc   *fakeProc
	lo, hi int

	// Guarded by gen.mu.
	box    fakeBox
	gone   map[uint64]bool
	active []*fakeReception // in the order in which they were announced
}

type fakeReception struct {
	wire.Expect
	have int
}

func (l *fakeLane) run() {
	g, dead := l.proc.gen, l.proc.dead
	for {
		g.mu.Lock()
		waiting := len(l.active) > 0
		g.mu.Unlock()
		var look <-chan time.Time // in case the bell was not heard
		if waiting {
			now := l.w.now()
			look = time.After(l.instant(now+100*time.Millisecond) - now)
		}
		select {
		case <-l.box.ring:
		case <-look:
		case <-dead:
		}
		if !l.sleep(l.between(0, 100*time.Microsecond), dead) || !l.proc.running(l.actor) {
			return
		}
		g.mu.Lock()
		for _, m := range l.box.take() {
			switch m := m.(type) {
			case *wire.Quiesce:
				l.gone[m.Attempt] = true
				l.active = slices.DeleteFunc(l.active, func(r *fakeReception) bool { return r.Attempt == m.Attempt })
				l.proc.sayLocked(&wire.Quiet{Attempt: m.Attempt})
			case *wire.Expect:
				if l.gone[m.Attempt] {
					break
				}
				l.proc.sayLocked(&wire.Reserved{Attempt: m.Attempt})
				if len(m.Dst) > 0 {
					l.active = slices.DeleteFunc(l.active, func(r *fakeReception) bool { return r.Attempt == m.Attempt })
					l.active = append(l.active, &fakeReception{Expect: *m})
				}
			}
		}
		todo := slices.Clone(l.active)
		g.mu.Unlock()
		for _, r := range todo {
			g.mu.Lock()
			n := l.published(r)
			g.mu.Unlock()
			if n == r.have {
				continue
			}
			if d := l.w.plan.copying(l, r.have, n-r.have); d > 0 && (!l.sleep(d, dead) || !l.proc.running(l.actor)) {
				return
			}
			g.mu.Lock()
			if slices.Contains(l.active, r) {
				l.receive(r, n)
			}
			g.mu.Unlock()
		}
	}
}

// published is how many pages of an attempt can be taken.
func (l *fakeLane) published(r *fakeReception) int {
	n := len(r.Dst)
	for u := l.lo; u < l.hi; u++ {
		if c := l.proc.gen.boards[r.Source][r.Slot][u]; c.attempt == r.Attempt {
			n = min(n, len(c.digests))
		} else {
			n = 0
		}
	}
	return n
}

func (l *fakeLane) receive(r *fakeReception, n int) {
	g, pull := l.proc.gen, l.w.plan.transport == transfer.Pull
	fail := func(k fault.Kind) {
		if k == fault.EpochChanged {
			// Whatever became of the request, this rank has not said quiet.
			l.w.fail("I5: attempt %d: a page is another's while %s reads it", r.Attempt, l.proc.rank)
		}
		l.active = slices.DeleteFunc(l.active, func(o *fakeReception) bool { return o == r })
		l.proc.sayLocked(&wire.Failed{Attempt: r.Attempt, Kind: k, Text: "a page is not the one that was sent"})
	}
	sealed := func(u, i int) bool {
		if pull {
			return g.prefill[u][r.Src[i].Index].is(r.Src[i])
		}
		return g.decode[u][r.Dst[i].Index].is(r.Dst[i])
	}
	for ; r.have < n; r.have++ {
		for u := l.lo; u < l.hi; u++ {
			i := r.have
			if !sealed(u, i) {
				fail(fault.EpochChanged)
				return
			}
			dst := &g.decode[u][r.Dst[i].Index]
			if pull {
				copy(dst.cells, g.prefill[u][r.Src[i].Index].cells)
				dst.epoch, dst.sealed = r.Dst[i].Epoch, true
				l.w.damage(l.actor, dst.cells)
			}
			c := g.boards[r.Source][r.Slot][u]
			if c.attempt != r.Attempt || len(c.digests) <= i {
				fail(fault.EpochChanged)
				return
			}
			if digestOf(r.Attempt, u, i, dst.cells) != c.digests[i] {
				fail(fault.DigestMismatch)
				return
			}
		}
	}
	l.proc.sayLocked(&wire.Landed{Attempt: r.Attempt, Pages: uint32(r.have)})
	if r.have < len(r.Dst) {
		return
	}
	for u := l.lo; u < l.hi; u++ {
		for i := range r.Dst {
			if !sealed(u, i) || l.published(r) != len(r.Dst) {
				fail(fault.EpochChanged)
				return
			}
		}
	}
	l.active = slices.DeleteFunc(l.active, func(o *fakeReception) bool { return o == r })
	l.gone[r.Attempt] = true
	l.proc.sayLocked(&wire.Verified{Attempt: r.Attempt})
}
