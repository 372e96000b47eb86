package core

import (
	"fmt"
	"strings"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
)

// vital is what was last seen of a rank's vital signs.
type vital struct {
	ready, gone bool
	backend     string
	last        Vital
	pulsed      request.Instant // when Pulse last moved
	stepped     request.Instant // when Steps last moved, or did not have to
}

// Watch looks at everything that has a limit. It must be called often. vitals are
// those of the processes that Launched named.
func (c *Core) Watch(now request.Instant, vitals []Vital) {
	c.at(now, func() {
		c.supervise(supervise.Event{Kind: supervise.Tick})
		for _, r := range c.inOrder() {
			c.step(r, request.Event{Kind: request.Tick}, "")
			c.watchSlow(r)
		}
		c.watchPages()
		c.watchRanks(vitals)
		c.watchCanary()
		c.watchClients()
		for len(c.lately) > 0 && c.now-c.lately[0] > request.Instant(30*time.Second) {
			c.lately = c.lately[1:]
		}
		c.assess()
	})
}

// watchSlow tells once of a wait that has used up half of its limit.
func (c *Core) watchSlow(r *live) {
	if r.m.State == request.Queued || r.m.State >= request.Draining || r.slow == r.m.Armed {
		return
	}
	if limit := r.m.Limit(&c.o.Request); c.now >= r.m.Armed.Add(limit/2) {
		r.slow = r.m.Armed
		text := fmt.Sprintf("request %s: %s for %s without progress, of %s", r.spec.ID, r.m.State, round(c.now-r.m.Armed), limit)
		c.out.Event(observe.RequestSlow, text, append(r.fields(), observe.State(r.m.State), observe.Age(time.Duration(c.now-r.m.Entered)),
			observe.Int("tokens", len(r.tokens)), observe.Reason(c.waitsFor(r)))...)
	}
}

// waitsFor names the ranks that a request's attempt waits for, for people.
func (c *Core) waitsFor(r *live) string {
	a := r.attempt
	if a == nil {
		return ""
	}
	src, dst := a.t.Waiting()
	if r.m.State == request.Decoding {
		src, dst = 0, 1
	}
	var names []string
	for i, rank := range a.src.ranks {
		if src.Has(i) {
			names = append(names, c.ranks[rank].String())
		}
	}
	for i, rank := range a.dst.ranks {
		if dst.Has(i) {
			names = append(names, c.ranks[rank].String())
		}
	}
	return "waits for " + strings.Join(names, ", ")
}

// watchPages looks for attempts whose memory waits too long for proof.
func (c *Core) watchPages() {
	if c.sup.State != supervise.Up {
		return
	}
	for _, d := range c.replicas[ident.Decode-1] {
		if d.gap != 0 && c.now > d.gap.Add(c.o.Progress) {
			c.condemn("step_lost", fmt.Sprintf("%s: step %d has not come for %s, and later ones have", d, d.step+1, c.o.Progress), &d.ranks[0], observe.WorkerProtocol)
			return
		}
	}
	for _, a := range c.tries() {
		c.watchDivision(a)
		switch {
		case a.t.State == transfer.Draining || a.t.State == transfer.Releasing && a.t.TargetMute != a.t.Target:
			if c.now > a.idle.Add(c.o.Quarantine) {
				s, d := a.t.Waiting()
				c.condemn("quarantine", fmt.Sprintf("attempt %s: pages wait for ranks %b of %s and %b of %s for more than %s", a.id, s, a.src, d, a.dst, c.o.Quarantine), nil, observe.SlotOverdue)
				return
			}
		case a.t.State >= transfer.Arrived && a.t.SourceTold && a.t.SourceMute != a.t.Source:
			// Decode has everything and prefill does not say that it is done. The client
			// is not made to wait for that; the memory is.
			late := a.arrived.Add(c.o.Request.Handoff)
			if c.now > late && !a.nudged {
				a.nudged = true
				s, _ := a.t.Waiting()
				age := time.Duration(c.now - a.arrived)
				fields := []observe.Field{observe.Attempt(a.id), observe.Generation(c.number), observe.Age(age), observe.Str("role", "prefill")}
				if a.request != nil {
					fields = append(fields, observe.Request(a.request.spec.ID))
				}
				c.out.Event(observe.TransferCompletionLost, fmt.Sprintf("attempt %s: decode verified the KV cache %s ago, and ranks %b of %s have not said that they are done", a.id, round(age), s, a.src), fields...)
				c.move(a, transfer.Event{Kind: transfer.SourceLate})
			}
			if c.now > late.Add(c.o.Quarantine) {
				c.condemn("quarantine", fmt.Sprintf("attempt %s: %s was asked to be quiet %s ago and is not", a.id, a.src, c.o.Quarantine), nil, observe.SlotOverdue)
				return
			}
		}
	}
}

// watchClients notes since when somebody waits.
func (c *Core) watchClients() {
	for _, r := range c.requests {
		if r.m.State < request.Draining {
			if c.busy == 0 {
				c.busy = c.now
			}
			return
		}
	}
	c.busy = 0
}

// divided is how long ranks of one replica may disagree about an attempt before that
// is told. The limits of the request and of the pages bound it.
const divided = 500 * time.Millisecond

// watchDivision tells once of ranks that did something while others of the same
// replica did not.
func (c *Core) watchDivision(a *attempt) {
	t := &a.t
	said, all, ranks := transfer.Mask(0), t.Target, a.dst.ranks
	what := ""
	switch {
	case t.State == transfer.Reserving:
		said, what = t.Reserved, "took note of it"
	case t.State == transfer.Moving && t.Sealed != 0 && t.Sealed != t.Source:
		said, all, ranks, what = t.Sealed, t.Source, a.src.ranks, "are done"
	case t.State == transfer.Moving && t.Sealed == t.Source:
		said, what = t.Verified, "hold all pages"
	case t.State == transfer.Releasing, t.State == transfer.Draining:
		said, what = t.TargetMute, "are quiet"
	}
	if said == 0 || said == all {
		a.split = 0
		return
	}
	if a.split == 0 {
		a.split = c.now
		return
	}
	if a.divided || c.now < a.split.Add(divided) {
		return
	}
	a.divided = true
	yes, no := []string{}, []string{}
	for i, rank := range ranks {
		if said.Has(i) {
			yes = append(yes, c.ranks[rank].String())
		} else {
			no = append(no, c.ranks[rank].String())
		}
	}
	text := fmt.Sprintf("%s %s, %s not, for %s", strings.Join(yes, ", "), what, strings.Join(no, ", "), round(c.now-a.split))
	fields := []observe.Field{observe.Attempt(a.id), observe.Generation(c.number), observe.Reason(text), observe.Age(time.Duration(c.now - a.split))}
	if a.request != nil {
		fields = append(fields, observe.Request(a.request.spec.ID))
	}
	c.out.Event(observe.RankDivergence, fmt.Sprintf("attempt %s: %s", a.id, text), fields...)
}

// watchRanks looks for ranks that have work and do not move, and for processes
// that do not run at all.
func (c *Core) watchRanks(vitals []Vital) {
	silent, stuck := -1, -1
	for i := range min(len(c.procs), len(vitals)) {
		h, v := &c.health[i], vitals[i]
		if v.Pulse != h.last.Pulse || h.pulsed == 0 || !h.ready {
			h.pulsed = c.now
		}
		if v.Steps != h.last.Steps || !v.Busy || h.stepped == 0 {
			h.stepped = c.now
		}
		h.last = v
		if c.sup.State != supervise.Up || h.gone {
			continue
		}
		if c.now > h.pulsed.Add(c.o.Progress) && silent < 0 {
			silent = i
		}
		if c.now > h.stepped.Add(c.o.Progress) && stuck < 0 {
			stuck = i
		}
	}
	switch {
	case silent >= 0:
		c.condemn("worker_silent", fmt.Sprintf("%s (process %d) has shown no sign of life for %s", c.ranks[silent], c.procs[silent].PID, c.o.Progress), &silent, observe.WorkerStalled)
	case stuck >= 0:
		c.condemn("worker_stuck", fmt.Sprintf("%s (process %d) has been computing the same step for %s", c.ranks[stuck], c.procs[stuck].PID, c.o.Progress), &stuck, observe.WorkerStalled)
	}
}

// overdue writes down everything about a request whose state passed its limit, and
// has evidence gathered.
func (c *Core) overdue(r *live, a *attempt, state request.State, waits string) {
	c.out.DeadlineExceeded(state.String())
	fields := []observe.Field{observe.Request(r.spec.ID), observe.State(state), observe.Code(r.m.Fault.String()), observe.Str("timeline", r.rec.Timeline()), observe.Str("history", r.rec.History())}
	text := fmt.Sprintf("request %s: %s for longer than it may", r.spec.ID, state)
	if a != nil {
		fields = append(fields, observe.Attempt(a.id), observe.Generation(a.id.Generation), observe.Str("slot", fmt.Sprintf("%s/%d", a.src.label(), a.slot)),
			observe.Str("transfer", a.t.State.String()), observe.Int("computed_tokens", a.done()), observe.Str("landed_pages", fmt.Sprint(a.landed)), observe.Reason(waits))
		text += ": " + waits
	}
	c.out.Event(observe.RequestStuck, text, fields...)
	if state > request.Queued && state < request.Draining {
		c.out.Stuck(state)
	}
}

// canaryEvery is how long the appliance may be idle before a canary shows that
// requests still complete.
const canaryEvery = 20 * time.Second

// sendCanary begins a request of our own: one token, the whole way.
func (c *Core) sendCanary() {
	if c.canary != nil || c.sup.State != supervise.Up || c.o.Canary == nil {
		return
	}
	c.canaryAt = c.now
	c.enter(request.Spec{ID: "canary", Prompt: c.o.Canary, MaxTokens: 1}, true)
}

func (c *Core) canaryEnded(r *live) {
	c.canary = nil
	switch {
	case r.m.Finish != 0:
		c.prove()
	case c.sup.State == supervise.Up && r.m.Fault != fault.Generation && !c.stopping:
		c.out.Event(observe.CanaryFailed, fmt.Sprintf("generation %d: the canary ended with %s", c.number, r.m.Outcome()), observe.Generation(c.number), observe.Reason(r.m.Outcome()))
		if !c.proven {
			c.condemn("canary", fmt.Sprintf("generation %d completed no request: the canary ended with %s", c.number, r.m.Outcome()), nil, observe.CanaryFailed)
		}
	}
	c.step(r, request.Event{Kind: request.Closed}, "")
}

// prove notes that a request went all the way.
func (c *Core) prove() {
	c.completed = c.now
	if !c.proven {
		c.proven = true
		c.assess()
	}
}

func (c *Core) watchCanary() {
	if c.sup.State != supervise.Up || c.canary != nil {
		return
	}
	if !c.proven || c.now > max(c.completed, c.canaryAt).Add(canaryEvery) {
		c.sendCanary()
	}
}
