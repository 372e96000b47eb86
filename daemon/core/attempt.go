package core

import (
	"fmt"
	"slices"
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
	request  *live         // nil once the request has no more to do with it
	owner    ident.Request // whose attempt it is, also then
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

	began, sealed, arrived, idle request.Instant // sealed: prefill is done; idle: when it began to wait for quiet
	nudged                       bool
	split                        request.Instant // since when ranks of one side disagree about it
	divided                      bool            // that was told
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
				var took time.Duration // nothing, if decode had it all before prefill said that it was done
				if a.sealed != 0 {
					took = time.Duration(c.now - a.sealed)
				}
				a.request.rec.Moved += copied
				c.out.Transferred(a.src.label(), a.dst.label(), took, copied)
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
		if c.out.Wants(observe.SlotQuarantine) {
			waits := c.waiting(a)
			c.out.Event(observe.SlotQuarantine, fmt.Sprintf("attempt %s: %d pages and slot %s are kept apart, %s", a.id, a.held(), a.place(), waits), append(a.fields(), observe.Int("pages", a.held()), observe.Reason(waits))...)
		}
	}
	if a.t.State == transfer.Closed {
		c.forgetWork(a)
		delete(c.attempts, a.id.Seq)
		c.released(a, was == transfer.Draining, "quiet", "every rank is quiet")
	}
}

// released tells that an attempt's pages and slot are free, on which evidence, and if
// it had been given up, that this is over.
func (c *Core) released(a *attempt, aborted bool, evidence, why string) {
	age := time.Duration(0)
	if a.idle != 0 {
		age = time.Duration(c.now - a.idle)
	}
	tell := func(k observe.Kind, what string) {
		if c.out.Wants(k) {
			c.out.Event(k, fmt.Sprintf("attempt %s: %s: %s", a.id, why, what), append(a.fields(), observe.Int("pages", a.held()), observe.Age(age), observe.Reason(evidence))...)
		}
	}
	tell(observe.SlotRelease, fmt.Sprintf("%d pages and slot %s are free", a.held(), a.place()))
	if aborted {
		tell(observe.AbortReceipt, "the attempt that was given up is over")
	}
}

// held is how many pages the attempt has, or had.
func (a *attempt) held() int {
	n := len(a.target.Pages())
	if a.source != nil {
		n += len(a.source.Pages())
	}
	return n
}

// place is the attempt's slot, for people: "prefill0/3".
func (a *attempt) place() string { return fmt.Sprintf("%s/%d", a.src.label(), a.slot) }

// fields are those that every event about an attempt has.
func (a *attempt) fields() []observe.Field {
	return []observe.Field{observe.Attempt(a.id), observe.Generation(a.id.Generation), observe.Request(a.owner), observe.Slot(a.place()),
		observe.Str("src", a.src.label()), observe.Str("dst", a.dst.label()), observe.Str("transfer", a.t.State.String())}
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
	entered := r.m.Entered
	c.count(r, -1)
	r.m = next
	c.count(r, +1)
	late := ev.Kind == request.Tick && was != next.State && was != request.Draining
	if late {
		why = waits
	}
	if !r.hidden {
		switch ev.Kind {
		case request.Progress, request.Moved, request.Landed, request.Prefilled, request.Arrived, request.Token:
			c.progress()
		}
	}
	if next.State != was {
		r.rec.spend(was, c.now-entered)
		r.rec.note(c.now-r.began, r.happened(ev.Kind, was), next.State, why)
		if c.out.Wants(observe.RequestState) {
			c.out.Event(observe.RequestState, fmt.Sprintf("request %s: %s → %s", r.spec.ID, was, next.State),
				append(r.fields(), observe.State(next.State), observe.Str("from", was.String()), observe.Age(time.Duration(c.now-entered)), observe.Reason(why))...)
		}
	}
	if late {
		if a != nil && (was == request.Handoff || was == request.Transferring || was == request.Verifying) {
			c.strike(a, fault.TransferTimeout)
		}
		c.overdue(r, a, was, c.now-entered, waits)
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
					append(r.fields(), observe.State(was), observe.Age(time.Duration(c.now-entered)), observe.Int("tries", r.m.Tries), observe.Int("output_tokens", len(r.tokens)), observe.Reason(why))...)
			}
		case request.End:
			c.end(r, why)
		case request.Forget:
			c.forget(r)
		}
	}
}

// happened says what brought the request to its state, for people.
func (r *live) happened(k request.Kind, was request.State) string {
	what := k.String()
	switch k {
	case request.Tick:
		what = "limit of " + was.String() + " passed"
	case request.Token:
		what = "last token"
	}
	if was == request.Decoding {
		what += fmt.Sprintf(" after %d tokens", len(r.tokens))
	}
	if r.m.State == request.Draining {
		what += ", ended with " + r.m.Outcome()
	}
	return what
}

// count puts a request into the sums that are kept beside the tables, or takes it out.
func (c *Core) count(r *live, n int) {
	if r.holds() {
		c.placed += n
	}
	if c.suspect(r) {
		c.suspects += n
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
	r.rec.finish(r.m.Outcome(), len(r.tokens), c.number, took)
	if r.hidden {
		c.canaryEnded(r)
		return
	}
	if r.m.Finish != 0 {
		c.served()
	} else {
		c.failing(r.m.Fault)
	}
	if len(c.lately) == maxLately {
		c.lately = slices.Delete(c.lately, 0, 1)
	}
	c.lately = append(c.lately, c.now)
	msg := fmt.Sprintf("request %s: %s after %s, %d prompt and %d output tokens", r.spec.ID, r.m.Outcome(), round(took), len(r.spec.Prompt), len(r.tokens))
	fields := append(r.fields(), observe.Code(r.m.Outcome()), observe.Str("timeline", r.rec.Timeline()), observe.Int("tries", r.m.Tries),
		observe.Age(time.Duration(took)), observe.Int("prompt_tokens", len(r.spec.Prompt)), observe.Int("output_tokens", len(r.tokens)), observe.Bytes("moved", r.rec.Moved))
	if r.rec.Src != "" {
		fields = append(fields, observe.Str("src", r.rec.Src), observe.Str("dst", r.rec.Dst))
	}
	for _, s := range r.rec.Spent {
		fields = append(fields, observe.Took(s.State, time.Duration(s.Seconds*1e9)))
	}
	if r.rec.FirstToken > 0 {
		fields = append(fields, observe.Took("first_token", time.Duration(r.rec.FirstToken*1e9)))
	}
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
	if i, found := slices.BinarySearchFunc(c.order, r, arrival); found {
		c.order = slices.Delete(c.order, i, i+1)
	}
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
	if r.last.Seq != 0 {
		fs = append(fs, observe.Attempt(r.last), observe.Generation(r.last.Generation))
	}
	if a := r.attempt; a != nil {
		fs = append(fs, observe.Slot(a.place()))
	}
	return fs
}

// label names a replica in metrics: "prefill0".
func (r *replica) label() string { return r.Role.String() + strconv.Itoa(r.Index) }
