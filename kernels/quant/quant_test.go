package quant

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"tandem/kernels"
	"tandem/kernels/half"
)

var all = []kernels.Type{kernels.F32, kernels.F16, kernels.BF16, kernels.Q4_0, kernels.Q4_1, kernels.Q8_0, kernels.Q6_K}

// Another implementation's numbers for random blocks, bit for bit: every format
// rounds once an element, so there is nothing to tolerate.
func TestDequantiseAgreesWithAnotherImplementation(t *testing.T) {
	file, err := os.Open("testdata/blocks.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	seen := map[kernels.Type]int{kernels.F32: 1} // F32 has nothing to decode
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		field := strings.Fields(lines.Text())
		if len(field) != 3 || field[0] == "#" {
			continue
		}
		i := slices.IndexFunc(all, func(t kernels.Type) bool { return t.String() == field[0] })
		src, err1 := hex.DecodeString(field[1])
		bits, err2 := hex.DecodeString(field[2])
		if i < 0 || err1 != nil || err2 != nil {
			continue
		}
		want, got := make([]float32, len(bits)/4), make([]float32, len(bits)/4)
		if err := Dequantise(want, kernels.F32, bits); err != nil {
			t.Fatal(err)
		}
		if err := Dequantise(got, all[i], src); err != nil {
			t.Fatal(err)
		}
		for j := range want {
			if got[j] != want[j] {
				t.Errorf("%v block %.8s…: element %d is %v, want %v", all[i], field[1], j, got[j], want[j])
			}
			seen[all[i]]++
		}
	}
	for _, f := range all {
		if seen[f] == 0 {
			t.Errorf("testdata has no block of %v", f)
		}
	}
}

// Blocks small enough to check by eye against the package comment.
func TestDequantiseBySpelledOutBlocks(t *testing.T) {
	one := []byte{0x00, 0x3c} // binary16 1
	two := []byte{0x00, 0x40}
	for _, c := range []struct {
		format kernels.Type
		src    []byte
		want   map[int]float32 // the rest is other
		other  float32
	}{
		{kernels.Q4_0, slices.Concat(two, []byte{0x1f}, make([]byte, 15)), map[int]float32{0: 14, 16: -14}, -16},
		{kernels.Q4_1, slices.Concat(two, one, make([]byte, 15), []byte{0x3f}), map[int]float32{15: 31, 31: 7}, 1},
		{kernels.Q8_0, slices.Concat(two, []byte{127, 0x80}, make([]byte, 30)), map[int]float32{0: 254, 1: -256}, 0},
	} {
		got := make([]float32, 32)
		if err := Dequantise(got, c.format, c.src); err != nil {
			t.Fatal(err)
		}
		for i, x := range got {
			want, named := c.want[i]
			if !named {
				want = c.other
			}
			if x != want {
				t.Errorf("%v: element %d is %v, want %v", c.format, i, x, want)
			}
		}
	}

	// Q6_K: one element at a time is 63 (31 above the middle), all scales 1 but the last, which is −2.
	for i := range 256 {
		b := make([]byte, 210)
		lowAt, lowShift, highAt, highShift := place6(i)
		b[lowAt] = 15 << lowShift
		b[128+highAt] = 3 << highShift
		for s := range 16 {
			b[192+s] = 1
		}
		b[207] = 0xfe
		copy(b[208:], two)
		got := make([]float32, 256)
		if err := Dequantise(got, kernels.Q6_K, b); err != nil {
			t.Fatal(err)
		}
		for j, x := range got {
			want := float32(-64)
			if j == i {
				want = 62
			}
			if j >= 240 {
				want *= -2
			}
			if x != want {
				t.Fatalf("Q6_K with element %d set: element %d is %v, want %v", i, j, x, want)
			}
		}
	}
}

// bound is how far element i may come back from x when block b holds it: the
// half or whole step that Quantise promises, from the scales that the block
// really has, and one float32 rounding of the result.
func bound(f kernels.Type, b []byte, x []float32, i int) float64 {
	scale := func(at int) float64 { return math.Abs(float64(half.FromF16(uint16(b[at]) | uint16(b[at+1])<<8))) }
	rounding := math.Abs(float64(x[i])) * 0x1p-23
	switch f {
	case kernels.F16:
		return math.Max(math.Abs(float64(x[i]))*0x1p-11, 0x1p-25)
	case kernels.BF16:
		return math.Max(math.Abs(float64(x[i]))*0x1p-8, 0x1p-134)
	case kernels.Q4_0:
		return scale(0) + rounding // half a step, except at +8, which becomes +7
	case kernels.Q4_1, kernels.Q8_0:
		return scale(0)/2 + rounding
	case kernels.Q6_K:
		return scale(208)*float64(b[192+i/16])/2 + rounding
	}
	return 0
}

// promised is how large the step may be for a block of these elements: the span
// over the number of steps, with the scale's rounding (2^-10, or 2^-24 where it
// is subnormal) and, in Q4_1, that of m.
func promised(f kernels.Type, x []float32, i int) float64 {
	low, high := float64(slices.Min(x)), float64(slices.Max(x))
	most := math.Max(-low, high)
	up := func(d float64) float64 { return d*(1+0x1p-10) + 0x1p-24 }
	switch f {
	case kernels.Q4_0:
		return up(most / 8)
	case kernels.Q4_1:
		m := math.Abs(low)*0x1p-10 + 0x1p-24
		return up((high-low+m)/15) / 2
	case kernels.Q8_0:
		return up(most/127) / 2
	case kernels.Q6_K:
		own := x[i/16*16 : i/16*16+16]
		return (math.Max(-float64(slices.Min(own)), float64(slices.Max(own)))/31 + up(most/31/127)) / 2
	}
	return math.Inf(1) // the bound above says it all
}

func checkRoundTrip(t *testing.T, f kernels.Type, x []float32) {
	t.Helper()
	n := f.Block()
	b, got := make([]byte, f.RowBytes(len(x))), make([]float32, len(x))
	if err := Quantise(b, f, x); err != nil {
		t.Fatalf("%v: %v", f, err)
	}
	if err := Dequantise(got, f, b); err != nil {
		t.Fatalf("%v: %v", f, err)
	}
	size := int(f.RowBytes(n))
	for i := range x {
		block, in := x[i/n*n:i/n*n+n], b[i/n*size:i/n*size+size]
		off, step := math.Abs(float64(got[i])-float64(x[i])), bound(f, in, block, i%n)
		if !(off <= step) {
			t.Fatalf("%v: element %d, %g, came back as %g: off by %g, more than %g", f, i, x[i], got[i], off, step)
		}
		if most := promised(f, block, i%n)*(1+1e-6) + math.Abs(float64(x[i]))*0x1p-22; !(off <= most) {
			t.Fatalf("%v: element %d, %g, came back as %g: off by %g, more than %g for its block's span", f, i, x[i], got[i], off, most)
		}
	}
}

func TestRoundTripStaysWithinHalfAStep(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	shapes := map[string]func(i int) float32{
		"normal":           func(int) float32 { return float32(r.NormFloat64()) },
		"all positive":     func(int) float32 { return 3 + float32(r.Float64()) },
		"all negative":     func(int) float32 { return -3 - float32(r.Float64()) },
		"one outlier":      func(i int) float32 { return float32(r.NormFloat64()) * float32(1+1000*(i%256/255)) },
		"constant":         func(int) float32 { return 0.7 },
		"subnormal scales": func(int) float32 { return float32(r.NormFloat64()) * 0x1p-19 },
		"below any scale":  func(int) float32 { return float32(r.NormFloat64()) * 0x1p-40 },
		"float32 dust":     func(int) float32 { return math.Float32frombits(uint32(r.IntN(9))) },
		"zeros between":    func(i int) float32 { return float32(i/16%2) * float32(r.NormFloat64()) },
		"alternating ±1":   func(i int) float32 { return float32(1 - i%2*2) },
	}
	for name, at := range shapes {
		for _, f := range all {
			t.Run(fmt.Sprint(name, "/", f), func(t *testing.T) {
				for range 20 {
					x := make([]float32, 1024)
					for i := range x {
						x[i] = at(i)
					}
					checkRoundTrip(t, f, x)
				}
			})
		}
	}
}

func TestScalesUpToTheLimitOfBinary16(t *testing.T) {
	const most = 65504
	for _, c := range []struct {
		format kernels.Type
		reach  float32 // the largest element whose scale is still finite
	}{
		{kernels.F16, most},
		{kernels.Q4_0, most * 8},
		{kernels.Q4_1, most}, // from 0, which is m, to 15·d would be more; from −most it is m that limits
		{kernels.Q8_0, most * 127},
		{kernels.Q6_K, most * 127 * 31},
	} {
		x := make([]float32, 256)
		for i := range x {
			x[i] = c.reach * float32(128-i) / 128
		}
		x[255] = -c.reach
		checkRoundTrip(t, c.format, x)
		if c.format == kernels.F16 {
			continue // beyond lies infinity, which is what F16 has for it
		}
		x[255] = -c.reach * 1.001
		err := Quantise(make([]byte, c.format.RowBytes(256)), c.format, x)
		if err == nil || !strings.Contains(err.Error(), "beyond the scales of "+c.format.String()) {
			t.Errorf("%v beyond its range: %v", c.format, err)
		}
	}
}

func TestAllZeroBlocksAreZero(t *testing.T) {
	for _, f := range all {
		b, x := make([]byte, f.RowBytes(512)), make([]float32, 512)
		if err := Quantise(b, f, x); err != nil {
			t.Fatal(err)
		}
		x[0] = 1
		if err := Dequantise(x, f, b); err != nil {
			t.Fatal(err)
		}
		for i := range x {
			if math.Float32bits(x[i]) != 0 {
				t.Errorf("%v: element %d of zeros came back as %v", f, i, x[i])
			}
		}
	}
}

func TestWhatABlockCannotHoldIsAnError(t *testing.T) {
	for _, f := range all {
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
			x := make([]float32, 512)
			x[300] = bad
			b := make([]byte, f.RowBytes(512))
			err := Quantise(b, f, x)
			if f.Block() > 1 {
				if err == nil || !strings.Contains(err.Error(), "NaN or infinity") || !strings.Contains(err.Error(), f.String()) {
					t.Errorf("%v of %v: %v", f, bad, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%v of %v: %v", f, bad, err)
			}
			if err := Dequantise(x, f, b); err != nil || x[300] == x[300] && x[300] != bad || x[300] != x[300] && bad == bad {
				t.Errorf("%v of %v came back as %v, %v", f, bad, x[300], err)
			}
		}
	}
}

func TestLengthsThatDoNotFitAreErrors(t *testing.T) {
	for _, c := range []struct {
		format          kernels.Type
		elements, bytes int
		want            string
	}{
		{0, 32, 32, "unknown format"},
		{200, 32, 32, "unknown format"},
		{kernels.Q8_0, 33, 34, "33 elements are not whole Q8_0 blocks of 32"},
		{kernels.Q6_K, 32, 210, "not whole Q6_K blocks of 256"},
		{kernels.Q4_1, 64, 39, "take 40 bytes, got 39"},
		{kernels.F32, 2, 9, "take 8 bytes, got 9"},
	} {
		for _, err := range []error{
			Dequantise(make([]float32, c.elements), c.format, make([]byte, c.bytes)),
			Quantise(make([]byte, c.bytes), c.format, make([]float32, c.elements)),
		} {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v with %d elements in %d bytes: %v", c.format, c.elements, c.bytes, err)
			}
		}
	}
}

// Any bytes are some numbers: a block of a hostile file cannot make it panic.
func TestAnyBytesDequantise(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, f := range all {
		b, x := make([]byte, f.RowBytes(4096)), make([]float32, 4096)
		for range 20 {
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			if err := Dequantise(x, f, b); err != nil {
				t.Fatal(err)
			}
		}
	}
}
