package hostsync

import (
	"fmt"
	"sync/atomic"
	"time"
)

const (
	// TurnSeats is the number of participants that a Turn has room for.
	TurnSeats = 64
	// TurnBytes is the shared memory that a Turn takes.
	TurnBytes = 4*lineBytes + 4*TurnSeats
)

type turnWords struct {
	owner    cell // 1 + the seat that has the turn, 0 if nobody has; the word they sleep on
	stamps   cell // stamps given out
	sleepers cell
	aborted  cell
	// want holds, for each seat, the stamp with which it waits; idle if it does
	// not; granted between being chosen and taking over. Only the seat itself
	// leaves idle; only one of the seat (giving up) and the owner (passing the
	// turn on) can take a stamp away, by compare-and-swap.
	want [TurnSeats]atomic.Uint32
}

const (
	idle    uint32 = 0
	granted uint32 = ^uint32(0)
)

// A Turn is a lock that is handed on in the order in which it was asked for.
// Each participant has a seat of its own; a Turn value belongs to the goroutine
// that sits there.
type Turn struct {
	w    *turnWords
	seat uint32
	spin time.Duration
}

// NewTurn is the turn in mem for the participant on the given seat. spin is how
// long Acquire looks before it sleeps.
func NewTurn(mem []byte, seat int, spin time.Duration) *Turn {
	if seat < 0 || seat >= TurnSeats {
		panic(fmt.Sprintf("hostsync: seat %d of a turn with %d", seat, TurnSeats))
	}
	return &Turn{w: place[turnWords](mem), seat: uint32(seat), spin: spin}
}

// Acquire returns nil once this seat has the turn. After ErrTimeout the seat
// neither has it nor waits for it any longer. After ErrAborted nobody may count
// on anything.
func (t *Turn) Acquire(limit time.Duration) error {
	w := t.w
	if w.owner.Load() == t.seat+1 {
		panic(fmt.Sprintf("hostsync: seat %d asks for the turn that it has", t.seat))
	}
	stamp := w.stamps.Add(1)
	for stamp == idle || stamp == granted {
		stamp = w.stamps.Add(1)
	}
	want := &w.want[t.seat]
	want.Store(stamp)
	at := wait{spin: t.spin, limit: limit}
	for {
		if w.aborted.Load() != 0 {
			want.Store(idle)
			return ErrAborted
		}
		owner := w.owner.Load()
		if owner == t.seat+1 || owner == 0 && w.owner.CompareAndSwap(0, t.seat+1) {
			want.Store(idle)
			return nil
		}
		if at.more() || at.on(&w.owner.Uint32, owner, &w.sleepers.Uint32) {
			continue
		}
		if want.CompareAndSwap(stamp, idle) {
			return ErrTimeout
		}
		// Chosen at the last moment: the turn is on its way and must be taken.
		// Only the death of the one who passes it on can stop it; then whoever
		// notices that calls Abort.
		at.limit = Forever
	}
}

// Release hands the turn to the seat that has waited longest, or to nobody.
func (t *Turn) Release() {
	w := t.w
	if w.owner.Load() != t.seat+1 {
		panic(fmt.Sprintf("hostsync: seat %d gives up a turn that it does not have", t.seat))
	}
	next := uint32(0)
	for next == 0 {
		seat, stamp, any := t.longest()
		if !any {
			break
		}
		if w.want[seat].CompareAndSwap(stamp, granted) {
			next = seat + 1
		}
	}
	// A seat that began to want after the search finds owner 0 itself: it looks
	// after it has written its stamp.
	w.owner.Store(next)
	wake(&w.owner.Uint32, &w.sleepers.Uint32)
}

// longest finds the seat that has waited longest.
func (t *Turn) longest() (seat, stamp uint32, any bool) {
	for i := range t.w.want {
		s := t.w.want[i].Load()
		if s != idle && s != granted && (!any || int32(s-stamp) < 0) {
			seat, stamp, any = uint32(i), s, true
		}
	}
	return seat, stamp, any
}

// Waiting is the number of seats that wait for the turn now. It may be asked
// with or without having it.
func (t *Turn) Waiting() int {
	n := 0
	for i := range t.w.want {
		if s := t.w.want[i].Load(); s != idle && s != granted {
			n++
		}
	}
	return n
}

// Waits reports whether the participant on seat waits for the turn now.
func (t *Turn) Waits(seat int) bool {
	s := t.w.want[seat].Load()
	return s != idle && s != granted
}

// Holder is the seat that has the turn now, -1 if nobody has.
func (t *Turn) Holder() int { return int(t.w.owner.Load()) - 1 }

// Abort makes every Acquire, present and future, return ErrAborted.
func (t *Turn) Abort() {
	t.w.aborted.Store(1)
	wake(&t.w.owner.Uint32, &t.w.sleepers.Uint32)
}
