package core

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
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
	fields       []observe.Field
}

// condemn ends the generation, once the event in hand is dealt with. reason is a
// word for metrics, text for people; rank is whose fault it is, if it is a rank's;
// fields, if there are any, are all that the event has besides.
func (c *Core) condemn(reason, text string, rank *int, kind observe.Kind, fields ...observe.Field) {
	c.verdicts = append(c.verdicts, verdict{reason, text, rank, kind, fields})
}

// Reasons are the words for why a generation ended.
var Reasons = []string{"worker_exit", "worker_killed", "worker_silent", "worker_stuck", "not_reading", "protocol", "step_lost", "quarantine", "edge", "ledger", "canary",
	"operator", "spawn", "generation_file", "start_timeout", "stop"}

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
			fields := []observe.Field{observe.Reason(v.text), observe.Code(v.reason)}
			if v.rank != nil {
				fields = append(fields, c.culprit(*v.rank)...)
			} else if len(v.fields) == 0 {
				fields = append(fields, observe.Generation(c.number))
			}
			fields = append(fields, v.fields...)
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
		c.assess()
	}
}

// spawn begins the next generation.
func (c *Core) spawn() {
	c.number++
	c.exited, c.first = 0, nil
	c.readiness.begin()
	clear(c.fenced)
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
			c.condemn(reason, err.Error(), nil, observe.GenerationFailed)
		default:
			pids, starts := "", ""
			for i, p := range procs {
				pids += fmt.Sprintf(" %s=%d", c.ranks[i], p.PID)
				starts += fmt.Sprintf("%s: process %d on %s, started %s\n", c.ranks[i], p.PID, p.Device, p.Started.Format("15:04:05.000"))
			}
			why := "the first of this daemon"
			if c.sup.Ended > 0 {
				why = c.lastWhy
			}
			c.out.Event(observe.GenerationBegin, fmt.Sprintf("generation %d begins:%s", g, pids), observe.Generation(g), observe.Str("pids", pids[1:]), observe.Str("processes", starts), observe.Reason(why))
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
		if c.stale(g, rank, "exit") {
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
		c.out.Event(observe.WorkerExit, text, append(c.culprit(rank), observe.Reason(text), observe.Code(reason))...)
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
	c.readiness.up = c.now
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
	case reason == "start_timeout":
		var late []string
		for i, h := range c.health {
			if !h.ready {
				late = append(late, c.ranks[i].String())
			}
		}
		c.lastWhy = fmt.Sprintf("%s not ready within %s", strings.Join(late, ", "), c.o.Supervise.Start)
	}
	clear(c.strikes)
	for _, r := range c.inOrder() {
		c.step(r, request.Event{Kind: request.GenerationEnded}, fmt.Sprintf("generation %d ended: %s", c.number, reason))
	}
	c.checkReaped()
}

// culprit is what an event about a rank that did wrong tells of it: its last signs of
// life.
func (c *Core) culprit(rank int) []observe.Field {
	fs := []observe.Field{observe.Rank(c.ranks[rank])}
	if rank < len(c.procs) {
		fs = append(fs, observe.Device(c.procs[rank].Device), observe.Int("pid", c.procs[rank].PID), observe.Str("signs", c.signs(rank)))
	}
	return append(fs, observe.Generation(c.number))
}

// signs says in a line when a rank last did and said something.
func (c *Core) signs(rank int) string {
	h := &c.health[rank]
	s := h.last.Doing
	switch {
	case h.gone:
		s = "gone"
	case !h.ready:
		s = "starting"
	}
	s = fmt.Sprintf("%s, alive %s ago, progress %s ago", s, round(c.now-h.pulsed), round(c.now-h.stepped))
	if h.said != nil {
		s += fmt.Sprintf(", said %s %s ago", word(h.said), round(c.now-h.heard))
	}
	return s
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
		c.released(a, a.t.State == transfer.Draining, "reaped", "every process is gone")
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
	fields := []observe.Field{observe.Generation(c.number), observe.Reason(c.lastWhy), observe.Code(c.sup.Reason), observe.Took("reap", took), observe.Age(time.Duration(c.now - c.begun))}
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

// edge is a prefill and a decode replica.
type edge struct{ src, dst int }

// strike is a transfer that failed, and whose. A request alone restarts nothing,
// however often it is tried.
type strike struct {
	at request.Instant
	of ident.Request
}

// A pair of replicas between which transfers of so many requests failed within a minute
// is not to be trusted: the generation is replaced.
const (
	strikeOut    = 3
	strikeWindow = time.Minute
)

// strike notes that a transfer between two replicas failed.
func (c *Core) strike(a *attempt, k fault.Kind) {
	c.out.TransferFailed(a.src.label(), a.dst.label(), k)
	e := edge{a.src.Index, a.dst.Index}
	recent := slices.DeleteFunc(c.strikes[e], func(s strike) bool { return s.of == a.owner || c.now > s.at.Add(strikeWindow) })
	recent = append(recent, strike{c.now, a.owner})
	c.strikes[e] = recent
	if len(recent) >= strikeOut {
		delete(c.strikes, e)
		c.condemn("edge", fmt.Sprintf("%d transfers from %s to %s failed within %s, the last with %s", len(recent), a.src, a.dst, strikeWindow, k), nil, observe.EdgeSuspect,
			observe.Generation(c.number), observe.Str("src", a.src.label()), observe.Str("dst", a.dst.label()), observe.Int("failures", len(recent)), observe.Took("window", strikeWindow))
	}
}

func round[T ~int64](d T) time.Duration {
	if time.Duration(d) < 10*time.Millisecond {
		return time.Duration(d).Round(10 * time.Microsecond)
	}
	return time.Duration(d).Round(time.Millisecond)
}
