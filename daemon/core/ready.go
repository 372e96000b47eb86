package core

import (
	"fmt"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/supervise"
)

// The appliance is ready if requests complete, end to end. Two things show it:
// clients' requests that bring tokens, and, while it is idle, a canary: a short
// request of our own. What clients' requests show counts more, both ways. A canary
// that fails beside answers that flow changes nothing, and one that passes beside
// requests that fail or stand still does not help.
const (
	// canaryEvery is how long there may be no token before a canary is sent.
	canaryEvery = 20 * time.Second
	// heardWithin is how recent the last sign must be.
	heardWithin = 30 * time.Second
	// failuresInRow is how many clients' requests may fail in a row by the appliance's
	// own fault.
	failuresInRow = 3
	// canariesInRow is how many canaries may fail in a row, while no client's request
	// makes progress, before the generation is replaced: nobody sends requests to an
	// appliance that is not ready, so nothing else would ever show that it works again.
	canariesInRow = 3
)

// readiness is what is known about whether requests complete.
type readiness struct {
	unready   *fault.Error // why they would not; nil: they would
	condition string       // of unready, in a word; "ready"
	changed   request.Instant

	proven bool            // this generation brought a token, or a canary passed
	up     request.Instant // when this generation was up
	served request.Instant // when a client's request last brought a token or ended well
	worked request.Instant // when a client's request last made progress of any measured kind
	passed request.Instant // when a canary last did

	failures  int // clients' requests in a row that failed, with no token of any since
	failed    request.Instant
	lastFault fault.Kind
	missed    int // canaries in a row that failed, with no progress of a client's request since
}

func (r *readiness) begin() { r.proven, r.missed = false, 0 }

// heard is when a request last was seen to complete, or to get closer to it.
func (r *readiness) heard() request.Instant { return max(r.served, r.worked, r.passed) }

// progress notes that a client's request got closer to its end.
func (c *Core) progress() { c.readiness.worked, c.readiness.missed = c.now, 0 }

// served notes that a client's request went all the way.
func (c *Core) served() {
	r := &c.readiness
	r.served, r.failures = c.now, 0
	c.progress()
	c.prove()
}

// prove notes that something went all the way in this generation.
func (c *Core) prove() {
	if r := &c.readiness; !r.proven || r.unready != nil {
		r.proven = true
		c.assess()
	}
}

// failing notes that a client's request failed, if that says something about the
// appliance.
func (c *Core) failing(k fault.Kind) {
	switch k {
	case fault.Cancelled, fault.Draining, fault.ClientStalled, // somebody's wish
		fault.QueueTimeout, fault.KVExhausted, fault.RequestDeadline: // too much was asked
		return
	}
	r := &c.readiness
	r.failures++
	r.failed, r.lastFault = c.now, k
}

// sendCanary begins a request of our own: one token, the whole way.
func (c *Core) sendCanary() {
	if c.canary != nil || c.sup.State != supervise.Up || c.o.Canary == nil {
		return
	}
	c.canaryAt = c.now
	c.enter(request.Spec{ID: "canary", Prompt: c.o.Canary, MaxTokens: 1}, true)
}

// canaryEnded takes in how a canary ended. One that a generation change ended says
// nothing about either generation.
func (c *Core) canaryEnded(r *live) {
	c.canary = nil
	h := &c.readiness
	switch {
	case r.m.Finish != 0:
		h.passed, h.missed = c.now, 0
		if c.oldest() == nil && r.began > h.failed {
			h.failures = 0 // it is idle, and works
		}
		c.prove()
	case c.sup.State == supervise.Up && !c.stopping:
		h.missed++
		text := fmt.Sprintf("the canary ended with %s, %d in a row", r.m.Outcome(), h.missed)
		fields := append(r.fields(), observe.Code(r.m.Outcome()), observe.Reason(text))
		if r.last.Seq == 0 {
			fields = append(fields, observe.Generation(c.number))
		}
		c.out.Event(observe.CanaryFailed, fmt.Sprintf("generation %d: %s", c.number, text), fields...)
		switch {
		case !h.proven:
			c.condemn("canary", "no request has completed, and "+text, nil, observe.CanaryFailed)
		case h.missed >= canariesInRow:
			c.condemn("canary", fmt.Sprintf("no request has made progress for %s, and %s", seconds(c.now-h.heard()), text), nil, observe.CanaryFailed)
		}
	}
	c.step(r, request.Event{Kind: request.Closed}, "")
}

func (c *Core) watchCanary() {
	if c.sup.State != supervise.Up || c.canary != nil {
		return
	}
	h := &c.readiness
	if !h.proven || c.now > max(h.served, h.passed, c.canaryAt).Add(canaryEvery) {
		c.sendCanary()
	}
}

// oldest is the client's request that has waited longest for its answer to end.
func (c *Core) oldest() *live {
	var first *live
	for _, r := range c.requests {
		if r.m.State < request.Draining && (first == nil || r.ticket < first.ticket) {
			first = r
		}
	}
	return first
}

// judgeReadiness finds the condition that keeps requests from completing, since when
// it holds, and says it in words. It reads the tables that decisions are made on.
func (c *Core) judgeReadiness() (condition string, since request.Instant, err *fault.Error) {
	h := &c.readiness
	entered := request.Instant(c.sup.Entered)
	not := func(condition string, since request.Instant, format string, args ...any) (string, request.Instant, *fault.Error) {
		return condition, since, fault.New(fault.NotReady, format, args...)
	}
	switch {
	case c.stopping || c.drain:
		return "stopping", c.now, fault.New(fault.Draining, "stopping")
	case c.sup.State == supervise.Down:
		return not("loading", entered, "loading weights")
	case c.sup.State == supervise.Waiting:
		return not("backoff", entered, "generation %d ended (%s: %s); the next starts in %s", c.number, c.sup.Reason, c.lastWhy, seconds(request.Instant(c.sup.Until)-c.now))
	case c.sup.State == supervise.Ending && c.sup.Late:
		return not("unreaped", entered, "unreaped: processes of generation %d were killed and do not end", c.number)
	case c.sup.State != supervise.Up:
		return not(c.sup.State.String(), entered, "generation %d: %s", c.number, c.sup)
	case !h.proven:
		return not("unproven", h.up, "generation %d: no request has completed yet", c.number)
	case h.failures >= failuresInRow:
		return not("failing", h.failed, "the last %d requests failed, the last of them with %s", h.failures, h.lastFault)
	}
	if last := max(h.served, h.worked, h.up); c.now > last.Add(heardWithin) {
		if r := c.oldest(); r != nil && c.now > r.began.Add(heardWithin) {
			return not("stalled", max(last, r.began), "request %s waits (%s), and no request has made progress for %s", r.spec.ID, r.m.State, seconds(c.now-last))
		}
	}
	if c.now > h.heard().Add(heardWithin) {
		return not("unheard", h.heard(), "no request has completed for %s", seconds(c.now-h.heard()))
	}
	return "ready", c.now, nil
}

// assess says whether requests would complete now, and why not.
func (c *Core) assess() {
	h := &c.readiness
	was, before := h.unready, h.condition
	condition, since, err := c.judgeReadiness()
	h.condition, h.unready = condition, err
	if condition != before {
		lasted := c.now - h.changed
		h.changed = c.now
		if (was == nil) != (err == nil) {
			state, why := "ready", "requests complete"
			if err != nil {
				state, why = "not ready", err.Error()
			}
			c.out.Event(observe.HealthChange, fmt.Sprintf("%s: %s", state, why), observe.Generation(c.number), observe.Str("state", state), observe.Code(condition),
				observe.Str("from", before), observe.Took("lasted", time.Duration(lasted)), observe.Age(time.Duration(c.now-since)), observe.Reason(why))
		}
	}
	c.say()
}

// say tells the supervisor of the daemon, in a line.
func (c *Core) say() {
	line := fmt.Sprintf("generation %d, %d running, %d queued", c.number, c.running(), len(c.queue))
	if err := c.readiness.unready; err != nil {
		line = err.Error()
		if c.sup.State == supervise.Down && c.loading != "" {
			line = c.loading
		}
	}
	if line != c.status {
		c.status = line
		c.out.Notify(line, c.readiness.unready == nil)
	}
}

// seconds is a span in whole seconds: a line that is told whenever it changes must
// not change with every look at the clock.
func seconds(d request.Instant) time.Duration { return max(time.Duration(d), 0).Round(time.Second) }
