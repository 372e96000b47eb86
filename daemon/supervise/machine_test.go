package supervise

import (
	"slices"
	"testing"
	"time"
)

var limits = Limits{Start: 20 * time.Second, Reap: 5 * time.Second, Budget: 3, Window: time.Minute, BackoffMin: 100 * time.Millisecond, BackoffMax: 2 * time.Second}

func (m Machine) do(t *testing.T, now time.Duration, ev Event, state State, acts ...Action) Machine {
	t.Helper()
	next, got := m.Step(&limits, ev, Instant(now))
	if next.State != state || !slices.Equal(got, acts) {
		t.Fatalf("%s: event %d: %s %v, want %s %v", m, ev.Kind, next, got, state, acts)
	}
	return next
}

func up(t *testing.T, m Machine, now time.Duration) Machine {
	t.Helper()
	m = m.do(t, now, Event{Kind: Ready}, Starting)
	return m.do(t, now, Event{Kind: Ready}, Up, Announce)
}

func TestTwoRanksDieAtOnce(t *testing.T) {
	m := New(2).do(t, 0, Event{Kind: Start}, Starting, Spawn)
	m = up(t, m, time.Second)
	m = m.do(t, 2*time.Second, Event{Kind: Exited, Reason: "exit"}, Ending, Kill)
	m = m.do(t, 2*time.Second, Event{Kind: Exited, Reason: "exit"}, Ending)
	m = m.do(t, 2*time.Second, Event{Kind: Condemned, Reason: "stalled"}, Ending)
	m = m.do(t, 3*time.Second, Event{Kind: Reaped}, Starting, Spawn)
	if m.Ended != 1 || m.Reason != "exit" {
		t.Errorf("%+v", m)
	}
}

func TestNothingStartsBeforeEverythingIsReaped(t *testing.T) {
	m := New(2).do(t, 0, Event{Kind: Start}, Starting, Spawn)
	m = m.do(t, 0, Event{Kind: Condemned, Reason: "spawn"}, Ending, Kill)
	m = m.do(t, limits.Reap, Event{Kind: Tick}, Ending, Complain)
	for now := limits.Reap; now < time.Hour; now += time.Minute {
		m = m.do(t, now, Event{Kind: Tick}, Ending)
	}
	m.do(t, time.Hour, Event{Kind: Reaped}, Waiting)
}

func TestFailedStartsBackOff(t *testing.T) {
	m := New(2).do(t, 0, Event{Kind: Start}, Starting, Spawn)
	var pauses []time.Duration
	now := time.Duration(0)
	for range 7 {
		m = m.do(t, now, Event{Kind: Exited, Reason: "exit"}, Ending, Kill)
		m = m.do(t, now, Event{Kind: Reaped}, Waiting)
		pauses = append(pauses, time.Duration(m.Until)-now)
		m = m.do(t, time.Duration(m.Until)-1, Event{Kind: Tick}, Waiting)
		now = time.Duration(m.Until)
		m = m.do(t, now, Event{Kind: Tick}, Starting, Spawn)
	}
	ms := time.Millisecond
	if want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 2000 * ms, 2000 * ms}; !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
	m = up(t, m, now)
	if m.Failed != 0 {
		t.Error("a good start does not end the series")
	}
}

func TestBudgetOfRestarts(t *testing.T) {
	m := New(2).do(t, 0, Event{Kind: Start}, Starting, Spawn)
	now := time.Duration(0)
	for i := range limits.Budget {
		m = up(t, m, now)
		now += time.Second
		m = m.do(t, now, Event{Kind: Exited}, Ending, Kill)
		m = m.do(t, now, Event{Kind: Reaped}, Starting, Spawn)
		_ = i
	}
	m = up(t, m, now)
	m = m.do(t, now, Event{Kind: Exited}, Ending, Kill)
	m = m.do(t, now, Event{Kind: Reaped}, Waiting)
	m = m.do(t, time.Duration(m.Until), Event{Kind: Tick}, Starting, Spawn)
	m = up(t, m, now)
	// The window passes: the budget is whole again.
	now += 2 * limits.Window
	m = m.do(t, now, Event{Kind: Exited}, Ending, Kill)
	m.do(t, now, Event{Kind: Reaped}, Starting, Spawn)
}

func TestStopInEveryState(t *testing.T) {
	down := New(2)
	starting := down.do(t, 0, Event{Kind: Start}, Starting, Spawn)
	upm := up(t, starting, 0)
	ending := upm.do(t, 0, Event{Kind: Exited}, Ending, Kill)
	failed := starting.do(t, 0, Event{Kind: Exited}, Ending, Kill)
	waiting := failed.do(t, 0, Event{Kind: Reaped}, Waiting)
	down.do(t, 0, Event{Kind: Stop}, Stopped, Exit)
	waiting.do(t, 0, Event{Kind: Stop}, Stopped, Exit)
	for _, m := range []Machine{starting, upm} {
		m = m.do(t, 0, Event{Kind: Stop}, Ending, Kill)
		m.do(t, 0, Event{Kind: Reaped}, Stopped, Exit)
	}
	ending = ending.do(t, 0, Event{Kind: Stop}, Ending)
	stopped := ending.do(t, 0, Event{Kind: Reaped}, Stopped, Exit)
	for k := Start; k <= Tick; k++ {
		stopped.do(t, time.Hour, Event{Kind: k}, Stopped)
	}
}

func TestSlowStartEnds(t *testing.T) {
	m := New(2).do(t, 0, Event{Kind: Start}, Starting, Spawn)
	m = m.do(t, limits.Start-1, Event{Kind: Tick}, Starting)
	m = m.do(t, limits.Start, Event{Kind: Tick}, Ending, Kill)
	if m.Reason != "start_timeout" {
		t.Error(m.Reason)
	}
}
