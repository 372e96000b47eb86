// Package request decides one request's life: what it waits for, for how long,
// and how it ends. A Machine is the client side of a request; the memory side of
// its attempts is package transfer. It is pure: no clock, lock, I/O or goroutine.
// The control loop tells it what happened and when, and performs the actions.
//
// Three promises are kept here. A request that was admitted ends exactly once. No
// state is without a limit, and a limit is re-armed only by entering the state or
// by measured progress. A generation change costs the request an attempt, not its
// answer: it is run again from its prompt plus the tokens already delivered, until
// it used up the attempts that brought no token.
package request

import (
	"fmt"
	"time"

	"tandem/daemon/fault"
)

// Instant is a time on the daemon's monotonic clock, since an origin that only
// the control loop knows.
type Instant time.Duration

// Add is the instant d later.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// State says what the request waits for, and who is named when it waits too long.
type State uint8

// States.
const (
	// Queued: for room. Placed → Reserving.
	Queued State = iota
	// Reserving: for every decode rank to acknowledge its pages. Reserved → Prefilling.
	Reserving
	// Prefilling: for prefill to compute. Prefilled → Handoff; Arrived → Decoding.
	Prefilling
	// Handoff: prefill is done; for decode to begin taking pages. Moved → Transferring.
	Handoff
	// Transferring: for decode to take the rest. Landed → Verifying.
	Transferring
	// Verifying: all pages landed; for every rank to confirm. Arrived → Decoding.
	Verifying
	// Decoding: for tokens. Finish, Stop → Draining.
	Decoding
	// Draining: the answer has ended; for the client to take it. Closed → Gone.
	Draining
	// Gone: nothing is left of the request but its record.
	Gone
	states
)

var stateNames = [...]string{"queued", "reserving", "prefilling", "handoff", "transferring", "verifying", "decoding", "draining", "gone"}

func (s State) String() string { return stateNames[s] }

// Live reports whether a request in this state holds a place.
func (s State) Live() bool { return s < Gone }

// LiveStates lists the states in which a request holds a place.
func LiveStates() []State {
	ss := make([]State, 0, states-1)
	for s := Queued; s < Gone; s++ {
		ss = append(ss, s)
	}
	return ss
}

// Limits are how long each wait may take.
type Limits struct {
	Queue        time.Duration // Queued
	Reserve      time.Duration // Reserving
	PrefillStall time.Duration // Prefilling, without progress
	Handoff      time.Duration // Handoff
	Transfer     time.Duration // Transferring
	Verify       time.Duration // Verifying
	FirstToken   time.Duration // Decoding, until the attempt's first token
	TokenStall   time.Duration // Decoding, between tokens
	Drain        time.Duration // Draining, without the client taking a byte
	Request      time.Duration // from admission to the end of the answer
	MaxAttempts  int           // attempts in a row that brought no token
}

// of is the limit of a state and the fault that passing it is.
func (l *Limits) of(m *Machine) (time.Duration, fault.Kind) {
	switch m.State {
	case Queued:
		return l.Queue, fault.QueueTimeout
	case Reserving:
		return l.Reserve, fault.ReserveTimeout
	case Prefilling:
		return l.PrefillStall, fault.PrefillStall
	case Handoff:
		return l.Handoff, fault.HandoffStall
	case Transferring:
		return l.Transfer, fault.TransferTimeout
	case Verifying:
		return l.Verify, fault.VerifyTimeout
	case Decoding:
		if m.Fresh {
			return l.FirstToken, fault.FirstToken
		}
		return l.TokenStall, fault.TokenStall
	case Draining:
		return l.Drain, fault.ClientStalled
	}
	return 0, fault.Internal
}

// Machine is the state of one request. It is a value and comparable. Make it with New.
type Machine struct {
	State   State
	Entered Instant // when the state was entered
	Armed   Instant // when the state's limit was last re-armed
	Expires Instant // when the answer must have ended, whatever happens
	Barren  int     // attempts in a row that brought no token
	Tries   int     // attempts begun in all
	Tokens  int     // delivered so far
	Fresh   bool    // the attempt has brought no token yet
	Landed  bool    // some page landed before prefill said it was done
	AllIn   bool    // all pages landed before prefill said it was done

	Finish Finish     // how the answer ended, from Draining on
	Fault  fault.Kind // why it failed, if Finish is 0, from Draining on
}

// New is a request that was admitted now.
func New(l *Limits, now Instant) Machine {
	return Machine{State: Queued, Entered: now, Armed: now, Expires: now.Add(l.Request)}
}

// Kind tells events apart.
type Kind uint8

// Events. The comment names the sender.
const (
	// Placed: an attempt was started: pages and a slot are its own. (scheduler)
	Placed Kind = iota + 1
	// Reserved: every decode rank acknowledged. (transfer)
	Reserved
	// Progress: prefill computed tokens. (a prefill rank)
	Progress
	// Prefilled: every prefill rank published its last page. (transfer)
	Prefilled
	// Moved: a decode rank holds more pages than before. (a decode rank)
	Moved
	// Landed: every decode rank holds every page. (transfer)
	Landed
	// Arrived: every decode rank confirmed every page. (transfer)
	Arrived
	// Token: a token came; Event.Finish if it was the last. (decode's leader)
	Token
	// Failed: the attempt cannot go on; Event.Fault says why. (a rank, or a check)
	Failed
	// Retracted: decode needs the attempt's pages for another. (scheduler)
	Retracted
	// GenerationEnded: every process of the attempt is gone. (supervisor)
	GenerationEnded
	// Stop: the text met a stop string. (api)
	Stop
	// Cancel: nobody wants the rest; Event.Fault says on whose word. (api, operator, shutdown)
	Cancel
	// Flushed: the client took bytes. (api)
	Flushed
	// Closed: the last byte went to the client, or never will. (api)
	Closed
	// Tick: time passed.
	Tick
)

var kindNames = [...]string{"", "placed", "reserved", "progress", "prefilled", "moved", "landed", "arrived", "token", "failed", "retracted", "generation ended", "stop", "cancel", "flushed", "closed", "tick"}

func (k Kind) String() string { return kindNames[k] }

// Event is something that happened to a request.
type Event struct {
	Kind   Kind
	Finish Finish     // of Token
	Fault  fault.Kind // of Failed and Cancel
}

// Action is something the control loop must do, in the order given.
type Action uint8

// Actions.
const (
	// Abandon: give the attempt's transfer up.
	Abandon Action = iota + 1
	// Release: the attempt's sequence ended in decode's own batch.
	Release
	// Join: give the sequence to decode's leader.
	Join
	// Requeue: the request waits for a place again, before all that never had one.
	Requeue
	// End: tell the client how it ended (Machine.Finish or Machine.Fault).
	End
	// Forget: the place is free.
	Forget
)

var actionNames = [...]string{"", "abandon", "release", "join", "requeue", "end", "forget"}

func (a Action) String() string { return actionNames[a] }

// again lists the faults of an attempt that another attempt may not have. The
// others end the request. Limits are among them that are commonly shorter than the
// time after which a rank that stopped is given up: the next attempt is placed when
// that rank is back or replaced.
func again(k fault.Kind) bool {
	switch k {
	case fault.WorkerLost, fault.ReserveTimeout, fault.HandoffStall, fault.VerifyTimeout, fault.KVExhausted:
		return true
	}
	return false
}

// Step applies one event. What a state has no use for is ignored and reported as
// such, so that the caller can count it.
func (m Machine) Step(l *Limits, ev Event, now Instant) (next Machine, acts []Action, ignored bool) {
	started := m.State > Queued && m.State < Draining
	answering := m.State < Draining

	switch ev.Kind {
	case Placed:
		if m.State != Queued {
			return m, nil, true
		}
		m.Tries++
		m.Barren++
		m.Fresh, m.Landed, m.AllIn = true, false, false
		return m.enter(Reserving, now), nil, false

	case Reserved:
		if m.State != Reserving {
			return m, nil, true
		}
		return m.enter(Prefilling, now), nil, false

	case Progress:
		if m.State != Prefilling {
			return m, nil, true
		}
		m.Armed = now
		return m, nil, false

	case Prefilled:
		if m.State != Prefilling {
			return m, nil, true
		}
		switch {
		case m.AllIn:
			return m.enter(Verifying, now), nil, false
		case m.Landed:
			return m.enter(Transferring, now), nil, false
		}
		return m.enter(Handoff, now), nil, false

	case Moved:
		switch m.State {
		case Prefilling:
			m.Landed = true
			m.Armed = now
			return m, nil, false
		case Handoff:
			return m.enter(Transferring, now), nil, false
		case Transferring:
			m.Armed = now
			return m, nil, false
		}
		return m, nil, true

	case Landed:
		switch m.State {
		case Prefilling:
			// The pages are here although prefill has not said that it is done: its
			// word is not needed, only the digests that it published are.
			m.Landed, m.AllIn = true, true
			return m, nil, false
		case Handoff, Transferring:
			return m.enter(Verifying, now), nil, false
		}
		return m, nil, true

	case Arrived:
		switch m.State {
		case Reserving, Prefilling, Handoff, Transferring, Verifying:
			return m.enter(Decoding, now), []Action{Join}, false
		}
		return m, nil, true

	case Token:
		if m.State != Decoding {
			return m, nil, true
		}
		m.Tokens++
		m.Fresh, m.Barren = false, 0
		m.Armed = now
		if ev.Finish != 0 {
			m.Finish = ev.Finish
			return m.enter(Draining, now), []Action{Release, End}, false
		}
		return m, nil, false

	case Stop:
		if !answering {
			return m, nil, true
		}
		m.Finish = FinishStop
		return m.end(started, now)

	case Cancel:
		if !answering {
			return m, nil, true
		}
		m.Fault = ev.Fault
		return m.end(started, now)

	case Failed:
		if !started {
			return m, nil, true
		}
		if again(ev.Fault) && m.Barren < l.MaxAttempts && now < m.Expires {
			return m.enter(Queued, now), []Action{Abandon, Requeue}, false
		}
		m.Fault = ev.Fault
		return m.end(true, now)

	case Retracted:
		if !started {
			return m, nil, true
		}
		// Not the request's fault: the attempt is not held against it.
		m.Barren--
		return m.enter(Queued, now), []Action{Abandon, Requeue}, false

	case GenerationEnded:
		if !started {
			// Queued requests wait on; those that have ended finish their flush.
			return m, nil, true
		}
		if m.Barren >= l.MaxAttempts {
			m.Fault = fault.Generation
			return m.end(true, now)
		}
		return m.enter(Queued, now), []Action{Abandon, Requeue}, false

	case Flushed:
		if m.State == Gone {
			return m, nil, true
		}
		if m.State == Draining {
			m.Armed = now
		}
		return m, nil, false

	case Closed:
		switch {
		case m.State == Gone:
			return m, nil, true
		case m.State == Draining:
			return m.enter(Gone, now), []Action{Forget}, false
		}
		// The client's side is over before the answer is.
		m.Fault = fault.Cancelled
		m, acts, _ := m.end(started, now)
		return m.enter(Gone, now), append(acts, Forget), false

	case Tick:
		if answering && now >= m.Expires {
			m.Fault = fault.RequestDeadline
			return m.end(started, now)
		}
		limit, kind := l.of(&m)
		if m.State == Gone || now < m.Armed.Add(limit) {
			return m, nil, false
		}
		if m.State == Draining {
			return m.enter(Gone, now), []Action{Forget}, false
		}
		if started && again(kind) && m.Barren < l.MaxAttempts {
			return m.enter(Queued, now), []Action{Abandon, Requeue}, false
		}
		m.Fault = kind
		return m.end(started, now)
	}
	return m, nil, true
}

func (m Machine) enter(s State, now Instant) Machine {
	m.State, m.Entered, m.Armed = s, now, now
	return m
}

// end moves to Draining with the answer that m already holds.
func (m Machine) end(started bool, now Instant) (Machine, []Action, bool) {
	m = m.enter(Draining, now)
	if started {
		return m, []Action{Abandon, End}, false
	}
	return m, []Action{End}, false
}

// LastTry reports whether the attempt that is out, or the next one if the request
// is queued, is the last that the request gets, after others that brought no token.
func (m *Machine) LastTry(l *Limits) bool {
	n := m.Barren
	if m.State == Queued {
		n++
	}
	return n > 1 && n >= l.MaxAttempts
}

// Limit is how long the state may last without progress.
func (m *Machine) Limit(l *Limits) time.Duration {
	d, _ := l.of(m)
	return d
}

// Due is when a Tick will next do something, if nothing else happens before.
func (m *Machine) Due(l *Limits) Instant {
	if m.State == Gone {
		return 1<<63 - 1
	}
	limit, _ := l.of(m)
	due := m.Armed.Add(limit)
	if m.State < Draining {
		due = min(due, m.Expires)
	}
	return due
}

// Outcome is how the request ended, as a code: "stop", "length", or a fault's.
func (m *Machine) Outcome() string {
	switch {
	case m.State < Draining:
		return ""
	case m.Finish != 0:
		return m.Finish.String()
	}
	return m.Fault.String()
}

func (m Machine) String() string {
	return fmt.Sprintf("%s try %d, %d tokens", m.State, m.Tries, m.Tokens)
}
