package control

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/generation"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/spawn"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
)

// Scenarios that have names: the faults and races of which the design lists what must
// follow. The judges of every world hold for them too: one end for each request, in
// time; ledgers that add up and end full; answers that are the undisturbed ones.

// each plays a scenario with every transport.
func each(t *testing.T, change func(p *plan), populate func(w *world)) {
	for _, tr := range transports {
		t.Run(tr.String(), func(t *testing.T) {
			p := quiet(tr)
			p.seed = 42
			change(p)
			play(t, p, populate)
		})
	}
}

func thirty(w *world) { w.fill(30, 50*time.Millisecond, 40, 40) }

// generations says how many there must have been.
func (w *world) generations(least, most int) {
	if n := len(w.gens); n < least || n > most {
		w.fail("%d generations, not %d to %d: %v", n, least, most, w.said(observe.GenerationEnd))
	}
}

// all says that every client has its whole answer.
func (w *world) all() {
	for _, c := range w.clients {
		if !c.complete() {
			w.fail("request %s: %v %v after %d tokens", c.spec.ID, c.refused, c.out.Err, len(c.got))
		}
	}
}

// failed says that every client has its answer or fails with k, and gives how many do.
func (w *world) failed(k fault.Kind) (n int) {
	for _, c := range w.clients {
		switch {
		case c.complete():
		case c.out.Err != nil && c.out.Err.Kind == k:
			n++
		default:
			w.fail("request %s: %v %v, neither complete nor %s", c.spec.ID, c.refused, c.out.Err, k)
		}
	}
	return n
}

func (p *plan) at(d time.Duration, name string, do func(w *world, a *actor)) {
	p.events = append(p.events, mishap{d, name, do})
}

// by finds a rank of the live generation by its name.
func (w *world) by(name string) *fakeProc {
	g := w.live()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.procs {
		if p.rank.String() == name {
			return p
		}
	}
	panic("there is no " + name)
}

// F1, F2, F4, F5, F6, M10: a rank stops or dies, at every stage of thirty requests.
func TestRankIsLost(t *testing.T) {
	kill := func(names ...string) func(w *world, a *actor) {
		return func(w *world, a *actor) {
			for _, n := range names {
				w.by(n).die("signal: killed")
			}
		}
	}
	stop := func(name string) func(w *world, a *actor) {
		return func(w *world, a *actor) { w.by(name).freeze() }
	}
	for name, do := range map[string]func(w *world, a *actor){
		"a decode leader is killed":    kill("decode/0.0"),
		"a decode follower is killed":  kill("decode/0.1"),
		"a prefill leader is killed":   kill("prefill/0.0"),
		"a prefill follower is killed": kill("prefill/0.1"),
		"one of each at once":          kill("prefill/0.1", "decode/0.0"),
		"all at once":                  kill("prefill/0.0", "prefill/0.1", "decode/0.0", "decode/0.1"),
		"its death is told twice": func(w *world, a *actor) {
			p := w.by("decode/0.1")
			p.die("signal: killed")
			a.sleep(15*time.Millisecond, nil)
			for range 2 {
				p.gen.sink(generation.Report{Generation: p.gen.number, Rank: p.index, Exit: &spawn.Status{Text: "signal: killed"}})
			}
		},
		"a decode leader stops":    stop("decode/0.0"),
		"a decode follower stops":  stop("decode/0.1"),
		"a prefill leader stops":   stop("prefill/0.0"),
		"a prefill follower stops": stop("prefill/0.1"),
	} {
		for _, at := range []time.Duration{75, 90, 120, 160, 300} {
			t.Run(fmt.Sprintf("%s after %d ms", name, at), func(t *testing.T) {
				p := quiet(transports[int(at)%3])
				p.at(at*time.Millisecond, name, do)
				p.judge = func(w *world) {
					w.all()
					w.generations(2, 2)
					for _, c := range w.clients {
						if limit := p.progress + 3*time.Second; c.ended-c.submitted > limit {
							w.fail("request %s took %v", c.spec.ID, c.ended-c.submitted)
						}
					}
				}
				play(t, p, thirty)
			})
		}
	}
}

// F3, M12: a stopped rank goes on just before it is killed, and what it said comes when
// the next generation lives.
func TestStoppedRankGoesOnAsItIsReplaced(t *testing.T) {
	for _, before := range []time.Duration{-time.Millisecond, 0, time.Millisecond, 40 * time.Millisecond} {
		each(t, func(p *plan) {
			p.maxLate = 3 * time.Second
			p.tamper = func(l *link, m wire.Message) (f fate) {
				if !l.down && l.chance(0.2) && m.Type() > wire.TReady && l.w.now() > 100*time.Millisecond && l.w.now() < 200*time.Millisecond {
					f.overtaken = l.between(100*time.Millisecond, time.Second)
				}
				return f
			}
			p.at(100*time.Millisecond, "stops", func(w *world, a *actor) { w.by("decode/0.1").freeze() })
			p.at(160*time.Millisecond-before, "goes on", func(w *world, a *actor) { w.by("decode/0.1").goOn() })
			p.at(160*time.Millisecond, "is killed", func(w *world, a *actor) { w.by("decode/0.1").die("signal: killed") })
			p.judge = func(w *world) {
				w.all()
				w.generations(2, 2)
				if w.metric("fenced") == 0 {
					w.fail("nothing was heard of the old generation: the scenario shows nothing")
				}
			}
		}, thirty)
	}
}

// F7: a generation that does not come up is tried again, more and more slowly, and
// what was queued is served in the end.
func TestStartUpFails(t *testing.T) {
	for _, how := range []string{"dies", "never ready", "wrong process", "nothing", "half"} {
		t.Run(how, func(t *testing.T) {
			p := quiet(transfer.Handover)
			p.limits.Queue, p.limits.Request = 2*time.Minute, 3*time.Minute
			p.launchAs = func(n int) launchFault {
				if n >= 5 {
					return launchFault{}
				}
				return launchFault{who: 3, how: how, nothing: how == "nothing", half: how == "half"}
			}
			p.judge = func(w *world) {
				refused := 0
				for _, c := range w.clients {
					if c.refused != nil && c.refused.Kind == fault.NotReady {
						refused++
					} else if !c.complete() {
						w.fail("request %s: %v", c.spec.ID, c.out.Err)
					}
				}
				if how != "never ready" && refused == 0 {
					w.fail("nobody was told that generations do not come up")
				}
				w.generations(6, 6)
				// 0.1, 0.2, 0.4, 0.8 and 1.6 s
				if n := w.count(observe.GenerationBackoff); n != 5 {
					w.fail("%d pauses", n)
				}
				if n := w.gens[5]; n.number < 6 {
					w.fail("generation %d", n.number)
				}
			}
			play(t, p, func(w *world) {
				w.fill(5, 3*time.Millisecond, 20, 20)
				for i := range 5 {
					w.add(&client{arrive: 200*time.Millisecond + time.Duration(i)*200*time.Millisecond, spec: request.Spec{Prompt: []int32{5, 6}, MaxTokens: 3}})
				}
			})
		})
	}
}

// F9: one message in a hundred is lost, in both directions.
func TestLoss(t *testing.T) {
	each(t, func(p *plan) {
		lost := 0
		p.tamper = func(l *link, m wire.Message) (f fate) {
			if f.lost = l.chance(0.01); f.lost {
				meter{l.w}.add("lost", 1)
			}
			return f
		}
		p.judge = func(w *world) {
			for _, c := range w.clients {
				if !c.complete() {
					lost++
				}
			}
			if n := w.metric("lost"); n == 0 || lost > n {
				w.fail("%d requests failed of %d messages lost", lost, n)
			}
		}
	}, func(w *world) { w.fill(100, 5*time.Second, 40, 40) })
}

// F10: what workers say comes twice and out of turn, and nobody notices.
func TestTwiceAndOutOfTurn(t *testing.T) {
	each(t, func(p *plan) {
		p.tamper = func(l *link, m wire.Message) (f fate) {
			if !l.down {
				if f.twice = l.chance(0.1); l.chance(0.1) {
					f.overtaken = l.between(0, 50*time.Millisecond)
				}
			}
			return f
		}
		p.judge = func(w *world) {
			w.all()
			w.generations(1, 1)
		}
	}, func(w *world) { w.fill(100, 2*time.Second, 40, 40) })
}

// F11: nobody says quiet. Pages are kept apart, and come back with the next generation.
func TestQuietIsLost(t *testing.T) {
	each(t, func(p *plan) {
		p.tamper = func(l *link, m wire.Message) fate { return fate{lost: m.Type() == wire.TQuiet} }
		p.judge = func(w *world) {
			if w.worst.quarantine < 4 {
				w.fail("pages were in quarantine for %vs at most", w.worst.quarantine)
			}
			if w.metric("ended quarantine") == 0 || w.count(observe.SlotOverdue) == 0 {
				w.fail("generations ended for %v", w.counts)
			}
			for _, c := range w.clients {
				if !c.left && !c.complete() {
					w.fail("request %s: %v", c.spec.ID, c.out.Err)
				}
			}
		}
	}, func(w *world) {
		w.fill(12, 3*time.Second, 40, 40)
		for i, c := range w.clients {
			if i%2 == 0 {
				c.spec.MaxTokens, c.leave = 40, leave{how: "cancel", after: 30 * time.Millisecond}
				c.want = undisturbed(c.spec.Prompt, 40, w.plan.units)
			}
		}
	})
}

// F12: every copy takes too long. Requests fail by the name of that, and generations
// are replaced only as often as failed transfers allow: once for three in a minute.
func TestCopiesTakeTooLong(t *testing.T) {
	p := quiet(transfer.Pull)
	p.canary, p.chunk = nil, 4
	p.copyAs = func(_ *fakeLane, have int) time.Duration {
		if have == 0 {
			return 0
		}
		return p.limits.Transfer * 3 / 2
	}
	p.judge = func(w *world) {
		if n := w.failed(fault.TransferTimeout); n != 6 {
			w.fail("%d requests failed", n)
		}
		if n := w.metric("ended edge"); n != 2 {
			w.fail("%d generations ended for 6 failed transfers", n)
		}
		w.generations(3, 3)
		if n := w.metric("deadline transferring"); n != 6 {
			w.fail("the limit of transferring passed %d times", n)
		}
	}
	p.restsWithin = time.Minute
	play(t, p, func(w *world) {
		// The first shows that requests complete: it has one page.
		w.add(&client{arrive: 100 * time.Millisecond, spec: request.Spec{Prompt: []int32{1, 2}, MaxTokens: 3}})
		for i := range 6 {
			w.add(&client{arrive: time.Duration(i+1) * 15 * time.Second, spec: request.Spec{Prompt: make([]int32, 30), MaxTokens: 3}})
		}
		w.plan.events = append(w.plan.events, mishap{110 * time.Second, "calm", func(w *world, _ *actor) { w.calm.Store(true) }})
		w.add(&client{arrive: 115 * time.Second, spec: request.Spec{Prompt: []int32{1, 2}, MaxTokens: 3}})
	})
}

// F13: a page is damaged on its way. Exactly its request fails, before a token.
func TestDamagedPages(t *testing.T) {
	for _, tr := range []transfer.Transport{transfer.Pull, transfer.Push} {
		t.Run(tr.String(), func(t *testing.T) {
			p := quiet(tr)
			p.canary = []int32{1} // nothing to damage
			p.damaged = 0.002
			p.judge = func(w *world) {
				n := w.failed(fault.DigestMismatch)
				if d := w.metric("damaged"); n == 0 || n > d || w.metric("verify digest") < n || w.metric("verify digest") > d {
					w.fail("%d requests failed, %d verifications, of %d damaged pages", n, w.metric("verify digest"), d)
				}
				for _, c := range w.clients {
					if c.out.Err != nil && len(c.got) > 0 && len(w.gens) == 1 {
						w.fail("request %s had %d tokens before it failed", c.spec.ID, len(c.got))
					}
				}
			}
			play(t, p, func(w *world) { w.fill(60, 100*time.Second, 40, 20) })
		})
	}
}

// F14: prefill says that it is done before the last page is there.
func TestDoneIsSaidTooEarly(t *testing.T) {
	each(t, func(p *plan) {
		p.early, p.perToken = true, 5*time.Millisecond
		p.judge = func(w *world) {
			w.all()
			w.generations(1, 1)
		}
	}, thirty)
}

// F16: one decode rank of two never says that it holds the pages.
func TestOneRankDoesNotVerify(t *testing.T) {
	each(t, func(p *plan) {
		p.canary = nil
		p.tamper = func(l *link, m wire.Message) fate {
			return fate{lost: m.Type() == wire.TVerified && l.w.ranks[l.rank].String() == "decode/0.1"}
		}
		p.judge = func(w *world) {
			if n := w.failed(fault.VerifyTimeout); n != 2 {
				w.fail("%d requests failed", n)
			}
			for _, c := range w.clients {
				// Each attempt is given that long: the next might not have met this rank.
				if took := c.ended - c.submitted; took > time.Duration(p.limits.MaxAttempts)*p.limits.Verify+time.Second {
					w.fail("request %s failed only after %v", c.spec.ID, took)
				}
			}
			named := slices.ContainsFunc(w.said(observe.RankDivergence), func(s string) bool {
				return strings.Contains(s, "decode/0.0 hold all pages, decode/0.1 not")
			})
			if !named {
				w.fail("nobody is told which rank it was: %q", w.said(observe.RankDivergence))
			}
			w.generations(1, 1)
		}
	}, func(w *world) {
		w.plan.at(11*time.Second, "calm", func(w *world, _ *actor) { w.calm.Store(true) })
		for i := range 2 {
			w.add(&client{arrive: time.Duration(i+1) * 3 * time.Second, spec: request.Spec{Prompt: make([]int32, 20), MaxTokens: 3}})
		}
		w.add(&client{arrive: 12 * time.Second, spec: request.Spec{Prompt: make([]int32, 20), MaxTokens: 3}})
	})
}

// F17, F18: four hundred clients leave at random, many of them together.
func TestClientsLeave(t *testing.T) {
	each(t, func(p *plan) {
		p.queued = 400
		p.judge = func(w *world) { w.generations(1, 1) }
	}, func(w *world) {
		w.fill(400, 10*time.Second, 40, 60)
		for i, c := range w.clients {
			c.leave = leave{how: []string{"close", "close", "close", "cancel", "stop", "operator"}[i%6], after: c.between(1, []time.Duration{3 * time.Millisecond, 300 * time.Millisecond}[i%2])}
			if i%4 == 0 { // a storm
				c.arrive = 5*time.Second + time.Duration(i)*10*time.Microsecond
				c.leave.after = 9*time.Millisecond - time.Duration(i)*10*time.Microsecond
			}
		}
	})
}

// F20: five hundred come at once, and there are 32 places.
func TestBurst(t *testing.T) {
	p := quiet(transfer.Handover)
	p.running, p.queued, p.look = 24, 8, time.Millisecond
	p.judge = func(w *world) {
		served := 0
		for _, c := range w.clients {
			if c.complete() {
				served++
			} else if c.refused == nil || c.refused.Kind != fault.QueueFull {
				w.fail("request %s: %v %v", c.spec.ID, c.refused, c.out.Err)
			}
		}
		if w.worst.held > 32 || w.worst.running > 24 {
			w.fail("%d places were taken, %d ran", w.worst.held, w.worst.running)
		}
		if served < 32 || w.metric("rejected queue_full") != 500-served || w.count(observe.AdmissionReject) != 500-served {
			w.fail("%d served, %d refused", served, w.metric("rejected queue_full"))
		}
		w.generations(1, 1)
	}
	play(t, p, func(w *world) {
		w.fill(500, 50*time.Millisecond, 20, 40)
		for _, c := range w.clients {
			c.arrive += 200 * time.Millisecond
		}
	})
}

// F21: decode has pages for three, and fifty come. They start in the order in which they
// came, and whoever waits too long is told so.
func TestFewPages(t *testing.T) {
	each(t, func(p *plan) {
		p.decodePages, p.canary = 3*15, []int32{1, 2}
		p.headroom, p.limits.Queue, p.queued = 64, 5*time.Second, 50
		p.judge = func(w *world) {
			late := w.failed(fault.QueueTimeout)
			if late == 0 || late > 45 {
				w.fail("%d waited too long", late)
			}
			if w.worst.running > 3 {
				w.fail("%d ran", w.worst.running)
			}
			order := slices.Clone(w.clients)
			slices.SortStableFunc(order, func(a, b *client) int { return cmp.Compare(a.arrive, b.arrive) })
			last := time.Duration(0)
			for _, c := range order {
				if c.first != 0 && c.first < last {
					w.fail("request %s was served before one that came earlier", c.spec.ID)
				}
				last = max(last, c.first)
			}
		}
	}, func(w *world) {
		for i := range 50 {
			w.add(&client{arrive: 100*time.Millisecond + time.Duration(i)*time.Millisecond, spec: request.Spec{Prompt: slices.Repeat([]int32{int32(i)}, 20), MaxTokens: 40}})
		}
	})
}

// F22: sequences outgrow the pool. The youngest makes room and goes on later.
func TestSequencesOutgrowThePool(t *testing.T) {
	each(t, func(p *plan) {
		p.decodePages, p.headroom = 30, 4
		p.judge = func(w *world) {
			w.all()
			w.generations(1, 1)
			if n := slices.IndexFunc(w.said(observe.RequestAgain), func(s string) bool { return strings.Contains(s, "needed by an older request") }); n < 0 {
				w.fail("no request made room")
			}
		}
	}, func(w *world) {
		for i := range 6 {
			w.add(&client{arrive: 100*time.Millisecond + time.Duration(i)*time.Millisecond, spec: request.Spec{Prompt: slices.Repeat([]int32{int32(i)}, 8), MaxTokens: 80}})
		}
	})
}

// F24: a rank stops reading.
func TestRankDoesNotRead(t *testing.T) {
	each(t, func(p *plan) {
		p.unread, p.progress = 100, time.Minute
		p.at(100*time.Millisecond, "stops", func(w *world, _ *actor) {
			w.by("decode/0.0").freeze()
			for range p.unread + 5 {
				_ = w.loop.DumpWorkers() // what is too much is found by what comes after
			}
		})
		p.judge = func(w *world) {
			w.all()
			w.generations(2, 2)
			if w.metric("ended not_reading") != 1 {
				w.fail("the generation ended for %v", w.counts)
			}
		}
	}, func(w *world) { w.fill(40, time.Second, 20, 20) })
}

// F25: a rank says what no rank may say. Either that ends the generation, or it changes
// nothing; no answer is another.
func TestLies(t *testing.T) {
	for _, lie := range lies {
		for _, who := range []string{"prefill/0.0", "decode/0.0", "decode/0.1"} {
			t.Run(lie.name+" from "+who, func(t *testing.T) {
				p := quiet(transfer.Pull)
				p.seed = uint64(len(lie.name))
				p.at(120*time.Millisecond, lie.name, func(w *world, a *actor) { lie.tell(w.by(who), a) })
				p.judge = func(w *world) {
					if lie.name != "given up" {
						w.all()
					}
					w.generations(1, 2)
					if lie.protocol {
						w.generations(2, 2)
					}
					if strings.HasPrefix(lie.name, "a frame of") {
						w.generations(1, 1)
						if w.metric("fenced") != 1 || w.count(observe.FenceDrop) != 1 {
							w.fail("%d fenced", w.metric("fenced"))
						}
					}
				}
				play(t, p, thirty)
			})
		}
	}
}

// F29: what a generation needs cannot be had for a while.
func TestLaunchFails(t *testing.T) {
	for _, half := range []bool{false, true} {
		t.Run(fmt.Sprint("half ", half), func(t *testing.T) {
			p := quiet(transfer.Handover)
			p.launchAs = func(n int) launchFault { return launchFault{nothing: n == 1 && !half, half: n == 1 && half} }
			p.at(200*time.Millisecond, "dies", func(w *world, _ *actor) { w.by("decode/0.0").die("signal: killed") })
			p.judge = func(w *world) {
				w.all()
				w.generations(3, 3)
				if w.metric("ended spawn") != 1 {
					w.fail("generations ended for %v", w.counts)
				}
			}
			play(t, p, thirty)
		})
	}
}

// F31: a process that was killed does not go. No other generation starts until it has.
func TestUnreapedProcess(t *testing.T) {
	p := quiet(transfer.Push)
	p.reapAs = func(a *actor) time.Duration {
		if a.w.now() < time.Second {
			return 15 * time.Second
		}
		return time.Millisecond
	}
	p.perStep = 200 * time.Millisecond
	p.at(300*time.Millisecond, "dies", func(w *world, a *actor) {
		w.by("prefill/0.1").die("signal: killed")
		for range 13 {
			a.sleep(time.Second, nil)
			w.generations(1, 1)
		}
		v, err := w.loop.View(time.Second)
		if err != nil || v.Ready || !strings.Contains(v.Reason, "unreaped") {
			w.fail("ready %v: %q, %v", v.Ready, v.Reason, err)
		}
	})
	p.judge = func(w *world) {
		w.all()
		w.generations(2, 2)
		if w.count(observe.GenerationUnreaped) != 1 {
			w.fail("it was told %d times", w.count(observe.GenerationUnreaped))
		}
	}
	play(t, p, thirty)
}

// F33: a generation change every two seconds for a minute.
func TestGenerationsComeAndGo(t *testing.T) {
	each(t, func(p *plan) {
		p.supervise.Budget, p.perStep, p.context = 10, 50*time.Millisecond, 600
		p.limits.Request = 3 * time.Minute
		for i := range 30 {
			p.at(time.Duration(i+1)*2*time.Second, "restart", func(w *world, _ *actor) { _ = w.loop.Restart("again") }) // it may be between two
		}
		p.judge = func(w *world) {
			w.generations(15, 31)
			if w.count(observe.GenerationBackoff) == 0 {
				w.fail("the budget of %d did not trip after %d", p.supervise.Budget, len(w.gens))
			}
			for _, c := range w.clients {
				if !c.complete() && (c.out.Err == nil || c.out.Err.Kind != fault.Generation && c.out.Err.Kind != fault.QueueTimeout) {
					w.fail("request %s: %v %v", c.spec.ID, c.refused, c.out.Err)
				}
			}
			if w.metric("resumed") < 20 {
				w.fail("%d resumed", w.metric("resumed"))
			}
		}
	}, func(w *world) { w.fill(30, 50*time.Second, 40, 200) })
}

// F34: prefill's word that it is done is lost, all the data is there. Clients are
// served all the same, and prefill is asked again.
func TestCompletionIsLost(t *testing.T) {
	for _, who := range []string{"prefill/0.0", "prefill/0.1"} {
		each(t, func(p *plan) {
			p.tamper = func(l *link, m wire.Message) (f fate) {
				s, ok := m.(*wire.Sealed)
				f.lost = ok && s.Done && l.w.ranks[l.rank].String() == who
				return f
			}
			p.judge = func(w *world) {
				w.all()
				w.generations(1, 1)
				if n := w.count(observe.TransferCompletionLost); n == 0 {
					w.fail("nobody is told")
				}
				for _, c := range w.clients {
					if c.gap > 10*p.perStep || c.first-c.submitted > time.Second {
						w.fail("request %s: the first token after %v, then a gap of %v", c.spec.ID, c.first-c.submitted, c.gap)
					}
				}
			}
		}, func(w *world) {
			w.fill(30, 3*time.Second, 40, 40)
			for _, c := range w.clients {
				c.arrive += 100 * time.Millisecond
			}
		})
	}
}

// F36, M1: the word that a request is given up overtakes the request.
func TestGivenUpBeforeItIsKnown(t *testing.T) {
	each(t, func(p *plan) {
		p.canary = nil
		p.tamper = func(l *link, m wire.Message) (f fate) {
			if l.down && m.Type() == wire.TPrefill {
				f.overtaken = time.Second
			}
			return f
		}
		computed := -1
		p.at(4*time.Second, "count", func(w *world, _ *actor) {
			g := w.live()
			g.mu.Lock()
			defer g.mu.Unlock()
			computed = g.computed
			w.calm.Store(true)
		})
		p.judge = func(w *world) {
			if computed != 0 {
				w.fail("%d tokens of prompts that nobody wants were computed", computed)
			}
			w.generations(1, 1)
		}
	}, func(w *world) {
		for i := range 10 {
			w.add(&client{arrive: 100*time.Millisecond + time.Duration(i)*time.Millisecond, leave: leave{how: "close", after: 100 * time.Millisecond}, spec: request.Spec{Prompt: make([]int32, 20), MaxTokens: 3}})
		}
		w.add(&client{arrive: 5 * time.Second, spec: request.Spec{Prompt: make([]int32, 20), MaxTokens: 3}})
	})
}

// readiness notes how ready changed, from an instant on.
func readiness(from, every, until time.Duration, seen func(ready bool, at time.Duration)) mishap {
	return mishap{from, "look", func(w *world, a *actor) {
		for w.now() < until {
			ready := w.loop.Ready() == nil
			select {
			case <-w.loop.done:
				return
			default:
			}
			seen(ready, w.now())
			a.sleep(every, nil)
		}
	}}
}

func isCanary(p *plan, tokens []int32) bool {
	return len(tokens) <= len(p.canary) && slices.Equal(tokens, p.canary[:len(tokens)])
}

// F38: canaries fail while real requests succeed. What clients see counts.
func TestCanaryFailsAndClientsDoNot(t *testing.T) {
	p := quiet(transfer.Handover)
	var late atomic.Bool
	p.broken = func(tokens []int32) bool { return late.Load() && isCanary(p, tokens) }
	p.at(time.Second, "canaries fail from now on", func(*world, *actor) { late.Store(true) })
	p.judge = func(w *world) {
		w.all()
		w.generations(1, 1)
		if n := w.count(observe.CanaryFailed); n < 3 {
			w.fail("%d canaries failed", n)
		}
	}
	play(t, p, func(w *world) {
		for i := range 5 {
			w.add(&client{arrive: time.Duration(i*25+1) * time.Second, spec: request.Spec{Prompt: make([]int32, 20), MaxTokens: 3}})
		}
		p.events = append(p.events, readiness(2*time.Second, 500*time.Millisecond, 101*time.Second, func(ready bool, at time.Duration) {
			if !ready {
				w.fail("not ready: %v", w.loop.Ready())
			}
		}))
	})
}

// F39: clients' requests stall and canaries succeed. What clients see counts.
func TestClientsStallAndCanariesDoNot(t *testing.T) {
	p := quiet(transfer.Handover)
	p.stalled = func(tokens []int32) bool { return !isCanary(p, tokens) }
	var unready, again time.Duration
	p.judge = func(w *world) {
		if w.failed(fault.PrefillStall) != 59 {
			w.fail("%d stalled", w.failed(fault.PrefillStall))
		}
		w.generations(1, 1)
		if unready == 0 || unready > 45*time.Second {
			w.fail("not ready at %v, after no request had completed since 1 s", unready)
		}
		if again == 0 {
			w.fail("never ready again")
		}
	}
	p.running = 64
	play(t, p, func(w *world) {
		for i := range 59 {
			w.add(&client{arrive: time.Duration(i+1) * time.Second, spec: request.Spec{Prompt: make([]int32, 20), MaxTokens: 3}})
		}
		w.add(&client{arrive: 80 * time.Second, spec: request.Spec{Prompt: []int32{7, 7}, MaxTokens: 3}})
		w.plan.at(70*time.Second, "calm", func(w *world, _ *actor) { w.calm.Store(true) })
		p.events = append(p.events, readiness(2*time.Second, 500*time.Millisecond, 100*time.Second, func(ready bool, at time.Duration) {
			if !ready && unready == 0 {
				unready = at
			}
			if ready && unready != 0 && again == 0 {
				again = at
			}
		}))
	})
}

// M18: everybody has more to say than the loop has room for, while it is busy.
func TestLoopIsFarBehind(t *testing.T) {
	p := quiet(transfer.Handover)
	p.at(200*time.Millisecond, "the loop is busy", func(w *world, a *actor) {
		unblock := w.block()
		for _, q := range w.live().procs {
			for range maxEvents/4 + 500 {
				q.say(&wire.Ready{})
			}
		}
		a.sleep(2*time.Second, nil)
		// Of each rank so many may wait in the loop's queue; the rest waits where it is.
		if n := len(w.loop.events); n < len(w.live().procs)*maxUnheard || n >= maxEvents {
			w.fail("%d events wait", n)
		}
		unblock()
	})
	p.look = time.Hour
	p.judge = func(w *world) {
		for _, c := range w.clients {
			if !c.complete() && (c.refused == nil || c.refused.Kind != fault.NotReady) && !c.left {
				w.fail("request %s: %v %v", c.spec.ID, c.refused, c.out.Err)
			}
		}
		w.generations(1, 1)
	}
	play(t, p, func(w *world) {
		w.fill(30, 500*time.Millisecond, 40, 40)
		for i, c := range w.clients {
			if i%3 == 0 {
				c.leave = leave{how: "close", after: 150 * time.Millisecond}
			}
		}
	})
}

// M19: the canary is on its way when its generation ends. That says nothing about
// whether requests complete.
func TestCanaryInFlightAtGenerationChange(t *testing.T) {
	p := quiet(transfer.Handover)
	p.perStep = 500 * time.Millisecond
	for _, at := range []time.Duration{150, 400} {
		p.at(at*time.Millisecond, "dies", func(w *world, _ *actor) {
			if w.loop.Ready() == nil {
				w.fail("the canary was faster")
			}
			w.by("decode/0.0").die("signal: killed")
		})
	}
	p.judge = func(w *world) {
		w.all()
		w.generations(3, 3)
		if n := w.count(observe.CanaryFailed); n != 0 {
			w.fail("%d canaries failed", n)
		}
	}
	play(t, p, func(w *world) {
		w.add(&client{arrive: 3 * time.Second, spec: request.Spec{Prompt: []int32{7, 7}, MaxTokens: 3}})
	})
}

// A launch that is reported only when its ranks are ready already.
func TestRanksAreReadyBeforeTheLaunchReturns(t *testing.T) {
	each(t, func(p *plan) {
		p.launchAs = func(int) launchFault { return launchFault{lingers: 500 * time.Millisecond} }
		p.judge = func(w *world) {
			w.all()
			w.generations(1, 1)
			for _, c := range w.clients {
				if c.first > time.Second {
					w.fail("request %s got its first token at %v", c.spec.ID, c.first)
				}
			}
		}
	}, func(w *world) { w.fill(5, 50*time.Millisecond, 20, 20) })
}

// A burst is shared among the decode replicas before any of it has come that far.
func TestBurstIsShared(t *testing.T) {
	each(t, func(p *plan) {
		p.d, p.canary = shape{2, 1}, nil
		p.at(150*time.Millisecond, "count", func(w *world, _ *actor) {
			rs, err := w.loop.Requests(time.Second)
			on := [2]int{}
			for _, r := range rs {
				if r.Decode >= 0 {
					on[r.Decode]++
				}
			}
			if err != nil || on[0]+on[1] < 20 || on[0]-on[1] > 2 || on[1]-on[0] > 2 {
				w.fail("the replicas have %v of the requests, %v", on, err)
			}
		})
		p.judge = (*world).all
	}, func(w *world) {
		for range 30 {
			w.add(&client{arrive: 120 * time.Millisecond, spec: request.Spec{Prompt: make([]int32, 20), MaxTokens: 60}})
		}
	})
}
