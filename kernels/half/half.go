// Package half converts the two 16-bit floating-point formats of weight files
// and KV caches to float32 and back. It owns the bits and nothing else: arrays
// and blocks of them belong to package quant and to the kernels.
//
// F16 is IEEE 754 binary16: sign, 5 exponent bits with bias 15, 10 fraction
// bits. BF16 is the upper half of a float32: sign, 8 exponent bits with bias
// 127, 7 fraction bits. Every value of either is a float32, so widening is
// exact; narrowing rounds to the nearest value, to the even one of two equally
// near, and to infinity where IEEE 754 does. A NaN stays a NaN with its sign
// and as much of its payload as fits, so that all 65,536 values of either
// format survive the way to float32 and back unchanged.
package half

import "math"

// FromF16 is the value of the binary16 number with these bits.
func FromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exponent, fraction := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exponent {
	case 0: // zero or subnormal: a whole number of 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(fraction)*0x1p-24))
	case 0x1f: // infinity or NaN
		return math.Float32frombits(sign | 0xff<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<13)
}

// ToF16 is the binary16 number nearest to x.
func ToF16(x float32) uint16 {
	b := math.Float32bits(x)
	sign, abs := uint16(b>>16)&0x8000, b&0x7fffffff
	switch {
	case abs > 0xff<<23: // NaN
		payload := uint16(abs >> 13 & 0x3ff)
		if payload == 0 { // nothing left of it: not to become infinity
			payload = 0x200
		}
		return sign | 0x7c00 | payload
	case abs >= (127+16)<<23: // 2^16 and more, infinity too
		return sign | 0x7c00
	case abs >= (127-14)<<23:
		// Normal in both: move the exponent and round the fraction. The carry
		// runs into the exponent, from 65520 on up to infinity, as it should.
		r := abs - (127-15)<<23
		r += 1<<12 - 1 + r>>13&1
		return sign | uint16(r>>13)
	case abs >= (127-25)<<23:
		// Subnormal in binary16: count the 2^-24 in x.
		shift := 126 - abs>>23
		m := abs&(1<<23-1) | 1<<23
		q, rest, tie := m>>shift, m&(1<<shift-1), uint32(1)<<(shift-1)
		if rest > tie || rest == tie && q&1 == 1 {
			q++
		}
		return sign | uint16(q)
	}
	return sign // less than half of 2^-24
}

// FromBF16 is the value of the bfloat16 number with these bits.
func FromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// ToBF16 is the bfloat16 number nearest to x.
func ToBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0xff<<23 { // NaN
		if b&(0x7f<<16) == 0 { // nothing left of its payload
			b |= 0x40 << 16
		}
		return uint16(b >> 16)
	}
	return uint16((b + 1<<15 - 1 + b>>16&1) >> 16)
}
