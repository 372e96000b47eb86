package control

import (
	"fmt"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/spawn"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
	"tandem/model/sample"
)

// vital is what the loop last saw of a rank's vital signs.
type vital struct {
	ready, gone bool
	backend     string
	pulse       uint64
	pulsed      request.Instant
	steps       uint64
	stepped     request.Instant
	doing       uint32
}

// watch looks at everything that has a limit. It runs every tick.
func (l *Loop) watch() {
	l.supervise(supervise.Event{Kind: supervise.Tick})
	for _, r := range l.inOrder() {
		l.step(r, request.Event{Kind: request.Tick}, "")
	}
	l.watchPages()
	l.watchRanks()
	l.watchCanary()
	for len(l.lately) > 0 && l.now-l.lately[0] > request.Instant(30*time.Second) {
		l.lately = l.lately[1:]
	}
	l.assess()
}

// watchPages looks for attempts whose memory waits too long for proof.
func (l *Loop) watchPages() {
	if l.sup.State != supUp {
		return
	}
	for _, a := range l.attempts {
		switch {
		case a.t.State == transfer.Draining || a.t.State == transfer.Releasing && a.t.TargetMute != a.t.Target:
			if l.now > a.idle.Add(l.o.Quarantine) {
				s, d := a.t.Waiting()
				l.condemn("quarantine", fmt.Sprintf("attempt %s: pages wait for ranks %b of %s and %b of %s for more than %s", a.id, s, a.src, d, a.dst, l.o.Quarantine), nil, observe.SlotOverdue)
				return
			}
		case a.t.State >= transfer.Arrived && a.t.SourceTold && a.t.SourceMute != a.t.Source:
			// Decode has everything and prefill does not say that it is done. The client
			// is not made to wait for that; the memory is.
			late := a.arrived.Add(l.o.Request.Handoff)
			if l.now > late && !a.nudged {
				a.nudged = true
				s, _ := a.t.Waiting()
				age := time.Duration(l.now - a.arrived)
				fields := []observe.Field{observe.Attempt(a.id), observe.Generation(l.number), observe.Age(age), observe.Str("role", "prefill")}
				if a.request != nil {
					fields = append(fields, observe.Request(a.request.spec.ID))
				}
				l.o.Log.Event(observe.TransferCompletionLost, fmt.Sprintf("attempt %s: decode verified the KV cache %s ago, and ranks %b of %s have not said that they are done", a.id, round(age), s, a.src), fields...)
				l.move(a, transfer.Event{Kind: transfer.SourceLate})
			}
			if l.now > late.Add(l.o.Quarantine) {
				l.condemn("quarantine", fmt.Sprintf("attempt %s: %s was asked to be quiet %s ago and is not", a.id, a.src, l.o.Quarantine), nil, observe.SlotOverdue)
				return
			}
		}
	}
}

// watchRanks looks for ranks that have work and do not move, and for processes
// that do not run at all.
func (l *Loop) watchRanks() {
	if l.gen == nil {
		return
	}
	var silent, stuck *int
	for i, r := range l.gen.Ranks {
		v := &l.health[i]
		if p := r.Vitals.Pulse.Load(); p != v.pulse || v.pulsed == 0 || !v.ready {
			v.pulse, v.pulsed = p, l.now
		}
		v.doing = r.Vitals.Doing.Load()
		if s := r.Vitals.Steps.Load(); s != v.steps || v.doing != spawn.DoingCompute || v.stepped == 0 {
			v.steps, v.stepped = s, l.now
		}
		if l.sup.State != supUp || v.gone {
			continue
		}
		if l.now > v.pulsed.Add(l.o.Progress) && silent == nil {
			silent = &i
		}
		if l.now > v.stepped.Add(l.o.Progress) && stuck == nil {
			stuck = &i
		}
	}
	switch {
	case silent != nil:
		l.condemn("worker_silent", fmt.Sprintf("%s (process %d) has shown no sign of life for %s", l.ranks[*silent], l.gen.Ranks[*silent].PID, l.o.Progress), silent, observe.WorkerStalled)
	case stuck != nil:
		l.condemn("worker_stuck", fmt.Sprintf("%s (process %d) has been computing the same step for %s", l.ranks[*stuck], l.gen.Ranks[*stuck].PID, l.o.Progress), stuck, observe.WorkerStalled)
	}
}

// stuck writes down everything about a request whose state passed its limit, and
// asks every process for its stacks.
func (l *Loop) stuck(r *live, state request.State) {
	l.o.Meter.DeadlineExceeded(state.String())
	l.o.Log.Event(observe.RequestStuck, fmt.Sprintf("request %s: %s for longer than it may", r.spec.ID, state),
		append(r.fields(), observe.State(state), observe.Code(r.m.Fault.String()), observe.Str("timeline", r.rec.Timeline()))...)
	if state > request.Queued && state < request.Draining && l.gen != nil {
		for i := range l.gen.Ranks {
			l.send(i, &wire.Dump{})
		}
	}
}

// canaryEvery is how long the appliance may be idle before a canary shows that
// requests still complete.
const canaryEvery = 20 * time.Second

// stale reports whether requests have not completed for too long.
func (l *Loop) stale() bool {
	return l.now > l.completed.Add(canaryEvery+10*time.Second)
}

// sendCanary begins a request of our own: one token, the whole way.
func (l *Loop) sendCanary() {
	if l.canary != nil || l.sup.State != supUp {
		return
	}
	l.canaryAt = l.now
	l.enter(request.Spec{ID: "canary", Prompt: l.o.Canary, MaxTokens: 1, Params: sample.Params{}}, newStream(l), true)
}

func (l *Loop) canaryEnded(r *live) {
	l.canary = nil
	switch {
	case r.m.Finish != 0:
		l.prove()
	case l.sup.State == supUp && r.m.Fault != fault.Generation && !l.stopping:
		l.o.Log.Event(observe.CanaryFailed, fmt.Sprintf("generation %d: the canary ended with %s", l.number, r.m.Outcome()), observe.Generation(l.number), observe.Reason(r.m.Outcome()))
		if !l.proven {
			l.condemn("canary", fmt.Sprintf("generation %d completed no request: the canary ended with %s", l.number, r.m.Outcome()), nil, observe.CanaryFailed)
		}
	}
	l.step(r, request.Event{Kind: request.Closed}, "")
}

// prove notes that a request went all the way.
func (l *Loop) prove() {
	l.completed = l.now
	if !l.proven {
		l.proven = true
		l.assess()
	}
}

func (l *Loop) watchCanary() {
	if l.sup.State != supUp || l.canary != nil {
		return
	}
	if !l.proven || l.now > max(l.completed, l.canaryAt).Add(canaryEvery) {
		l.sendCanary()
	}
}
