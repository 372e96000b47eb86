// Package cuda is the backend for NVIDIA cards: kernels over weights that each rank
// holds in its own card's memory, on as many ranks as the replica has, one card
// each, that write into one another's memory.
//
// It owns how packed weights, values and KV pages lie in a card's memory, which
// rank computes which rows, and where ranks wait for one another. The memory of the
// KV cache is the caller's. The driver is reached through gpu/driver alone, so the
// same code runs on a card and on the simulated driver of gpu/sim.
//
// # Kernels
//
// src holds them, ptx what scripts/ptx makes of them, host what runs them without a
// card: see the README there. All of a Backend's arithmetic is float32, without
// tensor cores, and in operations that round as IEEE 754 says; so a card's results
// and the simulation's are meant to be equal bit for bit.
//
// # One answer
//
// Each element is computed by the same operations in the same order for any number
// of rows and ranks: src/linear.h and src/attend.h say which. A linear layer is
// split by output rows. What all ranks need of a result (activations of attention
// and of the feed-forward's middle, and the residual stream) each of them writes to
// all, and all meet before it is read; nothing is summed across ranks.
package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tandem/gpu/driver"
	"tandem/kernels"
)

// ElemBytes is what an element of the KV cache takes.
const ElemBytes = 4

// Options say what a Backend computes with.
type Options struct {
	Driver driver.Driver
	Device int // of this rank, by the driver's ordinal
	Shape  kernels.Shape
	// Rope holds cos and sin of each pair's angle, [Context][HeadDim/2][2].
	Rope []float32
	// Team.Shared, if there are several ranks, is no memory of the Go heap.
	Team kernels.Team
	// Progress is where Steps is counted, for example in memory that a supervisor
	// reads too; nil keeps it private.
	Progress *atomic.Uint64
	// Patience is how long a rank waits for the others before it gives the replica
	// up; 0 means two minutes.
	Patience time.Duration
}

// A Backend computes for one rank. It belongs to one goroutine; Steps, Abort and
// Name may be called from any. What its operations queue runs on one stream, so
// they return before their work is done; Sync, Logits and Logits' methods wait.
type Backend struct {
	ctx      driver.Context
	stream   driver.Stream
	code     *module // of what touches no weights of many formats
	formats  map[kernels.Type]*module
	shape    kernels.Shape
	team     kernels.Team
	progress *atomic.Uint64
	patience time.Duration
	err      error

	memory []driver.Ptr // to free at Close
	rope   driver.Ptr
	values arena
	parts  driver.Ptr // of attention, for partRows rows
	// partRows is the number of rows up to which attention is split in blocks.
	partRows int

	queued uint32 // operations
	host   hostBlock
	meta   meta
	out    logits
	mates  mates

	units driver.Ptr // addresses of units' pages
	pages int
	epoch int64 // meetings, from 1
}

// hostBlock is pinned memory that the card writes to.
type hostBlock struct {
	mem []byte
	at  driver.Ptr
}

// Words at the beginning of a hostBlock.
const (
	failedWord = 0  // a meeting was in vain
	doneWord   = 64 // operations that the card is done with
	hostHead   = 128
)

func (h *hostBlock) word(at int) *uint32 { return (*uint32)(unsafe.Pointer(&h.mem[at])) }

// New returns the backend of rank o.Team.Rank.
func New(o Options) (*Backend, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	b := &Backend{
		shape: o.Shape, team: o.Team, progress: o.Progress, patience: cmp.Or(o.Patience, 2*time.Minute), epoch: 1,
	}
	if b.progress == nil {
		b.progress = new(atomic.Uint64)
	}
	if err := b.open(o); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Backend) open(o Options) (err error) {
	if b.ctx, err = o.Driver.Open(o.Device); err != nil {
		return fmt.Errorf("cuda: device %d: %w", o.Device, err)
	}
	if b.stream, err = b.ctx.NewStream(); err != nil {
		return err
	}
	if b.code, err = load(b.ctx, "llama"); err != nil {
		return err
	}
	s := o.Shape
	if b.rope, err = b.alloc(int64(4 * s.Context * s.HeadDim)); err != nil {
		return err
	}
	if err = b.ctx.Write(b.rope, floatBytes(o.Rope[:s.Context*s.HeadDim])); err != nil {
		return err
	}
	b.values.size = valueBytes(s)
	if b.values.base, err = b.alloc(b.values.size); err != nil {
		return err
	}
	lo, hi := b.share(byHead, s.Heads*s.HeadDim)
	each := int64(hi-lo) / int64(s.HeadDim) * int64(blocks(s)) * int64(s.HeadDim+2) * 4
	b.partRows = s.MaxRows
	if each > 0 {
		b.partRows = int(min(int64(s.MaxRows), partialRows, partialBytes/each))
	}
	if b.parts, err = b.alloc(max(1, each*int64(b.partRows))); err != nil {
		return err
	}
	if b.host, err = b.pin(hostHead + 4*s.MaxOut + 4*s.Vocab*s.MaxOut); err != nil {
		return err
	}
	if err = b.openMeta(); err != nil {
		return err
	}
	b.out = logits{b: b, ld: up32(s.Vocab)}
	if b.out.in, err = b.alloc(int64(4 * s.MaxOut * up32(s.Width))); err != nil {
		return err
	}
	if b.units, err = b.alloc(int64(8 * s.Units)); err != nil {
		return err
	}
	// The logits are the first value, so that all ranks know where rank 0's are.
	b.out.rows = b.values.take(4 * b.out.ld * s.MaxOut)
	return b.mates.publish(b, o)
}

const (
	// partialRows and partialBytes bound the rows for which attention's parts have
	// room.
	partialRows  = 32
	partialBytes = 256 << 20
)

// blocks is how many blocks of attention a whole context has.
func blocks(s kernels.Shape) int { return (s.Context + 63) / 64 }

func (o *Options) check() error {
	s, t := o.Shape, o.Team
	switch {
	case o.Driver == nil:
		return errors.New("no driver")
	case s.Layers < 1 || s.Units < 1 || s.Heads < 1 || s.Width < 1 || s.Hidden < 1 || s.Vocab < 1 || s.MaxRows < 1 || s.MaxOut < 1 || s.Context < 1:
		return fmt.Errorf("shape %+v has a size below 1", s)
	case s.Width%32 != 0 || s.Hidden%32 != 0 || s.Heads*s.HeadDim%32 != 0:
		return fmt.Errorf("width %d, hidden size %d and %d heads of %d must be multiples of 32: %w", s.Width, s.Hidden, s.Heads, s.HeadDim, kernels.ErrUnsupported)
	case s.HeadDim%2 != 0 || s.HeadDim > 256 || s.PageTokens < 1:
		return fmt.Errorf("head size %d must be even and at most 256, pages of %d tokens: %w", s.HeadDim, s.PageTokens, kernels.ErrUnsupported)
	case s.Heads%s.Units != 0:
		return fmt.Errorf("%d heads cannot share %d units evenly: %w", s.Heads, s.Units, kernels.ErrUnsupported)
	case len(o.Rope) < s.Context*s.HeadDim:
		return fmt.Errorf("rotary table of %d numbers where %d positions of heads of %d need %d", len(o.Rope), s.Context, s.HeadDim, s.Context*s.HeadDim)
	case t.Size < 1 || t.Size > maxRanks || t.Rank < 0 || t.Rank >= t.Size:
		return fmt.Errorf("rank %d of %d (at most %d)", t.Rank, t.Size, maxRanks)
	case t.Size > 1 && int64(len(t.Shared)) < SharedBytes(t.Size):
		return fmt.Errorf("%d bytes of shared memory where %d are needed", len(t.Shared), SharedBytes(t.Size))
	case s.MaxRows > 65535 || blocks(s) > 65535:
		return fmt.Errorf("%d rows, context of %d: %w", s.MaxRows, s.Context, kernels.ErrUnsupported)
	}
	return nil
}

// Name implements kernels.Backend.
func (b *Backend) Name() string {
	d := b.ctx.Device()
	return fmt.Sprintf("cuda %s sm_%d%d", d.Name, d.Major, d.Minor)
}

// Context is the context that the backend computes in, for what must be done there
// beside it. It is the backend's.
func (b *Backend) Context() driver.Context { return b.ctx }

// Steps implements kernels.Backend. It counts what was queued and what the card is
// done with, so it moves while either side does.
func (b *Backend) Steps() uint64 { return b.progress.Load() }

// step counts an operation.
func (b *Backend) step() {
	b.queued++
	b.count()
}

func (b *Backend) count() {
	b.progress.Store(uint64(b.queued) + uint64(atomic.LoadUint32(b.host.word(doneWord))))
}

// mark lets the card say that it came as far.
func (b *Backend) mark() error {
	return b.fail(b.ctx.Write32(b.stream, b.host.at+doneWord, b.queued))
}

// fail keeps the first error, after which no operation works.
func (b *Backend) fail(err error) error {
	if b.err == nil {
		b.err = err
	}
	return b.err
}

// wait waits for all that is queued, counting what gets done.
func (b *Backend) wait(op string) error {
	for start := time.Now(); b.err == nil; {
		done, err := b.ctx.Done(b.stream)
		b.count()
		if err != nil {
			return b.fail(fmt.Errorf("cuda: %s: %w", op, err))
		}
		if done {
			break
		}
		if time.Since(start) < 200*time.Microsecond {
			runtime.Gosched()
		} else {
			time.Sleep(20 * time.Microsecond)
		}
	}
	if b.err == nil && atomic.LoadUint32(b.host.word(failedWord)) != 0 {
		return b.fail(fmt.Errorf("cuda: rank %d of %d in %s: %w", b.team.Rank, b.team.Size, op, kernels.ErrTeam))
	}
	return b.err
}

// Sync implements kernels.Backend.
func (b *Backend) Sync() error {
	defer b.step()
	if err := b.meet(); err != nil {
		return err
	}
	if err := b.mark(); err != nil {
		return err
	}
	return b.wait("Sync")
}

// Close gives back what the backend holds on the card. Nothing that it made may be
// used afterwards. Other ranks must be done with this one's memory.
func (b *Backend) Close() error {
	if b.ctx == nil {
		return nil
	}
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	if b.stream != 0 {
		note(b.ctx.SyncStream(b.stream))
		note(b.ctx.CloseStream(b.stream))
	}
	note(b.mates.close(b))
	note(b.meta.close(b))
	if b.host.mem != nil {
		note(b.unpin(b.host))
	}
	for _, p := range b.memory {
		note(b.ctx.Free(p))
	}
	for _, m := range b.formats {
		note(m.close())
	}
	if b.code != nil {
		note(b.code.close())
	}
	note(b.ctx.Close())
	b.ctx = nil
	return errors.Join(errs...)
}

// alloc is memory on the card until Close.
func (b *Backend) alloc(bytes int64) (driver.Ptr, error) {
	p, err := b.ctx.Alloc(max(bytes, 1))
	if err != nil {
		return 0, fmt.Errorf("cuda: %d bytes on device %d: %w", bytes, b.ctx.Device().Ordinal, err)
	}
	b.memory = append(b.memory, p)
	return p, nil
}

// pin is zeroed memory of the host that the card can address.
func (b *Backend) pin(bytes int) (hostBlock, error) {
	mem, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return hostBlock{}, fmt.Errorf("cuda: %d bytes of host memory: %w", bytes, err)
	}
	at, err := b.ctx.Register(mem)
	if err != nil {
		_ = unix.Munmap(mem)
		return hostBlock{}, fmt.Errorf("cuda: pinning %d bytes: %w", bytes, err)
	}
	return hostBlock{mem, at}, nil
}

func (b *Backend) unpin(h hostBlock) error {
	return errors.Join(b.ctx.Unregister(h.mem), unix.Munmap(h.mem))
}

func floatBytes(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

func up32(n int) int { return (n + 31) &^ 31 }

// Mem is memory of a card that holds a unit's pages: kernels.Mem for this backend.
type Mem struct {
	At    driver.Ptr
	Bytes int64
}

// Len implements kernels.Mem.
func (m Mem) Len() int64 { return m.Bytes }

// OpenKV implements kernels.Backend. The units that the rank owns are Mem, on its
// card; others are not looked at.
func (b *Backend) OpenKV(units []kernels.Mem) error {
	g := b.shape.Geometry
	if len(units) != g.Units {
		return fmt.Errorf("cuda: the memory of %d units, want %d", len(units), g.Units)
	}
	page := g.UnitPageBytes(ElemBytes)
	at := make([]driver.Ptr, g.Units)
	lo, hi := g.Owner(b.team.Rank, b.team.Size)
	b.pages = math.MaxInt
	for u := lo; u < hi; u++ {
		m, ok := units[u].(Mem)
		if !ok {
			return fmt.Errorf("cuda: unit %d lies in %T, want memory of a card", u, units[u])
		}
		if m.Bytes%page != 0 || m.Bytes == 0 {
			return fmt.Errorf("cuda: unit %d: %d bytes are no whole pages of %d", u, m.Bytes, page)
		}
		if n := int(m.Bytes / page); u > lo && n != b.pages {
			return fmt.Errorf("cuda: unit %d has %d pages, the units before it %d", u, n, b.pages)
		}
		at[u], b.pages = m.At, int(m.Bytes/page)
	}
	return b.ctx.Write(b.units, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(at))), 8*len(at)))
}
