package core

import (
	"fmt"
	"strconv"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
	"tandem/gpu/pagepool"
)

// replica is one replica of the live generation, as the scheduler sees it.
type replica struct {
	ident.Replica
	ranks []int          // indices of its ranks
	pool  *pagepool.Pool // nil: it has no pages of its own
	work  int            // prefill: tokens given and not computed; decode: sequences
	bound int            // decode: attempts that are, or will be, sequences

	step uint64          // decode: the latest step that was taken in
	held []*wire.Step    // steps after one that has not come, in order
	gap  request.Instant // since when that is so; 0: it is not
}

// attempt is one try at a request: the memory side, which may outlive the request.
type attempt struct {
	id       ident.Attempt
	request  *live // nil once the request has no more to do with it
	t        transfer.Transfer
	src, dst *replica
	slot     int

	target *pagepool.Lease // decode's pages; with handover, prefill's too
	source *pagepool.Lease // pull and push: prefill's pages
	pages  int             // that move
	tokens int             // that prefill computes

	computed []int // of each prefill rank
	landed   []int // of each decode rank
	bound    bool  // counted in dst
	joined   bool
	starving bool // decode has no page for the next token
	room     int  // tokens that the target lease has room for

	began, arrived, idle request.Instant // idle: when it began to wait for quiet
	nudged               bool
	split                request.Instant // since when ranks of one side disagree about it
	divided              bool            // that was told
}

// leaderOf sends to rank 0 of a replica.
func (c *Core) leader(r *replica, m wire.Message) { c.send(r.ranks[0], m) }

// send queues a message for a rank. A rank that does not read is lost, and with it
// the generation.
func (c *Core) send(rank int, m wire.Message) {
	if rank >= len(c.procs) {
		return
	}
	if err := c.out.Send(rank, m); err != nil {
		c.condemn("not_reading", fmt.Sprintf("%s: %v", c.ranks[rank], err), &rank, observe.WorkerProtocol)
	}
}

// move steps an attempt's transfer and performs the actions.
func (c *Core) move(a *attempt, ev transfer.Event) {
	was := a.t.State
	next, acts, ignored := a.t.Step(ev)
	if ignored {
		c.ignored["transfer: "+ev.Kind.String()+" while "+was.String()]++
		return
	}
	a.t = next
	if next.State != was && a.request != nil {
		a.request.rec.note(c.now-a.request.began, "transfer "+ev.Kind.String(), a.request.m.State, fmt.Sprintf("%s: %s → %s", a.id, was, next.State))
	}
	handover := a.t.Transport == transfer.Handover
	for _, act := range acts {
		switch act {
		case transfer.TellTarget:
			a.target.To(pagepool.Writable)
			exp := &wire.Expect{Attempt: a.id.Seq, Source: uint32(a.src.Index), Slot: uint32(a.slot), Dst: a.target.Pages()[:a.pages]}
			exp.Src = a.sourcePages()
			for _, r := range a.dst.ranks {
				c.send(r, exp)
			}
		case transfer.TellSource:
			p := &wire.Prefill{Attempt: a.id.Seq, Target: uint32(a.dst.Index), Slot: uint32(a.slot), Tokens: a.request.history(a.tokens), Src: a.sourcePages()}
			if !handover {
				a.source.To(pagepool.Writable)
				if a.t.Transport == transfer.Push {
					p.Dst = a.target.Pages()[:a.pages]
				}
			}
			a.src.work += a.tokens
			c.leader(a.src, p)
			c.step(a.request, request.Event{Kind: request.Reserved}, "")
		case transfer.Deliver:
			a.arrived = c.now
			a.target.To(pagepool.Leased)
			if a.pages > 0 {
				copied := int64(a.pages) * c.o.Layout.PageBytes()
				if handover {
					copied = 0
				}
				c.out.Transferred(a.src.label(), a.dst.label(), time.Duration(c.now-a.began), copied)
			}
			c.step(a.request, request.Event{Kind: request.Arrived}, "")
		case transfer.QuiesceSource:
			c.leader(a.src, &wire.Quiesce{Attempt: a.id.Seq})
			if a.source != nil && !a.source.Ended() && a.source.State() != pagepool.Reserved && a.t.State == transfer.Draining {
				a.source.To(pagepool.Quarantined)
			}
		case transfer.QuiesceTarget:
			c.leader(a.dst, &wire.Quiesce{Attempt: a.id.Seq})
			if !a.target.Ended() {
				a.target.To(pagepool.Quarantined)
			}
		case transfer.RetireTarget:
			a.idle = c.now
			a.target.To(pagepool.Releasing)
		case transfer.FreeSource:
			c.slots[a.src.Index][a.slot] = false
			if a.source != nil {
				free(a.source, pagepool.Quiet)
			}
		case transfer.FreeTarget:
			free(a.target, pagepool.Quiet)
		}
	}
	if a.t.State == transfer.Draining && was != transfer.Draining {
		a.idle = c.now
		c.forgetWork(a)
	}
	if a.t.State == transfer.Closed {
		c.forgetWork(a)
		delete(c.attempts, a.id.Seq)
		if was == transfer.Draining {
			c.out.Event(observe.AbortReceipt, fmt.Sprintf("attempt %s: every rank is quiet, every page is back", a.id), observe.Attempt(a.id), observe.Generation(c.number), observe.Reason("quiet"))
		}
	}
}

// forgetWork takes an attempt out of the scheduler's counts, once.
func (c *Core) forgetWork(a *attempt) {
	if a.t.SourceTold && len(a.computed) > 0 {
		a.src.work -= a.tokens - a.done()
		a.computed = nil
	}
	if a.bound {
		a.bound = false
		a.dst.bound--
	}
	if a.joined {
		a.joined = false
		a.dst.work--
	}
}

// done is how many tokens every prefill rank has computed.
func (a *attempt) done() int {
	n := a.tokens
	for _, c := range a.computed {
		n = min(n, c)
	}
	return n
}

func (a *attempt) sourcePages() []pagepool.Page {
	if a.source != nil {
		return a.source.Pages()
	}
	return a.target.Pages()[:a.pages]
}

// free ends a lease with proof, whatever it was used for.
func free(l *pagepool.Lease, proof pagepool.Proof) {
	switch l.State() {
	case pagepool.Reserved:
		l.Free(pagepool.NeverExposed)
		return
	case pagepool.Writable, pagepool.Leased:
		l.To(pagepool.Releasing)
	}
	l.Free(proof)
}

// history is the first n tokens of what the request says so far: its prompt and
// what was delivered.
func (r *live) history(n int) []int32 {
	all := make([]int32, 0, len(r.spec.Prompt)+len(r.tokens))
	all = append(append(all, r.spec.Prompt...), r.tokens...)
	return all[:n]
}

// step steps a request and performs the actions.
func (c *Core) step(r *live, ev request.Event, why string) {
	was := r.m.State
	a := r.attempt
	waits := ""
	if ev.Kind == request.Tick && c.now >= r.m.Due(&c.o.Request) {
		waits = c.waitsFor(r)
	}
	next, acts, ignored := r.m.Step(&c.o.Request, ev, c.now)
	if ignored {
		c.ignored["request: "+ev.Kind.String()+" while "+was.String()]++
		return
	}
	r.m = next
	switch ev.Kind {
	case request.Progress, request.Moved, request.Arrived, request.Token:
		if !r.hidden {
			c.moved = c.now
		}
	}
	if next.State != was {
		r.rec.note(c.now-r.began, ev.Kind.String(), next.State, why)
		if c.out.Wants(observe.RequestState) {
			c.out.Event(observe.RequestState, fmt.Sprintf("request %s: %s → %s", r.spec.ID, was, next.State),
				append(r.fields(), observe.State(next.State), observe.Str("from", was.String()), observe.Reason(why))...)
		}
	}
	if ev.Kind == request.Tick && (next.Fault != 0 && next.State == request.Draining || next.State == request.Queued) && was != next.State {
		if why = waits; a != nil && (was == request.Handoff || was == request.Transferring || was == request.Verifying) {
			c.strike(a, fault.TransferTimeout)
		}
		c.overdue(r, a, was, waits)
	}
	for _, act := range acts {
		switch act {
		case request.Abandon:
			r.attempt = nil
			a.request = nil
			if a.id.Generation == c.number && c.sup.State == supervise.Up {
				c.move(a, transfer.Event{Kind: transfer.GiveUp})
			}
		case request.Release:
			r.attempt = nil
			a.request = nil
			c.move(a, transfer.Event{Kind: transfer.Release})
		case request.Join:
			c.join(r, a)
		case request.Requeue:
			c.requeue(r)
			if !r.hidden {
				c.out.Event(observe.RequestAgain, fmt.Sprintf("request %s: is run again after %d output tokens: %s", r.spec.ID, len(r.tokens), why),
					append(r.fields(), observe.State(was), observe.Generation(c.number), observe.Reason(why))...)
			}
		case request.End:
			c.end(r, why)
		case request.Forget:
			c.forget(r)
		}
	}
}

// join gives a sequence to decode's leader.
func (c *Core) join(r *live, a *attempt) {
	a.joined = true
	a.dst.work++
	if r.resumed {
		c.out.Resumed(1)
	}
	c.leader(a.dst, &wire.Join{Attempt: a.id.Seq, Prompt: uint32(len(r.spec.Prompt)), MaxTokens: uint32(r.spec.MaxTokens - len(r.tokens)),
		Tokens: r.history(len(r.spec.Prompt) + len(r.tokens)), Stop: r.spec.Stop, Params: r.spec.Params, Pages: a.target.Pages()})
	// A page granted between here and the next token is sent by grow.
}

// end tells the client how the answer ended.
func (c *Core) end(r *live, why string) {
	c.dequeue(r)
	var err *fault.Error
	if r.m.Finish == 0 {
		err = &fault.Error{Op: "", Kind: r.m.Fault, Err: c.explain(r, why)}
	}
	if !r.hidden {
		c.out.End(r.ticket, r.m.Finish, err)
	}
	took := (c.now - r.began)
	r.rec.finish(r.m.Outcome(), len(r.tokens), c.number)
	if r.hidden {
		c.canaryEnded(r)
		return
	}
	if r.m.Finish != 0 {
		c.prove()
	}
	c.lately = append(c.lately, c.now)
	msg := fmt.Sprintf("request %s: %s after %s, %d prompt and %d output tokens", r.spec.ID, r.m.Outcome(), round(took), len(r.spec.Prompt), len(r.tokens))
	fields := append(r.fields(), observe.Code(r.m.Outcome()), observe.Str("timeline", r.rec.Timeline()), observe.Int("tries", r.m.Tries),
		observe.Age(time.Duration(took)), observe.Int("prompt_tokens", len(r.spec.Prompt)), observe.Int("output_tokens", len(r.tokens)))
	if err != nil {
		fields = append(fields, observe.Reason(err.Error()))
	}
	c.out.Event(observe.RequestDone, msg, fields...)
}

// explain says in words what a fault means for this request.
func (c *Core) explain(r *live, why string) error {
	switch r.m.Fault {
	case fault.Cancelled, fault.Draining:
		return fmt.Errorf("cancelled: %s", why)
	case fault.Generation:
		return fmt.Errorf("the workers were replaced %d times while this request ran, now generation %d: %s", r.m.Barren, c.number, c.lastWhy)
	case fault.QueueTimeout:
		return fmt.Errorf("waited %s for room", c.o.Request.Queue)
	}
	if why == "" {
		return fmt.Errorf("%s", r.m.Fault)
	}
	return fmt.Errorf("%s: %s", r.m.Fault, why)
}

func (c *Core) forget(r *live) {
	c.dequeue(r)
	if r.hidden {
		return
	}
	delete(c.requests, r.ticket)
	delete(c.names, r.spec.ID)
	c.ended.add(r.rec)
	c.out.Forget(r.ticket)
}

// fields are those that every event about a request has.
func (r *live) fields() []observe.Field {
	fs := []observe.Field{observe.Request(r.spec.ID)}
	if a := r.attempt; a != nil {
		fs = append(fs, observe.Attempt(a.id), observe.Generation(a.id.Generation))
	}
	return fs
}

// label names a replica in metrics: "prefill0".
func (r *replica) label() string { return r.Role.String() + strconv.Itoa(r.Index) }
