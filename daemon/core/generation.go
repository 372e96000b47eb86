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
	"tandem/gpu/pagepool"
)

// death is how the first rank of a generation ended, or what it said before.
type death struct {
	rank int
	text string
}

// verdict is a condemnation that waits until the event in hand is dealt with, so
// that no state changes under the code that found the fault.
type verdict struct {
	reason, text string
	rank         *int
	kind         observe.Kind
}

// condemn ends the generation, once the event in hand is dealt with. reason is a
// word for metrics, text for people; rank is whose fault it is, if it is a rank's.
func (c *Core) condemn(reason, text string, rank *int, kind observe.Kind) {
	c.verdicts = append(c.verdicts, verdict{reason, text, rank, kind})
}

// judge carries out condemnations.
func (c *Core) judge() {
	for len(c.verdicts) > 0 {
		v := c.verdicts[0]
		c.verdicts = c.verdicts[1:]
		if c.sup.State != supervise.Starting && c.sup.State != supervise.Up {
			continue
		}
		if v.rank != nil && c.first == nil {
			c.first = &death{*v.rank, v.text}
		}
		c.lastWhy = v.text
		if v.kind != observe.GenerationEnd { // which is told when it is over
			fields := []observe.Field{observe.Generation(c.number), observe.Reason(v.text), observe.Code(v.reason)}
			if v.rank != nil {
				fields = append(fields, observe.Rank(c.ranks[*v.rank]))
			}
			c.out.Event(v.kind, fmt.Sprintf("generation %d must end: %s", c.number, v.text), fields...)
		}
		c.supervise(supervise.Event{Kind: supervise.Condemned, Reason: v.reason})
	}
}

// supervise steps the supervisor and performs the actions.
func (c *Core) supervise(ev supervise.Event) {
	next, acts := c.sup.Step(&c.o.Supervise, ev, supervise.Instant(c.now))
	changed := next.State != c.sup.State
	c.sup = next
	for _, act := range acts {
		switch act {
		case supervise.Spawn:
			c.spawn()
		case supervise.Announce:
			c.announce()
		case supervise.Kill:
			c.kill(next.Reason)
		case supervise.Complain:
			var left []string
			for i, p := range c.procs {
				if !c.health[i].gone {
					left = append(left, fmt.Sprintf("%s (process %d on %s)", c.ranks[i], p.PID, p.Device))
				}
			}
			text := fmt.Sprintf("%v not reaped %s after they were killed", left, c.o.Supervise.Reap)
			c.out.Event(observe.GenerationUnreaped, fmt.Sprintf("generation %d: %s; no other starts before", c.number, text), observe.Generation(c.number), observe.Reason(text))
		case supervise.Exit:
		}
	}
	if changed {
		c.changed = c.now
		c.assess()
	}
}

// spawn begins the next generation.
func (c *Core) spawn() {
	c.number++
	c.exited, c.first, c.proven = 0, nil, false
	c.launching, c.begun = true, c.now
	c.health = make([]vital, len(c.ranks))
	c.out.Spawn(c.number)
}

// Launched reports how Spawn went. procs are those that were started, also if err
// says that not all were; reason is a word for what failed.
func (c *Core) Launched(now request.Instant, g ident.Generation, procs []Proc, reason string, err error) {
	c.at(now, func() {
		c.launching = false
		c.procs = procs
		switch {
		case err != nil && len(procs) == 0 && reason == "generation_file":
			c.condemn(reason, err.Error(), nil, observe.StateFailed)
		case err != nil:
			c.condemn(reason, err.Error(), nil, observe.WorkerExit)
		default:
			pids := ""
			for i, p := range procs {
				pids += fmt.Sprintf(" %s=%d", c.ranks[i], p.PID)
			}
			why := "the first of this daemon"
			if c.sup.Ended > 0 {
				why = c.lastWhy
			}
			c.out.Event(observe.GenerationBegin, fmt.Sprintf("generation %d begins:%s", g, pids), observe.Generation(g), observe.Reason(why))
			// Ranks may say that they are ready before it is known that all were started.
			// They count from now on: what is sent before goes nowhere.
			for i := range c.health {
				if c.health[i].ready {
					c.supervise(supervise.Event{Kind: supervise.Ready})
				}
			}
		}
		if c.sup.State == supervise.Ending && len(procs) > 0 {
			c.out.Kill()
		}
		c.checkReaped()
	})
}

// Exited reports that a process is reaped.
func (c *Core) Exited(now request.Instant, g ident.Generation, rank int, e Exit) {
	c.at(now, func() {
		if c.stale(g, "exit") {
			return
		}
		if c.health[rank].gone {
			c.ignored["exit again"]++
			return
		}
		c.exit(rank, e)
	})
}

// exit takes in that a rank's process is reaped.
func (c *Core) exit(rank int, e Exit) {
	c.exited++
	c.health[rank].gone = true
	text := fmt.Sprintf("%s ended: %s", c.ranks[rank], e.Text)
	if e.Last != "" {
		text += ": " + e.Last
	}
	if c.sup.State == supervise.Starting || c.sup.State == supervise.Up {
		if c.first == nil {
			c.first = &death{rank, text}
		}
		c.lastWhy = text
		reason := "worker_exit"
		if e.Killed {
			reason = "worker_killed"
		}
		c.out.Event(observe.WorkerExit, text, append(c.rankFields(rank), observe.Reason(text), observe.Code(reason))...)
		c.supervise(supervise.Event{Kind: supervise.Exited, Reason: reason})
	}
	c.checkReaped()
}

// ready takes in that a rank can work.
func (c *Core) ready(rank int, backend string) {
	if c.health[rank].ready {
		c.ignored["ready again"]++
		return
	}
	c.health[rank].ready = true
	c.health[rank].backend = backend
	if !c.launching {
		c.supervise(supervise.Event{Kind: supervise.Ready})
	}
}

// announce makes the ledgers of a generation whose ranks are all ready.
func (c *Core) announce() {
	c.replicas = [2][]*replica{}
	for i, r := range c.ranks {
		list := &c.replicas[r.Role-1]
		if r.Rank == 0 {
			rep := &replica{Replica: r.Replica}
			switch {
			case r.Role == ident.Decode:
				rep.pool = pagepool.New("decode"+strconv.Itoa(r.Index), r.Index*c.o.DecodePages, c.o.DecodePages)
			case c.o.Transport != transfer.Handover:
				rep.pool = pagepool.New("prefill"+strconv.Itoa(r.Index), r.Index*c.o.PrefillPages, c.o.PrefillPages)
			}
			*list = append(*list, rep)
		}
		rep := (*list)[len(*list)-1]
		rep.ranks = append(rep.ranks, i)
	}
	c.slots = nil
	for range c.replicas[ident.Prefill-1] {
		c.slots = append(c.slots, make([]bool, c.o.Slots))
	}
	took := time.Duration(c.now - c.begun)
	c.out.Event(observe.GenerationReady, fmt.Sprintf("generation %d: all %d ranks ready in %s, %s", c.number, len(c.ranks), round(took), c.health[0].backend), observe.Generation(c.number), observe.Age(took))
	c.sendCanary()
}

// kill ends the generation: its processes are killed, and every request that it
// was serving learns of it.
func (c *Core) kill(reason string) {
	c.killed = c.now
	if len(c.procs) > 0 {
		c.out.Kill()
	}
	c.out.GenerationEnded(reason)
	switch {
	case c.first != nil:
		c.lastWhy = c.first.text
	case c.stopping:
		c.lastWhy = "the daemon stops"
	}
	clear(c.strikes)
	for _, r := range c.inOrder() {
		c.step(r, request.Event{Kind: request.GenerationEnded}, fmt.Sprintf("generation %d ended: %s", c.number, reason))
	}
	c.checkReaped()
}

// checkReaped notices that no process of the generation is left. That is the proof
// with which all its pages are free.
func (c *Core) checkReaped() {
	if c.sup.State != supervise.Ending || c.launching || c.exited < len(c.procs) {
		return
	}
	for _, a := range c.tries() {
		for _, lease := range []*pagepool.Lease{a.target, a.source} {
			if lease != nil && !lease.Ended() {
				free(lease, pagepool.Reaped)
			}
		}
		delete(c.attempts, a.id.Seq)
		if a.t.State == transfer.Draining && c.out.Wants(observe.AbortReceipt) {
			c.out.Event(observe.AbortReceipt, fmt.Sprintf("attempt %s: every process is gone, every page is back", a.id), observe.Attempt(a.id), observe.Generation(c.number), observe.Reason("reaped"))
		}
	}
	for _, list := range c.replicas {
		for _, r := range list {
			if r.pool != nil && (r.pool.Drift() != 0 || r.pool.Free() != r.pool.Total()) {
				text := fmt.Sprintf("pool %s: %d of %d pages free after everything was reaped", r.pool.Name(), r.pool.Free(), r.pool.Total())
				c.out.Event(observe.LedgerDrift, text, observe.Generation(c.number), observe.Reason(text))
			}
		}
	}
	c.replicas, c.slots = [2][]*replica{}, nil
	c.procs = nil
	if err := c.out.Reaped(); err != nil {
		c.out.Event(observe.LedgerDrift, fmt.Sprintf("generation %d: %v", c.number, err), observe.Generation(c.number), observe.Fault(err))
	}
	took := time.Duration(c.now - c.killed)
	fields := []observe.Field{observe.Generation(c.number), observe.Reason(c.lastWhy), observe.Code(c.sup.Reason), observe.Took("reap", took)}
	if c.first != nil {
		fields = append(fields, observe.Rank(c.ranks[c.first.rank]))
	}
	c.out.Event(observe.GenerationEnd, fmt.Sprintf("generation %d ended: %s; all processes reaped %s after the kill", c.number, c.lastWhy, round(took)), fields...)
	c.supervise(supervise.Event{Kind: supervise.Reaped})
	if c.sup.State == supervise.Waiting {
		pause := time.Duration(c.sup.Until - supervise.Instant(c.now))
		c.out.Event(observe.GenerationBackoff, fmt.Sprintf("the next generation starts in %s: %d starts in a row failed, %d generations beyond the budget", round(pause), c.sup.Failed, c.sup.Over(&c.o.Supervise)),
			observe.Generation(c.number), observe.Reason(c.lastWhy), observe.Took("pause", pause))
	}
}

// assess says whether requests would complete now, and why not.
func (c *Core) assess() {
	was := c.unready
	switch {
	case c.stopping || c.drain:
		c.unready = fault.New(fault.Draining, "stopping")
	case c.sup.State == supervise.Down:
		c.unready = fault.New(fault.NotReady, "loading weights")
	case c.sup.State == supervise.Waiting:
		c.unready = fault.New(fault.NotReady, "generation %d ended (%s: %s); the next starts in %s", c.number, c.sup.Reason, c.lastWhy, time.Duration(c.sup.Until-supervise.Instant(c.now)).Round(time.Millisecond))
	case c.sup.State == supervise.Ending && c.sup.Late:
		c.unready = fault.New(fault.NotReady, "unreaped: processes of generation %d were killed and do not end", c.number)
	case c.sup.State != supervise.Up:
		c.unready = fault.New(fault.NotReady, "generation %d: %s", c.number, c.sup)
	case !c.proven:
		c.unready = fault.New(fault.NotReady, "generation %d: no request has completed yet", c.number)
	case c.busy != 0 && c.now > max(c.busy, c.moved).Add(canaryEvery+10*time.Second):
		// Canaries may succeed meanwhile: what clients see counts.
		c.unready = fault.New(fault.NotReady, "requests wait, and none has made progress for %s", round(c.now-max(c.busy, c.moved)))
	case c.now > c.completed.Add(canaryEvery+10*time.Second):
		c.unready = fault.New(fault.NotReady, "no request has completed for %s", round(c.now-c.completed))
	default:
		c.unready = nil
	}
	if (was == nil) != (c.unready == nil) {
		c.changed = c.now
		state, why := "ready", "requests complete"
		if c.unready != nil {
			state, why = "not ready", c.unready.Error()
		}
		c.out.Event(observe.HealthChange, fmt.Sprintf("%s: %s", state, why), observe.Generation(c.number), observe.Str("state", state), observe.Reason(why))
	}
	c.say()
}

// say tells the supervisor of the daemon, in a line.
func (c *Core) say() {
	line := fmt.Sprintf("generation %d, %d running, %d queued", c.number, c.running(), len(c.queue))
	if c.unready != nil {
		line = c.unready.Error()
		if c.sup.State == supervise.Down && c.loading != "" {
			line = c.loading
		}
	}
	if line != c.status {
		c.status = line
		c.out.Notify(line, c.unready == nil)
	}
}

// edge is a prefill and a decode replica.
type edge struct{ src, dst int }

// A pair of replicas between which so many transfers failed within a minute is not
// to be trusted: the generation is replaced.
const (
	strikeOut    = 3
	strikeWindow = time.Minute
)

// strike notes that a transfer between two replicas failed.
func (c *Core) strike(a *attempt, k fault.Kind) {
	c.out.TransferFailed(a.src.label(), a.dst.label(), k)
	e := edge{a.src.Index, a.dst.Index}
	recent := slices.DeleteFunc(c.strikes[e], func(t request.Instant) bool { return c.now > t.Add(strikeWindow) })
	recent = append(recent, c.now)
	c.strikes[e] = recent
	if len(recent) >= strikeOut {
		delete(c.strikes, e)
		c.condemn("edge", fmt.Sprintf("%d transfers from %s to %s failed within %s, the last with %s", len(recent), a.src, a.dst, strikeWindow, k), nil, observe.EdgeSuspect)
	}
}

func round[T ~int64](d T) time.Duration {
	if time.Duration(d) < 10*time.Millisecond {
		return time.Duration(d).Round(10 * time.Microsecond)
	}
	return time.Duration(d).Round(time.Millisecond)
}
