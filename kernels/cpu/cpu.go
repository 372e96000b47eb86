// Package cpu is the backend for processors: C kernels over weights that are
// packed 16 rows at a time, on as many ranks as the replica has, one thread
// each, that share memory.
//
// It owns how packed weights, activations and KV pages lie in memory, which
// rank computes which rows, and where the ranks wait for one another. The
// memory of weights and of the KV cache is the caller's, as is the starting and
// pinning of threads.
//
// # Three sets of kernels
//
// The fine set (the default) rounds activations where they meet quantised
// weights, 32 at a time with one scale, to about 15 bits, in two planes of 8. The
// fast set takes kernels.Coarse at its word and makes do with one plane there;
// what that loses is still less than the weights have lost. Both keep keys and
// values as binary16. The float32 set rounds nothing that float32 holds: it is
// slow, and what the others are measured by.
//
// # One answer
//
// Every element is computed by the same IEEE operations in the same order for
// any number of rows and ranks and on every instruction set (kern.h says how),
// so results are equal bit for bit. A linear layer is split by output rows and
// its result gathered in shared memory, never summed across ranks.
//
// The order of attention: a block is 256 positions (as many whole pages as fit,
// at least one). In a block, a score is the sum over dimensions in order, the
// weights are e^(score - largest score of the block), and a dimension of the
// result is the sum over positions in order; then the blocks are folded from the
// first to the last.
package cpu

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tandem/gpu/hostsync"
	"tandem/kernels"
)

// The sets of kernels.
const (
	Fine    = "fine"
	Fast    = "fast"
	Float32 = "float32"
)

// ElemBytes is what an element of the KV cache takes with the given set ("" is
// the default): see kernels.Geometry.UnitPageBytes. It panics on an unknown set.
func ElemBytes(set string) int {
	switch set {
	case Fine, Fast, "":
		return 2
	case Float32:
		return 4
	}
	panic(fmt.Sprintf("cpu: no set of kernels is called %q", set))
}

// Options say what a Backend computes with.
type Options struct {
	Set string // Fine (also if empty), Fast or Float32
	// ISA is the instruction set: "avx512", "avx2", "generic", or empty for the
	// best this machine has. Empty, the environment's TANDEM_KERNELS decides, for
	// tests of whole programs. The choice changes speed and nothing else.
	ISA   string
	Shape kernels.Shape
	// Rope holds cos and sin of each pair's angle, [Context][HeadDim/2][2].
	// Borrowed for the backend's life.
	Rope []float32
	Team kernels.Team
	// LocalBytes bounds the memory in which the rank keeps copies of its own rows
	// of weights, in huge pages: 0 means 256 MiB, less than 0 none. Weights that
	// processes share usually lie in small pages, where reading them is slower by
	// a third. A matrix is copied when it is first used.
	LocalBytes int64
	// Progress is where Steps is counted, for example in memory that a
	// supervisor reads too; nil keeps it private.
	Progress *atomic.Uint64
	// Spin is how long a rank looks for the others before it sleeps; 0 means
	// 200 µs, or hardly at all if the team is crowded.
	Spin time.Duration
	// Patience is how long a rank waits for the others before it gives the
	// replica up; 0 means two minutes.
	Patience time.Duration
}

// A Backend computes for one rank. It belongs to one goroutine, which should be
// locked to a thread pinned to a core; Steps, Abort and Name may be called from
// any.
type Backend struct {
	kern     kern
	set      string
	shape    kernels.Shape
	rope     []float32
	local    local
	team     kernels.Team
	progress *atomic.Uint64
	patience time.Duration

	owned  []byte // memory of its own to return at Close
	shared arena
	priv   arena

	barrier *hostsync.Barrier
	epoch   int64 // barriers passed, from 1
	err     error

	needs map[int]need // by columns of activations

	units  [][]byte
	nPages int
	kv     use

	parts     []float32
	partsUse  use
	partsOf   *act
	partRows  int
	blocks    int // blocks of attention in a whole context
	blockKeys int

	rowBlocks []int // of each row of the last attention that was split in blocks

	scratch []float32 // of attend
	expand  []float32 // of gemm_f
	row     []float32 // one row of the widest activations

	segs   []segment
	pieces []piece
	out    logits
}

// need says in which forms activations of some width are taken.
type need struct{ floats, bytes bool }

const (
	maxRanks = 64
	// few is the number of rows up to which every rank computes all of a cheap
	// row-wise operation for itself rather than a share and then wait.
	few = 8
	// partialRows is the number of rows for which attention can be split within
	// a row.
	partialRows = 64
)

// New returns the backend of rank o.Team.Rank.
func New(o Options) (*Backend, error) {
	isa := cmp.Or(o.ISA, os.Getenv("TANDEM_KERNELS"))
	k, ok := find(isa)
	if !ok {
		return nil, fmt.Errorf("cpu: this machine has no instruction set %q (it has %s)", isa, Detect())
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("cpu: %w", err)
	}
	b := &Backend{
		kern: k, set: cmp.Or(o.Set, Fine), shape: o.Shape, rope: o.Rope, team: o.Team, progress: o.Progress,
		patience: cmp.Or(o.Patience, 2*time.Minute), epoch: 1, needs: map[int]need{},
	}
	plan := planOf(o)
	shared := o.Team.Shared
	private := plan.private
	if shared == nil {
		private += plan.shared
	}
	var err error
	if b.owned, err = anonymous(private); err != nil {
		return nil, fmt.Errorf("cpu: %d bytes of working memory: %w", private, err)
	}
	b.priv.mem = b.owned
	if shared == nil {
		b.shared.mem, b.priv.mem = b.owned[:plan.shared:plan.shared], b.owned[plan.shared:]
	} else {
		b.shared.mem = shared[:plan.shared:plan.shared]
	}
	b.local.limit = cmp.Or(o.LocalBytes, 256<<20)
	if b.progress == nil {
		b.progress = new(atomic.Uint64)
	}
	spin := o.Spin
	switch {
	case spin != 0:
	case o.Team.Crowded:
		spin = 2 * time.Microsecond
	default:
		spin = 200 * time.Microsecond
	}
	b.barrier = hostsync.NewBarrier(b.shared.bytes(hostsync.BarrierBytes), o.Team.Size, spin)
	s := o.Shape
	b.blockKeys, b.blocks = blockKeys(s.Geometry), plan.blocks
	b.partRows = plan.partRows
	b.parts = b.shared.floats(plan.partRows * s.Heads * plan.blocks * partFloats(s))
	b.out = logits{
		b: b, ld: leading(s.Vocab),
		rows: b.shared.floats(s.MaxOut * leading(s.Vocab)),
		best: b.shared.floats(maxRanks * s.MaxOut * 2),
		in:   newStore(&b.priv, s.Width, s.MaxOut, true),
	}
	b.scratch = b.priv.floats(attendFloats(s.HeadDim, s.PageTokens, s.Heads/s.Units))
	b.row = b.priv.floats(widest(s))
	return b, nil
}

func (o *Options) check() error {
	s, t := o.Shape, o.Team
	switch {
	case o.Set != "" && o.Set != Fine && o.Set != Fast && o.Set != Float32:
		return fmt.Errorf("no set of kernels is called %q", o.Set)
	case s.Layers < 1 || s.Units < 1 || s.Heads < 1 || s.Width < 1 || s.Hidden < 1 || s.Vocab < 1 || s.MaxRows < 1 || s.MaxOut < 1 || s.Context < 1:
		return fmt.Errorf("shape %+v has a size below 1", s)
	case s.Width%32 != 0 || s.Hidden%32 != 0 || s.Heads*s.HeadDim%32 != 0:
		return fmt.Errorf("width %d, hidden size %d and %d heads of %d must be multiples of 32: %w", s.Width, s.Hidden, s.Heads, s.HeadDim, kernels.ErrUnsupported)
	case s.HeadDim%16 != 0 || s.PageTokens%16 != 0 || s.PageTokens < 16 || s.HeadDim < 16:
		return fmt.Errorf("head size %d and page of %d tokens must be multiples of 16: %w", s.HeadDim, s.PageTokens, kernels.ErrUnsupported)
	case s.Heads%s.Units != 0:
		return fmt.Errorf("%d heads cannot share %d units evenly: %w", s.Heads, s.Units, kernels.ErrUnsupported)
	case len(o.Rope) < s.Context*s.HeadDim:
		return fmt.Errorf("rotary table of %d numbers where %d positions of heads of %d need %d", len(o.Rope), s.Context, s.HeadDim, s.Context*s.HeadDim)
	case t.Size < 1 || t.Size > maxRanks || t.Rank < 0 || t.Rank >= t.Size:
		return fmt.Errorf("rank %d of %d (at most %d)", t.Rank, t.Size, maxRanks)
	case t.Size > 1 && t.Shared == nil:
		return errors.New("several ranks and no shared memory")
	case t.Shared != nil && int64(len(t.Shared)) < SharedBytes(*o):
		return fmt.Errorf("%d bytes of shared memory where %d are needed", len(t.Shared), SharedBytes(*o))
	}
	return nil
}

// Detect names the instruction set that New chooses by itself, for logs.
func Detect() string {
	k, _ := find("")
	return k.name()
}

// Pin binds the calling thread to one core. The caller has locked its goroutine
// to the thread.
func Pin(core int) error {
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("cpu: pinning a thread to core %d: %w", core, err)
	}
	return nil
}

// Name implements kernels.Backend.
func (b *Backend) Name() string {
	if b.set == Float32 {
		return "cpu " + b.kern.name() + " float32"
	}
	return "cpu " + b.kern.name()
}

// Steps implements kernels.Backend.
func (b *Backend) Steps() uint64 { return b.progress.Load() }

// Abort makes the operations of all ranks that wait for another, now or later,
// fail with kernels.ErrTeam. Any process that shares the team's memory may do
// the same with AbortTeam.
func (b *Backend) Abort() { b.barrier.Abort() }

// AbortTeam is Abort for a process that has the team's shared memory and no
// backend.
func AbortTeam(shared []byte) { hostsync.NewBarrier(shared, 1, 0).Abort() }

// Close returns the backend's own memory. Nothing that it made may be used
// afterwards.
func (b *Backend) Close() error {
	mem := b.owned
	b.owned = nil
	if mem == nil {
		return nil
	}
	return errors.Join(b.local.close(), unix.Munmap(mem))
}

// Sync implements kernels.Backend.
func (b *Backend) Sync() error {
	defer b.step()
	return b.meet("Sync")
}

// step counts an operation.
func (b *Backend) step() { b.progress.Add(1) }

// meet waits until all ranks are here.
func (b *Backend) meet(op string) error {
	if b.err != nil {
		return b.err
	}
	if b.team.Size == 1 {
		return nil
	}
	if err := b.barrier.Wait(b.patience); err != nil {
		b.barrier.Abort()
		b.err = fmt.Errorf("cpu: rank %d of %d in %s: %w: %w", b.team.Rank, b.team.Size, op, kernels.ErrTeam, err)
		return b.err
	}
	b.epoch++
	return nil
}

// use keeps the books of a value that several ranks write parts of: in which
// epoch it was last written so, and last read beyond the reader's own part. An
// epoch ends at a barrier. All ranks keep the same books, since all do the same
// operations, and so agree on where to wait.
type use struct{ wrote, read int64 }

// read says that this rank is about to read parts that others wrote.
func (b *Backend) read(op string, us ...*use) error {
	for _, u := range us {
		if u.wrote == b.epoch {
			if err := b.meet(op); err != nil {
				return err
			}
			break
		}
	}
	for _, u := range us {
		u.read = b.epoch
	}
	return b.err
}

// write says that this rank is about to write its part of values that others
// may still be reading.
func (b *Backend) write(op string, us ...*use) error {
	for _, u := range us {
		if u.read == b.epoch {
			if err := b.meet(op); err != nil {
				return err
			}
			break
		}
	}
	for _, u := range us {
		u.wrote = b.epoch
	}
	return b.err
}
