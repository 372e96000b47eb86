package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"tandem/gpu/driver"
	"tandem/kernels"
)

// Team.Shared of n ranks:
//
//	n × 64     words: of each rank, the number of meetings that it came to
//	64         the abort word
//	n × 128    slots: where each rank's values are
const (
	wordBytes = 64
	slotBytes = 128
)

// SharedBytes is the size of the Team.Shared that a team of so many ranks needs.
func SharedBytes(size int) int64 {
	return (int64(size)*(wordBytes+slotBytes) + wordBytes + 4095) &^ 4095
}

// A slot is a rank's, in Team.Shared; ready is set last.
//
//	0 u32 ready   4 u32 process   8 u64 address   16 u32 device   24 handle
type rankSlot []byte

func slotOf(shared []byte, size, rank int) rankSlot {
	at := (size+1)*wordBytes + rank*slotBytes
	return rankSlot(shared[at : at+slotBytes])
}

func (s rankSlot) ready() *uint32 { return (*uint32)(unsafe.Pointer(&s[0])) }

// mates is what a rank knows of the others.
type mates struct {
	driver     driver.Driver
	words      driver.Ptr // of Team.Shared, as the card sees it
	registered bool
	at         []driver.Ptr // each rank's values, once all are known
	opened     []driver.Ptr // memory of other processes
	contexts   []driver.Context
}

// publish tells the others where this rank's values are.
func (m *mates) publish(b *Backend, o Options) error {
	m.driver = o.Driver
	if b.team.Size == 1 {
		m.at = []driver.Ptr{b.values.base}
		return nil
	}
	shared := b.team.Shared
	words, err := b.ctx.Register(shared)
	switch {
	case err == nil:
		m.words, m.registered = words, true
	case errors.Is(err, driver.HostRegistered) && b.ctx.Device().HostIsSame:
		// By another rank in this process.
		m.words = driver.Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(shared))))
	default:
		return fmt.Errorf("cuda: pinning the team's memory: %w", err)
	}
	handle, err := b.ctx.ExportIPC(b.values.base)
	if err != nil {
		return fmt.Errorf("cuda: sharing the values of rank %d: %w", b.team.Rank, err)
	}
	s, le := slotOf(shared, b.team.Size, b.team.Rank), binary.LittleEndian
	le.PutUint32(s[4:], uint32(os.Getpid()))
	le.PutUint64(s[8:], uint64(b.values.base))
	le.PutUint32(s[16:], uint32(o.Device))
	copy(s[24:], handle[:])
	atomic.StoreUint32(s.ready(), 1)
	return nil
}

// bases are where each rank's values are. The first time it waits for all ranks to
// have said so.
func (m *mates) bases(b *Backend) ([]driver.Ptr, error) {
	if m.at != nil {
		return m.at, nil
	}
	at := make([]driver.Ptr, b.team.Size)
	le := binary.LittleEndian
	deadline := time.Now().Add(b.patience)
	for rank := range at {
		if rank == b.team.Rank {
			at[rank] = b.values.base
			continue
		}
		s := slotOf(b.team.Shared, b.team.Size, rank)
		for atomic.LoadUint32(s.ready()) == 0 {
			if time.Now().After(deadline) || atomic.LoadUint32(abortWord(b.team.Shared, b.team.Size)) != 0 {
				return nil, fmt.Errorf("cuda: rank %d of %d has not begun: %w", rank, b.team.Size, kernels.ErrTeam)
			}
			time.Sleep(100 * time.Microsecond)
		}
		if int(le.Uint32(s[4:])) != os.Getpid() {
			p, err := b.ctx.OpenIPC(driver.IPCHandle(s[24 : 24+64]))
			if err != nil {
				return nil, fmt.Errorf("cuda: values of rank %d: %w", rank, err)
			}
			at[rank] = p
			m.opened = append(m.opened, p)
			continue
		}
		at[rank] = driver.Ptr(le.Uint64(s[8:]))
		if device := int(le.Uint32(s[16:])); device != b.ctx.Device().Ordinal {
			other, err := m.driver.Open(device)
			if err != nil {
				return nil, fmt.Errorf("cuda: device %d of rank %d: %w", device, rank, err)
			}
			m.contexts = append(m.contexts, other)
			if err := b.ctx.EnablePeer(other); err != nil {
				return nil, fmt.Errorf("cuda: reaching device %d of rank %d: %w", device, rank, err)
			}
		}
	}
	m.at = at
	return at, nil
}

func (m *mates) close(b *Backend) (err error) {
	for _, p := range m.opened {
		err = errors.Join(err, b.ctx.CloseIPC(p))
	}
	for _, c := range m.contexts {
		err = errors.Join(err, c.Close())
	}
	if m.registered {
		err = errors.Join(err, b.ctx.Unregister(b.team.Shared))
	}
	return err
}

// meet queues a meeting of all ranks: what any of them wrote before, all can read
// after. That one of them did not come is known when the host next waits.
func (b *Backend) meet() error {
	if b.err != nil || b.team.Size == 1 {
		return b.err
	}
	if _, err := b.mates.bases(b); err != nil {
		return b.fail(err)
	}
	p := meetParams{
		words: b.mates.words, failed: b.host.at + failedWord, patience: uint64(b.patience.Nanoseconds()),
		rank: uint32(b.team.Rank), size: uint32(b.team.Size), meeting: uint32(b.epoch),
	}
	b.epoch++
	return b.fail(launch(b.code, b.stream, "meet", [3]int{1, 1, 1}, 32, &p))
}

func abortWord(shared []byte, size int) *uint32 {
	return (*uint32)(unsafe.Pointer(&shared[size*wordBytes]))
}

// Abort makes the operations of all ranks that wait for another, now or later, fail
// with kernels.ErrTeam. Any process that shares the team's memory may do the same
// with AbortTeam.
func (b *Backend) Abort() {
	if b.team.Size > 1 {
		AbortTeam(b.team.Shared, b.team.Size)
	}
}

// AbortTeam is Abort for a process that has the team's shared memory and no backend.
func AbortTeam(shared []byte, size int) { atomic.StoreUint32(abortWord(shared, size), 1) }
