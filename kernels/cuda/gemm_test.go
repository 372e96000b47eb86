package cuda_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"tandem/gpu/driver"
	"tandem/kernels/cuda"
	"tandem/kernels/cuda/cudatest"
)

// Number formats, from their definitions.

func e2m1(x uint32) float64 {
	v := []float64{0, .5, 1, 1.5, 2, 3, 4, 6}[x&7]
	if x&8 != 0 {
		return -v
	}
	return v
}

func e4m3(x uint32) float64 {
	e, m := int(x>>3&15), float64(x&7)
	v := math.Ldexp(m/8, -6)
	switch {
	case x&0x7f == 0x7f:
		return math.NaN()
	case e > 0:
		v = math.Ldexp(1+m/8, e-7)
	}
	if x&0x80 != 0 {
		return -v
	}
	return v
}

func ue8m0(x uint32) float64 { return math.Ldexp(1, int(x)-127) }
func bf16(x uint32) float64  { return float64(math.Float32frombits(x << 16)) }
func slot(x uint32) float64  { return e2m1(x >> 2) } // an e2m1 in its byte

func randomE4M3(r *rand.Rand) uint32 {
	for {
		if x := r.Uint32() & 0xff; x&0x7f < 0x50 {
			return x
		}
	}
}

func randomBF16(r *rand.Rand) uint32 { return math.Float32bits(float32(r.NormFloat64())) >> 16 }

// An operand is rows of K values, and the bytes that a kernel takes them as.
type operand struct {
	value        []float64
	data, scales []byte
}

func newOperand(r *rand.Rand, kind string, rows, k int) (o operand) {
	for range rows {
		var scales []uint32
		switch kind {
		case "nvfp4":
			for range k / 16 {
				scales = append(scales, 0x28+uint32(r.IntN(0x20)))
			}
		case "mxfp4", "mxfp8":
			for range k / 32 {
				scales = append(scales, 122+uint32(r.IntN(8)))
			}
		}
		for _, s := range scales {
			o.scales = append(o.scales, byte(s))
		}
		for c := range k {
			var v float64
			switch kind {
			case "nvfp4", "mxfp4":
				x := uint32(r.IntN(16))
				if c%2 == 0 {
					o.data = append(o.data, byte(x))
				} else {
					o.data[len(o.data)-1] |= byte(x << 4)
				}
				v = e2m1(x)
			case "mxfp8", "e4m3":
				x := randomE4M3(r)
				o.data = append(o.data, byte(x))
				v = e4m3(x)
			case "bf16":
				x := randomBF16(r)
				o.data = binary.LittleEndian.AppendUint16(o.data, uint16(x))
				v = bf16(x)
			}
			switch kind {
			case "nvfp4":
				v *= e4m3(scales[c/16])
			case "mxfp4", "mxfp8":
				v *= ue8m0(scales[c/32])
			}
			o.value = append(o.value, v)
		}
	}
	return o
}

// inside is by how much more than the emulation, which rounds once an instruction, a
// card may be off: it also rounds and cuts off inside.
const inside = 16

func TestTensorCoreProducts(t *testing.T) {
	ctx := card(t, 0)
	k, err := cuda.Load(ctx, "gemm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	for _, c := range []struct {
		name, a, b   string
		stage, steps int // bytes of shared memory; elements of an instruction
		blockScaled  bool
	}{
		{"gemm_nvfp4", "nvfp4", "nvfp4", 3 * 64 * (64 + 64 + 8 + 8), 64, true},
		{"gemm_w4a8", "mxfp8", "mxfp4", 3 * 64 * (128 + 64 + 4 + 4), 32, true},
		{"gemm_e4m3", "e4m3", "e4m3", 3 * 64 * (128 + 128), 32, false},
		{"gemm_bf16", "bf16", "bf16", 3 * 64 * (128 + 128), 16, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.blockScaled && ctx.Device().Major != 12 {
				t.Skip("the card has no block-scaled products")
			}
			r := rand.New(rand.NewPCG(3, 3))
			for _, s := range [][3]int{{100, 136, 512}, {1, 1, 128}, {64, 64, 128}, {65, 63, 256}} {
				m, n, depth := s[0], s[1], s[2]
				a, b := newOperand(r, c.a, m, depth), newOperand(r, c.b, n, depth)
				const alpha = 0.5
				out := put(t, ctx, make([]byte, 4*m*n))
				params := struct {
					a, sa, b, sb, c driver.Ptr
					m, n, k         int32
					alpha           float32
				}{put(t, ctx, a.data), put(t, ctx, a.scales), put(t, ctx, b.data), put(t, ctx, b.scales), out, int32(m), int32(n), int32(depth), alpha}
				var args driver.Args
				args.Struct(unsafe.Slice((*byte)(unsafe.Pointer(&params)), unsafe.Sizeof(params)), 8)
				if err := k.Launch(c.name, (m+63)/64*((n+63)/64), 128, c.stage, &args); err != nil {
					t.Fatal(err)
				}
				got := floats(get(t, ctx, out, 4*m*n))
				for i := range got {
					var want, size float64
					for x := range depth {
						p := a.value[i/n*depth+x] * b.value[i%n*depth+x]
						want, size = want+p, size+math.Abs(p)
					}
					limit := alpha * size * 0x1p-24 * float64(depth/c.steps+2)
					if cudatest.OnCard() {
						limit *= inside
					}
					if e := math.Abs(float64(got[i]) - alpha*want); !(e <= limit) {
						t.Fatalf("%d×%d×%d: row %d column %d is %v, want %v within %.3g", m, n, depth, i/n, i%n, got[i], alpha*want, limit)
					}
				}
			}
		})
	}
}

func floats(b []byte) []float32 {
	f := make([]float32, len(b)/4)
	for i := range f {
		f[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return f
}

// An instruction, as the PTX ISA describes it.
type instruction struct {
	name           string
	k, bits        int
	slots          bool // B is e2m1 in bytes
	a, b           func(uint32) float64
	scaled         int // 0 not; 1 one ue8m0 for each 32; 4 a ue4m3 for each 16
	ba, ta, bb, tb int
}

// placeA is where element i of a lane's A fragment is.
func placeA(bits, lane, i int) (row, col int) {
	group, in, each := lane>>2, lane%4, 32/bits // each: elements of a register
	register := i / each
	row = group + register%2*8
	col = in*each + i%each + register/2*4*each
	return row, col
}

// placeB is the same of B.
func placeB(bits, lane, i int) (k, col int) {
	each := 32 / bits
	return lane%4*each + i%each + i/each*4*each, lane >> 2
}

func TestInstructionsTakeFragmentsAsTheISASays(t *testing.T) {
	ctx := card(t, 0)
	kernels, err := cuda.Load(ctx, "oneop")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kernels.Close() })
	all := []instruction{
		{name: "one_bf16", k: 16, bits: 16, a: bf16, b: bf16},
		{name: "one_e4m3", k: 32, bits: 8, a: e4m3, b: e4m3},
	}
	if ctx.Device().Major == 12 {
		for _, s := range [][2]int{{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 0}, {1, 3}} {
			all = append(all, instruction{name: fmt.Sprintf("one_nvfp4_%d%d", s[0], s[1]), k: 64, bits: 4, a: e2m1, b: e2m1, scaled: 4, ta: s[0], tb: s[1]})
		}
		for _, s := range [][4]int{{0, 0, 0, 0}, {1, 0, 2, 1}, {3, 1, 3, 3}} {
			all = append(all, instruction{name: fmt.Sprintf("one_mxf8f4_%d%d%d%d", s[0], s[1], s[2], s[3]), k: 32, bits: 8, slots: true, a: e4m3, b: slot, scaled: 1, ba: s[0], ta: s[1], bb: s[2], tb: s[3]})
		}
	}
	in, out := put(t, ctx, make([]byte, 32*12*4)), put(t, ctx, make([]byte, 32*4*4))
	r := rand.New(rand.NewPCG(4, 4))
	for _, op := range all {
		for trial := range 40 {
			one := -1 // from trial 20 on one element of A and one of B are not zero
			if trial >= 20 {
				one = r.IntN(16 * op.k)
			}
			words, want, size := op.trial(r, one, r.IntN(8))
			if err := ctx.Write(in, bytesOf(words[:])); err != nil {
				t.Fatal(err)
			}
			var args driver.Args
			if err := kernels.Launch(op.name, 1, 32, 0, args.Ptr(in).Ptr(out)); err != nil {
				t.Fatal(err)
			}
			for i, got := range floats(get(t, ctx, out, 32*4*4)) {
				lane, reg := i/4, i%4
				at := (lane>>2+reg>>1*8)*8 + lane%4*2 + reg&1
				limit := size[at] * 0x1p-23
				if cudatest.OnCard() {
					limit *= inside
				}
				if e := math.Abs(float64(got) - want[at]); !(e <= limit) {
					t.Fatalf("%s: register %d of lane %d is %v, want %v within %.3g (one-hot: %v)", op.name, reg, lane, got, want[at], limit, one >= 0)
				}
			}
		}
	}
}

// trial makes registers at random, or one-hot, and says what should come out, by row
// and column of D, and the size of its terms.
func (op instruction) trial(r *rand.Rand, oneA, columnB int) (words [32 * 12]uint32, want, size [128]float64) {
	a, b := make([]float64, 16*op.k), make([]float64, 8*op.k)
	oneB := columnB*op.k + max(oneA, 0)%op.k
	random := func(ofB bool) uint32 {
		switch {
		case op.bits == 16:
			return randomBF16(r)
		case op.bits == 8 && ofB && op.slots:
			return uint32(r.IntN(16)) << 2
		case op.bits == 8:
			return randomE4M3(r)
		}
		return uint32(r.IntN(16))
	}
	each := 32 / op.bits
	for lane := range 32 {
		w := words[lane*12:]
		for i := range 4 * each {
			row, col := placeA(op.bits, lane, i)
			if x := random(false); oneA < 0 || oneA == row*op.k+col {
				w[i/each] |= x << (i % each * op.bits)
				a[row*op.k+col] = op.a(x)
			}
		}
		for i := range 2 * each {
			k, col := placeB(op.bits, lane, i)
			if x := random(true); oneA < 0 || oneB == col*op.k+k {
				w[4+i/each] |= x << (i % each * op.bits)
				b[col*op.k+k] = op.b(x)
			}
		}
		for reg := range 4 {
			if oneA < 0 {
				v := float32(r.NormFloat64())
				w[6+reg] = math.Float32bits(v)
				want[(lane>>2+reg>>1*8)*8+lane%4*2+reg&1] = float64(v)
			}
		}
		// All lanes have scales, all of them different: a wrong lane or byte shows.
		for i := 10; i < 12; i++ {
			if w[i] = r.Uint32(); op.scaled == 4 {
				w[i] = w[i]&0x1f1f1f1f + 0x28282828
			} else {
				w[i] = w[i]&0x07070707 + 0x7a7a7a7a
			}
		}
	}
	scale := func(w uint32, id, k int) float64 {
		switch op.scaled {
		case 4:
			return e4m3(w >> (k / 16 * 8) & 0xff)
		case 1:
			return ue8m0(w >> (id * 8) & 0xff)
		}
		return 1
	}
	for at := range want {
		m, n := at/8, at%8
		size[at] = math.Abs(want[at])
		for k := range op.k {
			x := a[m*op.k+k] * scale(words[(4*(m%8)+2*op.ta+m/8)*12+10], op.ba, k)
			y := b[n*op.k+k] * scale(words[(4*n+op.tb)*12+11], op.bb, k)
			want[at] += x * y
			size[at] += math.Abs(x * y)
		}
	}
	return words, want, size
}

func TestLdmatrix(t *testing.T) {
	ctx := card(t, 0)
	kernels, err := cuda.Load(ctx, "oneop")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kernels.Close() })
	r := rand.New(rand.NewPCG(5, 5))
	var words [256]uint32
	for i := range words {
		words[i] = r.Uint32()
	}
	in, out := put(t, ctx, bytesOf(words[:])), put(t, ctx, make([]byte, 32*4*4))
	// element is 16-bit element e of a row of matrix q: its lane named row 5·lane.
	element := func(q, row, e int) uint32 { return words[(8*q+row)*5%32*4+e/2] >> (e % 2 * 16) & 0xffff }
	for _, name := range []string{"one_ldmatrix", "one_ldmatrix_trans"} {
		var args driver.Args
		if err := kernels.Launch(name, 1, 32, 0, args.Ptr(in).Ptr(out)); err != nil {
			t.Fatal(err)
		}
		got := get(t, ctx, out, 32*4*4)
		for lane := range 32 {
			for q := range 4 {
				want := element(q, lane/4, 2*(lane%4)) | element(q, lane/4, 2*(lane%4)+1)<<16
				if name == "one_ldmatrix_trans" {
					want = element(q, 2*(lane%4), lane/4) | element(q, 2*(lane%4)+1, lane/4)<<16
				}
				if x := binary.LittleEndian.Uint32(got[16*lane+4*q:]); x != want {
					t.Errorf("%s: matrix %d of lane %d is %08x, want %08x", name, q, lane, x, want)
				}
			}
		}
	}
}

func bytesOf(v []uint32) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}
