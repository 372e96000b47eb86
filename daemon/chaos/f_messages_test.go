package chaos

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Scenarios in which what ranks say, hear, copy and publish is lost, late, doubled
// or wrong.

// short are limits that let a scenario of lost messages end soon.
var short = []string{`deadlines.reserve="700ms"`, `deadlines.prefill_stall="4s"`, `deadlines.handoff="700ms"`, `deadlines.transfer="1500ms"`, `deadlines.verify="700ms"`,
	`deadlines.first_token="4s"`, `deadlines.token_stall="4s"`, `deadlines.quarantine="1500ms"`, `deadlines.progress="1s"`, "restart.budget=100000", "limits.max_attempts=20"}

// named are the codes with which a request may end that lost something.
var named = []string{"reserve_timeout", "prefill_stall", "handoff_stall", "kv_transfer_timeout", "kv_verify_timeout", "kv_digest_mismatch", "kv_epoch_changed",
	"first_token_timeout", "token_stall", "generation_changed", "worker_lost", "queue_timeout"}

func isNamed(err error) bool {
	return slices.ContainsFunc(named, func(code string) bool { return strings.Contains(err.Error(), code) })
}

// F9: one in a hundred of all messages about requests is lost, both ways. Every
// request ends, with its answer or a named error; no more of them fail than messages
// were lost; nothing is left behind.
func TestF09_MessagesLost(t *testing.T) {
	a := startFaulty(t, short...)
	rounds := 1
	if *all {
		rounds = 10
	}
	a.inject("at=say p=0.01 do=drop id=lost", "at=hear p=0.01 do=drop id=lost")
	failed := 0
	for range rounds {
		qs, answers := crowd(t, 2*clients())
		got, errs := a.each(qs)
		for i, err := range errs {
			switch {
			case err == nil && got[i] != answers[i]:
				t.Errorf("answered\n%q\ninstead of\n%q", got[i], answers[i])
			case err != nil && !isNamed(err):
				t.Error(err)
			case err != nil:
				failed++
			}
		}
	}
	lost := len(a.mustInject())
	t.Logf("%d messages lost, %d requests of %d failed, %d generations", lost, failed, rounds*2*clients(), a.gen())
	if failed > lost {
		t.Errorf("%d requests failed, and only %d messages were lost", failed, lost)
	}
	a.calm()
	a.waitReady()
	a.settled()
}

// each asks all at once and gives what came of each.
func (a *appliance) each(qs []question) ([]string, []error) {
	out, errs := make([]string, len(qs)), make([]error, len(qs))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for i := range qs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var r answer
			r, errs[i] = a.get(ctx, qs[i])
			out[i] = r.text
		}()
	}
	wg.Wait()
	return out, errs
}

// F10: one in ten of what ranks say is said twice, one in ten is overtaken by the
// next. No client sees anything. What the daemon says comes through a socket that
// does neither.
func TestF10_MessagesDoubledAndReordered(t *testing.T) {
	for _, transport := range []string{"handover", "pull", "push"} {
		t.Run(transport, func(t *testing.T) {
			if transport != "pull" {
				long(t, "pull is the transport in which most is said")
			}
			a := startFaulty(t, `kv.transport="`+transport+`"`)
			before := a.gen()
			a.inject("at=say p=0.1 do=twice", "at=say p=0.1 do=swap-order")
			a.storm(t, "decoding", 1, func() {})
			a.storm(t, "decoding", 1, func() {})
			t.Logf("%d faults", len(a.mustInject()))
			a.changed(before, 0)
			a.settled() // with the faults going on
		})
	}
}

// F11: ranks never say that they are quiet. Pages wait in quarantine, then the
// generation is replaced; no page is used again before.
func TestF11_QuietLost(t *testing.T) {
	a := startFaulty(t, `deadlines.quarantine="1500ms"`)
	before := a.gen()
	total := a.status().Pools[0].Total
	a.inject("at=say kind=Quiet do=drop")
	ctx, cancel := context.WithCancel(context.Background())
	q := questions[3]
	q.tokens = 200
	q.on = func(int, string) { cancel() }
	if _, err := a.get(ctx, q); err == nil {
		t.Error("an answer although the client left")
	}
	seen := false
	a.within(20*time.Second, "the next generation", func() bool {
		s := a.status()
		if uint64(s.Generation) > before {
			return true
		}
		for _, p := range s.Pools {
			seen = seen || p.States["quarantined"] > 0
			if p.States["free"] == total {
				t.Error("every page is free although no rank said that it is quiet")
			}
		}
		return false
	})
	if !seen {
		t.Error("no page was ever in quarantine")
	}
	if len(a.events("slot.overdue")) == 0 {
		t.Error("no event tells of it")
	}
	a.mustInject()
	a.calm()
	a.changed(before, 1)
	a.settled()
}

// fails asks one question and wants an error with one of these codes, and no text.
func (a *appliance) fails(t *testing.T, q question, codes ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got, err := a.get(ctx, q)
	if err == nil || !slices.ContainsFunc(codes, func(c string) bool { return strings.Contains(err.Error(), c) }) {
		t.Errorf("%v (text %q), want %v", err, got.text, codes)
	}
	if got.text != "" {
		t.Errorf("a token came before: %q", got.text)
	}
}

// F12: every copy takes longer than a transfer may. The requests end with that; only
// when transfers between the same two replicas fail again and again is the
// generation replaced, and not with each.
func TestF12_CopiesTooSlow(t *testing.T) {
	a := startFaulty(t, `kv.transport="pull"`, `deadlines.transfer="400ms"`, `deadlines.handoff="5s"`, `deadlines.quarantine="30s"`)
	before := a.gen()
	a.inject("at=take ms=600 do=late")
	q := question{user: strings.Repeat("What is it that we see? ", 14), tokens: 20} // two pages
	for range 2 {
		a.fails(t, q, "kv_transfer_timeout")
	}
	a.changed(before, 0)
	a.fails(t, q, "kv_transfer_timeout")
	a.mustInject()
	a.within(20*time.Second, "the next generation", func() bool { return a.gen() > before })
	if e := a.events("edge.suspect"); len(e) != 1 {
		t.Errorf("%d times was an edge suspected", len(e))
	}
	a.calm()
	a.waitReady()
	a.changed(before, 1)
	if got := a.mustGet(questions[3]).text; got != want(t)[3] {
		t.Errorf("answered %q", got)
	}
	a.settled()
}

// F13: a byte of some transfers is damaged. Exactly those requests fail, before a
// token, and are counted. With the third the edge is given up: the generation is
// replaced.
func TestF13_BytesDamaged(t *testing.T) {
	for _, transport := range []string{"pull", "push", "handover"} {
		t.Run(transport, func(t *testing.T) {
			if transport != "push" {
				long(t, "push is the transport in which most can go wrong")
			}
			a := startFaulty(t, `kv.transport="`+transport+`"`)
			before := a.gen()
			a.inject("at=take rank=decode/0.0 nth=3 do=corrupt id=a", "at=take rank=decode/0.0 nth=24 do=corrupt id=b")
			qs, answers := crowd(t, 2*clients())
			got, errs := a.each(qs)
			failed := 0
			for i, err := range errs {
				switch {
				case err == nil && got[i] != answers[i]:
					t.Errorf("answered\n%q\ninstead of\n%q", got[i], answers[i])
				case err != nil && (!strings.Contains(err.Error(), "kv_digest_mismatch") || got[i] != ""):
					t.Errorf("%v after %q", err, got[i])
				case err != nil:
					failed++
				}
			}
			if n := len(a.injected()); n != 2 || failed != n {
				t.Errorf("%d pages were damaged and %d requests failed", n, failed)
			}
			if n := a.scrape()[`tandem_verify_failures_total{reason="digest"}`]; n != 2 {
				t.Errorf("%v digests were wrong by the metric", n)
			}
			a.changed(before, 0)
			a.inject("at=take rank=decode/0.0 most=1 do=corrupt id=c")
			a.fails(t, questions[1], "kv_digest_mismatch", "generation_changed")
			a.calm()
			a.within(20*time.Second, "the next generation", func() bool { return a.gen() > before })
			a.waitReady()
			a.changed(before, 1)
			a.settled()
		})
	}
}

// F14: prefill publishes a page before it has landed, sealed or not. The check sees
// it; no wrong text.
func TestF14_PublishedBeforeLanded(t *testing.T) {
	for _, transport := range []string{"push", "handover", "pull"} {
		for _, do := range []string{"early", "unlanded"} {
			t.Run(transport+" "+do, func(t *testing.T) {
				if transport != "push" {
					long(t, "push is the transport in which most can go wrong")
				}
				a := startFaulty(t, `kv.transport="`+transport+`"`)
				for _, rank := range []string{"prefill/0.0", "prefill/0.1"} {
					if strings.HasSuffix(rank, "1") && len(a.status().Ranks) < 4 {
						continue
					}
					// All of them: a page is taken when the last of a rank's units is published.
					a.inject("at=seal ms=20 do=" + do + " rank=" + rank)
					a.fails(t, questions[3], "kv_digest_mismatch", "kv_epoch_changed")
					a.mustInject()
				}
				a.calm()
				if got := a.mustGet(questions[3]).text; got != want(t)[3] {
					t.Errorf("answered %q", got)
				}
				a.settled()
			})
		}
	}
}

// F15: the pages of two requests are swapped on their way. Both fail the check.
func TestF15_PagesSwapped(t *testing.T) {
	for _, transport := range []string{"push", "pull", "handover"} {
		t.Run(transport, func(t *testing.T) {
			if transport != "push" {
				long(t, "push is the transport in which most can go wrong")
			}
			a := startFaulty(t, `kv.transport="`+transport+`"`)
			before := a.gen()
			a.inject("at=hear rank=prefill/0.0 kind=Prefill do=swap-pages most=2")
			// From the first page on different, or the swap would harm nobody.
			_, errs := a.each([]question{questions[3], {user: strings.Repeat("What is it that we see? ", 60), tokens: 20}})
			for _, err := range errs {
				if err == nil || !strings.Contains(err.Error(), "kv_digest_mismatch") && !strings.Contains(err.Error(), "kv_epoch_changed") {
					t.Errorf("%v", err)
				}
			}
			if n := len(a.injected()); n != 2 {
				t.Errorf("%d requests were mixed up", n)
			}
			a.calm()
			a.changed(before, 0)
			compare(t, "afterwards", want(t), texts(a.all(questions)))
			a.settled()
		})
	}
}

// F16: one of two ranks does not confirm what the other does, in no attempt. The
// request ends in time, and an event for each attempt names the rank.
func TestF16_OneRankDoesNotConfirm(t *testing.T) {
	a := startFaulty(t, `deadlines.verify="1s"`)
	if len(a.status().Ranks) < 4 {
		t.Skip("this machine has one core: there is no second rank")
	}
	before := a.gen()
	a.inject("at=say kind=Verified rank=decode/0.1 most=3 do=drop") // limits.max_attempts
	a.fails(t, questions[1], "kv_verify_timeout")
	a.mustInject()
	e := a.events("rank.divergence")
	if len(e) != 3 || !strings.Contains(e[0].Msg, "decode/0.1") {
		t.Errorf("%+v", e)
	}
	a.changed(before, 0)
	if got := a.mustGet(questions[1]).text; got != want(t)[1] {
		t.Errorf("answered %q", got)
	}
	a.settled()
}

// F18: many clients leave just when prefill is done and decode has taken nothing.
func TestF18_ClientsLeaveAtHandoff(t *testing.T) {
	a := startFaulty(t, `kv.transport="pull"`, `deadlines.handoff="10s"`, `deadlines.transfer="10s"`)
	before := a.gen()
	a.inject("at=take ms=150 do=late")
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range clients() {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, err := a.get(ctx, questions[i%2]); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		}()
	}
	a.await("handoff", 2)
	cancel()
	wg.Wait()
	a.mustInject()
	a.calm()
	a.changed(before, 0)
	a.settled()
}

// F34: prefill's word that it is done never comes, or none of its words does. Tokens
// flow all the same: decode trusts the pages, not the messages. What is left on
// prefill's side is asked for and given back.
func TestF34_CompletionLost(t *testing.T) {
	a := startFaulty(t, `deadlines.handoff="500ms"`)
	before := a.gen()
	for _, which := range []string{"kind=Sealed last", "kind=Sealed"} {
		a.inject("at=say rank=prefill do=drop " + which)
		told := len(a.events("transfer.completion_lost"))
		a.storm(t, "decoding", 1, func() {})
		q := question{prompt: make([]int32, 150), tokens: 400} // longer than prefill may be late
		for i := range q.prompt {
			q.prompt[i] = int32(1000 + i)
		}
		a.mustGet(q)
		a.mustInject()
		if now := len(a.events("transfer.completion_lost")); now == told {
			t.Errorf("%s: no event tells of it", which)
		}
		a.settled() // with the fault going on
	}
	a.changed(before, 0)
}

// F36: a client leaves before its request has reached prefill. What arrives then is
// refused: nothing is computed.
func TestF36_GivenUpBeforeItArrives(t *testing.T) {
	a := startFaulty(t)
	before := a.gen()
	plans := func() (n uint64) {
		for _, r := range a.status().Ranks {
			if r.Ident().String() == "prefill/0.0" {
				n = r.Plans
			}
		}
		return n
	}
	a.inject("at=hear rank=prefill/0.0 kind=Prefill ms=800 do=late")
	p := plans()
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(300*time.Millisecond, cancel)
	if _, err := a.get(ctx, questions[3]); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	a.settled()
	a.mustInject()
	time.Sleep(time.Second) // the order arrives
	// One plan, without a token, retires the attempt.
	if n := plans(); n > p+1 {
		t.Errorf("prefill computed %d plans for a client that had left", n-p)
	}
	a.changed(before, 0)
	a.calm()
	if got := a.mustGet(questions[3]).text; got != want(t)[3] {
		t.Errorf("answered %q", got)
	}
	a.settled()
}

// F38: the canary of three generations fails while clients get their answers. That
// is told, and changes nothing.
func TestF38_CanaryFails(t *testing.T) {
	a := startFaulty(t, `deadlines.first_token="3s"`, "restart.budget=1000", "limits.max_attempts=100")
	g := a.gen()
	a.inject("at=hear rank=decode/0.0 kind=Join short=8 do=drop") // the canary's prompt is that short
	end := a.traffic(t, 4, func(i int) (question, func(string) bool) {
		q := questions[i%3]
		q.tokens = 4 // so that some request completes before the canary fails
		return q, func(got string) bool { return got != "" && strings.HasPrefix(want(t)[i%3], got) }
	})
	for n := 1; n <= 3; n++ {
		if err := a.post("/restart", "reason=another canary"); err != nil {
			t.Fatal(err)
		}
		a.within(20*time.Second, "the canary failed", func() bool { return len(a.events("canary.failed")) >= n })
		if s := a.status(); !s.Ready {
			t.Errorf("not ready although answers come: %s", s.Reason)
		}
	}
	end()
	a.mustInject()
	a.changed(g, 3)
	a.calm()
	a.settled()
}
