package worker

import (
	"fmt"
	"sync/atomic"
	"time"

	"tandem/daemon/ident"
	"tandem/daemon/spawn"
	"tandem/daemon/wire"
	"tandem/gpu/hostmem"
	"tandem/gpu/hostsync"
	"tandem/gpu/pagepool"
	"tandem/gpu/share"
	"tandem/kernels"
	"tandem/model"
	"tandem/model/family"
)

// engine executes plans on the rank's thread. The leader's engine also makes
// them, from the sequences that the daemon gave it.
type engine struct {
	*rank
	net     model.Network
	backend kernels.Backend
	lane    *lane // decode: to be told when a sequence is retired

	inbox *mailbox

	// How plans get from the leader to the others: words and bytes in scratch.
	rung     *hostsync.Event
	planMem  []byte
	planSize *atomic.Uint32

	turns []*hostsync.Turn
	seat  int
	bells []*hostsync.Event

	batch  kernels.Batch // of the plan in execution
	wanted int           // decode leader: what it added to the cores' demand

	role leader // nil on followers
}

// leader is the role-specific half of rank 0: what to compute next.
type leader interface {
	// order takes a message from the daemon.
	order(m wire.Message) error
	// next makes the next plan, nil if there is nothing to do.
	next(busy bool) *plan
	// done takes in the result of the plan that next made.
	done(p *plan, l kernels.Logits) error
	// demand is how many sequences want to be computed.
	demand() int
}

func newEngine(dev Device, m *family.Model, r *rank) (*engine, error) {
	s := r.setup
	e := &engine{rank: r, inbox: newMailbox(), seat: s.Seat}
	spans := max(s.MaxOut, 1)
	if s.Rank.Role == ident.Prefill {
		spans = maxPrefillSpans
	}
	plan := planBytes(s.MaxRows, spans, s.MaxPages)
	own := (hostsync.EventBytes + 128 + plan + 4095) / 4096 * 4096
	var mem []byte
	var err error
	if e.net, e.backend, mem, err = newNetwork(dev, m, r, own); err != nil {
		return nil, err
	}
	e.rung = hostsync.NewEvent(mem, spinFor(s))
	e.planSize = hostmem.Word32(mem[hostsync.EventBytes:])
	e.planMem = mem[hostsync.EventBytes+128:]
	sync := r.mem.sync.Bytes()
	for _, c := range s.Cores {
		e.turns = append(e.turns, hostsync.NewTurn(spawn.TurnWords(sync, c), s.Seat, 20*time.Microsecond))
	}
	for i := range s.Bells {
		e.bells = append(e.bells, hostsync.NewEvent(spawn.BellWords(sync, s.Turns, i), 0))
	}
	if s.Rank.Rank == 0 {
		if s.Rank.Role == ident.Prefill {
			e.role = newPrefiller(r)
		} else {
			e.role = newDecoder(r, m.Info.Vocab)
		}
	}
	return e, nil
}

// run executes plans for ever.
func (e *engine) run() error {
	e.post.send(&wire.Ready{Backend: e.backend.Name()})
	if e.role == nil {
		return e.follow()
	}
	return e.lead()
}

func (e *engine) lead() error {
	var p *plan
	for {
		// With work at hand, look at the mail in passing; without, wait for it.
		if p == nil {
			e.vitals.Doing.Store(spawn.DoingNothing)
			<-e.inbox.ring
		}
		var retire []uint64
		for _, m := range e.inbox.take() {
			if q, ok := m.(*wire.Quiesce); ok {
				retire = append(retire, q.Attempt)
			}
			if err := e.role.order(m); err != nil {
				return err
			}
		}
		e.setDemand()
		if p = e.role.next(e.contended()); p == nil && len(retire) == 0 {
			continue
		}
		if p == nil {
			p = new(plan)
		}
		p.retire = append(p.retire, retire...)
		e.vitals.Doing.Store(spawn.DoingTurn)
		for _, t := range e.turns {
			if err := t.Acquire(hostsync.Forever); err != nil {
				return err
			}
		}
		e.vitals.Doing.Store(spawn.DoingCompute)
		if e.setup.Degree > 1 {
			b := p.encode(e.planMem[:0])
			if len(b) > len(e.planMem) || &b[0] != &e.planMem[0] {
				return fmt.Errorf("a plan of %d bytes, room for %d", len(b), len(e.planMem))
			}
			e.planSize.Store(uint32(len(b)))
			e.rung.Bump()
		}
		logits, err := e.execute(p)
		for _, t := range e.turns {
			t.Release()
		}
		if err != nil {
			return err
		}
		if err := e.role.done(p, logits); err != nil {
			return err
		}
		e.setDemand()
	}
}

func (e *engine) follow() error {
	var p plan
	seen := uint32(0)
	for {
		e.vitals.Doing.Store(spawn.DoingFollowing)
		n, err := e.rung.Wait(seen, hostsync.Forever)
		if err != nil {
			return err
		}
		if n != seen+1 {
			return fmt.Errorf("plan %d after plan %d", n, seen)
		}
		seen = n
		e.vitals.Doing.Store(spawn.DoingCompute)
		size := int(e.planSize.Load())
		if size > len(e.planMem) {
			return fmt.Errorf("a plan of %d bytes, room for %d", size, len(e.planMem))
		}
		if err := p.decode(e.planMem[:size]); err != nil {
			return err
		}
		if _, err := e.execute(&p); err != nil {
			return err
		}
	}
}

// execute is what every rank does with a plan.
func (e *engine) execute(p *plan) (kernels.Logits, error) {
	var logits kernels.Logits
	if len(p.spans) > 0 {
		faultAtPlan(e.rank)
		e.fill(p)
		for i := range p.spans {
			e.begin(&p.spans[i])
		}
		var err error
		if logits, err = e.net.Forward(&e.batch); err != nil {
			return nil, err
		}
		for i := range p.spans {
			if s := &p.spans[i]; s.sealing {
				if err := e.seal(s); err != nil {
					return nil, err
				}
			}
		}
	}
	// After this no rank still works on the plan, and the leader may write the next.
	if err := e.backend.Sync(); err != nil {
		return nil, err
	}
	e.vitals.Plans.Add(1)
	for _, a := range p.retire {
		if e.lane != nil {
			e.lane.inbox.put(&wire.Quiesce{Attempt: a}) // it says quiet once it has let go too
		} else {
			e.post.send(&wire.Quiet{Attempt: a})
		}
	}
	return logits, nil
}

// fill turns the plan's spans into rows.
func (e *engine) fill(p *plan) {
	b := &e.batch
	b.Tokens, b.Pos, b.Seq, b.Pages, b.Out = b.Tokens[:0], b.Pos[:0], b.Seq[:0], b.Pages[:0], b.Out[:0]
	for i := range p.spans {
		s := &p.spans[i]
		for j, t := range s.tokens {
			b.Tokens = append(b.Tokens, t)
			b.Pos = append(b.Pos, int32(s.pos+j))
			b.Seq = append(b.Seq, int32(i))
		}
		b.Pages = append(b.Pages, s.pages)
		if s.out {
			b.Out = append(b.Out, int32(len(b.Tokens)-1))
		}
	}
}

// firstNew is the ordinal of the first page that has no token before pos.
func firstNew(pos, pageTokens int) int { return (pos + pageTokens - 1) / pageTokens }

// begin marks the pages that a prefill span is the first to write.
func (e *engine) begin(s *span) {
	if !s.sealing {
		return
	}
	for u := e.lo; u < e.hi; u++ {
		if s.pos == 0 {
			e.mem.boards[0].Claim(s.slot, u, s.attempt)
		}
		for i := firstNew(s.pos, e.layout.PageTokens); i < len(s.pages); i++ {
			e.mem.kv[u].Begin(s.pages[i], s.epochs[i])
		}
	}
}

// seal publishes the pages that a prefill span completed.
func (e *engine) seal(s *span) error {
	end := s.pos + len(s.tokens)
	from, to := s.pos/e.layout.PageTokens, end/e.layout.PageTokens
	if s.last {
		to = len(s.pages)
	}
	for u := e.lo; u < e.hi; u++ {
		for i := from; i < to; i++ {
			src := e.mem.kv[u].Page(s.pages[i])
			digest := uint64(0)
			if e.setup.Digest {
				digest = share.Digest(s.attempt, u, i, src)
			}
			if faultAtSeal(e, s, u, i, digest, src) {
				continue
			}
			e.mem.kv[u].Seal(s.pages[i], s.epochs[i])
			if len(s.target) > 0 {
				e.push(u, s.target[i], src)
			}
			e.mem.boards[0].Publish(s.slot, u, digest)
		}
	}
	if to > from {
		for _, b := range e.bells {
			b.Bump()
		}
	}
	e.post.send(&wire.Sealed{Attempt: s.attempt, Tokens: uint32(end), Pages: uint32(to), Done: s.last})
	return nil
}

// push copies a sealed page to where the target's pool wants it. The target finds
// out by its digest whether the right bytes arrived.
func (e *engine) push(u int, to pagepool.Page, src []byte) {
	dst := e.mem.peer[u]
	dst.Begin(to.Index, to.Epoch)
	copy(dst.Page(to.Index), src)
	dst.Seal(to.Index, to.Epoch)
}

// contended reports whether another group wants the cores now.
func (e *engine) contended() bool {
	sync := e.mem.sync.Bytes()
	for i, c := range e.setup.Cores {
		if e.setup.Rank.Role == ident.Prefill && spawn.Demand(sync, c).Load() > 0 || e.turns[i].Waiting() > 0 {
			return true
		}
	}
	return false
}

// setDemand tells prefill how many sequences this decode replica wants to run.
func (e *engine) setDemand() {
	if e.setup.Rank.Role != ident.Decode {
		return
	}
	n := e.role.demand()
	if d := n - e.wanted; d != 0 {
		for _, c := range e.setup.Cores {
			spawn.Demand(e.mem.sync.Bytes(), c).Add(int32(d))
		}
		e.wanted = n
	}
}
