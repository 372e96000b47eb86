// Package hostsync is waiting for another process on words of shared memory:
// a Barrier for ranks that compute together, an Event that one process bumps
// and others wait for, and a Turn that processes on the same cores take one
// after the other.
//
// A waiter first looks at the word for a bounded time and then sleeps in a
// futex, so a short wait costs no system call and a long one no processor. The
// futexes are shared ones: the processes may map the memory at different
// addresses. Every wait has a limit and ends early after Abort, which any
// process that maps the memory may call; so a peer that was killed costs its
// partners an error and never their life.
//
// The package owns the layout of its words and nothing else. Who maps the
// memory, how many processes there are and what is done about one that is gone
// is the caller's business. The words of a primitive must be zero before its
// first user arrives and must not be used by anything else.
package hostsync

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"
)

var (
	// ErrTimeout is returned by a wait that reached its limit.
	ErrTimeout = errors.New("hostsync: nothing happened within the limit")
	// ErrAborted is returned by every wait that is in progress when somebody
	// calls Abort on the primitive, and by every later one.
	ErrAborted = errors.New("hostsync: given up by another process")
)

// Forever is a limit for waits that end only by what they wait for or by Abort.
const Forever time.Duration = -1

// lineBytes keeps words that different processes write apart, so that a look at
// one does not wait for a store to another. Two lines, because processors fetch
// lines in pairs.
const lineBytes = 128

// A cell is one word that has its pair of cache lines for itself.
type cell struct {
	atomic.Uint32
	_ [lineBytes - 4]byte
}

// place returns the start of mem as a *T after checking that mem can hold one.
// Shapes of shared memory are our own doing, so a wrong one panics.
func place[T any](mem []byte) *T {
	var zero T
	if need := int(unsafe.Sizeof(zero)); len(mem) < need {
		panic(fmt.Sprintf("hostsync: %d bytes of shared memory where %d are needed", len(mem), need))
	}
	p := unsafe.Pointer(unsafe.SliceData(mem))
	if uintptr(p)%4 != 0 {
		panic("hostsync: shared memory is not aligned to a word")
	}
	return (*T)(p)
}

// sleep is how long a waiter sleeps before it looks again unasked. No wake-up
// depends on it, as the tests show by raising it; it bounds the harm of a peer
// that was killed between changing a word and waking those who sleep on it.
var sleep = 100 * time.Millisecond

// A wait is one bounded wait in progress.
type wait struct {
	spin, limit time.Duration
	start       time.Time
	looks       uint
}

// more is called after a look in vain. It passes a moment and reports whether
// the caller should look again without sleeping.
func (w *wait) more() bool {
	if w.spin <= 0 {
		return false
	}
	w.looks++
	pause()
	if w.looks%32 != 0 {
		return true
	}
	return w.elapsed() < w.spin
}

func (w *wait) elapsed() time.Duration {
	if w.start.IsZero() {
		w.start = time.Now()
		return 0
	}
	return time.Since(w.start)
}

// on sleeps until somebody wakes the sleepers of word, word no longer holds
// old, or it is time to look again. sleepers counts those who may need waking:
// whoever changes the word reads the count after that, and a sleeper raises it
// before the kernel compares the word, so one of the two always sees the other.
// It reports false once the limit has passed.
func (w *wait) on(word *atomic.Uint32, old uint32, sleepers *atomic.Uint32) bool {
	d := sleep
	if e := w.elapsed(); w.limit >= 0 {
		if e >= w.limit {
			return false
		}
		d = min(d, w.limit-e)
	}
	sleepers.Add(1)
	futexWait(word, old, d)
	sleepers.Add(^uint32(0))
	return true
}

// wake wakes all who sleep on word.
func wake(word, sleepers *atomic.Uint32) {
	if sleepers.Load() != 0 {
		futexWake(word)
	}
}
