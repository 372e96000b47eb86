package core

import (
	"errors"
	"flag"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/request"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
)

var (
	exploreStates = flag.Int("explore.states", 60_000, "states of each small world to explore; 0: all")
	exploreWorld  = flag.String("explore.world", "", "explore only worlds with this in their name")
	exploreFaults = flag.Int("explore.faults", 2, "faults on one path at most")
)

// choice is something that could happen next.
type choice struct {
	name string
	do   func(w *world)
}

// choices lists all that could happen next in w. It depends on w alone.
func (w *world) choices() []choice {
	var out []choice
	add := func(name string, do func(w *world)) { out = append(out, choice{name, do}) }
	// wrong is something that may happen only so often.
	wrong := func(left int, name string, do func(w *world), spend func(b *budget)) {
		if left > 0 && w.budget.faults > 0 {
			add(name, func(w *world) {
				was := w.budget
				spend(&w.budget)
				w.budget.faults--
				now := w.budget
				// Being told twice or out of turn, and people who change their minds, must
				// cost nobody else anything. What ends generations costs attempts. Only what is
				// lost, and time that passes while nothing happens, may cost an answer.
				if now.kill != was.kill || now.freeze != was.freeze || now.oper != was.oper || now.misfire != was.misfire || now.fail != was.fail {
					w.blows++
				}
				w.harm = w.harm || now.wait != was.wait || now.mislay != was.mislay || w.blows >= w.cfg.attempts
				w.hurt = w.hurt || now.kill != was.kill || now.freeze != was.freeze || now.oper != was.oper || now.misfire != was.misfire || now.wait != was.wait ||
					now.lose != was.lose || now.mislay != was.mislay
				do(w)
			})
		}
	}
	c := w.c
	if w.launch {
		add("launched", func(w *world) { w.launched(len(c.ranks)) })
		wrong(w.budget.misfire, "half is launched", func(w *world) { w.launched(1) }, func(b *budget) { b.misfire-- })
		wrong(w.budget.misfire, "nothing is launched", func(w *world) { w.launched(0) }, func(b *budget) { b.misfire-- })
	}
	for i := range w.procs {
		p := &w.procs[i]
		name := c.ranks[i].String()
		if !p.alive && !p.gone {
			add(name+" is reaped", func(w *world) { w.reap(i, 1) })
			wrong(w.budget.double, name+" is reaped, it is said twice", func(w *world) { w.reap(i, 2) }, func(b *budget) { b.double-- })
		}
		for k, m := range p.up {
			if k == 0 {
				add(fmt.Sprintf("%s says %s", name, say(m)), func(w *world) { w.hear(i, 0, true) })
				wrong(w.budget.lose, fmt.Sprintf("%s of %s is lost", say(m), name), func(w *world) {
					if s, ok := m.(*wire.Step); !ok || slices.ContainsFunc(s.Results, func(r wire.Result) bool { return r.Finish != 0 }) {
						w.harm = true // nothing follows it by which it is missed
					}
					w.procs[i].up = slices.Delete(w.procs[i].up, 0, 1)
				}, func(b *budget) { b.lose-- })
				wrong(w.budget.double, fmt.Sprintf("%s says %s, and will again", name, say(m)), func(w *world) { w.hear(i, 0, false) }, func(b *budget) { b.double-- })
			} else if k == 1 || k == len(p.up)-1 {
				wrong(w.budget.overtake, fmt.Sprintf("%s says %s before its turn", name, say(m)), func(w *world) { w.hear(i, k, true) }, func(b *budget) { b.overtake-- })
			}
		}
		if !p.alive {
			continue
		}
		wrong(w.budget.kill, name+" dies", func(w *world) { w.procs[i].die() }, func(b *budget) { b.kill-- })
		if p.frozen {
			continue
		}
		wrong(w.budget.freeze, name+" stops", func(w *world) { w.procs[i].frozen = true }, func(b *budget) { b.freeze-- })
		if len(p.down) > 0 {
			m := p.down[0]
			add(fmt.Sprintf("%s obeys %s", name, say(m)), func(w *world) { w.obey(i) })
			wrong(w.budget.mislay, fmt.Sprintf("%s for %s is lost", say(m), name), func(w *world) {
				w.procs[i].down = slices.Delete(w.procs[i].down, 0, 1)
			}, func(b *budget) { b.mislay-- })
		}
		if len(p.plan) > 0 {
			add(name+" follows", func(w *world) { w.follow(i) })
		}
		for _, e := range p.know {
			seq := e.seq
			switch {
			case i == 0:
				add(fmt.Sprintf("%s computes %d", name, seq), func(w *world) { w.compute(seq) })
			case i >= w.cfg.p && w.ready(i, seq):
				add(fmt.Sprintf("%s takes %d", name, seq), func(w *world) { w.receive(i, seq) })
				wrong(w.budget.fail, fmt.Sprintf("%s finds %d damaged", name, seq), func(w *world) {
					w.procs[i].say(&wire.Failed{Attempt: seq, Kind: fault.DigestMismatch, Text: "damaged"})
				}, func(b *budget) { b.fail-- })
			}
			if i >= w.cfg.p {
				wrong(w.budget.fail, fmt.Sprintf("%s gives %d up", name, seq), func(w *world) {
					w.procs[i].say(&wire.Failed{Attempt: seq, Kind: fault.KVExhausted, Text: "no room"})
				}, func(b *budget) { b.fail-- })
			}
		}
		if slices.ContainsFunc(p.joined, func(s sequence) bool { return s.runs() }) {
			add(name+" decodes", func(w *world) { w.decode() })
		}
	}
	for i := range w.clients {
		cl := &w.clients[i]
		switch {
		case cl.gone:
		case cl.ended:
			add(fmt.Sprintf("client %d is done", i), func(w *world) { w.close(i) })
		default:
			wrong(w.budget.leave, fmt.Sprintf("client %d leaves", i), func(w *world) { w.close(i) }, func(b *budget) { b.leave-- })
			wrong(w.budget.stop, fmt.Sprintf("client %d has enough", i), func(w *world) {
				w.c.Tell(w.c.now, w.clients[i].ticket, request.Event{Kind: request.Stop}, "stop string")
			}, func(b *budget) { b.stop-- })
		}
	}
	if c.sup.State == supervise.Waiting {
		add("the pause is over", func(w *world) { w.watch(request.Instant(w.c.sup.Until)) })
	}
	wrong(w.budget.wait, "a limit passes", func(w *world) { w.watch(w.nextLimit()) }, func(b *budget) { b.wait-- })
	wrong(w.budget.oper, "an operator restarts", func(w *world) { w.c.Restart(w.c.now, "to see") }, func(b *budget) { b.oper-- })
	return out
}

func say(m wire.Message) string {
	return strings.Replace(fmt.Sprintf("%T%v", m, m)[len("*wire."):], "&", "", 1)
}

func (w *world) launched(n int) {
	w.launch = false
	w.procs = make([]proc, n)
	procs := make([]Proc, n)
	for i := range w.procs {
		w.procs[i].alive = true
		w.procs[i].up = []wire.Message{&wire.Ready{}}
		procs[i].PID = i + 1
	}
	var err error
	reason := ""
	switch {
	case n == 0:
		reason, err = "generation_file", fmt.Errorf("disk full")
	case n < len(w.c.ranks):
		reason, err = "spawn", fmt.Errorf("no more processes")
	}
	w.c.Launched(w.c.now, w.number, procs, reason, err)
}

// begin lets the first generation come up.
func (w *world) begin() {
	w.launched(len(w.c.ranks))
	for i := range w.procs {
		w.hear(i, 0, true)
	}
	w.watch(w.c.now + 1)
}

func (w *world) reap(rank, times int) {
	w.procs[rank].gone = true
	g := w.number
	// What the process said last may come before or after that it ended. If it was the
	// last one, the rest of it belongs to a generation that is over.
	left := w.procs[rank].up
	for range times {
		w.c.Exited(w.c.now, g, rank, Exit{Text: "signal: killed", Killed: true})
	}
	if w.c.number != g {
		w.stale(g, left)
	}
}

// stale delivers what processes of an ended generation had said. It must change
// nothing but a counter.
func (w *world) stale(g ident.Generation, ms []wire.Message) {
	before := w.encode(nil)
	now := w.c.number
	for _, m := range append(ms, &wire.Quiet{Attempt: 1}, &wire.Step{Seq: 1, Results: []wire.Result{{Attempt: 1}}}) {
		fenced := w.c.ignored["fenced"]
		w.c.Frame(w.c.now, g, g, 0, m)
		w.c.Frame(w.c.now, g, now, 0, m)
		w.c.Frame(w.c.now, now, g, 0, m)
		w.c.Exited(w.c.now, g, 0, Exit{})
		w.c.Broken(w.c.now, g, 0, errors.New("noise"))
		if w.c.ignored["fenced"] != fenced+5 {
			w.fail("I21: a message of generation %d in %d is not counted", g, w.c.number)
		}
	}
	if !slices.Equal(before, w.encode(nil)) {
		w.fail("I7: a message of generation %d changes generation %d", g, w.c.number)
	}
}

// hear delivers the k-th thing that a rank has said, and takes it away or not.
func (w *world) hear(rank, k int, take bool) {
	m := w.procs[rank].up[k]
	if take {
		w.procs[rank].up = slices.Delete(w.procs[rank].up, k, k+1)
	} else if k == 0 { // it comes again, at the end
		w.procs[rank].up = append(w.procs[rank].up[1:], m)
	}
	if _, ok := m.(*wire.Ready); ok {
		w.procs[rank].ready = true
	}
	w.c.ignored = map[string]int{}
	before := w.encode(nil)
	w.c.Frame(w.c.now, w.number, w.number, rank, m)
	if len(w.c.ignored) == 0 && slices.Equal(before, w.encode(nil)) {
		switch m.(type) {
		case *wire.Step: // without results it is progress all the same
		default:
			w.fail("I21: %s changes nothing and is not counted", say(m))
		}
	}
}

func (w *world) close(i int) {
	cl := &w.clients[i]
	cl.left = cl.left || !cl.ended
	w.c.Tell(w.c.now, cl.ticket, request.Event{Kind: request.Closed}, "the client left")
	if !cl.gone {
		w.fail("I1: client %d is gone and its request is not", i)
	}
}

// watch lets time pass until an instant.
func (w *world) watch(now request.Instant) {
	vitals := make([]Vital, len(w.procs))
	for i := range vitals {
		vitals[i].Pulse = 1
		if w.procs[i].alive && !w.procs[i].frozen {
			vitals[i].Pulse = uint64(now)
		}
	}
	w.c.Watch(now, vitals)
}

// nextLimit is the next instant at which something passes its limit.
func (w *world) nextLimit() request.Instant {
	next := w.c.now.Add(time.Hour)
	at := func(t request.Instant) {
		if t > w.c.now {
			next = min(next, t)
		}
	}
	for _, r := range w.c.requests {
		at(r.m.Due(&w.c.o.Request))
	}
	for _, a := range w.c.attempts {
		if a.idle != 0 {
			at(a.idle.Add(w.c.o.Quarantine) + 1)
		}
		if a.arrived != 0 {
			at(a.arrived.Add(w.c.o.Request.Handoff) + 1)
			at(a.arrived.Add(w.c.o.Request.Handoff+w.c.o.Quarantine) + 1)
		}
	}
	for i, p := range w.procs {
		if p.frozen && i < len(w.c.health) {
			at(w.c.health[i].pulsed.Add(w.c.o.Progress) + 1)
		}
	}
	for _, r := range w.c.replicas[1] {
		if r.gap != 0 {
			at(r.gap.Add(w.c.o.Progress) + 1)
		}
	}
	if w.c.sup.State == supervise.Starting {
		at(request.Instant(w.c.sup.Entered).Add(w.c.o.Supervise.Start))
	}
	return next
}

// settle lets the world run on without another fault, and checks that everything
// comes to its end in time. known holds the states from which that is known.
func (w *world) settle(known map[key]bool) {
	w.budget = budget{}
	g := w.number
	limit := w.c.now.Add(w.c.o.Request.Request + 60*second)
	var path []key
	for w.bad == "" {
		for n := 0; ; n++ {
			k := w.key()
			if known[k] {
				for _, k := range path {
					known[k] = true
				}
				return
			}
			path = append(path, k)
			cs := w.choices()
			if len(cs) == 0 {
				break
			}
			if n == 10_000 {
				w.fail("I1: it goes round and round: %s", w)
				return
			}
			cs[0].do(w)
			if w.check(); w.bad != "" {
				return
			}
		}
		if w.over() {
			break
		}
		if w.c.now > limit {
			w.fail("I15: not at rest: %s", w)
			return
		}
		w.watch(w.c.now.Add(200 * time.Millisecond))
		w.check()
	}
	if w.number != g && !w.hurt {
		w.fail("the generation ended for nothing: %s", w.c.lastWhy)
	}
	for i, cl := range w.clients {
		if !w.harm && cl.fault != nil && !cl.left && cl.fault.Kind != fault.DigestMismatch {
			w.fail("client %d got an error for nothing: %v", i, cl.fault)
		}
	}
	if w.bad == "" && known != nil {
		for _, k := range path {
			known[k] = true
		}
	}
}

// over reports whether everything is at rest: no request, no attempt, every page free.
func (w *world) over() bool {
	for i := range w.clients {
		if !w.clients[i].gone {
			return false
		}
	}
	for _, p := range w.procs {
		if p.frozen {
			return false
		}
	}
	if len(w.c.requests)+len(w.c.attempts)+len(w.c.queue)+len(w.c.names) > 0 || w.c.sup.State != supervise.Up {
		return false
	}
	for _, list := range w.c.replicas {
		for _, r := range list {
			if r.pool != nil && r.pool.Free() != r.pool.Total() || r.work != 0 || r.bound != 0 {
				return false
			}
		}
	}
	for _, s := range w.c.slots {
		if slices.Contains(s, true) {
			return false
		}
	}
	return true
}

// node is how a state was first reached.
type node struct {
	from *node
	what string
}

func (n *node) path() string {
	var steps []string
	for ; n != nil; n = n.from {
		steps = append(steps, n.what)
	}
	slices.Reverse(steps)
	return strings.Join(steps, "\n  ")
}

type key [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func (w *world) key() key {
	b := w.encode(w.scratch[:0])
	w.scratch = b
	return key{maphash.Bytes(seeds[0], b), maphash.Bytes(seeds[1], b)}
}

type found struct {
	states, depth int
	all           bool // the whole space was seen
	bad           string
	path          string
}

// explore visits every state that cfg's world can reach, the nearest first, up to
// max states. From every one it also lets the world settle, if settle is set.
func explore(cfg *config, max int) found {
	type item struct {
		w *world
		n *node
	}
	seen, known := map[key]bool{}, map[key]bool{}
	var f found
	visit := func(w *world, n *node) bool {
		k := w.key()
		if seen[k] {
			return false
		}
		seen[k] = true
		f.states++
		w.check()
		if w.bad == "" {
			v := w.clone()
			v.settle(known)
			if v.bad != "" {
				w.bad = "then, undisturbed: " + v.bad
			}
		}
		if w.bad != "" {
			f.bad, f.path = w.bad, n.path()
		}
		return true
	}
	start := newWorld(cfg)
	if !cfg.starting {
		start.begin()
	}
	level := []item{{start, &node{what: "start"}}}
	visit(start, level[0].n)
	for len(level) > 0 && f.bad == "" {
		var next []item
		for _, it := range level {
			for _, ch := range it.w.choices() {
				w := it.w.clone()
				ch.do(w)
				n := &node{it.n, ch.name}
				if visit(w, n) {
					next = append(next, item{w, n})
				}
				if f.bad != "" || max > 0 && f.states >= max {
					return f
				}
			}
		}
		f.depth++
		level = next
	}
	f.all = f.bad == ""
	return f
}

// wander takes random paths through cfg's world.
func wander(cfg *config, seed uint64, paths, steps int) found {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var f found
	for range paths {
		w := newWorld(cfg)
		w.listens = true
		if !cfg.starting {
			w.begin()
		}
		w.budget.faults = rnd.IntN(cfg.budget.faults + 1)
		n := &node{what: "start"}
		for range steps {
			cs := w.choices()
			if len(cs) == 0 {
				break
			}
			ch := cs[rnd.IntN(len(cs))]
			ch.do(w)
			n = &node{n, ch.name}
			f.states++
			if w.check(); w.bad != "" {
				return found{states: f.states, bad: w.bad, path: n.path()}
			}
		}
		if w.settle(nil); w.bad != "" {
			return found{states: f.states, bad: "then, undisturbed: " + w.bad, path: n.path()}
		}
		f.depth++
	}
	return f
}

var two = []size{{3, 2}, {2, 2}}

// everything may go wrong once or twice, and no more than faults in all.
func everything(faults int) budget {
	return budget{faults: faults, lose: 2, double: 1, overtake: 1, mislay: 1, kill: 2, freeze: 1, misfire: 1, fail: 1, leave: 1, stop: 1, wait: 2, oper: 1}
}

func worlds(faults int) []*config {
	all := everything(faults)
	return []*config{
		{name: "handover", transport: transfer.Handover, p: 2, d: 2, idle: -1, pages: 8, slots: 2, requests: two, attempts: 3, budget: all},
		{name: "pull", transport: transfer.Pull, p: 2, d: 2, idle: -1, pages: 8, slots: 2, requests: two, attempts: 3, budget: all},
		{name: "push", transport: transfer.Push, p: 2, d: 2, idle: -1, pages: 8, slots: 2, requests: two, attempts: 3, budget: all},
		{name: "a rank without units", transport: transfer.Pull, p: 1, d: 2, idle: 1, pages: 8, slots: 2, requests: []size{{3, 2}}, attempts: 3, budget: all},
		{name: "few pages", transport: transfer.Handover, p: 1, d: 1, idle: -1, pages: 4, slots: 1, requests: []size{{3, 3}, {1, 6}}, attempts: 3, budget: all},
		{name: "starting", transport: transfer.Handover, p: 1, d: 1, idle: -1, pages: 8, slots: 2, requests: []size{{3, 1}}, attempts: 3, starting: true, budget: all},
		{name: "one token", transport: transfer.Push, p: 1, d: 1, idle: -1, pages: 8, slots: 2, requests: []size{{1, 1}, {2, 1}, {1, 1}}, attempts: 3, budget: all},
	}
}

// TestExplore visits every state of small worlds, the nearest first, up to
// -explore.states of each. `make explore` goes further.
func TestExplore(t *testing.T) {
	for _, cfg := range worlds(*exploreFaults) {
		if !strings.Contains(cfg.name, *exploreWorld) {
			continue
		}
		t.Run(cfg.name, func(t *testing.T) {
			t.Parallel()
			f := explore(cfg, *exploreStates)
			if f.bad != "" {
				t.Fatalf("%s, after %d states:\n  %s", f.bad, f.states, f.path)
			}
			what := "all of them"
			if !f.all {
				what = "more exist"
			}
			t.Logf("%d states, every path of up to %d steps; %s", f.states, f.depth, what)
		})
	}
}

// TestWander goes where breadth first does not get in time: long paths with many
// faults, at random.
func TestWander(t *testing.T) {
	for _, cfg := range worlds(8) {
		if !strings.Contains(cfg.name, *exploreWorld) {
			continue
		}
		t.Run(cfg.name, func(t *testing.T) {
			t.Parallel()
			f := wander(cfg, 1, 1500, 120)
			if f.bad != "" {
				t.Fatalf("%s, after %d steps:\n  %s", f.bad, f.states, f.path)
			}
			t.Logf("%d paths, %d steps", f.depth, f.states)
		})
	}
}
