package half

import (
	"math"
	"math/rand/v2"
	"sort"
	"testing"
)

// format is one of the two, with the value of its bits worked out from the
// definition (sign, power of two, fraction) in float64, which holds them all.
type format struct {
	name         string
	from         func(uint16) float32
	to           func(float32) uint16
	fractionBits int
	bias         int
	infinity     uint16
}

var formats = []format{
	{"F16", FromF16, ToF16, 10, 15, 0x7c00},
	{"BF16", FromBF16, ToBF16, 7, 127, 0x7f80},
}

// value is the number that finite non-negative bits stand for. Infinity's bits
// give the power of two that would come next: where rounding to infinity begins
// lies half way to it.
func (f format) value(bits uint16) float64 {
	exponent, fraction := int(bits>>f.fractionBits), float64(int(bits)&(1<<f.fractionBits-1))
	if exponent == 0 {
		return math.Ldexp(fraction, 1-f.bias-f.fractionBits)
	}
	return math.Ldexp(fraction+float64(int(1)<<f.fractionBits), exponent-f.bias-f.fractionBits)
}

// nearest finds by search and comparison what rounding should give. The middle
// between two neighbours and every float32 are exact in float64.
func (f format) nearest(x float32) uint16 {
	sign := uint16(0)
	if math.Signbit(float64(x)) {
		sign = 0x8000
	}
	abs := math.Abs(float64(x))
	if abs >= f.value(f.infinity) {
		return sign | f.infinity
	}
	above := uint16(sort.Search(int(f.infinity), func(i int) bool { return f.value(uint16(i)) > abs }))
	below := above - 1
	middle := (f.value(below) + f.value(above)) / 2
	if abs > middle || abs == middle && below&1 == 1 {
		return sign | above
	}
	return sign | below
}

func TestEveryValueWidensExactlyAndComesBack(t *testing.T) {
	for _, f := range formats {
		for i := range 1 << 16 {
			bits := uint16(i)
			x := f.from(bits)
			if got := f.to(x); got != bits {
				t.Fatalf("%s %#04x widens to %v, which narrows to %#04x", f.name, bits, x, got)
			}
			abs := bits & 0x7fff
			switch {
			case abs > f.infinity:
				if x == x {
					t.Fatalf("%s %#04x is NaN, not %v", f.name, bits, x)
				}
				continue
			case abs == f.infinity:
				if !math.IsInf(float64(x), 0) {
					t.Fatalf("%s %#04x is infinite, not %v", f.name, bits, x)
				}
			default:
				if got := math.Abs(float64(x)); got != f.value(abs) {
					t.Fatalf("%s %#04x is ±%v, not %v", f.name, bits, f.value(abs), x)
				}
			}
			if math.Signbit(float64(x)) != (bits&0x8000 != 0) {
				t.Fatalf("%s %#04x has another sign than %v", f.name, bits, x)
			}
		}
	}
}

func TestNarrowingRoundsToNearestEven(t *testing.T) {
	for _, f := range formats {
		check := func(x float32) {
			t.Helper()
			for _, x := range []float32{x, -x} {
				if got, want := f.to(x), f.nearest(x); got != want {
					t.Fatalf("%s of %v (%#08x) is %#04x, want %#04x", f.name, x, math.Float32bits(x), got, want)
				}
			}
		}
		// Around each value and around the middle to the next, where the decision falls.
		for bits := range f.infinity {
			low, high := f.value(bits), f.value(bits+1)
			for _, x := range []float32{float32(low), float32((low + high) / 2)} {
				check(x)
				check(math.Nextafter32(x, 0))
				check(math.Nextafter32(x, float32(math.Inf(1))))
			}
		}
		for _, x := range []float32{0, math.SmallestNonzeroFloat32, 0x1p-126, math.MaxFloat32, float32(math.Inf(1))} {
			check(x)
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range 1_000_000 {
			if x := math.Float32frombits(r.Uint32()); x == x {
				check(x)
			}
		}
	}
}

func TestNaNStaysNaN(t *testing.T) {
	for _, f := range formats {
		for _, bits := range []uint32{0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffc12345, 0x7f802000, 0x7f810000} {
			h := f.to(math.Float32frombits(bits))
			if h&0x7fff <= f.infinity {
				t.Errorf("%s of NaN %#08x is %#04x, which is none", f.name, bits, h)
			}
			if h>>15 != uint16(bits>>31) {
				t.Errorf("%s of NaN %#08x is %#04x: the sign is lost", f.name, bits, h)
			}
		}
	}
}

func TestKnownValues(t *testing.T) {
	for _, c := range []struct {
		bits uint16
		x    float32
	}{
		{0x0000, 0}, {0x0001, 0x1p-24}, {0x03ff, 0x1p-14 - 0x1p-24}, {0x0400, 0x1p-14}, {0x3c00, 1}, {0xc000, -2}, {0x3555, 0.333251953125}, {0x7bff, 65504},
	} {
		if FromF16(c.bits) != c.x || ToF16(c.x) != c.bits {
			t.Errorf("F16 %#04x and %v: got %v and %#04x", c.bits, c.x, FromF16(c.bits), ToF16(c.x))
		}
	}
	for _, c := range []struct {
		bits uint16
		x    float32
	}{
		{0x0001, 0x1p-133}, {0x3f80, 1}, {0xc000, -2}, {0x7f7f, 0x1.fep127},
	} {
		if FromBF16(c.bits) != c.x || ToBF16(c.x) != c.bits {
			t.Errorf("BF16 %#04x and %v: got %v and %#04x", c.bits, c.x, FromBF16(c.bits), ToBF16(c.x))
		}
	}
	if got := ToF16(65519.99); got != 0x7bff {
		t.Errorf("F16 of 65519.99 is %#04x, want the largest finite", got)
	}
	if got := ToF16(65520); got != 0x7c00 {
		t.Errorf("F16 of 65520 is %#04x, want infinity", got)
	}
}
