package ref

import (
	"encoding/binary"
	"math"
	"testing"

	"tandem/kernels"
)

// The reference is what devices are held to, so it is held to numbers worked out
// by hand.

func packed(t *testing.T, rows, cols int, values ...float32) kernels.Packed {
	t.Helper()
	ts := kernels.Tensor{Name: "w", Type: kernels.F32, Rows: rows, Cols: cols}
	for _, v := range values {
		ts.Data = binary.LittleEndian.AppendUint32(ts.Data, math.Float32bits(v))
	}
	n, err := Packer{}.PackedBytes(ts.Type, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	p := kernels.Packed{Type: ts.Type, Rows: rows, Cols: cols, Data: make([]byte, n)}
	if err := (Packer{}).Pack(p.Data, ts); err != nil {
		t.Fatal(err)
	}
	return p
}

func near(t *testing.T, what string, got []float64, want ...float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
	for i := range want {
		if math.Abs(got[i]-want[i]) > 1e-12 {
			t.Errorf("%s: %v, want %v", what, got, want)
			return
		}
	}
}

func small() Options {
	return Options{
		Shape: kernels.Shape{
			Geometry: kernels.Geometry{Layers: 2, Units: 1, HeadDim: 2, PageTokens: 2},
			Width:    2, Heads: 2, Hidden: 2, Vocab: 3, MaxRows: 4, MaxOut: 2, Context: 4,
		},
		Rope: []float32{1, 0, 0, 1, -1, 0, 0, -1}, // position n turns by n quarters
	}
}

func TestRowOperations(t *testing.T) {
	b := New(small())
	batch := &kernels.Batch{Tokens: []int32{2, 0}, Pos: []int32{0, 1}, Seq: []int32{0, 0}}
	x, y := b.NewBuffer(2).(*Buffer), b.NewBuffer(2).(*Buffer)
	a := b.NewAct(2, kernels.Coarse).(*Act)
	m := b.Matrix(packed(t, 2, 2, 1, 2, 3, 4), kernels.ByRow)
	b.Embed(x, b.Matrix(packed(t, 3, 2, 3, 4, 0, 0, 1, 7), kernels.ByRow), batch)
	near(t, "embedding of token 2", x.Row(0), 1, 7)
	near(t, "embedding of token 0", x.Row(1), 3, 4)

	b.Norm(a, x, b.Vector(packed(t, 1, 2, 1, 10)), 0, 2)
	near(t, "norm", a.Row(1), 3/math.Sqrt(12.5), 40/math.Sqrt(12.5))
	b.Norm(a, x, b.Vector(packed(t, 1, 2, 1, 1)), 12.5, 2)
	near(t, "norm with eps as large as the mean square", a.Row(1), 0.6, 0.8)

	b.Linear(y, m, a, 2)
	near(t, "product", y.Row(1), 0.6+1.6, 1.8+3.2)
	b.LinearAdd(y, m, a, 2)
	near(t, "product on top", y.Row(1), 2*(0.6+1.6), 2*(1.8+3.2))

	copy(y.Row(0), []float64{0, math.Log(3)}) // 1/(1+e^-ln 3) is 3/4
	copy(x.Row(0), []float64{5, 2})
	b.SwiGLU(a, y, x, 1)
	near(t, "gate", a.Row(0), 0, math.Log(3)*0.75*2)

	l, err := b.Logits(x, b.Vector(packed(t, 1, 2, 1, 1)), 0, b.Matrix(packed(t, 3, 2, 1, 0, 1, 0, 0, 0), kernels.ByRow), &kernels.Batch{Tokens: []int32{0}, Out: []int32{0}})
	if err != nil {
		t.Fatal(err)
	}
	if l.Best(0) != 0 || l.Row(0)[0] != l.Row(0)[1] {
		t.Errorf("best %d of %v, want the lower of two equals", l.Best(0), l.Row(0))
	}
}

func TestAttention(t *testing.T) {
	o := small()
	b := New(o)
	if err := b.OpenKV([]kernels.Mem{make(kernels.Host, 3*o.Shape.UnitPageBytes(ElemBytes))}); err != nil {
		t.Fatal(err)
	}
	batch := &kernels.Batch{Tokens: make([]int32, 3), Pos: []int32{0, 1, 2}, Seq: []int32{0, 0, 0}, Pages: [][]uint32{{2, 0}}}
	q, k, v := b.NewBuffer(4).(*Buffer), b.NewBuffer(2).(*Buffer), b.NewBuffer(2).(*Buffer)
	a := b.NewAct(4, kernels.Coarse).(*Act)
	s := math.Sqrt2 * math.Ln2 // a score of ln 2 after the division by √2
	for r := range 3 {
		copy(v.Row(r), []float64{float64(r + 1), 10})
	}
	copy(k.Row(0), []float64{1, 0})  // turned by 0 quarters: (1, 0)
	copy(k.Row(1), []float64{1, 0})  // by 1: (0, 1)
	copy(k.Row(2), []float64{1, 0})  // by 2: (-1, 0)
	copy(q.Row(0), []float64{9, 9})  // sees itself alone
	copy(q.Row(1), []float64{0, -s}) // becomes (s, 0): scores ln 2 and 0
	copy(q.Row(2), []float64{0, 0})  // all alike
	copy(q.Row(1)[2:], []float64{0, 0})
	b.RopeAppend(1, q, k, v, batch)
	near(t, "a query turned by a quarter", q.Row(1), s, 0, 0, 0)
	b.Attend(1, a, q, batch)
	near(t, "row 0", a.Row(0), 1, 10, 1, 10)
	near(t, "row 1", a.Row(1), (2*1+1*2)/3.0, 10, 1.5, 10)
	near(t, "row 2", a.Row(2), 2, 10, 2, 10)
	if b.Steps() != 2 {
		t.Errorf("Steps = %d after two operations", b.Steps())
	}
}

func TestQuantised(t *testing.T) {
	in := make([]float64, 96)
	in[0], in[1], in[2], in[3], in[4] = -127, 1.4, 1.5, 2.5, 0.49
	in[64] = 1e-35 // the third block is too small to have a scale
	out := Quantised(in, kernels.Coarse)
	near(t, "a scale of 1", out[:6], -127, 1, 2, 2, 0, 0)
	for i, v := range out[32:] {
		if v != 0 {
			t.Errorf("element %d is %v, want 0", 32+i, v)
		}
	}
}

func TestQuantisedFine(t *testing.T) {
	in := make([]float64, 32)
	in[0], in[1], in[2], in[3] = -127, 1.4, 2.5, 0x1p-9
	out := Quantised(in, kernels.Fine)
	near(t, "128ths", out[:5], -127, 179.0/128, 2.5, 0, 0)
}

func TestHalfCacheRounds(t *testing.T) {
	o := small()
	o.HalfCache = true
	b := New(o)
	if err := b.OpenKV([]kernels.Mem{make(kernels.Host, o.Shape.UnitPageBytes(ElemBytes))}); err != nil {
		t.Fatal(err)
	}
	batch := &kernels.Batch{Tokens: make([]int32, 1), Pos: []int32{0}, Seq: []int32{0}, Pages: [][]uint32{{0}}}
	q, k, v := b.NewBuffer(4).(*Buffer), b.NewBuffer(2).(*Buffer), b.NewBuffer(2).(*Buffer)
	copy(v.Row(0), []float64{1 + 0x1p-11, 1 + 0x3p-11}) // ties, to even
	a := b.NewAct(4, kernels.Coarse).(*Act)
	b.RopeAppend(0, q, k, v, batch)
	b.Attend(0, a, q, batch)
	near(t, "values", a.Row(0)[:2], 1, 1+0x4p-11)
}
