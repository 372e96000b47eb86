// Package quant says how the blocks of the weight formats encode numbers:
// Dequantise is the meaning of a format, written plainly, against which fast
// kernels are held; Quantise makes blocks, so that tests can make weights. Where
// tensors lie in a file is the business of the file's reader, and layouts that a
// device prefers are the business of its Packer.
//
// # The formats
//
// All numbers are little endian, d and m are binary16. A block covers
// consecutive elements of one row; element i of a block is x(i).
//
//	F32   4 bytes  x = the float32
//	F16   2 bytes  x = the binary16
//	BF16  2 bytes  x = the bfloat16
//
//	Q4_0  32 elements, 18 bytes: d, then 16 bytes of 4-bit numbers q.
//	      Byte j holds q(j) in its low half and q(j+16) in its high half.
//	      x(i) = d·(q(i)−8)
//
//	Q4_1  32 elements, 20 bytes: d, m, then 16 bytes of q as in Q4_0.
//	      x(i) = d·q(i) + m
//
//	Q8_0  32 elements, 34 bytes: d, then 32 signed bytes q.
//	      x(i) = d·q(i)
//
//	Q6_K  256 elements, 210 bytes: 128 bytes of low halves, 64 bytes of high
//	      pairs, 16 signed bytes of scales s, then d. The 6-bit number of element
//	      i = 128h + 32g + l (h of 2 halves, g of 4 groups, l below 32) has its
//	      low 4 bits in byte 64h + 32(g mod 2) + l of the first part, in the low
//	      half if g is below 2, else in the high half; and its high 2 bits in byte
//	      32h + l of the second, at bit 2g. Scales cover 16 elements each.
//	      x(i) = d·s(i/16)·(q(i)−32)
//
// The products d·q and d·s are exact in float32 (11 bits times 8), so there is
// one rounding an element and its order or fusing cannot matter: every right
// dequantiser to float32 gives the same bits.
package quant

import (
	"encoding/binary"
	"fmt"
	"math"

	"tandem/kernels"
	"tandem/kernels/half"
)

// Dequantise sets dst to the elements that src encodes in format t. It fails if
// t is unknown, if len(dst) is not a multiple of t's block, or if src is not
// exactly as long as that many elements take.
func Dequantise(dst []float32, t kernels.Type, src []byte) error {
	if err := fits(t, len(dst), len(src)); err != nil {
		return fmt.Errorf("dequantise: %w", err)
	}
	le := binary.LittleEndian
	switch t {
	case kernels.F32:
		for i := range dst {
			dst[i] = math.Float32frombits(le.Uint32(src[4*i:]))
		}
	case kernels.F16:
		for i := range dst {
			dst[i] = half.FromF16(le.Uint16(src[2*i:]))
		}
	case kernels.BF16:
		for i := range dst {
			dst[i] = half.FromBF16(le.Uint16(src[2*i:]))
		}
	case kernels.Q4_0:
		blocks(dst, src, t, func(x []float32, b []byte) {
			d := half.FromF16(le.Uint16(b))
			for j, q := range b[2:] {
				x[j] = d * float32(int(q&15)-8)
				x[j+16] = d * float32(int(q>>4)-8)
			}
		})
	case kernels.Q4_1:
		blocks(dst, src, t, func(x []float32, b []byte) {
			d, m := half.FromF16(le.Uint16(b)), half.FromF16(le.Uint16(b[2:]))
			for j, q := range b[4:] {
				x[j] = d*float32(q&15) + m
				x[j+16] = d*float32(q>>4) + m
			}
		})
	case kernels.Q8_0:
		blocks(dst, src, t, func(x []float32, b []byte) {
			d := half.FromF16(le.Uint16(b))
			for j, q := range b[2:] {
				x[j] = d * float32(int8(q))
			}
		})
	case kernels.Q6_K:
		blocks(dst, src, t, func(x []float32, b []byte) {
			low, high, scales := b[:128], b[128:192], b[192:208]
			d := half.FromF16(le.Uint16(b[208:]))
			for i := range x {
				lowAt, lowShift, highAt, highShift := place6(i)
				q := int(low[lowAt]>>lowShift&15) | int(high[highAt]>>highShift&3)<<4
				x[i] = d * float32(int8(scales[i/16])) * float32(q-32)
			}
		})
	}
	return nil
}

// place6 says where a Q6_K block keeps the two parts of element i.
func place6(i int) (lowAt, lowShift, highAt, highShift int) {
	h, g, l := i/128, i/32%4, i%32
	return 64*h + 32*(g%2) + l, 4 * (g / 2), 32*h + l, 2 * g
}

// blocks calls f with each block's elements and bytes.
func blocks(x []float32, b []byte, t kernels.Type, f func(x []float32, b []byte)) {
	n, size := t.Block(), int(t.RowBytes(t.Block()))
	for len(x) > 0 {
		f(x[:n], b[:size])
		x, b = x[n:], b[size:]
	}
}

// fits checks that elements and bytes belong together in format t.
func fits(t kernels.Type, elements, bytes int) error {
	if !t.Valid() {
		return fmt.Errorf("unknown format %v", t)
	}
	if elements%t.Block() != 0 {
		return fmt.Errorf("%d elements are not whole %v blocks of %d", elements, t, t.Block())
	}
	if want := t.RowBytes(elements); int64(bytes) != want {
		return fmt.Errorf("%d elements of %v take %d bytes, got %d", elements, t, want, bytes)
	}
	return nil
}
