// Package ref is the plain meaning of kernels.Backend: float64 arithmetic in
// plain Go, one rank, no cleverness. It is the yardstick for devices and for
// models, and far too slow for anything else.
//
// It can also round where a quantising device rounds (see Options), so that such
// a device can be held to the error of its float arithmetic alone.
//
// Its packed form of any matrix is float32, row after row. Its KV cache holds
// float64: keys and values of a layer are [token][dimension] each.
package ref

import (
	"encoding/binary"
	"fmt"
	"math"

	"tandem/kernels"
	"tandem/kernels/half"
	"tandem/kernels/quant"
)

// ElemBytes is what an element of the KV cache takes.
const ElemBytes = 8

// Options say what a Backend computes.
type Options struct {
	Shape kernels.Shape
	Rope  []float32 // cos and sin of each pair's angle, [Context][HeadDim/2][2]
	// Quantise rounds activations where they meet quantised weights: each 32 of
	// them to whole multiples of a 127th of their largest magnitude.
	Quantise bool
	// AlwaysFine rounds all activations as fine ones.
	AlwaysFine bool
	// HalfCache rounds keys and values to binary16.
	HalfCache bool
}

// Backend implements kernels.Backend.
type Backend struct {
	o     Options
	units [][]byte
	steps uint64
}

// New returns the backend.
func New(o Options) *Backend { return &Backend{o: o} }

// Packer is the packer for this backend.
type Packer struct{}

// PackedBytes implements kernels.Packer.
func (Packer) PackedBytes(t kernels.Type, rows, cols int) (int64, error) {
	if !t.Valid() || rows < 1 || cols < 1 || cols%t.Block() != 0 {
		return 0, fmt.Errorf("ref: a %d×%d matrix of %v: %w", rows, cols, t, kernels.ErrUnsupported)
	}
	return (4*int64(rows)*int64(cols) + 63) &^ 63, nil
}

// Pack implements kernels.Packer.
func (p Packer) Pack(dst []byte, src kernels.Tensor) error {
	n, err := p.PackedBytes(src.Type, src.Rows, src.Cols)
	if err != nil {
		return fmt.Errorf("%s: %w", src.Name, err)
	}
	if int64(len(dst)) != n {
		return fmt.Errorf("ref: %s: %d bytes for a packed form of %d", src.Name, len(dst), n)
	}
	v := make([]float32, src.Rows*src.Cols)
	if err := quant.Dequantise(v, src.Type, src.Data); err != nil {
		return fmt.Errorf("ref: %s: %w", src.Name, err)
	}
	clear(dst)
	for i, x := range v {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
	}
	return nil
}

type matrix struct {
	kernels.Packed
	values []float32
}

func (matrix) Matrix() {}

func bind(w kernels.Packed) matrix {
	m := matrix{w, make([]float32, w.Rows*w.Cols)}
	for i := range m.values {
		m.values[i] = math.Float32frombits(binary.LittleEndian.Uint32(w.Data[4*i:]))
	}
	return m
}

func (m matrix) row(r int) []float32 { return m.values[r*m.Cols : (r+1)*m.Cols] }

type vector struct{ matrix }

func (vector) Vector() {}

// Buffer is rows of numbers.
type Buffer struct{ rows [][]float64 }

// Buffer implements kernels.Buffer.
func (*Buffer) Buffer() {}

// Row is row r, which belongs to the backend.
func (v *Buffer) Row(r int) []float64 { return v.rows[r] }

// Act is rows of activations.
type Act struct {
	rows      [][]float64
	precision kernels.Precision
}

// Act implements kernels.Act.
func (*Act) Act() {}

// Row is row r, which belongs to the backend.
func (v *Act) Row(r int) []float64 { return v.rows[r] }

func rows(n, cols int) [][]float64 {
	r := make([][]float64, n)
	for i := range r {
		r[i] = make([]float64, cols)
	}
	return r
}

// Name implements kernels.Backend.
func (b *Backend) Name() string { return "float64 reference" }

// Steps implements kernels.Backend.
func (b *Backend) Steps() uint64 { return b.steps }

// Sync implements kernels.Backend.
func (b *Backend) Sync() error { return nil }

// Matrix implements kernels.Backend.
func (b *Backend) Matrix(w kernels.Packed, _ kernels.Partition) kernels.Matrix { return bind(w) }

// Vector implements kernels.Backend.
func (b *Backend) Vector(w kernels.Packed) kernels.Vector { return vector{bind(w)} }

// NewBuffer implements kernels.Backend.
func (b *Backend) NewBuffer(cols int) kernels.Buffer { return &Buffer{rows(b.o.Shape.MaxRows, cols)} }

// NewAct implements kernels.Backend.
func (b *Backend) NewAct(cols int, p kernels.Precision) kernels.Act {
	return &Act{rows(b.o.Shape.MaxRows, cols), p}
}

// OpenKV implements kernels.Backend.
func (b *Backend) OpenKV(units []kernels.Mem) error {
	b.units = make([][]byte, len(units))
	for u, m := range units {
		b.units[u] = m.(kernels.Host)
	}
	return nil
}

// Embed implements kernels.Backend.
func (b *Backend) Embed(x kernels.Buffer, table kernels.Matrix, batch *kernels.Batch) error {
	b.steps++
	for r, t := range batch.Tokens {
		for c, v := range table.(matrix).row(int(t)) {
			x.(*Buffer).rows[r][c] = float64(v)
		}
	}
	return nil
}

// Norm implements kernels.Backend.
func (b *Backend) Norm(a kernels.Act, x kernels.Buffer, w kernels.Vector, eps float32, n int) error {
	b.steps++
	for r := range n {
		norm(a.(*Act).rows[r], x.(*Buffer).rows[r], w.(vector), eps)
	}
	return nil
}

func norm(out, x []float64, w vector, eps float32) {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	scale := 1 / math.Sqrt(sum/float64(len(x))+float64(eps))
	for i, v := range x {
		out[i] = v * scale * float64(w.values[i])
	}
}

// input is a row of activations as m takes it.
func (b *Backend) input(m matrix, a []float64, p kernels.Precision) []float64 {
	if !b.o.Quantise || m.Type < kernels.Q4_0 {
		return a
	}
	if b.o.AlwaysFine {
		p = kernels.Fine
	}
	return Quantised(a, p)
}

// Quantised is a row of activations after it was rounded to 8 bits, or to 7 more
// if it is to be fine, in the arithmetic that the rounding is defined in: float32.
func Quantised(a []float64, p kernels.Precision) []float64 {
	out := make([]float64, len(a))
	for b := 0; b < len(a); b += 32 {
		var top float32
		for _, v := range a[b : b+32] {
			top = max(top, float32(math.Abs(float64(float32(v)))))
		}
		if top < 0x1p-100 {
			continue
		}
		d, inverse := top/127, 127/top
		for i, v := range a[b : b+32] {
			x := float64(float32(v) * inverse)
			n := math.RoundToEven(x)
			if p == kernels.Fine {
				n += math.RoundToEven((x-n)*128) / 128
			}
			out[b+i] = float64(d) * n
		}
	}
	return out
}

func product(m matrix, row int, a []float64) float64 {
	var sum float64
	for c, w := range m.row(row) {
		sum += float64(w) * a[c]
	}
	return sum
}

// Linear implements kernels.Backend.
func (b *Backend) Linear(out kernels.Buffer, m kernels.Matrix, a kernels.Act, n int) error {
	b.steps++
	for r := range n {
		in := b.input(m.(matrix), a.(*Act).rows[r], a.(*Act).precision)
		for c := range out.(*Buffer).rows[r] {
			out.(*Buffer).rows[r][c] = product(m.(matrix), c, in)
		}
	}
	return nil
}

// LinearAdd implements kernels.Backend.
func (b *Backend) LinearAdd(x kernels.Buffer, m kernels.Matrix, a kernels.Act, n int) error {
	b.steps++
	for r := range n {
		in := b.input(m.(matrix), a.(*Act).rows[r], a.(*Act).precision)
		for c := range x.(*Buffer).rows[r] {
			x.(*Buffer).rows[r][c] += product(m.(matrix), c, in)
		}
	}
	return nil
}

// SwiGLU implements kernels.Backend.
func (b *Backend) SwiGLU(a kernels.Act, gate, up kernels.Buffer, n int) error {
	b.steps++
	for r := range n {
		for c, g := range gate.(*Buffer).rows[r] {
			a.(*Act).rows[r][c] = g / (1 + math.Exp(-g)) * up.(*Buffer).rows[r][c]
		}
	}
	return nil
}

// cell is where an element of the cache lies: kind 0 for keys, 1 for values.
func (b *Backend) cell(layer, unit int, page uint32, kind, token, d int) []byte {
	g := b.o.Shape.Geometry
	at := int(page)*int(g.UnitPageBytes(ElemBytes)) + (((layer*2+kind)*g.PageTokens+token)*g.HeadDim+d)*ElemBytes
	return b.units[unit][at : at+ElemBytes]
}

func (b *Backend) put(x float64, cell []byte) {
	if b.o.HalfCache {
		x = float64(half.FromF16(half.ToF16(float32(x))))
	}
	binary.LittleEndian.PutUint64(cell, math.Float64bits(x))
}

// token is the key or value of one token of a unit.
func (b *Backend) token(layer, unit int, page uint32, kind, token int) []float64 {
	x := make([]float64, b.o.Shape.HeadDim)
	for d := range x {
		x[d] = math.Float64frombits(binary.LittleEndian.Uint64(b.cell(layer, unit, page, kind, token, d)))
	}
	return x
}

// RopeAppend implements kernels.Backend.
func (b *Backend) RopeAppend(layer int, q, k, v kernels.Buffer, batch *kernels.Batch) error {
	b.steps++
	g := b.o.Shape.Geometry
	rotate := func(x []float64, pos int) {
		for i := 0; i < len(x); i += 2 {
			t := b.o.Rope[pos*g.HeadDim+i%g.HeadDim:]
			cos, sin := float64(t[0]), float64(t[1])
			x[i], x[i+1] = x[i]*cos-x[i+1]*sin, x[i+1]*cos+x[i]*sin
		}
	}
	for r := range batch.Tokens {
		pos := int(batch.Pos[r])
		rotate(q.(*Buffer).rows[r], pos)
		rotate(k.(*Buffer).rows[r], pos)
		page := batch.Pages[batch.Seq[r]][pos/g.PageTokens]
		for u := range g.Units {
			for d := range g.HeadDim {
				b.put(k.(*Buffer).rows[r][u*g.HeadDim+d], b.cell(layer, u, page, 0, pos%g.PageTokens, d))
				b.put(v.(*Buffer).rows[r][u*g.HeadDim+d], b.cell(layer, u, page, 1, pos%g.PageTokens, d))
			}
		}
	}
	return nil
}

// Attend implements kernels.Backend.
func (b *Backend) Attend(layer int, a kernels.Act, q kernels.Buffer, batch *kernels.Batch) error {
	b.steps++
	g, heads := b.o.Shape.Geometry, b.o.Shape.Heads
	for r := range batch.Tokens {
		pages, n := batch.Pages[batch.Seq[r]], int(batch.Pos[r])+1
		var keys, values [][]float64 // of the unit that h reads
		for h := range heads {
			if share := heads / g.Units; h%share == 0 {
				keys, values = make([][]float64, n), make([][]float64, n)
				for k := range n {
					keys[k] = b.token(layer, h/share, pages[k/g.PageTokens], 0, k%g.PageTokens)
					values[k] = b.token(layer, h/share, pages[k/g.PageTokens], 1, k%g.PageTokens)
				}
			}
			query := q.(*Buffer).rows[r][h*g.HeadDim : (h+1)*g.HeadDim]
			out := a.(*Act).rows[r][h*g.HeadDim : (h+1)*g.HeadDim]
			weights := make([]float64, n)
			top := math.Inf(-1)
			for k := range n {
				var s float64
				for d, x := range query {
					s += x * keys[k][d]
				}
				weights[k] = s / math.Sqrt(float64(g.HeadDim))
				top = max(top, weights[k])
			}
			var sum float64
			for k := range weights {
				weights[k] = math.Exp(weights[k] - top)
				sum += weights[k]
			}
			for d := range out {
				out[d] = 0
				for k, w := range weights {
					out[d] += w / sum * values[k][d]
				}
			}
		}
	}
	return nil
}

type logits [][]float32

// Logits implements kernels.Backend. The result is rounded to float32, its
// Best found among the rounded.
func (b *Backend) Logits(x kernels.Buffer, w kernels.Vector, eps float32, head kernels.Matrix, batch *kernels.Batch) (kernels.Logits, error) {
	b.steps++
	m := head.(matrix)
	out := make(logits, len(batch.Out))
	for i, r := range batch.Out {
		a := make([]float64, m.Cols)
		norm(a, x.(*Buffer).rows[r], w.(vector), eps)
		a = b.input(m, a, kernels.Fine)
		out[i] = make([]float32, m.Rows)
		for c := range out[i] {
			out[i][c] = float32(product(m, c, a))
		}
	}
	return out, nil
}

func (l logits) Row(i int) []float32 { return l[i] }

func (l logits) Best(i int) int32 {
	best := int32(-1)
	for c, v := range l[i] {
		if v == v && (best < 0 || v > l[i][best]) {
			best = int32(c)
		}
	}
	return best
}
