package quant

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"tandem/kernels"
	"tandem/kernels/half"
)

// Quantise encodes src in format t into dst. It is a plain quantiser for making
// test weights; tools that make model files search for better scales.
//
// F16 and BF16 round to nearest even, to infinity beyond their range. The block
// formats round their scales away from zero, so that no element lies outside the
// range that the scale spans, and an element comes back within half a step: d/2
// for Q8_0 and Q4_1, d·s/2 for Q6_K; for Q4_0, whose range reaches to −8 but
// only to +7, within d of an element of the other sign than the largest.
//
// It fails on lengths as Dequantise does, and on an element that a block format
// cannot hold: NaN, an infinity, or one whose scale is beyond binary16.
func Quantise(dst []byte, t kernels.Type, src []float32) error {
	if err := fits(t, len(src), len(dst)); err != nil {
		return fmt.Errorf("quantise: %w", err)
	}
	le := binary.LittleEndian
	switch t {
	case kernels.F32:
		for i, x := range src {
			le.PutUint32(dst[4*i:], math.Float32bits(x))
		}
		return nil
	case kernels.F16:
		for i, x := range src {
			le.PutUint16(dst[2*i:], half.ToF16(x))
		}
		return nil
	case kernels.BF16:
		for i, x := range src {
			le.PutUint16(dst[2*i:], half.ToBF16(x))
		}
		return nil
	}
	encode := map[kernels.Type]func([]byte, []float32) bool{
		kernels.Q4_0: encode4s, kernels.Q4_1: encode4m, kernels.Q8_0: encode8, kernels.Q6_K: encode6,
	}[t]
	at := 0
	var err error
	blocks(src, dst, t, func(x []float32, b []byte) {
		if err != nil {
			return
		}
		if low, high := slices.Min(x), slices.Max(x); !finite(low) || !finite(high) {
			err = fmt.Errorf("quantise: a NaN or infinity among elements %d to %d: %v cannot hold it", at, at+len(x)-1, t)
		} else if !encode(b, x) {
			err = fmt.Errorf("quantise: elements %d to %d reach from %g to %g: beyond the scales of %v", at, at+len(x)-1, low, high, t)
		}
		at += len(x)
	})
	return err
}

func finite(x float32) bool { return math.Abs(float64(x)) <= math.MaxFloat32 }

// scaleUp is the smallest binary16 not nearer to zero than x, or false if there
// is none.
func scaleUp(x float64) (bits uint16, value float64, ok bool) {
	if x == 0 {
		return 0, 0, true
	}
	bits = half.ToF16(float32(x))
	if value = float64(half.FromF16(bits)); math.Abs(value) < math.Abs(x) {
		bits++ // the next in magnitude, whatever the sign
		value = float64(half.FromF16(bits))
	}
	return bits, value, !math.IsInf(value, 0)
}

// step is the whole number of d in x, within [low, high]; 0 if d is 0, as all
// elements of such a block are.
func step(x, d float64, low, high int) int {
	if d == 0 {
		return 0
	}
	return min(max(int(math.RoundToEven(x/d)), low), high)
}

// largest is the element farthest from zero, with its sign.
func largest(x []float32) float64 {
	var most float64
	for _, v := range x {
		if math.Abs(float64(v)) > math.Abs(most) {
			most = float64(v)
		}
	}
	return most
}

// pack4 stores 32 4-bit numbers.
func pack4(b []byte, q func(i int) int) {
	for j := range b {
		b[j] = byte(q(j) | q(j+16)<<4)
	}
}

// encode4s makes a Q4_0 block: the largest element becomes −8.
func encode4s(b []byte, x []float32) bool {
	bits, d, ok := scaleUp(largest(x) / -8)
	if !ok {
		return false
	}
	binary.LittleEndian.PutUint16(b, bits)
	pack4(b[2:], func(i int) int { return step(float64(x[i]), d, -8, 7) + 8 })
	return true
}

// encode4m makes a Q4_1 block: m is at or below the smallest element.
func encode4m(b []byte, x []float32) bool {
	low, high := float64(slices.Min(x)), float64(slices.Max(x))
	m := half.ToF16(float32(low))
	if float64(half.FromF16(m)) > low { // round down
		if m&0x8000 != 0 {
			m++
		} else {
			m--
		}
	}
	base := float64(half.FromF16(m))
	bits, d, ok := scaleUp((high - base) / 15)
	if !ok || math.IsInf(base, 0) {
		return false
	}
	binary.LittleEndian.PutUint16(b, bits)
	binary.LittleEndian.PutUint16(b[2:], m)
	pack4(b[4:], func(i int) int { return step(float64(x[i])-base, d, 0, 15) })
	return true
}

// encode8 makes a Q8_0 block.
func encode8(b []byte, x []float32) bool {
	bits, d, ok := scaleUp(math.Abs(largest(x)) / 127)
	if !ok {
		return false
	}
	binary.LittleEndian.PutUint16(b, bits)
	for i, v := range x {
		b[2+i] = byte(step(float64(v), d, -127, 127))
	}
	return true
}

// encode6 makes a Q6_K block: each 16 elements get the smallest multiple of d
// that spans them.
func encode6(b []byte, x []float32) bool {
	bits, d, ok := scaleUp(math.Abs(largest(x)) / 31 / 127)
	if !ok {
		return false
	}
	low, high, scales := b[:128], b[128:192], b[192:208]
	clear(b[:192])
	binary.LittleEndian.PutUint16(b[208:], bits)
	for s := range scales {
		most := math.Abs(largest(x[16*s : 16*s+16]))
		scale := 0
		if d > 0 {
			scale = min(int(math.Ceil(most/31/d)), 127)
		}
		scales[s] = byte(scale)
		for i := 16 * s; i < 16*s+16; i++ {
			q := step(float64(x[i]), d*float64(scale), -32, 31) + 32
			lowAt, lowShift, highAt, highShift := place6(i)
			low[lowAt] |= byte(q&15) << lowShift
			high[highAt] |= byte(q>>4) << highShift
		}
	}
	return true
}
