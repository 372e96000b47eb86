package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/daemon/admit"
	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
	"tandem/gpu/pagepool"
)

// Failures of other engines' handoff, each as what would happen here. daemon/HANDOFF.md
// says which report each stands for.

// served begins with a generation that is proven, and sends no more canaries.
func served(t *testing.T, change ...func(*Options)) *stage {
	t.Helper()
	s := newStage(t, change...)
	s.passCanary()
	s.c.o.Canary = nil
	return s
}

func roomy(n int) func(*Options) {
	return func(o *Options) {
		o.DecodePages, o.PrefillPages, o.Slots, o.MaxBatch = 8*n, 8*n, 2*n, n
		o.Admit = admit.Limits{Running: n, Queued: n}
	}
}

// full fails unless every page is free and nobody has a slot or a place.
func (s *stage) full() {
	s.t.Helper()
	for _, list := range s.c.replicas {
		for _, r := range list {
			if r.pool != nil && (r.pool.Free() != r.pool.Total() || r.pool.Drift() != 0) {
				s.t.Errorf("pool %s: %d of %d free, drift %d", r.pool.Name(), r.pool.Free(), r.pool.Total(), r.pool.Drift())
			}
			if r.work != 0 {
				s.t.Errorf("%s is thought to have work: %d", r.Replica, r.work)
			}
		}
	}
	for _, sl := range s.c.slots {
		if slices.Contains(sl, true) {
			s.t.Error("a slot is taken")
		}
	}
	if len(s.c.attempts)+len(s.c.queue)+len(s.c.requests) != 0 {
		s.t.Errorf("%d attempts, %d queued, %d requests", len(s.c.attempts), len(s.c.queue), len(s.c.requests))
	}
	if s.bad != "" {
		s.t.Error(s.bad)
	}
}

func (s *stage) wasSent(what string) bool { return slices.Contains(s.sent, what) }

func (s *stage) leave(t Ticket) {
	s.c.Tell(s.c.now, t, request.Event{Kind: request.Closed}, "the client left")
}

// One transfer of thirty never completes: its client gets an answer at the limit, and
// the others never notice.
func TestOneTransferNeverCompletes(t *testing.T) {
	s := served(t, roomy(30))
	var lost Ticket
	var stuck *attempt
	for i := range 30 {
		tk, a := s.submit(fmt.Sprint("r", i), 1)
		if i == 17 {
			lost, stuck = tk, a
			s.take(a, toSealed)
			s.say(1, &wire.Landed{Attempt: a.id.Seq, Pages: uint32(a.pages)})
			s.say(1, &wire.Verified{Attempt: a.id.Seq})
			continue
		}
		s.take(a, toVerified)
		s.token(a, request.FinishLength)
		if s.ends[tk] != "length" {
			t.Errorf("request %d: %q", i, s.ends[tk])
		}
		s.leave(tk)
	}
	s.pass(s.c.o.Request.Transfer + time.Second)
	if s.ends[lost] != fault.TransferTimeout.String() {
		t.Errorf("the stuck one: %q", s.ends[lost])
	}
	e := s.find(observe.RequestStuck)
	if len(e) != 1 || e[0].fields["reason"] != "waits for decode/0.1" || e[0].fields["state"] != "transferring" || !strings.Contains(e[0].fields["ranks"], "0 of 1 pages") || s.stuck != 1 {
		t.Errorf("%v", e)
	}
	if d := s.find(observe.RankDivergence); len(d) != 1 || d[0].fields["behind"] != "decode/0.1" || d[0].fields["rank"] != "0.1" {
		t.Errorf("%v", d)
	}
	s.quiet(stuck)
	s.leave(lost)
	s.full()
	if s.c.number != 7 {
		t.Errorf("generation %d: one request's failure replaced it", s.c.number)
	}
}

// A side that refuses: the client hears of it at once, and so does the other side.
func TestEitherSideRefuses(t *testing.T) {
	for _, rank := range []int{0, 1, 2} {
		for _, how := range []int{toReserved, toSealed} {
			s := served(t)
			tk, a := s.submit("r", 4)
			s.take(a, how)
			s.say(rank, &wire.Failed{Attempt: a.id.Seq, Kind: fault.Numerics, Text: "this layout is not supported"})
			if s.ends[tk] != fault.Numerics.String() {
				t.Errorf("rank %d: the client got %q at once", rank, s.ends[tk])
			}
			// Prefill that said it was done is quiet already; decode always has to be asked.
			if !s.wasSent(fmt.Sprintf("decode/0.0 quiesce %d", a.id.Seq)) || how < toSealed && !s.wasSent(fmt.Sprintf("prefill/0.0 quiesce %d", a.id.Seq)) {
				t.Errorf("rank %d, %d: the other side was not told: %v", rank, how, s.sent)
			}
			done := s.find(observe.RequestDone)
			if r := done[len(done)-1].fields["reason"]; !strings.Contains(r, "not supported") {
				t.Errorf("the reason is %q", r)
			}
			s.quiet(a)
			s.leave(tk)
			s.full()
		}
	}
}

// A side that hangs: the client hears of it at the limit of the state, by its name.
func TestEitherSideHangs(t *testing.T) {
	for _, c := range []struct {
		how   int
		limit func(*request.Limits) time.Duration
		want  fault.Kind
		tries int
	}{
		{-1, func(l *request.Limits) time.Duration { return l.Reserve }, fault.ReserveTimeout, 2},
		{toReserved, func(l *request.Limits) time.Duration { return l.PrefillStall }, fault.PrefillStall, 1},
		{toSealed, func(l *request.Limits) time.Duration { return l.Handoff }, fault.HandoffStall, 2},
		{toVerified, func(l *request.Limits) time.Duration { return l.FirstToken }, fault.FirstToken, 1},
	} {
		s := served(t)
		tk, a := s.submit("r", 4)
		for try := range c.tries {
			if c.how >= 0 {
				s.take(a, c.how)
			}
			if s.ends[tk] != "" {
				t.Errorf("%s: ended before the limit", c.want)
			}
			s.pass(c.limit(&s.c.o.Request) + 100*time.Millisecond)
			s.quiet(a)
			if try+1 < c.tries {
				if a = s.c.requests[tk].attempt; a == nil {
					t.Fatalf("%s: no other attempt", c.want)
				}
			}
		}
		if s.ends[tk] != c.want.String() {
			t.Errorf("ended with %q, want %s", s.ends[tk], c.want)
		}
		s.leave(tk)
		s.full()
	}
}

// Most of two hundred clients leave at once during prefill. Decode's side is free as
// soon as the ranks say that they are quiet, and not by a limit.
func TestMassAbort(t *testing.T) {
	for _, how := range []int{toReserved, toSealed, toVerified} {
		s := served(t, roomy(200))
		tickets, attempts := map[int]Ticket{}, map[int]*attempt{}
		for i := range 200 {
			tickets[i], attempts[i] = s.submit(fmt.Sprint("r", i), 4)
			s.take(attempts[i], how)
		}
		for i := range 178 {
			s.leave(tickets[i])
		}
		for i := range 178 {
			s.quiet(attempts[i])
		}
		d := s.c.replicas[1][0].pool
		if used := d.Total() - d.Free(); used != 22*attempts[199].held() {
			t.Errorf("%d pages are held for 22 requests", used)
		}
		for i := 178; i < 200; i++ {
			if how < toVerified {
				s.take(attempts[i], toVerified)
			}
			s.token(attempts[i], request.FinishLength)
			s.leave(tickets[i])
		}
		s.serve("afterwards")
		s.full()
		if s.c.number != 7 {
			t.Errorf("generation %d", s.c.number)
		}
	}
}

// A client leaves in each state, whatever the transport. Pages that a rank may touch
// are never free before it says that it is quiet, and there is one ending.
func TestLeaveInEveryState(t *testing.T) {
	for _, tr := range []transfer.Transport{transfer.Handover, transfer.Pull, transfer.Push} {
		for how := -1; how <= toVerified+1; how++ {
			s := served(t, func(o *Options) { o.Transport = tr; o.PrefillPages = 16 })
			tk, a := s.submit("r", 4)
			if how >= 0 {
				s.take(a, min(how, toVerified))
			}
			if how > toVerified {
				s.token(a, 0)
			}
			before := s.c.requests[tk].m.State
			s.leave(tk)
			if a.target.Ended() || a.target.State() != pagepool.Quarantined {
				t.Errorf("%s, %s: decode's pages are %s", tr, before, a.target.State())
			}
			if a.source != nil && how == toReserved && (a.source.Ended() || a.source.State() != pagepool.Quarantined) {
				t.Errorf("%s, %s: prefill's pages are %s", tr, before, a.source.State())
			}
			q := s.find(observe.SlotQuarantine)
			if len(q) != 1 {
				t.Errorf("%s, %s: %v", tr, before, q)
			}
			s.quiet(a)
			s.full()
			if r := s.find(observe.AbortReceipt); len(r) != 1 || r[0].fields["reason"] != "quiet" || r[0].fields["request"] != "r" {
				t.Errorf("%s, %s: %v", tr, before, r)
			}
			ended := 0
			for _, e := range s.find(observe.RequestDone) {
				if e.fields["request"] == "r" && e.fields["code"] == "cancelled" {
					ended++
				}
			}
			if ended != 1 {
				t.Errorf("%s, %s: it was cancelled %d times", tr, before, ended)
			}
		}
	}
	s := served(t, func(o *Options) { o.Admit.Running = 1 })
	_, a := s.submit("first", 4)
	tk, none := s.submit("queued", 4)
	if none != nil {
		t.Fatal("not queued")
	}
	s.leave(tk)
	s.c.Cancel(s.c.now, "first")
	s.quiet(a)
	s.leave(s.c.names["first"])
	s.full()
}

// The pool is full of requests whose clients have gone, and nobody says that it is
// quiet. Without any new request, time alone brings everything back.
func TestPoolEmptiesByTimeAlone(t *testing.T) {
	s := served(t, roomy(4))
	for i := range 4 {
		tk, a := s.submit(fmt.Sprint("r", i), 4)
		s.take(a, toSealed)
		s.leave(tk)
	}
	s.pass(s.c.o.Quarantine + time.Second)
	if !slices.Equal(s.ended, []string{"quarantine"}) {
		t.Fatalf("ended: %v", s.ended)
	}
	if e := s.find(observe.SlotOverdue); len(e) != 1 || !strings.Contains(e[0].fields["ranks"], "prefill/0.0 process") {
		t.Errorf("%v", e)
	}
	s.reap()
	s.up()
	s.full()
}

// A rank that looks at its orders every second and a half costs that time, and nothing else.
func TestSlowRankIsOnlyLatency(t *testing.T) {
	s := served(t, func(o *Options) { o.Request.Verify = 2 * time.Second })
	tk, a := s.submit("r", 1)
	for _, m := range []wire.Message{&wire.Reserved{Attempt: a.id.Seq}, &wire.Landed{Attempt: a.id.Seq, Pages: uint32(a.pages)}, &wire.Verified{Attempt: a.id.Seq}} {
		s.pass(1500 * time.Millisecond)
		s.say(1, m)
		s.say(2, m)
		if _, first := m.(*wire.Reserved); first {
			s.say(0, &wire.Sealed{Attempt: a.id.Seq, Tokens: uint32(a.tokens), Pages: uint32(a.pages), Done: true})
		}
	}
	s.token(a, request.FinishLength)
	if s.ends[tk] != "length" || s.c.requests[tk].m.Tries != 1 {
		t.Errorf("%q after %d attempts", s.ends[tk], s.c.requests[tk].m.Tries)
	}
}

// Transfers of one edge fail: requests of the other edge do not, and after the third
// the generation is replaced, without an operator.
func TestEdgeBecomesSuspect(t *testing.T) {
	s := served(t, roomy(8), func(o *Options) {
		o.Ranks[2] = ident.Rank{Replica: ident.Replica{Role: ident.Decode, Index: 1}}
	})
	for i := range strikeOut {
		if len(s.ended) != 0 {
			t.Fatalf("replaced after %d", i)
		}
		good, b := s.submit(fmt.Sprint("good", i), 2)
		s.take(b, toVerified)
		s.token(b, 0)
		bad, a := s.submit(fmt.Sprint("bad", i), 2) // to the replica that has nothing to do
		if b.dst.Index != 0 || a.dst.Index != 1 {
			t.Fatalf("on %s and %s", b.dst.Replica, a.dst.Replica)
		}
		s.take(a, toSealed)
		s.say(a.dst.ranks[0], &wire.Failed{Attempt: a.id.Seq, Kind: fault.DigestMismatch, Text: "unit 0"})
		last := ""
		if len(s.ended) == 0 {
			s.token(b, request.FinishLength)
			last = "length"
		} // else it goes on in the next generation
		if s.ends[bad] != fault.DigestMismatch.String() || s.ends[good] != last {
			t.Errorf("%q and %q", s.ends[bad], s.ends[good])
		}
		s.quiet(a)
		s.leave(bad)
		s.leave(good)
	}
	if !slices.Equal(s.ended, []string{"edge"}) {
		t.Fatalf("ended: %v", s.ended)
	}
	if e := s.find(observe.EdgeSuspect); len(e) != 1 || e[0].fields["src"] != "prefill0" || e[0].fields["dst"] != "decode1" || e[0].fields["failures"] != "3" {
		t.Errorf("%v", e)
	}
}

// A request is set back a hundred times: each attempt has a name of its own, and what
// ranks say of an earlier one changes nothing in a later one.
func TestAttemptsHaveNamesOfTheirOwn(t *testing.T) {
	s := served(t)
	tk, a := s.submit("r", 1)
	seen := map[uint64]bool{}
	for range 100 {
		if a == nil || seen[a.id.Seq] {
			t.Fatalf("attempt %v was there before", a)
		}
		seen[a.id.Seq] = true
		s.take(a, toVerified)
		old := a
		s.c.at(s.c.now, func() { s.c.step(s.c.requests[tk], request.Event{Kind: request.Retracted}, "to see") })
		a = s.c.requests[tk].attempt
		s.quiet(old)
		was, ignored := a.t, s.c.ignored["late *wire.Verified"]
		s.say(1, &wire.Verified{Attempt: old.id.Seq})
		if a.t != was || s.c.ignored["late *wire.Verified"] != ignored+1 {
			t.Fatal("a late message of an earlier attempt counts in a later one, or is not counted")
		}
	}
	s.take(a, toVerified)
	s.token(a, request.FinishLength)
	s.leave(tk)
	s.full()
}

// A rank does not come up: it is named, nothing is ready, and once that is certain no
// request is accepted.
func TestRankThatDoesNotComeUpIsNamed(t *testing.T) {
	s := newStage(t)
	s.c.Restart(s.c.now, "test")
	s.reap()
	procs := make([]Proc, 3)
	s.procs = make([]proc, 3)
	s.c.Launched(s.c.now, s.c.number, procs, "", nil)
	s.say(1, &wire.Ready{})
	s.say(2, &wire.Ready{})
	s.pass(s.c.o.Supervise.Start + time.Second)
	s.reap()
	if s.c.sup.State != supervise.Waiting || !strings.Contains(s.c.Ready().Error(), "prefill/0.0 not ready within 20s") {
		t.Errorf("%s: %v", s.c.sup.State, s.c.Ready())
	}
	if _, err := s.c.Submit(s.c.now, request.Spec{ID: "r", Prompt: []int32{1}, MaxTokens: 1}); err == nil || err.Kind != fault.NotReady {
		t.Errorf("a request was accepted: %v", err)
	}
}

// Ranks of either side die again and again. There is never more than one generation
// alive (the stage looks at every spawn), and the request survives all of it.
func TestFiftyDeathsOfEachSide(t *testing.T) {
	for _, rank := range []int{0, 1, 2} {
		s := served(t, func(o *Options) {
			o.Context, o.DecodePages, o.Request.Request, o.Supervise.Budget = 128, 64, 24*time.Hour, 100
		})
		tk, a := s.submit("r", 60)
		for i := range 50 {
			s.take(a, toVerified)
			s.token(a, 0)
			s.procs[rank].alive, s.procs[rank].gone = false, true
			s.c.Exited(s.c.now, s.c.number, rank, Exit{Text: "signal: segmentation fault", Killed: true})
			s.reap()
			if want := ident.Generation(8 + i); s.c.number != want {
				t.Fatalf("generation %d, want %d", s.c.number, want)
			}
			s.up()
			if a = s.c.requests[tk].attempt; a == nil {
				t.Fatalf("no attempt in generation %d: %s", s.c.number, s.ends[tk])
			}
		}
		if s.tokens[tk] != 50 || s.ends[tk] != "" {
			t.Errorf("%d tokens, ended %q", s.tokens[tk], s.ends[tk])
		}
		s.take(a, toVerified)
		s.token(a, request.FinishLength)
		s.leave(tk)
		s.full()
	}
}

// Clients give up after 200 ms and ask again, three times. What they hold never
// exceeds what admission lets in.
func TestRetryStorm(t *testing.T) {
	s := served(t)
	type asked struct {
		t Ticket
		a *attempt
	}
	for round := range 3 {
		var all []asked
		for i := range 50 {
			tk, err := s.c.Submit(s.c.now, request.Spec{ID: ident.Request(fmt.Sprint("r", round, ".", i)), Prompt: []int32{1, 2, 3}, MaxTokens: 4})
			if err == nil {
				all = append(all, asked{tk, s.c.requests[tk].attempt})
			} else if err.Kind != fault.QueueFull {
				t.Error(err)
			}
			if len(s.c.requests) > s.c.o.Admit.Total() || s.c.running() > s.c.o.Admit.Running {
				t.Fatalf("%d admitted, %d running", len(s.c.requests), s.c.running())
			}
		}
		if len(all) != s.c.o.Admit.Total() {
			t.Errorf("%d accepted", len(all))
		}
		s.pass(200 * time.Millisecond)
		var begun []*attempt
		for _, q := range all {
			if r := s.c.requests[q.t]; r != nil && r.attempt != nil {
				begun = append(begun, r.attempt)
			}
			s.leave(q.t)
		}
		for seq := range s.c.attempts { // those that took a place that became free meanwhile too
			begun = append(begun, s.c.attempts[seq])
		}
		for _, a := range begun {
			s.quiet(a)
		}
	}
	s.full()
}

// Prefill's last word never comes although decode has everything: tokens flow, it is
// told, and only the memory waits.
func TestTokensFlowWithoutPrefillsLastWord(t *testing.T) {
	s := served(t)
	tk, a := s.submit("r", 3)
	s.take(a, toReserved)
	for _, r := range []int{1, 2} {
		s.say(r, &wire.Landed{Attempt: a.id.Seq, Pages: uint32(a.pages)})
		s.say(r, &wire.Verified{Attempt: a.id.Seq})
	}
	s.token(a, 0)
	if s.tokens[tk] != 1 {
		t.Error("the first token waited for prefill")
	}
	s.pass(s.c.o.Request.Handoff + time.Second)
	if e := s.find(observe.TransferCompletionLost); len(e) != 1 || e[0].fields["rank"] != "0.0" || e[0].fields["role"] != "prefill" {
		t.Errorf("%v", e)
	}
	if !s.wasSent(fmt.Sprintf("prefill/0.0 quiesce %d", a.id.Seq)) {
		t.Error("prefill was not asked")
	}
	s.token(a, 0)
	s.token(a, request.FinishLength)
	s.leave(tk)
	s.full()
	if s.ends[tk] != "length" || s.c.number != 7 {
		t.Errorf("%q in generation %d", s.ends[tk], s.c.number)
	}
}

// One of two ranks does not say that it is quiet, or was never told: its pages are not
// used again, and then its process is ended.
func TestQuiesceIsNotAcknowledged(t *testing.T) {
	s := served(t, func(o *Options) { o.Transport = transfer.Push; o.PrefillPages = 16 })
	tk, a := s.submit("r", 4)
	s.take(a, toReserved)
	s.leave(tk)
	s.say(0, &wire.Quiet{Attempt: a.id.Seq})
	s.say(1, &wire.Quiet{Attempt: a.id.Seq})
	held := map[pagepool.Page]bool{}
	for _, p := range a.target.Pages() {
		held[p] = true
	}
	for i := range 20 { // every other page is used meanwhile
		tk, b := s.submit(fmt.Sprint("other", i), 1)
		for _, p := range b.target.Pages() {
			for h := range held {
				if h.Index == p.Index {
					t.Fatalf("page %d is used again", p.Index)
				}
			}
		}
		s.take(b, toVerified)
		s.token(b, request.FinishLength)
		s.leave(tk)
		s.pass(200 * time.Millisecond)
	}
	s.pass(s.c.o.Quarantine)
	if !slices.Equal(s.ended, []string{"quarantine"}) {
		t.Fatalf("ended: %v", s.ended)
	}
	s.reap()
	s.up()
	s.full()
}

// The shortest answers: one token, and none.
func TestShortestAnswers(t *testing.T) {
	s := served(t)
	for name, finish := range map[string]request.Finish{"length": request.FinishLength, "stop": request.FinishStop} {
		tk, a := s.submit(name, 1)
		s.take(a, toVerified)
		s.token(a, finish)
		want := map[string]int{"length": 1, "stop": 0}[name]
		if s.ends[tk] != name || s.tokens[tk] != want {
			t.Errorf("%q with %d tokens, want %s with %d", s.ends[tk], s.tokens[tk], name, want)
		}
		s.leave(tk)
	}
	s.full()
}

// A rank does not read what it is sent: it is given up, by name.
func TestRankThatDoesNotReadIsGivenUp(t *testing.T) {
	s := served(t)
	s.deaf = 2
	s.submit("r", 1)
	if !slices.Equal(s.ended, []string{"not_reading"}) {
		t.Fatalf("ended: %v", s.ended)
	}
	if e := s.find(observe.WorkerProtocol); len(e) != 1 || e[0].fields["rank"] != "0.1" || e[0].fields["role"] != "decode" {
		t.Errorf("%v", e)
	}
}

// What is said of an attempt that is over is counted; what is said of one that never
// was is a lie.
func TestMessagesAboutUnknownAttempts(t *testing.T) {
	s := served(t)
	s.serve("r")
	for _, m := range []wire.Message{&wire.Reserved{Attempt: 2}, &wire.Landed{Attempt: 2}, &wire.Verified{Attempt: 2}, &wire.Quiet{Attempt: 2}, &wire.Failed{Attempt: 2}} {
		before := s.c.ignored["late "+fmt.Sprintf("%T", m)]
		s.say(1, m)
		if s.c.ignored["late "+fmt.Sprintf("%T", m)] != before+1 || len(s.ended) != 0 {
			t.Errorf("%T: counted %v, ended %v", m, s.c.ignored, s.ended)
		}
	}
	s.full()
	s.say(1, &wire.Quiet{Attempt: 99})
	if !slices.Equal(s.ended, []string{"protocol"}) {
		t.Errorf("ended: %v", s.ended)
	}
}
