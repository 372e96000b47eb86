package cuda

import (
	"fmt"
	"unsafe"

	"tandem/gpu/driver"
	"tandem/kernels"
)

// A deal is a way of dealing the rows of a matrix, the columns of its result, out to
// the ranks.
type deal uint8

const (
	whole  deal = iota // every rank has all of it
	evenly             // in groups of 32
	byUnit             // rows of a KV unit to its owner
	byHead             // rows of a query head to the owner of its unit
)

// share is the part [lo, hi) of cols columns that this rank has under d.
func (b *Backend) share(d deal, cols int) (lo, hi int) { return b.shareOf(b.team.Rank, d, cols) }

func (b *Backend) shareOf(rank int, d deal, cols int) (lo, hi int) {
	switch d {
	case whole:
		return 0, cols
	case evenly:
		n, size := (cols+31)/32, b.team.Size
		return min(n*rank/size*32, cols), min(n*(rank+1)/size*32, cols)
	}
	lo, hi = b.shape.Owner(rank, b.team.Size)
	per := cols / b.shape.Units
	return lo * per, hi * per
}

// dealOf is the deal of a matrix's rows. With rows of queries by head, nothing of
// attention is needed by other ranks before its result.
func (b *Backend) dealOf(m *matrix) deal {
	switch {
	case m.part == kernels.ByUnit:
		return byUnit
	case m.Rows == b.shape.Heads*b.shape.HeadDim:
		return byHead
	}
	return evenly
}

// A matrix is packed weights, of which the card has the rows that this rank uses.
type matrix struct {
	kernels.Packed
	part   kernels.Partition
	row    int // bytes
	loaded []loaded
}

type loaded struct {
	lo, hi int
	at     driver.Ptr
}

func (*matrix) Matrix() {}

// Matrix implements kernels.Backend. Rows are copied to the card when they are first
// used.
func (b *Backend) Matrix(w kernels.Packed, p kernels.Partition) kernels.Matrix {
	bytes, err := NewPacker().PackedBytes(w.Type, w.Rows, w.Cols)
	if err != nil || w.Rows == 1 || int64(len(w.Data)) != bytes {
		panic(fmt.Sprintf("cuda: %d bytes cannot be a packed matrix of %d×%d %v (%v)", len(w.Data), w.Rows, w.Cols, w.Type, err))
	}
	if p == kernels.ByUnit && w.Rows != b.shape.Units*b.shape.HeadDim {
		panic(fmt.Sprintf("cuda: a matrix of %d rows has no rows of %d units of %d", w.Rows, b.shape.Units, b.shape.HeadDim))
	}
	return &matrix{Packed: w, part: p, row: rowBytes(w.Type, w.Cols)}
}

// weights is where rows [lo, hi) of m are on the card.
func (b *Backend) weights(m *matrix, lo, hi int) (driver.Ptr, error) {
	for _, l := range m.loaded {
		if l.lo <= lo && hi <= l.hi {
			return l.at + driver.Ptr((lo-l.lo)*m.row), nil
		}
	}
	p, err := b.alloc(int64(hi-lo) * int64(m.row))
	if err == nil {
		err = b.ctx.Write(p, m.Data[lo*m.row:hi*m.row])
	}
	if err != nil {
		return 0, fmt.Errorf("cuda: %d rows of weights: %w", hi-lo, err)
	}
	m.loaded = append(m.loaded, loaded{lo, hi, p})
	return p, nil
}

type vector struct {
	cols int
	data []byte
	at   driver.Ptr
}

func (*vector) Vector() {}

// Vector implements kernels.Backend.
func (b *Backend) Vector(w kernels.Packed) kernels.Vector {
	if w.Rows != 1 || len(w.Data) < 4*w.Cols {
		panic(fmt.Sprintf("cuda: %d bytes cannot be a packed vector: %d×%d %v", len(w.Data), w.Rows, w.Cols, w.Type))
	}
	return &vector{cols: w.Cols, data: w.Data[:4*w.Cols]}
}

// load is where v is on the card.
func (b *Backend) load(v *vector) (driver.Ptr, error) {
	if v.at == 0 {
		p, err := b.alloc(int64(len(v.data)))
		if err == nil {
			err = b.ctx.Write(p, v.data)
		}
		if err != nil {
			return 0, fmt.Errorf("cuda: a vector of weights: %w", err)
		}
		v.at = p
	}
	return v.at, nil
}

// An arena hands out pieces of the memory for values in order. The ranks ask for the
// same pieces in the same order, so a value lies at the same offset for all.
type arena struct {
	base driver.Ptr
	size int64
	used int64
}

func (a *arena) take(bytes int) int64 {
	at := a.used
	a.used += (int64(bytes) + 255) &^ 255
	if a.used > a.size {
		panic(fmt.Sprintf("cuda: no room for %d more bytes of values: the plan holds %d of each width", bytes, valuesOfEach))
	}
	return at
}

// valuesOfEach is how many values, Buffers and Acts together, of each of a model's
// widths there is room for.
const valuesOfEach = 4

func valueBytes(s kernels.Shape) int64 {
	n := int64(4*up32(s.Vocab))*int64(s.MaxOut) + 256
	for _, cols := range []int{s.Width, s.Heads * s.HeadDim, s.Units * s.HeadDim, s.Hidden} {
		n += valuesOfEach * (int64(4*up32(cols))*int64(s.MaxRows) + 256)
	}
	return n
}

// A value is rows of floats at the same place of every rank's memory. Ranks write
// either their own, or their share of everybody's; see local and push.
type value struct {
	cols, ld int
	at       int64
	deal     deal // what of it this rank has: whole, once all have met
	// The last epochs in which ranks touched their own, and in which they wrote to
	// everybody's.
	touched, pushed int64
}

type (
	buffer struct{ value }
	act    struct{ value }
)

func (*buffer) Buffer() {}
func (*act) Act()       {}

func (b *Backend) newValue(cols int) value {
	ld := up32(cols)
	return value{cols: cols, ld: ld, at: b.values.take(4 * ld * b.shape.MaxRows)}
}

// NewBuffer implements kernels.Backend.
func (b *Backend) NewBuffer(cols int) kernels.Buffer { return &buffer{b.newValue(cols)} }

// NewAct implements kernels.Backend. Nothing is rounded away, whatever the precision.
func (b *Backend) NewAct(cols int, _ kernels.Precision) kernels.Act {
	if cols%32 != 0 {
		panic(fmt.Sprintf("cuda: activations of %d columns are no whole blocks of 32", cols))
	}
	return &act{b.newValue(cols)}
}

// own is where this rank's v is.
func (b *Backend) own(v *value) driver.Ptr { return b.values.base + driver.Ptr(v.at) }

// local says that this rank is about to read or write values of its own that others
// may have written to: what they wrote in this epoch is not there before all met.
func (b *Backend) local(vs ...*value) error {
	for _, v := range vs {
		if v.pushed == b.epoch {
			if err := b.meet(); err != nil {
				return err
			}
		}
	}
	for _, v := range vs {
		v.touched = b.epoch
	}
	return b.err
}

// push says that this rank is about to write its share of everybody's v, which others
// may still be using, and returns where that is.
func (b *Backend) push(v *value) (peers, error) {
	if v.touched == b.epoch {
		if err := b.meet(); err != nil {
			return peers{}, err
		}
	}
	v.pushed = b.epoch
	p := peers{n: int32(b.team.Size)}
	bases, err := b.mates.bases(b)
	for i := range bases {
		// The own first, then the next ranks in turn, so that not all write to one.
		p.p[i] = bases[(b.team.Rank+i)%len(bases)] + driver.Ptr(v.at)
	}
	return p, b.fail(err)
}

// alone is the rank's own v as the place of a result.
func (b *Backend) alone(v *value) peers {
	return peers{p: [maxRanks]driver.Ptr{b.own(v)}, n: 1}
}

// Row is a copy of row r of a buffer, wherever its columns are. All ranks are at rest:
// they have come back from Sync and do nothing else. It is for tests.
func (b *Backend) Row(v kernels.Buffer, r int) ([]float32, error) {
	x := v.(*buffer)
	out := make([]float32, x.cols)
	bases, err := b.mates.bases(b)
	if err != nil {
		return nil, err
	}
	for rank, base := range bases {
		lo, hi := b.shareOf(rank, x.deal, x.cols)
		if x.deal == whole && rank != b.team.Rank || lo == hi {
			continue
		}
		if err := b.ctx.Read(floatBytes(out[lo:hi]), base+driver.Ptr(x.at)+driver.Ptr(4*(r*x.ld+lo))); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func words[T uint32 | int32](v []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
