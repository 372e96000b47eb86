// Package transfer decides when KV pages may move and when they may be used
// again. A Transfer is the memory side of one attempt: which ranks were told of
// its pages and what each of them said. It is pure: no clock, lock, I/O or
// goroutine; the control loop performs the actions.
//
// The client side of the same attempt is package request. They are two machines
// because "the client is done" and "the memory is safe" are different facts: the
// first must come by a deadline, the second needs proof.
//
// # Who touches what
//
//	              source pages             target pages
//	handover      one set of pages: written by source ranks, then read by target ranks
//	pull          source ranks write,      target ranks write
//	              target ranks read
//	push          source ranks write       source ranks write, target ranks read and append
//
// A target rank leaves the source's pages alone once it verified its copy; a
// source rank leaves everything alone once it said done. Until then only Quiet, or
// the end of the generation, says so.
package transfer

import (
	"fmt"
	"math/bits"
)

// Transport is how pages get from one rank's memory to another's.
type Transport uint8

// Transports.
const (
	Handover Transport = iota + 1
	Pull
	Push
)

func (t Transport) String() string {
	switch t {
	case Handover:
		return "handover"
	case Pull:
		return "pull"
	case Push:
		return "push"
	}
	return fmt.Sprintf("Transport(%d)", uint8(t))
}

// Mask is a set of ranks of one replica.
type Mask uint64

// All is the set of n ranks.
func All(n int) Mask { return Mask(1)<<n - 1 }

// Has reports whether rank is in the set.
func (m Mask) Has(rank int) bool { return m>>rank&1 != 0 }

// First is the lowest rank in the set, -1 if it is empty.
func (m Mask) First() int {
	if m == 0 {
		return -1
	}
	return bits.TrailingZeros64(uint64(m))
}

// Count is the number of ranks in the set.
func (m Mask) Count() int { return bits.OnesCount64(uint64(m)) }

// State says what the attempt's pages are being used for.
type State uint8

// States. Each that waits for ranks has an owner of its limit: the request
// machine until the transfer is given up or released, then the quarantine limit.
const (
	// Idle: nobody was told anything. Start → Reserving. GiveUp → Closed.
	Idle State = iota
	// Reserving: the target ranks were told which pages will come.
	// Reserved from all → Moving (or Arrived, if there is nothing to move). GiveUp → Draining.
	Reserving
	// Moving: the source computes, the target takes what is sealed.
	// Verified from all → Arrived. GiveUp → Draining.
	Moving
	// Arrived: every target rank holds every page and checked it. Decoding may
	// start, and only from here. Release → Releasing. GiveUp → Draining.
	Arrived
	// Releasing: the sequence ended by itself; the target ranks retire it unasked.
	// Quiet from all → Closed. GiveUp → Draining.
	Releasing
	// Draining: given up. Quiet from all who were told → Closed.
	Draining
	// Closed: no rank of this generation will touch the pages.
	Closed
)

var stateNames = [...]string{"idle", "reserving", "moving", "arrived", "releasing", "draining", "closed"}

func (s State) String() string { return stateNames[s] }

// Transfer is the state of the machine. It is a value and comparable. Make it
// with New.
type Transfer struct {
	State     State
	Transport Transport
	Empty     bool // no page to move: a prompt of one token

	Source, Target Mask // the ranks of the two replicas

	SourceTold bool // source ranks may touch the pages
	TargetTold bool
	Reserved   Mask // target ranks that acknowledged
	Verified   Mask // target ranks that checked everything
	Sealed     Mask // source ranks that said done
	SourceMute Mask // source ranks known to be quiet: done, or said so
	TargetMute Mask // target ranks that said quiet

	SourceFree bool // source pages and slot were given back
	TargetFree bool // target pages were given back
}

// New makes a transfer from a source of s ranks to a target of t ranks.
func New(tr Transport, s, t int, empty bool) Transfer {
	return Transfer{Transport: tr, Source: All(s), Target: All(t), Empty: empty}
}

// Kind tells events apart.
type Kind uint8

// Events. Those with a rank come from that rank; the others from the control loop.
const (
	// Start: the pages are reserved in the ledgers.
	Start Kind = iota + 1
	// Reserved, Verified: as the wire messages of these names, from a target rank.
	Reserved
	Verified
	// SourceDone: a source rank published its last page.
	SourceDone
	// SourceQuiet, TargetQuiet: the rank answered Quiesce, or retired the sequence.
	SourceQuiet
	TargetQuiet
	// SourceLate: the target has everything, but the source has not said that it is
	// done for longer than it may.
	SourceLate
	// Release: the sequence ended in the target's own batch.
	Release
	// GiveUp: nobody wants the attempt any more.
	GiveUp
)

var kindNames = [...]string{"", "start", "reserved", "verified", "source done", "source quiet", "target quiet", "source late", "release", "give up"}

func (k Kind) String() string { return kindNames[k] }

// Event is something that happened.
type Event struct {
	Kind Kind
	Rank int
}

// Action is something the control loop must do.
type Action uint8

// Actions, in the order in which they are performed when a step gives several.
const (
	// TellTarget: send Expect to every target rank; target pages become writable.
	TellTarget Action = iota + 1
	// TellSource: send Prefill to the source's leader; source pages become writable.
	TellSource
	// Deliver: the sequence is the target's; the request may decode.
	Deliver
	// QuiesceSource, QuiesceTarget: send Quiesce to that side's leader.
	QuiesceSource
	QuiesceTarget
	// RetireTarget: the target's pages are no longer needed and await quiet.
	RetireTarget
	// FreeSource, FreeTarget: proof is complete; the pages (and the source's slot)
	// are free. With Handover there is one set of pages, freed by FreeTarget, and
	// FreeSource frees the slot alone.
	FreeSource
	FreeTarget
)

var actionNames = [...]string{"", "tell target", "tell source", "deliver", "quiesce source", "quiesce target", "retire target", "free source", "free target"}

func (a Action) String() string { return actionNames[a] }

// Step applies one event. An event that a state does not expect changes nothing
// and is reported as ignored: it is late, doubled, or a lie, and counted by the
// caller.
func (t Transfer) Step(ev Event) (next Transfer, acts []Action, ignored bool) {
	bit := Mask(1) << ev.Rank
	switch ev.Kind {
	case Start:
		if t.State != Idle {
			return t, nil, true
		}
		t.State, t.TargetTold = Reserving, true
		acts = append(acts, TellTarget)

	case Reserved:
		if t.State != Reserving || t.Target&bit == 0 || t.Reserved&bit != 0 {
			return t, nil, true
		}
		t, acts = t.reserved(bit)

	case Verified:
		if t.State != Moving && t.State != Reserving || t.Target&bit == 0 || t.Verified&bit != 0 {
			// A verification that comes after the attempt was given up proves only
			// that the rank has finished reading, which its Quiet will say anyway.
			return t, nil, true
		}
		if !t.SourceTold && t.Verified|bit == t.Target {
			return t, nil, true // nobody has computed anything that they could hold
		}
		// A rank that owns no unit has everything as soon as it knows of the attempt,
		// perhaps before the others have acknowledged it. And that it knows is said by
		// this too, should its acknowledgement be late.
		t.Verified |= bit
		if t.Reserved&bit == 0 {
			t, acts = t.reserved(bit)
		}
		if t.State == Moving && t.Verified == t.Target {
			t.State = Arrived
			acts = append(acts, Deliver)
		}

	case SourceDone:
		if !t.SourceTold || t.Source&bit == 0 || t.SourceMute&bit != 0 {
			return t, nil, true
		}
		t.Sealed |= bit
		t.SourceMute |= bit

	case SourceQuiet:
		if !t.SourceTold || t.Source&bit == 0 || t.SourceMute&bit != 0 {
			return t, nil, true
		}
		t.SourceMute |= bit

	case TargetQuiet:
		if !t.TargetTold || t.Target&bit == 0 || t.TargetMute&bit != 0 {
			return t, nil, true
		}
		if t.State != Releasing && t.State != Draining && t.State != Arrived {
			return t, nil, true
		}
		// A rank may retire a sequence before its leader's last word got here
		// through another socket; it counts from then on.
		t.TargetMute |= bit

	case SourceLate:
		if t.State != Arrived && t.State != Releasing || !t.SourceTold || t.SourceMute == t.Source {
			return t, nil, true
		}
		// The client is served all the same; only the memory waits for an answer.
		return t, []Action{QuiesceSource}, false

	case Release:
		if t.State != Arrived {
			return t, nil, true
		}
		t.State = Releasing
		acts = append(acts, RetireTarget)

	case GiveUp:
		switch t.State {
		case Idle:
			t.State = Closed
			t.SourceFree, t.TargetFree = true, true
			return t, []Action{FreeSource, FreeTarget}, false
		case Draining, Closed:
			return t, nil, true
		}
		t.State = Draining
		if t.SourceTold && t.SourceMute != t.Source {
			acts = append(acts, QuiesceSource)
		}
		acts = append(acts, QuiesceTarget)

	default:
		return t, nil, true
	}
	return t.settle(acts)
}

// reserved takes in that a target rank knows of the attempt.
func (t Transfer) reserved(bit Mask) (Transfer, []Action) {
	t.Reserved |= bit
	switch {
	case t.Reserved != t.Target:
		return t, nil
	case t.Empty:
		t.State = Arrived
		return t, []Action{Deliver}
	}
	t.State, t.SourceTold = Moving, true
	return t, []Action{TellSource}
}

// settle frees what is proven safe.
func (t Transfer) settle(acts []Action) (Transfer, []Action, bool) {
	sourceMute := !t.SourceTold || t.SourceMute == t.Source
	targetMute := !t.TargetTold || t.TargetMute == t.Target
	ending := t.State == Releasing || t.State == Draining
	// Target ranks read source pages until each verified or fell silent.
	doneReading := t.Empty || t.Verified|t.TargetMute == t.Target
	if !t.SourceFree && sourceMute && (doneReading && (t.State == Arrived || ending) || targetMute && ending) {
		t.SourceFree = true
		acts = append(acts, FreeSource)
	}
	if !t.TargetFree && ending && targetMute && (t.Transport == Pull || sourceMute) {
		t.TargetFree = true
		acts = append(acts, FreeTarget)
	}
	if t.SourceFree && t.TargetFree {
		t.State = Closed
	}
	return t, acts, false
}

// Waiting names the ranks that the transfer waits for, for people.
func (t Transfer) Waiting() (source, target Mask) {
	switch t.State {
	case Reserving:
		target = t.Target &^ t.Reserved
	case Moving:
		source = t.Source &^ t.SourceMute
		target = t.Target &^ t.Verified
	case Arrived, Releasing, Draining:
		if t.SourceTold {
			source = t.Source &^ t.SourceMute
		}
		if t.State != Arrived {
			target = t.Target &^ t.TargetMute
		}
	}
	return source, target
}
