package kerneltest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"tandem/kernels"
	"tandem/kernels/half"
	"tandem/kernels/quant"
)

// all formats that a matrix may have.
var formats = []kernels.Type{kernels.F32, kernels.F16, kernels.BF16, kernels.Q4_0, kernels.Q4_1, kernels.Q8_0, kernels.Q6_K}

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// encode is a tensor of these values in format t, rounded as the format does.
func encode(name string, t kernels.Type, rows, cols int, values []float32) kernels.Tensor {
	data := make([]byte, t.RowBytes(cols)*int64(rows))
	if err := quant.Quantise(data, t, values); err != nil {
		panic(fmt.Sprintf("%s: %v", name, err))
	}
	return kernels.Tensor{Name: name, Type: t, Rows: rows, Cols: cols, Data: data}
}

// values of a tensor, as its format means them.
func values(t kernels.Tensor) []float32 {
	v := make([]float32, t.Rows*t.Cols)
	if err := quant.Dequantise(v, t.Type, t.Data); err != nil {
		panic(err)
	}
	return v
}

// normal is a tensor of normally distributed values.
func normal(r *rand.Rand, name string, t kernels.Type, rows, cols int, scale float64) kernels.Tensor {
	v := make([]float32, rows*cols)
	for i := range v {
		v[i] = float32(r.NormFloat64() * scale)
	}
	return encode(name, t, rows, cols, v)
}

// extreme is a tensor whose bytes are random but for the scales, among which are
// zero, the smallest and subnormal binary16, and large ones.
func extreme(r *rand.Rand, name string, t kernels.Type, rows, cols int) kernels.Tensor {
	data := make([]byte, t.RowBytes(cols)*int64(rows))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	scale := func(at int) {
		choices := []uint16{0, 0x8000, 1, 0x83ff, 0x0400, half.ToF16(float32(r.NormFloat64())), half.ToF16(float32(r.NormFloat64()) * 500), 0x7bff, 0xfbff}
		binary.LittleEndian.PutUint16(data[at:], choices[r.IntN(len(choices))])
	}
	switch t {
	case kernels.F32:
		for i := 0; i < len(data); i += 4 {
			binary.LittleEndian.PutUint32(data[i:], math.Float32bits(float32(r.NormFloat64()*math.Exp2(float64(r.IntN(60)-40)))))
		}
	case kernels.F16:
		for i := 0; i < len(data); i += 2 {
			scale(i)
		}
	case kernels.BF16:
		for i := 0; i < len(data); i += 2 {
			binary.LittleEndian.PutUint16(data[i:], half.ToBF16(float32(r.NormFloat64()*math.Exp2(float64(r.IntN(60)-40)))))
		}
	case kernels.Q4_0:
		for i := 0; i < len(data); i += 18 {
			scale(i)
		}
	case kernels.Q4_1:
		for i := 0; i < len(data); i += 20 {
			scale(i)
			scale(i + 2)
		}
	case kernels.Q8_0:
		for i := 0; i < len(data); i += 34 {
			scale(i)
		}
	case kernels.Q6_K:
		for i := 0; i < len(data); i += 210 {
			scale(i + 208)
		}
	}
	return kernels.Tensor{Name: name, Type: t, Rows: rows, Cols: cols, Data: data}
}

// choose is a float32 matrix whose row i takes column pick(i), times sign.
func choose(name string, rows, cols int, pick func(row int) (col int, factor float32)) kernels.Tensor {
	v := make([]float32, rows*cols)
	for i := range rows {
		c, f := pick(i)
		v[i*cols+c] = f
	}
	return encode(name, kernels.F32, rows, cols, v)
}

// identity passes a value on unchanged: the products are exact, and so are the
// sums with zeros.
func identity(name string, n int) kernels.Tensor {
	return choose(name, n, n, func(i int) (int, float32) { return i, 1 })
}

func floats(name string, v []float32) kernels.Tensor { return encode(name, kernels.F32, 1, len(v), v) }

// rope is the rotary table of a test: real angles.
func rope(s kernels.Shape) []float32 {
	t := make([]float32, 0, s.Context*s.HeadDim)
	for pos := range s.Context {
		for i := range s.HeadDim / 2 {
			sin, cos := math.Sincos(float64(pos) * math.Pow(10000, -float64(2*i)/float64(s.HeadDim)))
			t = append(t, float32(cos), float32(sin))
		}
	}
	return t
}

// quarters is a rotary table of quarter turns, which are exact.
func quarters(r *rand.Rand, s kernels.Shape) []float32 {
	t := make([]float32, 0, s.Context*s.HeadDim)
	turns := [4][2]float32{{1, 0}, {0, 1}, {-1, 0}, {0, -1}}
	for range s.Context * s.HeadDim / 2 {
		q := turns[r.IntN(4)]
		t = append(t, q[0], q[1])
	}
	return t
}
