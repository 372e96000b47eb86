package hostsync

import "time"

// BarrierBytes is the shared memory that a Barrier takes.
const BarrierBytes = 4 * lineBytes

type barrierWords struct {
	arrived  cell // how many wait for the present round
	round    cell // rounds completed; the word they sleep on
	sleepers cell
	aborted  cell
}

// A Barrier lets a fixed number of ranks wait for one another, again and again.
// What any of them wrote to shared memory before, all can read after. A Barrier
// value belongs to one rank, its words to all.
type Barrier struct {
	w     *barrierWords
	ranks uint32
	spin  time.Duration
}

// NewBarrier is the barrier in mem for one of ranks ranks. spin is how long
// Wait looks before it sleeps: more than the usual wait where every rank has a
// core, zero where they share one.
func NewBarrier(mem []byte, ranks int, spin time.Duration) *Barrier {
	return &Barrier{w: place[barrierWords](mem), ranks: uint32(ranks), spin: spin}
}

// Wait returns nil once all ranks have called it as often as this one. After
// an error the ranks are out of step and the barrier is of no more use; the
// caller should Abort it, so that the others learn of it too.
func (b *Barrier) Wait(limit time.Duration) error {
	w := b.w
	round := w.round.Load()
	if w.aborted.Load() != 0 {
		return ErrAborted
	}
	if w.arrived.Add(1) == b.ranks {
		w.arrived.Store(0)
		w.round.Add(1)
		wake(&w.round.Uint32, &w.sleepers.Uint32)
		return nil
	}
	at := wait{spin: b.spin, limit: limit}
	for w.round.Load() == round {
		if at.more() {
			continue
		}
		if w.aborted.Load() != 0 {
			return ErrAborted
		}
		if !at.on(&w.round.Uint32, round, &w.sleepers.Uint32) {
			return ErrTimeout
		}
	}
	if w.aborted.Load() != 0 {
		return ErrAborted
	}
	return nil
}

// Abort makes every Wait, present and future, of every rank return ErrAborted.
func (b *Barrier) Abort() {
	b.w.aborted.Store(1)
	b.w.round.Add(1) // so that nobody can fall asleep on the old value
	wake(&b.w.round.Uint32, &b.w.sleepers.Uint32)
}

// Aborted reports whether somebody called Abort.
func (b *Barrier) Aborted() bool { return b.w.aborted.Load() != 0 }
