package core

import (
	"strings"
	"testing"

	"tandem/daemon/fault"
	"tandem/daemon/request"
	"tandem/daemon/transfer"
)

// race is a world driven by hand.
type race struct {
	*testing.T
	*world
}

// newRace is a world of one request of three prompt and two output tokens, on two
// ranks a side, whose generation is up.
func newRace(t *testing.T, change ...func(*config)) *race {
	cfg := &config{transport: transfer.Pull, p: 2, d: 2, idle: -1, pages: 8, slots: 2, requests: []size{{3, 2}}, attempts: 3, budget: everything(100)}
	cfg.budget.kill, cfg.budget.wait, cfg.budget.double, cfg.budget.fail, cfg.budget.leave = 9, 9, 9, 9, 9
	for _, f := range change {
		f(cfg)
	}
	r := &race{t, newWorld(cfg)}
	r.begin()
	return r
}

// do has things happen, in order. Each names a part of a choice; the first that fits
// is taken. A name that ends in "…" is done as often as it can be.
func (r *race) do(names ...string) {
	r.Helper()
	for _, name := range names {
		part, again := strings.CutSuffix(name, "…")
		for n := 0; ; n++ {
			var names []string
			found := false
			for _, ch := range r.choices() {
				if names = append(names, ch.name); strings.HasPrefix(ch.name, part) {
					ch.do(r.world)
					found = true
					break
				}
			}
			if r.check(); r.bad != "" {
				r.Fatalf("%s: %s", name, r.bad)
			}
			if found && again && n < 1000 {
				continue
			}
			if !found && (!again || n == 0) {
				r.Fatalf("%q cannot happen now, only\n  %s\nin %s", part, strings.Join(names, "\n  "), r.world)
			}
			break
		}
	}
}

// rest lets the world come to rest, and wants it to: pools full, no request left.
func (r *race) rest() {
	r.Helper()
	if r.settle(nil); r.bad != "" {
		r.Fatal(r.bad)
	}
}

func (r *race) state(want request.State) {
	r.Helper()
	for _, q := range r.c.requests {
		if q.m.State != want {
			r.Fatalf("request is %s, want %s", q.m.State, want)
		}
	}
}

func (r *race) answered(i int, want string) {
	r.Helper()
	got := r.clients[i].finish.String()
	if f := r.clients[i].fault; f != nil {
		got = f.Kind.String()
	}
	if !r.clients[i].ended || got != want {
		r.Fatalf("client %d: ended %v with %q, want %q", i, r.clients[i].ended, got, want)
	}
}

func (r *race) generation(want int) {
	r.Helper()
	if int(r.number) != 6+want {
		r.Fatalf("generation %d of this daemon, want %d", r.number-6, want)
	}
}

const (
	reserved  = "decode/0.0 obeys Expect,decode/0.1 obeys Expect,decode/0.0 says Reserved,decode/0.1 says Reserved"
	computed  = "prefill/0.0 obeys Prefill,prefill/0.0 computes,prefill/0.1 follows"
	prefilled = "prefill/0.0 says Sealed,prefill/0.1 says Sealed"
	taken     = "decode/0.0 takes,decode/0.1 takes"
	landed    = "decode/0.0 says Landed,decode/0.1 says Landed"
	verified  = "decode/0.0 says Verified,decode/0.1 says Verified"
	joined    = "decode/0.0 obeys Join"
)

func (r *race) all(lists ...string) {
	r.Helper()
	for _, l := range lists {
		r.do(strings.Split(l, ",")...)
	}
}

func TestRaceUndisturbed(t *testing.T) {
	r := newRace(t)
	r.all(reserved, computed, prefilled, taken, landed, verified, joined)
	r.state(request.Decoding)
	r.do("decode/0.0 decodes", "decode/0.0 says Step", "decode/0.0 decodes", "decode/0.0 says Step")
	r.answered(0, "length")
	r.rest()
	r.generation(1)
}

// M1: a rank is told to leave an attempt alone before it knows of it.
func TestRaceM1AbortBeforeTheRequest(t *testing.T) {
	r := newRace(t)
	r.do("decode/0.0 obeys Expect", "client 0 leaves", "decode/0.0 obeys Quiesce", "decode/0.1 follows", "decode/0.1 says Quiet")
	r.do("decode/0.1 obeys Expect") // late: refused
	if len(r.procs[3].know) != 0 {
		t.Fatal("the rank took it up")
	}
	r.rest()
	r.generation(1)
}

// M2: one rank reports success, another failure, in both orders.
func TestRaceM2SuccessAndFailureCross(t *testing.T) {
	for _, order := range [][]string{{"decode/0.0 says Landed", "decode/0.0 says Verified", "decode/0.1 says Failed"}, {"decode/0.1 says Failed", "decode/0.0 says Landed", "decode/0.0 says Verified"}} {
		r := newRace(t)
		r.all(reserved, computed, prefilled)
		r.do("decode/0.0 takes", "decode/0.1 finds")
		r.do(order...)
		r.answered(0, "kv_digest_mismatch")
		r.do("decode/0.1 takes", "decode/0.1 says Landed", "decode/0.1 says Verified") // a late success undoes nothing
		r.answered(0, "kv_digest_mismatch")
		r.rest()
		r.generation(1)
	}
}

// M3: a limit passes in the moment in which what it waits for arrives. Both orders end
// once, and the second event is ignored.
func TestRaceM3LimitAndCompletion(t *testing.T) {
	r := newRace(t)
	r.all(reserved, computed, prefilled, taken, landed)
	r.do("decode/0.0 says Verified", "a limit passes", "decode/0.1 says Verified")
	r.rest()
	r.answered(0, "length") // a passed verify limit is worth another attempt
	r.generation(1)

	r = newRace(t)
	r.all(reserved, computed, prefilled, taken, landed, verified, joined)
	r.do("decode/0.0 decodes", "decode/0.0 decodes")
	r.do("decode/0.0 says Step", "decode/0.0 says Step", "a limit passes")
	r.answered(0, "length")
	r.rest()
}

// M4: the last word about pages is lost, doubled, or overtaken, while the pages are in
// other hands.
func TestRaceM4ReleaseLostDoubledOvertaken(t *testing.T) {
	// Doubled: the second comes when the pages belong to the next request.
	r := newRace(t, func(c *config) { c.requests, c.pages, c.slots = []size{{3, 1}, {3, 1}}, 2, 1 })
	r.all(reserved, computed, prefilled, taken, landed, verified, joined)
	r.do("decode/0.0 decodes", "decode/0.0 says Step", "decode/0.1 follows…")
	r.do("decode/0.0 says Quiet{1}, and will again", "decode/0.1 says Quiet")
	r.do("decode/0.0 obeys Expect", "decode/0.0 says Quiet", "decode/0.1 obeys Expect", "decode/0.0 says Reserved", "decode/0.1 says Reserved")
	r.rest()
	r.answered(1, "length")
	r.generation(1)

	// Lost: the pages are not used again until every process is gone.
	r = newRace(t, func(c *config) { c.requests, c.pages, c.slots = []size{{3, 1}, {3, 1}}, 2, 1 })
	r.all(reserved, computed, prefilled, taken, landed, verified, joined)
	r.do("decode/0.0 decodes", "decode/0.0 says Step", "decode/0.1 follows…", "decode/0.0 says Quiet", "Quiet{1} of decode/0.1 is lost")
	if r.c.replicas[1][0].pool.Free() != 0 {
		t.Fatal("pages are free without proof")
	}
	r.rest()
	r.answered(1, "length")
	r.generation(2)

	// Overtaken by nothing that matters: the leader's quiet before its last step.
	r = newRace(t)
	r.all(reserved, computed, prefilled, taken, landed, verified, joined)
	r.do("decode/0.0 decodes", "decode/0.0 decodes", "decode/0.0 says Quiet{1} before its turn")
	r.rest()
	r.answered(0, "length")
	r.generation(1)
}

// M5: a copy ends after its attempt was given up, and M6: a limit passes during a
// copy. The pages wait for the copying rank.
func TestRaceM5M6CopyEndsLate(t *testing.T) {
	r := newRace(t)
	r.all(reserved, computed, prefilled)
	r.do("decode/0.0 takes", "decode/0.0 says Landed", "a limit passes")
	if q := r.c.replicas[1][0].pool.Free(); q == r.c.replicas[1][0].pool.Total() {
		t.Fatal("pages are free while a rank copies")
	}
	r.do("decode/0.1 takes", "decode/0.1 says Landed", "decode/0.1 says Verified", "decode/0.0 says Verified")
	r.rest()
}

// M7: there is no renewal to race with an expiry: pages are lent until proof, and a
// limit that passes quarantines them in the same step.
func TestRaceM7NeitherLeasedNorFree(t *testing.T) {
	r := newRace(t)
	r.all(reserved, computed)
	r.do("client 0 leaves")
	for _, a := range r.c.attempts {
		if a.target.State().String() != "quarantined" || a.source.State().String() != "quarantined" {
			t.Fatalf("target %s, source %s", a.target.State(), a.source.State())
		}
	}
	r.rest()
}

// M8: a rank dies after it published its pages and before it says so.
func TestRaceM8DiesBeforeItSaysSo(t *testing.T) {
	r := newRace(t)
	r.all(reserved, computed, taken)
	r.do("prefill/0.0 dies", "decode/0.0 says Landed", "decode/0.1 says Landed", "decode/0.0 says Verified", "prefill/0.0 is reaped")
	r.rest()
	r.answered(0, "length")
	r.generation(2)
}

// M9: the generation changes in each state that may be in its way.
func TestRaceM9GenerationChanges(t *testing.T) {
	until := map[request.State][]string{
		request.Queued:       nil,
		request.Reserving:    {"decode/0.0 obeys Expect", "decode/0.0 says Reserved"},
		request.Prefilling:   {reserved},
		request.Handoff:      {reserved, computed, prefilled},
		request.Transferring: {reserved, computed, prefilled, "decode/0.0 takes,decode/0.0 says Landed"},
		request.Verifying:    {reserved, computed, prefilled, taken, landed, "decode/0.0 says Verified"},
		request.Decoding:     {reserved, computed, prefilled, taken, landed, verified, joined, "decode/0.0 decodes,decode/0.0 says Step"},
		request.Draining:     {reserved, computed, prefilled, taken, landed, verified, joined, "decode/0.0 decodes,decode/0.0 says Step,decode/0.0 decodes,decode/0.0 says Step"},
	}
	for state, steps := range until {
		r := newRace(t)
		if state == request.Queued {
			r.world = newWorld(r.cfg)
			r.do("launched", "prefill/0.0 dies", "prefill/0.0 is reaped")
		} else {
			r.all(steps...)
			r.state(state)
			r.do("decode/0.1 dies", "decode/0.1 is reaped")
		}
		r.rest()
		r.answered(0, "length")
		r.generation(2)
	}
}

// M10: two ranks die at once, and one death is noticed twice.
func TestRaceM10TwoDeaths(t *testing.T) {
	r := newRace(t)
	r.all(reserved)
	r.do("prefill/0.0 dies", "decode/0.1 dies", "decode/0.1 is reaped, it is said twice", "prefill/0.0 is reaped")
	r.rest()
	r.answered(0, "length")
	r.generation(2)
}

// M12: a process that was stopped goes on when its generation is over. It is killed with
// the others; what it had said is of another generation.
func TestRaceM12StoppedRankGoesOn(t *testing.T) {
	r := newRace(t)
	r.all(reserved, computed)
	r.do("prefill/0.0 stops", "a limit passes", "a limit passes")
	r.do("prefill/0.0 is reaped", "prefill/0.1 is reaped", "decode/0.0 is reaped", "decode/0.1 is reaped") // reap checks what comes late
	r.rest()
	r.answered(0, "length")
	r.generation(2)
}

// M13: the client leaves while its first token is on the way, or while it is decided
// that its answer goes on in the next generation.
func TestRaceM13ClientLeaves(t *testing.T) {
	r := newRace(t)
	r.all(reserved, computed, prefilled, taken, landed, verified, joined)
	r.do("decode/0.0 decodes", "client 0 leaves", "decode/0.0 says Step")
	if r.clients[0].got != 0 {
		t.Fatal("a token after the client left")
	}
	r.rest()

	r = newRace(t)
	r.all(reserved, computed, prefilled, taken, landed, verified, joined)
	r.do("decode/0.0 decodes", "decode/0.0 says Step", "decode/0.0 dies", "decode/0.0 is reaped", "client 0 leaves")
	r.rest()
	if len(r.c.attempts) != 0 || r.clients[0].got != 1 {
		t.Fatal("it was run again for a client that left")
	}
}

// M14: every way to end gives the place back once; rest() finds the count wrong otherwise.
func TestRaceM14EveryEndGivesThePlaceBack(t *testing.T) {
	at := []string{reserved, computed, prefilled, taken, landed, verified, joined}
	for n := range at {
		for _, end := range []string{"client 0 leaves", "client 0 has enough", "a limit passes", "decode/0.0 dies"} {
			r := newRace(t)
			r.all(at[:n]...)
			r.do(end)
			r.rest()
			if r.c.running() != 0 || !r.clients[0].gone {
				t.Fatalf("after %q %s: %d running", at[:n], end, r.c.running())
			}
		}
	}
}

// M15: decode gives a sequence's pages up while prefill has not said that it is done
// with its own.
func TestRaceM15RetractedBeforePrefillIsDone(t *testing.T) {
	r := newRace(t, func(c *config) {
		c.p, c.d, c.pages, c.requests, c.transport = 1, 1, 4, []size{{3, 3}, {3, 3}}, transfer.Push
	})
	r.do("decode/0.0 obeys Expect", "decode/0.0 says Reserved", "prefill/0.0 obeys Prefill", "prefill/0.0 computes 1", "decode/0.0 takes", "decode/0.0 says Landed", "decode/0.0 says Verified")
	r.do("decode/0.0 obeys Expect", "decode/0.0 says Reserved", "prefill/0.0 obeys Prefill", "prefill/0.0 computes 2", "decode/0.0 takes", "decode/0.0 says Landed", "decode/0.0 says Verified")
	r.do("decode/0.0 obeys…", "decode/0.0 decodes", "decode/0.0 decodes", "decode/0.0 says Step", "decode/0.0 says Step")
	retracted := false
	for _, q := range r.c.requests {
		retracted = retracted || q.m.State == request.Queued
	}
	if !retracted {
		t.Fatalf("nobody gave pages up: %s", r.world)
	}
	r.rest()
	r.answered(0, "length")
	r.answered(1, "length")
	r.generation(1)
}

// M20: some ranks acknowledge, then one refuses. All give back.
func TestRaceM20PartialReserve(t *testing.T) {
	r := newRace(t)
	r.do("decode/0.0 obeys Expect", "decode/0.0 says Reserved", "decode/0.1 obeys Expect")
	r.procs[3].up = nil
	r.do("decode/0.1 gives", "decode/0.1 says Failed")
	for _, q := range r.c.requests {
		if q.m.Tries != 2 {
			t.Fatalf("%v: not tried again", q.m)
		}
	}
	r.rest()
	r.answered(0, "length") // the next attempt finds room
	r.generation(1)
}

// A request that ends every generation it runs in is told from those beside it, and
// fails by name; they are answered.
func TestPoisonIsToldFromItsNeighbours(t *testing.T) {
	r := newRace(t, func(c *config) { c.requests = []size{{3, 2}, {3, 2}} })
	poison := r.clients[1].ticket
	placed := func() bool {
		for _, a := range r.c.attempts {
			if a.request != nil && a.request.ticket == poison {
				return true
			}
		}
		return false
	}
	r.budget = budget{}
	for n := 0; !r.clients[1].ended; n++ {
		if n == 10_000 {
			t.Fatalf("the poison goes on: %s", r.world)
		}
		if len(r.procs) > 0 && r.procs[0].alive && placed() {
			r.procs[0].die() // whoever was placed with it has had no time for anything
		}
		cs := r.choices()
		if len(cs) == 0 {
			r.watch(r.c.now.Add(second / 4))
			continue
		}
		cs[0].do(r.world)
		if r.check(); r.bad != "" {
			t.Fatal(r.bad)
		}
	}
	r.answered(1, fault.Generation.String())
	r.harm, r.hurt = true, true
	r.rest()
	r.answered(0, "length")
}
