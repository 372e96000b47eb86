package worker

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"tandem/daemon/spawn"
	"tandem/gpu/hostmem"
	"tandem/gpu/share"
	"tandem/model"
)

// memory is what a rank mapped. It lives as long as the process.
type memory struct {
	image, scratch, vitals, sync *hostmem.Region
	kv                           []*share.Segment // of the pages it works on, by unit
	peer                         []*share.Segment // of the other group's; nil where not mapped
	boards                       []*share.Board   // decode: of each prefill replica; prefill: its own
}

func open(name string, fd int, writable bool) (*hostmem.Region, error) {
	if fd <= spawn.ControlFD {
		return nil, fmt.Errorf("setup: no descriptor for %s", name)
	}
	return hostmem.Map(os.NewFile(uintptr(fd), name), writable)
}

// sized maps memory that its users size themselves: all of them to the same size.
func sized(name string, fd int, bytes int64) (*hostmem.Region, error) {
	if err := unix.Ftruncate(fd, bytes); err != nil {
		return nil, fmt.Errorf("%s of %d bytes: %w", name, bytes, err)
	}
	return open(name, fd, true)
}

func openArena(name string, a *spawn.Arena, l model.Layout) ([]*share.Segment, error) {
	segs := make([]*share.Segment, len(a.Units))
	for u, d := range a.Units {
		if d.FD < 0 {
			continue
		}
		r, err := open(fmt.Sprintf("%s unit %d", name, u), d.FD, d.Writable)
		if err != nil {
			return nil, err
		}
		r.Huge()
		if segs[u], err = share.OpenSegment(r.Bytes(), a.Pages, l.UnitPageBytes); err != nil {
			return nil, fmt.Errorf("%s unit %d: %w", name, u, err)
		}
	}
	return segs, nil
}

func openMemory(s *spawn.Setup, l model.Layout) (*memory, error) {
	m := new(memory)
	var err error
	if m.image, err = open("weights", s.Image, false); err != nil {
		return nil, err
	}
	if m.vitals, err = open("vitals", s.Vitals, true); err != nil {
		return nil, err
	}
	if m.sync, err = open("sync", s.Sync, true); err != nil {
		return nil, err
	}
	if want := spawn.SyncBytes(s.Turns, s.Bells); int64(len(m.sync.Bytes())) != want {
		return nil, fmt.Errorf("sync memory of %d bytes, want %d", len(m.sync.Bytes()), want)
	}
	if m.kv, err = openArena("kv", &s.KV, l); err != nil {
		return nil, err
	}
	if s.Peer != nil {
		if m.peer, err = openArena("peer kv", s.Peer, l); err != nil {
			return nil, err
		}
	}
	for i, b := range s.Boards {
		r, err := open(fmt.Sprintf("board %d", i), b.FD, s.Rank.Role.String() == "prefill")
		if err != nil {
			return nil, err
		}
		board, err := share.OpenBoard(r.Bytes(), s.Slots, l.Units, s.MaxPages)
		if err != nil {
			return nil, err
		}
		m.boards = append(m.boards, board)
	}
	return m, nil
}
