package hostsync

import "time"

// EventBytes is the shared memory that an Event takes.
const EventBytes = 3 * lineBytes

type eventWords struct {
	count    cell // the word they sleep on
	sleepers cell
	aborted  cell
}

// An Event is a counter that says that something happened: one process bumps
// it, others wait for it to move. What was written to shared memory before a
// Bump can be read by whoever saw its count.
type Event struct {
	w    *eventWords
	spin time.Duration
}

// NewEvent is the event in mem. spin is how long Wait looks before it sleeps.
func NewEvent(mem []byte, spin time.Duration) *Event {
	return &Event{w: place[eventWords](mem), spin: spin}
}

// Count is how often the event was bumped, modulo 2³².
func (e *Event) Count() uint32 { return e.w.count.Load() }

// Bump adds one to the count, wakes all who wait and returns the new count.
func (e *Event) Bump() uint32 {
	n := e.w.count.Add(1)
	wake(&e.w.count.Uint32, &e.w.sleepers.Uint32)
	return n
}

// Wait returns the count as soon as it differs from seen, the count that the
// caller knows of.
func (e *Event) Wait(seen uint32, limit time.Duration) (uint32, error) {
	w := e.w
	at := wait{spin: e.spin, limit: limit}
	for {
		if w.aborted.Load() != 0 {
			return seen, ErrAborted
		}
		if n := w.count.Load(); n != seen {
			return n, nil
		}
		if at.more() {
			continue
		}
		if !at.on(&w.count.Uint32, seen, &w.sleepers.Uint32) {
			return seen, ErrTimeout
		}
	}
}

// Abort makes every Wait, present and future, return ErrAborted.
func (e *Event) Abort() {
	e.w.aborted.Store(1)
	// A waiter that read the flag just before and is about to sleep misses this
	// and reads the flag again when it next wakes, after at most sleep.
	wake(&e.w.count.Uint32, &e.w.sleepers.Uint32)
}

// Aborted reports whether somebody called Abort.
func (e *Event) Aborted() bool { return e.w.aborted.Load() != 0 }
