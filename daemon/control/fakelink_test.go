package control

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"tandem/daemon/spawn"
	"tandem/daemon/wire"
)

// grain is what time is cut into. Every actor of a world acts only at nanoseconds of
// its own past a grain, and the loop's ticker at 0. So no two things ever happen at one
// instant, their order is not the scheduler's to choose, and a seed replays exactly.
const grain = 10 * time.Microsecond

// actor is one of those who do things in a world. It belongs to one goroutine.
type actor struct {
	w   *world
	id  time.Duration // nanoseconds past a grain
	rnd *rand.Rand
}

// actor makes an actor. kind and n name it, so that its choices do not depend on
// which others were made before.
func (w *world) actor(kind, n uint64) *actor {
	id := w.actors.Add(1)
	return &actor{w: w, id: time.Duration(id%uint64(grain-2) + 1), rnd: rand.New(rand.NewPCG(w.plan.seed, kind<<32|n))}
}

// instant is the actor's first at or after t.
func (a *actor) instant(t time.Duration) time.Duration {
	at := t - t%grain + a.id
	if at < t {
		at += grain
	}
	return at
}

// sleep waits for d, and then for the actor's own instant; false if until is closed
// before.
func (a *actor) sleep(d time.Duration, until <-chan struct{}) bool {
	now := a.w.now()
	t := time.NewTimer(a.instant(now+d+1) - now)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-until:
		return false
	}
}

// between draws a span of time.
func (a *actor) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(a.rnd.Int64N(int64(hi-lo)+1))
}

func (a *actor) chance(p float64) bool { return p > 0 && a.rnd.Float64() < p }

// parcel is one thing on its way.
type parcel struct {
	due   time.Duration
	frame wire.Frame
	lost  *error
	exit  *spawn.Status
}

// link carries what is said in one direction over one rank's socket, and does to it
// what the world's plan says.
type link struct {
	*actor
	down bool
	rank int

	mu    sync.Mutex // guards what follows
	queue []parcel   // by due
	last  time.Duration
	ring  chan struct{} // one token: the queue changed
	limit int           // of the queue; 0: none
}

func newLink(a *actor, rank int, down bool) *link {
	return &link{actor: a, down: down, rank: rank, ring: make(chan struct{}, 1)}
}

// put sends a frame, lost, doubled, late or out of turn as the plan has it.
func (l *link) put(f wire.Frame) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit > 0 && len(l.queue) >= l.limit {
		return false
	}
	ft := l.w.fate(l, f.Message)
	times := 1
	if ft.lost {
		times = 0
	} else if ft.twice {
		times = 2
	}
	for i := range times {
		due := l.w.now() + l.between(20*time.Microsecond, 300*time.Microsecond) + ft.late
		if i > 0 {
			due += l.between(0, 100*time.Millisecond)
		}
		if ft.overtaken > 0 || i > 0 {
			l.insert(parcel{due: due + ft.overtaken, frame: f})
			continue
		}
		l.last = max(l.last+grain, due)
		l.insert(parcel{due: l.last, frame: f})
	}
	return true
}

// insert puts a parcel at the first instant of the link that is not taken.
func (l *link) insert(p parcel) {
	p.due = l.instant(p.due)
	for {
		at, taken := slices.BinarySearchFunc(l.queue, p.due, func(q parcel, t time.Duration) int { return cmp.Compare(q.due, t) })
		if !taken {
			l.queue = slices.Insert(l.queue, at, p)
			break
		}
		p.due += grain
	}
	select {
	case l.ring <- struct{}{}:
	default:
	}
}

// run delivers until until is closed, or do returns false.
func (l *link) run(until <-chan struct{}, do func(parcel) bool) {
	for {
		l.mu.Lock()
		var wait time.Duration
		var p parcel
		empty := len(l.queue) == 0
		if !empty {
			if p = l.queue[0]; p.due > l.w.now() {
				wait = p.due - l.w.now()
			} else {
				l.queue = slices.Delete(l.queue, 0, 1)
			}
		}
		l.mu.Unlock()
		switch {
		case empty:
			select {
			case <-l.ring:
			case <-until:
				return
			}
		case wait > 0:
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-l.ring:
				t.Stop()
			case <-until:
				t.Stop()
				return
			}
		default:
			if !do(p) {
				return
			}
		}
	}
}

func (l *link) left() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}
