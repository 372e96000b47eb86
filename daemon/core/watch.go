package core

import (
	"fmt"
	"strings"
	"time"

	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
)

// vital is what was last seen of a rank's vital signs.
type vital struct {
	ready, gone bool
	backend     string
	last        Vital
	pulsed      request.Instant // when Pulse last moved
	stepped     request.Instant // when Steps last moved, or did not have to
	said        wire.Message    // the last that it sent
	heard       request.Instant // when that came
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
		for len(c.lately) > 0 && c.now-c.lately[0] > request.Instant(lateWindow) {
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
		fields := append(r.fields(), observe.State(r.m.State), observe.Age(time.Duration(c.now-r.m.Entered)), observe.Took("without_progress", time.Duration(c.now-r.m.Armed)),
			observe.Took("limit", limit), observe.Int("output_tokens", len(r.tokens)), observe.Reason(c.waitsFor(r)))
		if a := r.attempt; a != nil {
			fields = append(fields, observe.Int("computed_tokens", a.done()), observe.Str("landed_pages", fmt.Sprint(a.landed)))
		}
		c.out.Event(observe.RequestSlow, text, fields...)
	}
}

// waitsFor names the ranks that a request's attempt waits for, for people.
func (c *Core) waitsFor(r *live) string {
	a := r.attempt
	switch {
	case a == nil && r.m.State == request.Queued:
		return "waits for " + c.lacks(r)
	case a == nil:
		return ""
	case r.m.State == request.Decoding:
		return "waits for " + c.ranks[a.dst.ranks[0]].String() + c.lifeless(a)
	}
	return c.waiting(a)
}

// lacks says what a queued request does not get, for people.
func (c *Core) lacks(r *live) string {
	switch {
	case c.sup.State != supervise.Up:
		return "a generation: " + c.sup.String()
	case len(c.queue) > 0 && c.queue[0] != r:
		return "its turn: others came before it"
	case !c.o.Admit.Start(c.running()):
		return fmt.Sprintf("a place: %d of %d are taken", c.running(), c.o.Admit.Running)
	}
	return "KV pages, a slot or a place in a batch"
}

// waiting names the ranks that an attempt's memory waits for, for people.
func (c *Core) waiting(a *attempt) string {
	src, dst := a.t.Waiting()
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
	return "waits for " + strings.Join(names, ", ") + c.lifeless(a)
}

// lifeless names the ranks of an attempt's replicas that show no sign of life, in
// brackets: who waits at a barrier for another one is not to blame.
func (c *Core) lifeless(a *attempt) string {
	var out []string
	for _, rep := range []*replica{a.src, a.dst} {
		for _, rank := range rep.ranks {
			if rank < len(c.procs) && c.now > c.health[rank].pulsed.Add(time.Second) {
				out = append(out, fmt.Sprintf("%s shows no sign of life for %s", c.ranks[rank], round(c.now-c.health[rank].pulsed)))
			}
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + strings.Join(out, ", ") + ")"
}

// watchPages looks for attempts whose memory waits too long for proof.
func (c *Core) watchPages() {
	if c.sup.State != supervise.Up {
		return
	}
	for _, list := range c.replicas {
		for _, r := range list {
			if r.pool != nil && r.pool.Drift() != 0 {
				c.condemn("ledger", fmt.Sprintf("pool %s does not add up: %d of %d pages", r.pool.Name(), r.pool.Drift(), r.pool.Total()), nil, observe.LedgerDrift, observe.Generation(c.number), observe.Str("pool", r.pool.Name()))
				return
			}
		}
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
				c.overstay(a, fmt.Sprintf("attempt %s: %d pages have been in quarantine for more than %s, %s", a.id, a.held(), c.o.Quarantine, c.waiting(a)), a.idle)
				return
			}
		case a.t.State >= transfer.Arrived && a.t.SourceTold && a.t.SourceMute != a.t.Source:
			// Decode has everything and prefill does not say that it is done. The client
			// is not made to wait for that; the memory is.
			late := a.arrived.Add(c.o.Request.Handoff)
			if c.now > late && !a.nudged {
				a.nudged = true
				age := time.Duration(c.now - a.arrived)
				mute, _ := a.t.Waiting()
				fields := append(a.fields(), observe.Age(age), observe.Reason(c.waiting(a)))
				if first := mute.First(); first >= 0 {
					fields = append(fields, observe.Rank(c.ranks[a.src.ranks[first]]))
				}
				c.out.Event(observe.TransferCompletionLost, fmt.Sprintf("attempt %s: decode verified the KV cache %s ago, and its end was not reported: %s", a.id, round(age), c.waiting(a)), fields...)
				c.move(a, transfer.Event{Kind: transfer.SourceLate})
			}
			if c.now > late.Add(c.o.Quarantine) {
				c.overstay(a, fmt.Sprintf("attempt %s: %s was asked to be quiet %s ago and is not, %s", a.id, a.src, c.o.Quarantine, c.waiting(a)), late)
				return
			}
		}
	}
}

// overstay ends the generation because of an attempt whose pages wait too long.
func (c *Core) overstay(a *attempt, text string, since request.Instant) {
	fields := a.fields()
	fields = append(fields, observe.Age(time.Duration(c.now-since)), observe.Str("ranks", c.holders(a)))
	c.condemn("quarantine", text, nil, observe.SlotOverdue, fields...)
}

// holders is a line about each rank of an attempt: who it is, and what it last did and said.
func (c *Core) holders(a *attempt) string {
	var b strings.Builder
	for side, rep := range []*replica{a.src, a.dst} {
		for i, rank := range rep.ranks {
			fmt.Fprintf(&b, "%s", c.ranks[rank])
			if rank < len(c.procs) {
				fmt.Fprintf(&b, " process %d on %s: %s", c.procs[rank].PID, c.procs[rank].Device, c.signs(rank))
			}
			switch {
			case side == 1:
				fmt.Fprintf(&b, "; %d of %d pages", a.landed[i], a.pages)
			case i < len(a.computed):
				fmt.Fprintf(&b, "; %d of %d tokens", a.computed[i], a.tokens)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
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
	first := -1
	for i, rank := range ranks {
		if said.Has(i) {
			yes = append(yes, c.ranks[rank].String())
		} else if no = append(no, c.ranks[rank].String()); first < 0 {
			first = rank
		}
	}
	text := fmt.Sprintf("%s %s, %s not, for %s", strings.Join(yes, ", "), what, strings.Join(no, ", "), round(c.now-a.split))
	fields := append(a.fields(), observe.Reason(text), observe.Age(time.Duration(c.now-a.split)), observe.Str("behind", strings.Join(no, " ")), observe.Str("ranks", c.holders(a)),
		observe.Rank(c.ranks[first]))
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
func (c *Core) overdue(r *live, a *attempt, state request.State, age request.Instant, waits string) {
	c.out.DeadlineExceeded(state.String())
	text := fmt.Sprintf("request %s: %s for %s, longer than it may", r.spec.ID, state, round(age))
	var fields []observe.Field
	if a != nil {
		fields = append(a.fields(), observe.Int("computed_tokens", a.done()), observe.Str("landed_pages", fmt.Sprint(a.landed)), observe.Str("ranks", c.holders(a)))
	} else {
		fields = r.fields()
	}
	outcome := r.m.Fault.String()
	if r.m.State == request.Queued {
		outcome = "again"
	}
	fields = append(fields, observe.State(state), observe.Code(outcome), observe.Age(time.Duration(age)), observe.Reason(waits), observe.Int("tries", r.m.Tries),
		observe.Str("timeline", r.rec.Timeline()), observe.Str("history", r.rec.History()))
	if waits != "" {
		text += ": " + waits
	}
	c.out.Event(observe.RequestStuck, text, fields...)
	if state > request.Queued && (c.evidence == 0 || c.now > c.evidence.Add(evidenceEvery)) {
		c.evidence, c.evidenceFor = c.now, r.spec.ID
		c.out.Stuck(r.spec.ID, state)
	}
}

// evidenceEvery bounds how often all processes are asked for their stacks. Requests
// that stall together stall for one reason.
const evidenceEvery = 5 * time.Second
