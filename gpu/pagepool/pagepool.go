// Package pagepool keeps the ledger of a page pool: which pages are free and
// who holds the others. It is pure: it touches no memory, reads no clock, has no
// lock, and belongs to the goroutine that owns the pool.
//
// Invariant, at every return: each page is free or in exactly one lease, and
//
//	free + reserved + writable + leased + releasing + quarantined = total.
//
// A page somebody may still touch is neither in use nor free. So there is no way
// from "gave up waiting" to free: a lease that was ever exposed ends with proof
// that every process that could touch its pages is quiet or reaped.
package pagepool

import (
	"fmt"
	"slices"
)

// Page names a page in one use of it. The epoch rises each time the page is
// handed out, so that a message about an earlier use is known as such.
type Page struct {
	Index uint32
	Epoch uint32
}

// State says who may touch a lease's pages.
type State uint8

// States of a lease.
const (
	// Reserved: promised, known to no process. → Writable, or freed at once.
	Reserved State = iota + 1
	// Writable: one side fills the pages. → Leased, Releasing, Quarantined.
	Writable
	// Leased: filled and being read. → Releasing, Quarantined.
	Leased
	// Releasing: no longer needed; waiting for quiet. → freed, Quarantined.
	Releasing
	// Quarantined: given up; waiting for quiet. → freed.
	Quarantined
)

var stateNames = [...]string{"free", "reserved", "writable", "leased", "releasing", "quarantined"}

func (s State) String() string { return stateNames[s] }

// StateNames lists the names of all page states, "free" first.
func StateNames() []string { return stateNames[:] }

var next = map[State][]State{
	Reserved:    {Writable},
	Writable:    {Leased, Releasing, Quarantined},
	Leased:      {Releasing, Quarantined},
	Releasing:   {Quarantined},
	Quarantined: {},
}

// Proof is why a lease's pages may be used again.
type Proof uint8

// Proofs.
const (
	// NeverExposed: no process was told of the pages.
	NeverExposed Proof = iota + 1
	// Quiet: every process that could touch them said so, naming this lease.
	Quiet
	// Reaped: every process that could touch them is gone.
	Reaped
)

// Pool is the ledger. Make it with New.
type Pool struct {
	name   string
	first  uint32
	epochs []uint32 // of the latest use of each page
	free   []uint32 // a stack
	count  [len(stateNames)]int
	leases int
}

// Lease is the right to some pages until it ends. It ends once, in Free.
type Lease struct {
	pool  *Pool
	state State
	pages []Page
	ended bool
}

// New makes a ledger of pages pages, all free, whose indices begin at first:
// several pools may share one memory.
func New(name string, first, pages int) *Pool {
	p := &Pool{name: name, first: uint32(first), epochs: make([]uint32, pages), free: make([]uint32, pages)}
	for i := range p.free {
		p.free[i] = uint32(pages - 1 - i)
	}
	p.count[0] = pages
	return p
}

// Name is the pool's name in logs and metrics.
func (p *Pool) Name() string { return p.name }

// Total is the number of pages.
func (p *Pool) Total() int { return len(p.epochs) }

// Free is the number of free pages.
func (p *Pool) Free() int { return len(p.free) }

// Count is the number of pages in a state; the zero State counts free ones.
func (p *Pool) Count(s State) int { return p.count[s] }

// Leases is the number of leases that have not ended.
func (p *Pool) Leases() int { return p.leases }

// Reserve takes n pages, or none and false if fewer are free.
func (p *Pool) Reserve(n int) (*Lease, bool) {
	if n < 0 || n > len(p.free) {
		return nil, false
	}
	l := &Lease{pool: p, state: Reserved}
	l.take(n)
	p.leases++
	return l, true
}

func (l *Lease) take(n int) []Page {
	p := l.pool
	had := len(l.pages)
	l.pages = slices.Grow(l.pages, n)
	for range n {
		i := p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
		p.epochs[i]++
		l.pages = append(l.pages, Page{Index: p.first + i, Epoch: p.epochs[i]})
	}
	p.count[0] -= n
	p.count[l.state] += n
	return l.pages[had:]
}

// Grow adds n pages to the lease, in its state, and returns them; or none and
// false if fewer are free.
func (l *Lease) Grow(n int) ([]Page, bool) {
	l.mustLive("Grow")
	if n < 0 || n > len(l.pool.free) {
		return nil, false
	}
	return l.take(n), true
}

// Pages are the lease's pages in the order in which they were taken. The caller
// must not change them.
func (l *Lease) Pages() []Page { return l.pages }

// State is the lease's state.
func (l *Lease) State() State { return l.state }

// Ended reports whether the lease has ended.
func (l *Lease) Ended() bool { return l.ended }

// To moves the lease along one of the edges above. Any other edge is our bug and
// panics. Moving to the state it is in does nothing.
func (l *Lease) To(s State) {
	l.mustLive("To")
	if s == l.state {
		return
	}
	if !slices.Contains(next[l.state], s) {
		panic(fmt.Sprintf("pagepool %s: a lease cannot go from %s to %s", l.pool.name, l.state, s))
	}
	l.pool.count[l.state] -= len(l.pages)
	l.pool.count[s] += len(l.pages)
	l.state = s
}

// Free ends the lease. The proof must fit the state: only a reserved lease was
// never exposed, and an exposed one must have been given up or released first.
func (l *Lease) Free(proof Proof) {
	l.mustLive("Free")
	switch {
	case proof == NeverExposed && l.state == Reserved:
	case (proof == Quiet || proof == Reaped) && (l.state == Releasing || l.state == Quarantined):
	default:
		panic(fmt.Sprintf("pagepool %s: proof %d does not free a %s lease", l.pool.name, proof, l.state))
	}
	p := l.pool
	p.count[l.state] -= len(l.pages)
	p.count[0] += len(l.pages)
	for _, pg := range slices.Backward(l.pages) {
		p.free = append(p.free, pg.Index-p.first)
	}
	p.leases--
	l.ended = true
}

func (l *Lease) mustLive(op string) {
	if l.ended {
		panic(fmt.Sprintf("pagepool %s: %s on a lease that has ended", l.pool.name, op))
	}
}

// Drift is how far the ledger is from adding up: 0 unless there is a bug.
func (p *Pool) Drift() int {
	sum := 0
	for _, n := range p.count {
		sum += n
	}
	if d := len(p.epochs) - sum; d != 0 {
		return d
	}
	return p.count[0] - len(p.free)
}

// Clone is a copy of the ledger, with copies of the leases given; leases that are
// nil stay nil. It is for those who explore what could happen next.
func (p *Pool) Clone(leases ...**Lease) *Pool {
	q := *p
	q.epochs, q.free = slices.Clone(p.epochs), slices.Clone(p.free)
	for _, at := range leases {
		if *at != nil && (*at).pool == p {
			l := **at
			l.pool, l.pages = &q, slices.Clone(l.pages)
			*at = &l
		}
	}
	return &q
}
