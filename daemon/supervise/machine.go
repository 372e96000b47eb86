// Package supervise decides one generation's life: when it is started, when it is
// over, and how long to wait before the next. It is pure.
//
// Both groups live and die together. Any rank that exits, breaks the protocol or
// stops making progress ends the generation, and the next starts only when every
// process of the last is reaped. So no process ever meets a peer of another life.
package supervise

import (
	"fmt"
	"time"
)

// Instant is a time on the daemon's monotonic clock.
type Instant time.Duration

// State is where the supervisor is in the life of a generation.
type State uint8

// States.
const (
	// Down: nothing runs and nothing is wanted yet. Start → Starting.
	Down State = iota
	// Starting: ranks are being started. Ready from all → Up. Exited, Condemned, Tick at the limit → Ending.
	Starting
	// Up: all ranks work. Exited, Condemned → Ending.
	Up
	// Ending: everything is killed; waiting until all is reaped. Reaped → Starting, Waiting or Stopped.
	Ending
	// Waiting: backing off. Tick at the time → Starting.
	Waiting
	// Stopped: the daemon is going. No way out.
	Stopped
)

var stateNames = [...]string{"down", "starting", "up", "ending", "waiting", "stopped"}

func (s State) String() string { return stateNames[s] }

// Limits are the supervisor's policy.
type Limits struct {
	Start time.Duration // from spawn to all ranks ready
	Reap  time.Duration // from kill to all reaped; after it, it is said that it takes too long
	// A generation that ends while fewer than Budget ended within Window is followed
	// by the next at once. Beyond that, and after failed starts, the pause doubles
	// from BackoffMin to BackoffMax. It never gives up.
	Budget                 int
	Window                 time.Duration
	BackoffMin, BackoffMax time.Duration
}

// Machine is the supervisor's state. Make it with New.
type Machine struct {
	State   State
	Entered Instant
	Ready   int    // ranks that are ready, of this generation
	Ranks   int    // ranks of a generation
	Reason  string // why the last generation ended, or is ending; "" before the first
	Until   Instant
	Failed  int // starts in a row that did not come up
	Ended   int // generations that ended
	Late    bool
	Stop    bool // Stopped follows Ending

	recent []Instant // ends within the window, oldest first, at most Budget
}

// New is a supervisor of generations of ranks ranks.
func New(ranks int) Machine { return Machine{Ranks: ranks} }

// Kind tells events apart.
type Kind uint8

// Events.
const (
	// Start: begin the first generation.
	Start Kind = iota + 1
	// Ready: a rank can work.
	Ready
	// Exited: a rank's process ended.
	Exited
	// Condemned: the generation must end: a rank stalled or lied, an operator asked,
	// a quarantine grew old, the start failed.
	Condemned
	// Reaped: no process of the generation is left.
	Reaped
	// Stop: end, and start nothing more.
	Stop
	// Tick: time passed.
	Tick
)

// Event is something that happened. Reason is a word for logs and metrics.
type Event struct {
	Kind   Kind
	Reason string
}

// Action is something the control loop must do.
type Action uint8

// Actions.
const (
	// Spawn: write the next generation number, then start its ranks.
	Spawn Action = iota + 1
	// Announce: the generation is up.
	Announce
	// Kill: kill every process of the generation; requests learn that it ended.
	Kill
	// Complain: reaping takes longer than it may; say so, start nothing.
	Complain
	// Exit: everything is stopped.
	Exit
)

var actionNames = [...]string{"", "spawn", "announce", "kill", "complain", "exit"}

func (a Action) String() string { return actionNames[a] }

// Step applies one event.
func (m Machine) Step(l *Limits, ev Event, now Instant) (Machine, []Action) {
	switch ev.Kind {
	case Start:
		if m.State == Down {
			return m.enter(Starting, now), []Action{Spawn}
		}

	case Ready:
		if m.State == Starting {
			if m.Ready++; m.Ready == m.Ranks {
				m.Failed = 0
				return m.enter(Up, now), []Action{Announce}
			}
		}

	case Exited, Condemned:
		if m.State == Starting || m.State == Up {
			return m.end(l, ev.Reason, now), []Action{Kill}
		}

	case Reaped:
		if m.State != Ending {
			break
		}
		if m.Stop {
			return m.enter(Stopped, now), []Action{Exit}
		}
		if pause := m.pause(l); pause > 0 {
			m = m.enter(Waiting, now)
			m.Until = now + Instant(pause)
			return m, nil
		}
		return m.enter(Starting, now), []Action{Spawn}

	case Stop:
		m.Stop = true
		switch m.State {
		case Down, Waiting:
			return m.enter(Stopped, now), []Action{Exit}
		case Starting, Up:
			return m.end(l, "stop", now), []Action{Kill}
		}

	case Tick:
		switch {
		case m.State == Waiting && now >= m.Until:
			return m.enter(Starting, now), []Action{Spawn}
		case m.State == Starting && now >= m.Entered+Instant(l.Start):
			return m.end(l, "start_timeout", now), []Action{Kill}
		case m.State == Ending && !m.Late && now >= m.Entered+Instant(l.Reap):
			m.Late = true
			return m, []Action{Complain}
		}
	}
	return m, nil
}

func (m Machine) enter(s State, now Instant) Machine {
	m.State, m.Entered, m.Ready, m.Late = s, now, 0, false
	return m
}

func (m Machine) end(l *Limits, reason string, now Instant) Machine {
	if m.State == Starting {
		m.Failed++
	}
	m.Ended++
	m.Reason = reason
	kept := make([]Instant, 0, l.Budget+1)
	for _, t := range m.recent {
		if now-t < Instant(l.Window) {
			kept = append(kept, t)
		}
	}
	if kept = append(kept, now); len(kept) > l.Budget+32 {
		kept = kept[1:]
	}
	m.recent = kept
	return m.enter(Ending, now)
}

// pause is how long to wait before the next start.
func (m *Machine) pause(l *Limits) time.Duration {
	n := max(m.Failed, len(m.recent)-l.Budget)
	if n <= 0 {
		return 0
	}
	d := l.BackoffMin
	for range n - 1 {
		if d *= 2; d >= l.BackoffMax {
			return l.BackoffMax
		}
	}
	return min(d, l.BackoffMax)
}

// Over reports how many generations beyond the budget ended within the window.
func (m *Machine) Over(l *Limits) int { return max(0, len(m.recent)-l.Budget) }

func (m Machine) String() string {
	if m.State == Starting {
		return fmt.Sprintf("starting: %d of %d ranks ready", m.Ready, m.Ranks)
	}
	return m.State.String()
}
