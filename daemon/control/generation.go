package control

import (
	"fmt"
	"strconv"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/spawn"
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

// condemn ends the generation, once the loop is done with the event in hand.
// reason is a word for metrics, text for people; rank is whose fault it is, if it
// is a rank's.
func (l *Loop) condemn(reason, text string, rank *int, kind observe.Kind) {
	l.verdicts = append(l.verdicts, verdict{reason, text, rank, kind})
}

// judge carries out condemnations.
func (l *Loop) judge() {
	for len(l.verdicts) > 0 {
		v := l.verdicts[0]
		l.verdicts = l.verdicts[1:]
		if l.sup.State != supervise.Starting && l.sup.State != supervise.Up {
			continue
		}
		if v.rank != nil && l.first == nil {
			l.first = &death{*v.rank, v.text}
		}
		l.lastWhy = v.text
		if v.kind != observe.GenerationEnd { // which is told when it is over
			fields := []observe.Field{observe.Generation(l.number), observe.Reason(v.text), observe.Code(v.reason)}
			if v.rank != nil {
				fields = append(fields, observe.Rank(l.ranks[*v.rank]))
			}
			l.o.Log.Event(v.kind, fmt.Sprintf("generation %d must end: %s", l.number, v.text), fields...)
		}
		l.supervise(supervise.Event{Kind: supervise.Condemned, Reason: v.reason})
	}
}

// supervise steps the supervisor and performs the actions.
func (l *Loop) supervise(ev supervise.Event) {
	next, acts := l.sup.Step(&l.o.Supervise, ev, supervise.Instant(l.now))
	changed := next.State != l.sup.State
	l.sup = next
	for _, act := range acts {
		switch act {
		case supervise.Spawn:
			l.spawn()
		case supervise.Announce:
			l.announce()
		case supervise.Kill:
			l.kill(next.Reason)
		case supervise.Complain:
			text := fmt.Sprintf("%d of %d processes are not reaped %s after they were killed", len(l.ranks)-l.exited, len(l.ranks), l.o.Supervise.Reap)
			l.o.Log.Event(observe.GenerationUnreaped, fmt.Sprintf("generation %d: %s; no other starts before", l.number, text), observe.Generation(l.number), observe.Reason(text))
		case supervise.Exit:
		}
	}
	if changed {
		l.lastChange = time.Now()
		l.assess()
	}
}

// spawn records the next generation and starts it, in a goroutine of its own.
func (l *Loop) spawn() {
	l.number++
	l.exited, l.first, l.proven = 0, nil, false
	l.launching = true
	l.o.Store.live.Store(uint64(l.number))
	g, plan := l.number, l.o.Plan
	l.health = make([]vital, len(l.ranks))
	go func() {
		var gen *supervise.Generation
		err := l.o.Store.Record(g)
		if err == nil {
			gen, err = supervise.Launch(l.sp, &plan, g, func(r supervise.Report) { l.post(func() { l.report(r) }) })
		}
		if !l.post(func() { l.launched(g, gen, err) }) && gen != nil {
			gen.Kill()
		}
	}()
}

func (l *Loop) launched(g ident.Generation, gen *supervise.Generation, err error) {
	l.launching = false
	l.gen = gen
	if err != nil {
		if gen == nil {
			l.condemn("generation_file", err.Error(), nil, observe.StateFailed)
		} else {
			l.condemn("spawn", err.Error(), nil, observe.WorkerExit)
		}
	} else {
		pids := ""
		for _, r := range gen.Ranks {
			pids += fmt.Sprintf(" %s=%d", r.Rank, r.PID)
		}
		why := "the first of this daemon"
		if l.sup.Ended > 0 {
			why = l.lastWhy
		}
		l.o.Log.Event(observe.GenerationBegin, fmt.Sprintf("generation %d begins:%s", g, pids), observe.Generation(g), observe.Reason(why))
	}
	if l.sup.State == supervise.Ending && gen != nil {
		gen.Kill()
	}
	l.checkReaped()
}

// ready takes in that a rank can work.
func (l *Loop) ready(rank int, backend string) {
	l.health[rank].ready = true
	l.health[rank].backend = backend
	l.supervise(supervise.Event{Kind: supervise.Ready})
}

// announce makes the ledgers of a generation whose ranks are all ready.
func (l *Loop) announce() {
	p := &l.o.Plan
	l.replicas = [2][]*replica{}
	for i, r := range l.ranks {
		list := &l.replicas[r.Role-1]
		if r.Rank == 0 {
			rep := &replica{Replica: r.Replica}
			switch {
			case r.Role == ident.Decode:
				rep.pool = pagepool.New("decode"+strconv.Itoa(r.Index), r.Index*p.Decode.Pages, p.Decode.Pages)
			case p.Transport != transfer.Handover:
				rep.pool = pagepool.New("prefill"+strconv.Itoa(r.Index), r.Index*p.Prefill.Pages, p.Prefill.Pages)
			}
			*list = append(*list, rep)
		}
		rep := (*list)[len(*list)-1]
		rep.ranks = append(rep.ranks, i)
	}
	l.slots = nil
	for range l.replicas[ident.Prefill-1] {
		l.slots = append(l.slots, make([]bool, p.Slots))
	}
	took := time.Since(l.gen.Started)
	l.o.Log.Event(observe.GenerationReady, fmt.Sprintf("generation %d: all %d ranks ready in %s, %s", l.number, len(l.ranks), round(took), l.health[0].backend), observe.Generation(l.number), observe.Age(took))
	l.sendCanary()
}

// kill ends the generation: its processes are killed, and every request that it
// was serving learns of it.
func (l *Loop) kill(reason string) {
	l.killing = time.Now()
	if l.gen != nil {
		l.gen.Kill()
	}
	l.o.Meter.GenerationEnded(reason)
	switch {
	case l.first != nil:
		l.lastWhy = l.first.text
	case l.stopping:
		l.lastWhy = "the daemon stops"
	}
	for _, r := range l.inOrder() {
		l.step(r, request.Event{Kind: request.GenerationEnded}, fmt.Sprintf("generation %d ended: %s", l.number, reason))
	}
	l.checkReaped()
}

// exit takes in that a rank's process is reaped.
func (l *Loop) exit(rank int, st spawn.Status) {
	l.exited++
	l.health[rank].gone = true
	text := fmt.Sprintf("%s ended: %s", l.ranks[rank], st.Text)
	if st.Last != "" {
		text += ": " + st.Last
	}
	if l.sup.State == supervise.Starting || l.sup.State == supervise.Up {
		if l.first == nil {
			l.first = &death{rank, text}
		}
		l.lastWhy = text
		reason := "worker_exit"
		if st.Sig != 0 {
			reason = "worker_killed"
		}
		l.o.Log.Event(observe.WorkerExit, text, append(l.rankFields(rank), observe.Reason(text), observe.Code(reason))...)
		l.supervise(supervise.Event{Kind: supervise.Exited, Reason: reason})
	}
	l.checkReaped()
}

// checkReaped notices that no process of the generation is left. That is the proof
// with which all its pages are free.
func (l *Loop) checkReaped() {
	if l.sup.State != supervise.Ending || l.launching || l.gen != nil && l.exited < len(l.gen.Ranks) {
		return
	}
	for seq, a := range l.attempts {
		for _, lease := range []*pagepool.Lease{a.target, a.source} {
			if lease != nil && !lease.Ended() {
				free(lease, pagepool.Reaped)
			}
		}
		delete(l.attempts, seq)
	}
	for _, list := range l.replicas {
		for _, r := range list {
			if r.pool != nil && (r.pool.Drift() != 0 || r.pool.Free() != r.pool.Total()) {
				text := fmt.Sprintf("pool %s: %d of %d pages free after everything was reaped", r.pool.Name(), r.pool.Free(), r.pool.Total())
				l.o.Log.Event(observe.LedgerDrift, text, observe.Generation(l.number), observe.Reason(text))
			}
		}
	}
	l.replicas, l.slots = [2][]*replica{}, nil
	if l.gen != nil {
		if err := l.gen.Close(); err != nil {
			l.o.Log.Event(observe.LedgerDrift, fmt.Sprintf("generation %d: %v", l.number, err), observe.Generation(l.number), observe.Fault(err))
		}
		l.gen = nil
	}
	l.o.Store.live.Store(0)
	fields := []observe.Field{observe.Generation(l.number), observe.Reason(l.lastWhy), observe.Code(l.sup.Reason), observe.Took("reap", time.Since(l.killing))}
	if l.first != nil {
		fields = append(fields, observe.Rank(l.ranks[l.first.rank]))
	}
	l.o.Log.Event(observe.GenerationEnd, fmt.Sprintf("generation %d ended: %s; all processes reaped %s after the kill", l.number, l.lastWhy, round(time.Since(l.killing))), fields...)
	l.supervise(supervise.Event{Kind: supervise.Reaped})
	if l.sup.State == supervise.Waiting {
		pause := time.Duration(l.sup.Until - supervise.Instant(l.now))
		l.o.Log.Event(observe.GenerationBackoff, fmt.Sprintf("the next generation starts in %s: %d starts in a row failed, %d generations beyond the budget", round(pause), l.sup.Failed, l.sup.Over(&l.o.Supervise)),
			observe.Generation(l.number), observe.Reason(l.lastWhy), observe.Took("pause", pause))
	}
}

// assess says whether requests would complete now, and why not.
func (l *Loop) assess() {
	was := l.unready
	switch {
	case l.stopping || l.drain:
		l.unready = fault.New(fault.Draining, "stopping")
	case l.sup.State == supervise.Down:
		l.unready = fault.New(fault.NotReady, "loading weights")
	case l.sup.State == supervise.Waiting:
		l.unready = fault.New(fault.NotReady, "generation %d ended (%s: %s); the next starts in %s", l.number, l.sup.Reason, l.lastWhy, time.Duration(l.sup.Until-supervise.Instant(l.now)).Round(time.Millisecond))
	case l.sup.State != supervise.Up:
		l.unready = fault.New(fault.NotReady, "generation %d: %s", l.number, l.sup)
	case !l.proven:
		l.unready = fault.New(fault.NotReady, "generation %d: no request has completed yet", l.number)
	case l.stale():
		l.unready = fault.New(fault.NotReady, "no request has completed for %s", round(l.now-l.completed))
	default:
		l.unready = nil
	}
	if (was == nil) != (l.unready == nil) || was != nil && was.Error() != l.unready.Error() {
		if (was == nil) != (l.unready == nil) {
			l.lastChange = time.Now()
			state, why := "ready", "requests complete"
			if l.unready != nil {
				state, why = "not ready", l.unready.Error()
			}
			l.o.Log.Event(observe.HealthChange, fmt.Sprintf("%s: %s", state, why), observe.Generation(l.number), observe.Str("state", state), observe.Reason(why))
		}
	}
	l.say()
}

// say tells systemd, in a line.
func (l *Loop) say() {
	line := fmt.Sprintf("generation %d, %d running, %d queued", l.number, l.running(), len(l.queue))
	if l.unready != nil {
		line = l.unready.Error()
		if l.sup.State == supervise.Down && l.packing[1] > 0 {
			line = fmt.Sprintf("loading weights, %d of %d MiB", l.packing[0]>>20, l.packing[1]>>20)
		}
	}
	if line != l.status {
		l.status = line
		l.o.Notify(line, l.unready == nil)
	}
}

func round[T ~int64](d T) time.Duration {
	if time.Duration(d) < 10*time.Millisecond {
		return time.Duration(d).Round(10 * time.Microsecond)
	}
	return time.Duration(d).Round(time.Millisecond)
}
