package cpu

import (
	"fmt"
	"unsafe"

	"tandem/kernels"
)

// A deal is a way of dealing the rows of a matrix, the columns of its result,
// out to the ranks. A value remembers by which deal it was computed.
type deal uint8

const (
	nobody  deal = iota
	byGroup      // evenly, in groups of 16
	byBlock      // evenly, in blocks of 32, so that a share can be quantised by itself
	byUnit       // rows of a KV unit to its owner
	byQuery      // so that queries together with the keys and values of byUnit are even
)

// share is the part [lo, hi) of cols columns that this rank has under d.
func (b *Backend) share(d deal, cols int) (lo, hi int) {
	rank, size := b.team.Rank, b.team.Size
	even := func(unit int) (lo, hi int) {
		n := (cols + unit - 1) / unit
		return min(n*rank/size*unit, cols), min(n*(rank+1)/size*unit, cols)
	}
	switch d {
	case byGroup:
		return even(16)
	case byBlock:
		return even(32)
	case byUnit:
		lo, hi = b.shape.Owner(rank, size)
		per := cols / b.shape.Units
		return lo * per, hi * per
	case byQuery:
		return b.queryShare(cols)
	}
	panic("cpu: a value is read that nobody computed")
}

// queryShare gives each rank as many query rows as its keys and values leave it
// room for in an even split of all three.
func (b *Backend) queryShare(cols int) (lo, hi int) {
	g, size := b.shape.Geometry, b.team.Size
	groups := cols / 16
	total := float64(groups + 2*g.Units*g.HeadDim/16)
	room := func(rank int) float64 {
		u0, u1 := g.Owner(rank, size)
		return max(0, total/float64(size)-float64(2*(u1-u0)*g.HeadDim/16))
	}
	var before, all float64
	for r := range size {
		if r < b.team.Rank {
			before += room(r)
		}
		all += room(r)
	}
	at := func(x float64) int { return min(groups, int(float64(groups)*x/all+0.5)) * 16 }
	lo, hi = at(before), at(before+room(b.team.Rank))
	if b.team.Rank == size-1 {
		hi = cols
	}
	return lo, hi
}

// dealOf is the deal of a matrix's rows in Linear. It depends on shapes alone,
// so a rank reads the same rows of weights in every step.
func (b *Backend) dealOf(m *matrix) deal {
	switch q := b.shape.Heads * b.shape.HeadDim; {
	case m.part == kernels.ByUnit:
		return byUnit
	case m.Rows == q && q != b.shape.Hidden:
		return byQuery
	}
	return byBlock
}

// matrix is packed weights.
type matrix struct {
	kernels.Packed
	part  kernels.Partition
	float bool // takes float activations
	group int  // bytes

	copied     []byte // of the rank's own rows, from this group on
	copiedFrom int
}

func (*matrix) Matrix() {}

// Matrix implements kernels.Backend.
func (b *Backend) Matrix(w kernels.Packed, p kernels.Partition) kernels.Matrix {
	bytes, err := NewPacker().PackedBytes(w.Type, w.Rows, w.Cols)
	if err != nil || w.Rows == 1 || int64(len(w.Data)) != bytes {
		panic(fmt.Sprintf("cpu: %d bytes cannot be a packed matrix of %d×%d %v (%v)", len(w.Data), w.Rows, w.Cols, w.Type, err))
	}
	if p == kernels.ByUnit && w.Rows != b.shape.Units*b.shape.HeadDim {
		panic(fmt.Sprintf("cpu: a matrix of %d rows has no rows of %d units of %d", w.Rows, b.shape.Units, b.shape.HeadDim))
	}
	m := &matrix{Packed: w, part: p, float: b.set == Float32 || w.Type < kernels.Q4_0, group: groupBytes(w.Type, w.Cols)}
	n := b.needs[w.Cols]
	if m.float {
		n.floats = true
	} else {
		n.bytes = true
	}
	b.needs[w.Cols] = n
	if m.float && w.Type >= kernels.Q4_0 && len(b.expand) < expandGroups*16*w.Cols {
		b.expand = make([]float32, expandGroups*16*w.Cols)
	}
	return m
}

type vector []float32

func (vector) Vector() {}

// Vector implements kernels.Backend.
func (b *Backend) Vector(w kernels.Packed) kernels.Vector {
	if w.Rows != 1 || len(w.Data) < 4*w.Cols {
		panic(fmt.Sprintf("cpu: %d bytes cannot be a packed vector: %d×%d %v", len(w.Data), w.Rows, w.Cols, w.Type))
	}
	return vector(unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(w.Data))), w.Cols))
}

// buffer is rows of floats in memory that all ranks share.
type buffer struct {
	cols, ld int
	data     []float32
	deal     deal // how its columns were dealt out when last written
	use      use
}

func (*buffer) Buffer() {}

func (v *buffer) row(r int) []float32 { return v.data[r*v.ld : r*v.ld+v.cols] }

// NewBuffer implements kernels.Backend.
func (b *Backend) NewBuffer(cols int) kernels.Buffer {
	ld := leading(cols)
	return &buffer{cols: cols, ld: ld, data: b.shared.floats(ld * rowsUp(b.shape.MaxRows))}
}

// A store is memory for activations in both forms, and what it holds of them.
type store struct {
	fine                bool // the bytes are
	floats              []float32
	bytes               []byte
	hasFloats, hasBytes bool
	useFloats, useBytes use
}

// act is activations. They are in the shared store or, where every rank computes
// all of a few rows for itself, in the private one.
type act struct {
	cols, ld        int
	rows            int // that the last operation wrote
	shared, private store
	parts           bool // they still are the partial results of attention
}

func (*act) Act() {}

// renew says that the act gets a new value.
func (v *act) renew(rows int) {
	v.rows, v.parts = rows, false
	for _, s := range []*store{&v.shared, &v.private} {
		s.hasFloats, s.hasBytes = false, false
	}
}

func newStore(a *arena, cols, rows int, fine bool) store {
	rows = rowsUp(rows)
	return store{fine: fine, floats: a.floats(leading(cols) * rows), bytes: a.bytes(rows / tileRows * tileBytes(cols, fine))}
}

// NewAct implements kernels.Backend.
func (b *Backend) NewAct(cols int, p kernels.Precision) kernels.Act {
	fine := p == kernels.Fine || b.set == Fine
	if cols%32 != 0 {
		panic(fmt.Sprintf("cpu: activations of %d columns are no whole blocks of 32", cols))
	}
	v := &act{cols: cols, ld: leading(cols), shared: newStore(&b.shared, cols, b.shape.MaxRows, fine)}
	if b.team.Size > 1 {
		v.private = newStore(&b.priv, cols, min(few, b.shape.MaxRows), fine)
	}
	return v
}

// form says in which forms v should be written: those that matrices of its
// width take.
func (b *Backend) form(v *act) need {
	n := b.needs[v.cols]
	if !n.bytes {
		n.floats = true
	}
	return n
}

// fill notes that the forms in n are being written and returns where to, nil
// for the others.
func (s *store) fill(n need) (f []float32, t []byte) {
	if n.floats {
		f, s.hasFloats = s.floats, true
	}
	if n.bytes {
		t, s.hasBytes = s.bytes, true
	}
	return f, t
}
