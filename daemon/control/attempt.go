package control

import (
	"fmt"
	"strconv"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
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
	joined   bool
	starving bool // decode has no page for the next token
	room     int  // tokens that the target lease has room for

	began, arrived, idle request.Instant // idle: when it began to wait for quiet
	nudged               bool
}

// leaderOf sends to rank 0 of a replica.
func (l *Loop) leader(r *replica, m wire.Message) { l.send(r.ranks[0], m) }

// send queues a message for a rank. A rank that does not read is lost, and with it
// the generation.
func (l *Loop) send(rank int, m wire.Message) {
	if l.gen == nil || rank >= len(l.gen.Ranks) {
		return
	}
	if err := l.gen.Ranks[rank].Send(m); err != nil && l.gen.Ranks[rank].Process != nil {
		l.condemn("not_reading", fmt.Sprintf("%s: %v", l.ranks[rank], err), &rank, observe.WorkerProtocol)
	}
}

// move steps an attempt's transfer and performs the actions.
func (l *Loop) move(a *attempt, ev transfer.Event) {
	was := a.t.State
	next, acts, ignored := a.t.Step(ev)
	if ignored {
		l.ignored["transfer: "+ev.Kind.String()+" while "+was.String()]++
		return
	}
	a.t = next
	if next.State != was && a.request != nil {
		a.request.rec.note(l.now-a.request.began, "transfer "+ev.Kind.String(), a.request.m.State, fmt.Sprintf("%s: %s → %s", a.id, was, next.State))
	}
	handover := a.t.Transport == transfer.Handover
	for _, act := range acts {
		switch act {
		case transfer.TellTarget:
			a.target.To(pagepool.Writable)
			exp := &wire.Expect{Attempt: a.id.Seq, Source: uint32(a.src.Index), Slot: uint32(a.slot), Dst: a.target.Pages()[:a.pages]}
			exp.Src = a.sourcePages()
			for _, r := range a.dst.ranks {
				l.send(r, exp)
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
			l.leader(a.src, p)
			l.step(a.request, request.Event{Kind: request.Reserved}, "")
		case transfer.Deliver:
			a.arrived = l.now
			a.target.To(pagepool.Leased)
			if a.pages > 0 {
				copied := int64(a.pages) * l.o.Plan.Layout.PageBytes()
				if handover {
					copied = 0
				}
				l.o.Meter.Transferred(a.src.label(), a.dst.label(), time.Duration(l.now-a.began), copied)
			}
			l.step(a.request, request.Event{Kind: request.Arrived}, "")
		case transfer.QuiesceSource:
			l.leader(a.src, &wire.Quiesce{Attempt: a.id.Seq})
			if a.source != nil && !a.source.Ended() && a.source.State() != pagepool.Reserved && a.t.State == transfer.Draining {
				a.source.To(pagepool.Quarantined)
			}
		case transfer.QuiesceTarget:
			l.leader(a.dst, &wire.Quiesce{Attempt: a.id.Seq})
			if !a.target.Ended() {
				a.target.To(pagepool.Quarantined)
			}
		case transfer.RetireTarget:
			a.idle = l.now
			a.target.To(pagepool.Releasing)
		case transfer.FreeSource:
			l.slots[a.src.Index][a.slot] = false
			if a.source != nil {
				free(a.source, pagepool.Quiet)
			}
		case transfer.FreeTarget:
			free(a.target, pagepool.Quiet)
		}
	}
	if a.t.State == transfer.Draining && was != transfer.Draining {
		a.idle = l.now
		l.forgetWork(a)
	}
	if a.t.State == transfer.Closed {
		l.forgetWork(a)
		delete(l.attempts, a.id.Seq)
		if was == transfer.Draining {
			l.o.Log.Event(observe.AbortReceipt, fmt.Sprintf("attempt %s: every rank is quiet, every page is back", a.id), observe.Attempt(a.id), observe.Generation(l.number), observe.Reason("quiet"))
		}
	}
}

// forgetWork takes an attempt out of the scheduler's counts, once.
func (l *Loop) forgetWork(a *attempt) {
	if a.t.SourceTold && len(a.computed) > 0 {
		a.src.work -= a.tokens - a.done()
		a.computed = nil
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
func (l *Loop) step(r *live, ev request.Event, why string) {
	was := r.m.State
	a := r.attempt
	next, acts, ignored := r.m.Step(&l.o.Request, ev, l.now)
	if ignored {
		l.ignored["request: "+ev.Kind.String()+" while "+was.String()]++
		return
	}
	r.m = next
	if next.State != was {
		r.rec.note(l.now-r.began, ev.Kind.String(), next.State, why)
		if l.o.Log.Enabled(observe.RequestState) {
			l.o.Log.Event(observe.RequestState, fmt.Sprintf("request %s: %s → %s", r.spec.ID, was, next.State),
				append(r.fields(), observe.State(next.State), observe.Str("from", was.String()), observe.Reason(why))...)
		}
	}
	if ev.Kind == request.Tick && (next.Fault != 0 && next.State == request.Draining || next.State == request.Queued) && was != next.State {
		l.stuck(r, was)
	}
	for _, act := range acts {
		switch act {
		case request.Abandon:
			r.attempt = nil
			a.request = nil
			if a.id.Generation == l.number && l.gen != nil && l.sup.State == supUp {
				l.move(a, transfer.Event{Kind: transfer.GiveUp})
			}
		case request.Release:
			r.attempt = nil
			a.request = nil
			l.move(a, transfer.Event{Kind: transfer.Release})
		case request.Join:
			l.join(r, a)
		case request.Requeue:
			l.requeue(r)
			if !r.hidden {
				l.o.Log.Event(observe.RequestAgain, fmt.Sprintf("request %s: is run again after %d output tokens: %s", r.spec.ID, len(r.tokens), why),
					append(r.fields(), observe.State(was), observe.Generation(l.number), observe.Reason(why))...)
			}
		case request.End:
			l.end(r, why)
		case request.Forget:
			l.forget(r)
		}
	}
}

// join gives a sequence to decode's leader.
func (l *Loop) join(r *live, a *attempt) {
	a.joined = true
	a.dst.work++
	if r.resumed {
		l.o.Meter.Resumed(1)
	}
	l.leader(a.dst, &wire.Join{Attempt: a.id.Seq, Prompt: uint32(len(r.spec.Prompt)), MaxTokens: uint32(r.spec.MaxTokens - len(r.tokens)),
		Tokens: r.history(len(r.spec.Prompt) + len(r.tokens)), Stop: r.spec.Stop, Params: r.spec.Params, Pages: a.target.Pages()})
	// A page granted between here and the next token is sent by grow.
}

// end tells the client how the answer ended.
func (l *Loop) end(r *live, why string) {
	l.dequeue(r)
	var err *fault.Error
	if r.m.Finish == 0 {
		err = &fault.Error{Op: "", Kind: r.m.Fault, Err: l.explain(r, why)}
	}
	r.stream.end(r.m.Finish, err)
	took := (l.now - r.began)
	r.rec.finish(r.m.Outcome(), len(r.tokens), l.number)
	if r.hidden {
		l.canaryEnded(r)
		return
	}
	if r.m.Finish != 0 {
		l.prove()
	}
	l.lately = append(l.lately, l.now)
	msg := fmt.Sprintf("request %s: %s after %s, %d prompt and %d output tokens", r.spec.ID, r.m.Outcome(), round(took), len(r.spec.Prompt), len(r.tokens))
	fields := append(r.fields(), observe.Code(r.m.Outcome()), observe.Str("timeline", r.rec.Timeline()), observe.Int("tries", r.m.Tries),
		observe.Age(time.Duration(took)), observe.Int("prompt_tokens", len(r.spec.Prompt)), observe.Int("output_tokens", len(r.tokens)))
	if err != nil {
		fields = append(fields, observe.Reason(err.Error()))
	}
	l.o.Log.Event(observe.RequestDone, msg, fields...)
}

// explain says in words what a fault means for this request.
func (l *Loop) explain(r *live, why string) error {
	switch r.m.Fault {
	case fault.Cancelled, fault.Draining:
		return fmt.Errorf("cancelled: %s", why)
	case fault.Generation:
		return fmt.Errorf("the workers were replaced %d times while this request ran, now generation %d: %s", r.m.Barren, l.number, l.lastWhy)
	case fault.QueueTimeout:
		return fmt.Errorf("waited %s for room", l.o.Request.Queue)
	}
	if why == "" {
		return fmt.Errorf("%s", r.m.Fault)
	}
	return fmt.Errorf("%s: %s", r.m.Fault, why)
}

func (l *Loop) forget(r *live) {
	l.dequeue(r)
	if r.hidden {
		return
	}
	delete(l.requests, r.spec.ID)
	l.ended.add(r.rec)
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
