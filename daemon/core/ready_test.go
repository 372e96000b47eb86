package core

import (
	"testing"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/wire"
)

// A generation is ready once something went all the way, and not before.
func TestReadyFollowsCompletions(t *testing.T) {
	s := newStage(t)
	s.ready("unproven")
	s.passCanary()
	s.ready("ready")
	for range 10 { // idle: canaries keep it so
		s.pass(canaryEvery)
		s.passCanary()
		s.ready("ready")
	}
	s.theCanary() // this one does not come back, and its limits are longer than ours
	s.c.o.Request.Reserve = time.Hour
	s.pass(heardWithin - canaryEvery + time.Second)
	s.ready("unheard")
	s.passCanary()
	s.ready("ready")
}

// A client's token proves as much as a canary.
func TestClientsTokenProvesTheGeneration(t *testing.T) {
	s := newStage(t)
	_, a := s.submit("r", 2)
	s.take(a, toVerified)
	s.ready("unproven")
	s.token(a, 0)
	s.ready("ready")
}

// F38: canaries fail beside answers that flow. That is told and changes nothing.
func TestCanaryFailsWhileClientsAreServed(t *testing.T) {
	s := newStage(t)
	s.passCanary()
	for i := range 5 {
		s.pass(canaryEvery)
		s.theCanary()
		s.serve("beside " + string(rune('0'+i)))
		s.failCanary()
		s.serve("after " + string(rune('0'+i)))
		s.ready("ready")
	}
	if n := len(s.find(observe.CanaryFailed)); n != 5 {
		t.Errorf("%d warnings of 5 canaries that failed", n)
	}
	if s.c.number != 7 {
		t.Errorf("generation %d: it was replaced because of a canary", s.c.number)
	}
	if len(s.find(observe.HealthChange)) != 1 {
		t.Errorf("readiness changed: %v", s.find(observe.HealthChange))
	}
}

// F39: clients' requests fail or stand still while canaries pass.
func TestClientsFailWhileCanariesPass(t *testing.T) {
	s := newStage(t)
	s.auto = true
	s.passCanary()
	for i := range failuresInRow {
		s.ready("ready")
		tk, a := s.submit("r"+string(rune('0'+i)), 4)
		s.take(a, toVerified)
		s.pass(s.c.o.Request.FirstToken + time.Second)
		s.quiet(a)
		s.c.Tell(s.c.now, tk, request.Event{Kind: request.Closed}, "")
	}
	s.ready("failing")
	e := s.find(observe.HealthChange)
	last := e[len(e)-1]
	if last.fields["code"] != "failing" || last.fields["from"] != "ready" || last.fields["state"] != "not ready" {
		t.Errorf("%v", last)
	}

	// A canary beside a request that stands still says nothing.
	s.c.o.Request.Reserve = time.Hour
	_, a := s.submit("still", 4)
	before := s.c.readiness.passed
	s.pass(canaryEvery + time.Second)
	if s.c.readiness.passed == before {
		t.Error("no canary passed")
	}
	s.ready("failing")
	// A token does.
	s.take(a, toVerified)
	s.token(a, 0)
	s.ready("ready")
}

// F39 with limits so long that nothing fails: a request stands still for half a minute.
func TestClientStandsStillWhileCanariesPass(t *testing.T) {
	s := newStage(t, func(o *Options) { o.Request.Reserve = time.Hour; o.Request.Request = time.Hour })
	s.auto = true
	s.passCanary()
	s.submit("still", 4)
	s.pass(heardWithin)
	s.ready("ready")
	s.pass(time.Second)
	s.ready("stalled")
	if s.c.now > s.c.readiness.passed.Add(canaryEvery) {
		t.Error("canaries did not pass")
	}
	// Once nobody waits any more, what canaries show counts again.
	s.c.Cancel(s.c.now, "still")
	s.pass(time.Second)
	s.ready("ready")
}

// After failures the appliance is out of the balancer's list: nobody sends requests.
// A canary while it is idle brings it back.
func TestIdleCanaryForgivesFailures(t *testing.T) {
	s := newStage(t)
	s.passCanary()
	for i := range failuresInRow {
		tk, a := s.submit("r"+string(rune('0'+i)), 4)
		s.take(a, toVerified)
		s.say(1, &wire.Failed{Attempt: a.id.Seq, Kind: fault.Numerics, Text: "no number"})
		s.quiet(a)
		s.c.Tell(s.c.now, tk, request.Event{Kind: request.Closed}, "")
	}
	s.pass(time.Second)
	s.ready("failing")
	s.passCanary()
	s.ready("ready")
}

// What clients wish, and what asks too much, says nothing about the appliance.
func TestClientsThatLeaveAreNoFailures(t *testing.T) {
	s := newStage(t)
	s.passCanary()
	for i := range 3 * failuresInRow {
		tk, a := s.submit("r"+string(rune('0'+i)), 4)
		s.take(a, toReserved)
		s.c.Tell(s.c.now, tk, request.Event{Kind: request.Closed}, "the client left")
		s.quiet(a)
		s.pass(time.Second)
		s.ready("ready")
	}
}

// A long prompt is computed: no token for minutes, and progress all the while.
func TestLongPrefillIsProgress(t *testing.T) {
	s := newStage(t, func(o *Options) { o.Context = 1 << 12; o.DecodePages = 1 << 11; o.Request.Request = time.Hour })
	s.passCanary()
	s.c.o.Canary = nil // none gets through
	tk, err := s.c.Submit(s.c.now, request.Spec{ID: "long", Prompt: make([]int32, 2000), MaxTokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	a := s.c.requests[tk].attempt
	s.take(a, toReserved)
	for i := range 120 {
		s.say(0, &wire.Sealed{Attempt: a.id.Seq, Tokens: uint32(10 * (i + 1)), Pages: 0})
		s.pass(time.Second)
		s.ready("ready")
	}
	if s.c.number != 7 {
		t.Errorf("generation %d", s.c.number)
	}
}

// An idle appliance whose canaries fail is not ready, and gets no requests that could
// show that it works again: its workers are replaced.
func TestIdleAndCanariesFail(t *testing.T) {
	s := newStage(t)
	s.passCanary()
	for i := range canariesInRow {
		if i > 0 && s.c.sup.State.String() != "up" {
			t.Fatalf("replaced after %d canaries", i)
		}
		s.failCanary()
	}
	s.pass(time.Second)
	if len(s.ended) != 1 || s.ended[0] != "canary" {
		t.Fatalf("ended: %v", s.ended)
	}
	s.ready("ending")
	s.reap()
	s.up()
	s.ready("unproven")
	s.passCanary()
	s.ready("ready")
}

// M19: a canary that a generation change ends is neither a success nor a failure.
func TestCanaryInFlightAtGenerationChange(t *testing.T) {
	for _, how := range []int{toReserved, toSealed, toVerified} {
		s := newStage(t)
		s.passCanary()
		again := func() {
			s.take(s.theCanary(), how)
			s.c.Restart(s.c.now, "test")
			s.reap()
			for s.c.sup.State.String() == "waiting" {
				s.pass(time.Second)
			}
			s.up()
			s.ready("unproven") // the old generation's canary proves nothing of the new one
		}
		for range 4 {
			s.pass(canaryEvery)
			again()
			s.passCanary()
			s.ready("ready")
		}
		s.pass(canaryEvery)
		for range 4 { // more often than a request may be tried
			again()
		}
		s.passCanary()
		s.ready("ready")
		for _, why := range s.ended {
			if why != "operator" {
				t.Errorf("a generation ended with %s", why)
			}
		}
		if e := s.find(observe.CanaryFailed); len(e) != 0 {
			t.Errorf("%v", e)
		}
	}
}

// The line for systemd does not change with every look at the clock.
func TestStatusLineIsCalm(t *testing.T) {
	s := newStage(t)
	lines := 0
	s.c.out = &counting{s, &lines}
	s.passCanary()
	s.c.o.Request.Reserve = time.Hour
	s.theCanary()
	s.pass(heardWithin)
	lines = 0
	s.pass(10 * time.Second)
	if lines < 1 || lines > 11 {
		t.Errorf("%d lines in ten seconds", lines)
	}
}

type counting struct {
	*stage
	lines *int
}

func (c *counting) Notify(string, bool) { *c.lines++ }
