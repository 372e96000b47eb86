package worker

import (
	"fmt"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/spawn"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
	"tandem/gpu/hostsync"
	"tandem/gpu/pagepool"
	"tandem/gpu/share"
)

// lane receives pages on a decode rank: for each attempt it was told to expect, it
// watches the source's board, takes each published page of its own units (by
// whatever the transport is), checks it, and says so. It runs beside the engine:
// pages move while prefill computes the next and decode runs on.
type lane struct {
	*rank
	inbox  *mailbox
	active map[uint64]*reception
	gone   tombs
	bell   *hostsync.Event
	wake   chan uint32
}

type reception struct {
	attempt  uint64
	board    *share.Board
	slot     uint32
	src, dst []pagepool.Page
	have     int
}

func newLane(r *rank) *lane {
	l := &lane{rank: r, inbox: newMailbox(), active: map[uint64]*reception{}, wake: make(chan uint32, 1)}
	words := spawn.BellWords(r.mem.sync.Bytes(), r.setup.Turns, r.setup.Rank.Index)
	l.bell = hostsync.NewEvent(words, 0)
	return l
}

// unrung is how often the lane looks at the boards although nobody rang. Nothing
// depends on it; it bounds what a lost ring costs.
const unrung = 20 * time.Millisecond

func (l *lane) run() error {
	rung := make(chan struct{}, 1)
	go func() {
		seen := l.bell.Count()
		for {
			n, err := l.bell.Wait(seen, hostsync.Forever)
			if err != nil {
				return
			}
			seen = n
			select {
			case rung <- struct{}{}:
			default:
			}
		}
	}()
	look := time.NewTicker(unrung)
	defer look.Stop()
	for {
		if len(l.active) == 0 {
			<-l.inbox.ring
		} else {
			select {
			case <-l.inbox.ring:
			case <-rung:
			case <-look.C:
			}
		}
		for _, m := range l.inbox.take() {
			if err := l.order(m); err != nil {
				return err
			}
		}
		for _, r := range l.active {
			l.receive(r)
		}
	}
}

func (l *lane) order(m wire.Message) error {
	switch m := m.(type) {
	case *wire.Quiesce:
		l.gone.add(m.Attempt)
		delete(l.active, m.Attempt)
		l.post.send(&wire.Quiet{Attempt: m.Attempt})
	case *wire.Expect:
		if l.gone.has(m.Attempt) {
			return nil // given up before it came, or it was taken
		}
		if len(m.Src) != len(m.Dst) || len(m.Src) > l.setup.MaxPages || int(m.Source) >= len(l.mem.boards) || int(m.Slot) >= l.setup.Slots {
			return fmt.Errorf("expect of attempt %d: %d pages into %d, source %d, slot %d", m.Attempt, len(m.Src), len(m.Dst), m.Source, m.Slot)
		}
		from := l.setup.KV.Pages
		if l.setup.Transport == transfer.Pull {
			from = l.setup.Peer.Pages
		}
		if err := inPool(m.Dst, l.setup.KV.Pages); err != nil {
			return fmt.Errorf("expect of attempt %d: %w", m.Attempt, err)
		}
		if l.setup.Transport != transfer.Push {
			if err := inPool(m.Src, from); err != nil {
				return fmt.Errorf("expect of attempt %d: %w", m.Attempt, err)
			}
		}
		l.post.send(&wire.Reserved{Attempt: m.Attempt})
		if len(m.Dst) > 0 {
			l.active[m.Attempt] = &reception{attempt: m.Attempt, board: l.mem.boards[m.Source], slot: m.Slot, src: m.Src, dst: m.Dst}
		}
	default:
		return fmt.Errorf("%T is not for a lane", m)
	}
	return nil
}

// receive takes what is new of one attempt.
func (l *lane) receive(r *reception) {
	n := len(r.dst)
	for u := l.lo; u < l.hi; u++ {
		p, ok := r.board.Published(r.slot, u, r.attempt)
		if !ok {
			p = 0 // not begun
		}
		n = min(n, p)
	}
	if n == r.have {
		return
	}
	for ; r.have < n; r.have++ {
		for u := l.lo; u < l.hi; u++ {
			if err := l.take(r, u, r.have); err != nil {
				l.fail(r, err)
				return
			}
		}
	}
	l.post.send(&wire.Landed{Attempt: r.attempt, Pages: uint32(r.have)})
	if r.have < len(r.dst) {
		return
	}
	// The last look: no page was given away and no column taken over meanwhile.
	for u := l.lo; u < l.hi; u++ {
		if p, ok := r.board.Published(r.slot, u, r.attempt); !ok || p != len(r.dst) {
			l.fail(r, &fault.Error{Kind: fault.EpochChanged, Err: fmt.Errorf("unit %d: the slot was taken over", u)})
			return
		}
		for i := range r.dst {
			if !l.sealed(r, u, i) {
				l.fail(r, &fault.Error{Kind: fault.EpochChanged, Err: fmt.Errorf("unit %d, page %d of the sequence", u, i)})
				return
			}
		}
	}
	delete(l.active, r.attempt)
	l.gone.add(r.attempt) // from now on decode writes on these pages
	l.post.send(&wire.Verified{Attempt: r.attempt})
}

// sealed looks at the header word of the page that was read.
func (l *lane) sealed(r *reception, u, i int) bool {
	if l.setup.Transport == transfer.Pull {
		return l.mem.peer[u].Sealed(r.src[i].Index, r.src[i].Epoch)
	}
	return l.mem.kv[u].Sealed(r.dst[i].Index, r.dst[i].Epoch)
}

// take gets page i of unit u, and checks that it is the page that was published.
func (l *lane) take(r *reception, u, i int) *fault.Error {
	if !l.sealed(r, u, i) {
		return &fault.Error{Kind: fault.EpochChanged, Err: fmt.Errorf("unit %d, page %d of the sequence: not sealed as this use of it", u, i)}
	}
	seg := l.mem.kv[u]
	page := seg.Page(r.dst[i].Index)
	if l.setup.Transport == transfer.Pull {
		seg.Begin(r.dst[i].Index, r.dst[i].Epoch)
		copy(page, l.mem.peer[u].Page(r.src[i].Index))
		seg.Seal(r.dst[i].Index, r.dst[i].Epoch)
	}
	faultAtTake(l.rank, r.attempt, page)
	if l.setup.Digest {
		want := r.board.DigestOf(r.slot, u, i)
		if got := share.Digest(r.attempt, u, i, page); got != want {
			if !l.sealed(r, u, i) {
				return &fault.Error{Kind: fault.EpochChanged, Err: fmt.Errorf("unit %d, page %d of the sequence: reused while it was read", u, i)}
			}
			return &fault.Error{Kind: fault.DigestMismatch, Err: fmt.Errorf("unit %d, page %d of the sequence: digest %016x, published %016x", u, i, got, want)}
		}
	}
	if !l.sealed(r, u, i) {
		return &fault.Error{Kind: fault.EpochChanged, Err: fmt.Errorf("unit %d, page %d of the sequence: reused while it was read", u, i)}
	}
	return nil
}

func (l *lane) fail(r *reception, err *fault.Error) {
	delete(l.active, r.attempt)
	l.post.send(&wire.Failed{Attempt: r.attempt, Kind: err.Kind, Text: err.Error()})
}
