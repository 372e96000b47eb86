package kerneltest

import (
	"fmt"
	"math"
	"math/rand/v2"

	"tandem/kernels"
	"tandem/kernels/half"
	"tandem/kernels/ref"
)

var checks = []check{
	{"Embed gives the exact values of every format", checkEmbed},
	{"Norm", checkNorm},
	{"products of every format", checkProducts},
	{"products with extreme scales and empty blocks", checkExtremes},
	{"SwiGLU", checkSwiGLU},
	{"attention", checkAttention},
	{"the cache rounds to nearest", checkCache},
	{"rotation", checkRotation},
	{"Logits and Best", checkLogits},
	{"a whole network is near the reference", checkNetwork},
	{"the same bits however rows are cut", checkChunks},
	{"the same bits wherever pages lie", checkPages},
	{"the same bits for every size of team", checkTeams},
	{"Steps moves", checkSteps},
}

// small is a shape for tests of single operations.
func small() kernels.Shape {
	return kernels.Shape{
		Geometry: kernels.Geometry{Layers: 1, Units: 2, HeadDim: 32, PageTokens: 64},
		Width:    64, Heads: 2, Hidden: 64, Vocab: 40, MaxRows: 24, MaxOut: 8, Context: 128,
	}
}

func options(s kernels.Shape) Options { return Options{Shape: s, Rope: rope(s)} }

// batch of n rows of one sequence from position 0, tokens 0, 1, ….
func batch(n int) *kernels.Batch {
	b := &kernels.Batch{Pages: [][]uint32{{0, 1}}}
	for r := range n {
		b.Tokens = append(b.Tokens, int32(r))
		b.Pos = append(b.Pos, int32(r))
		b.Seq = append(b.Seq, 0)
	}
	return b
}

func checkEmbed(tb TB, d Device) {
	tb.Helper()
	for i, f := range formats {
		r := rng(uint64(i))
		s := small()
		s.Width = 256 * (1 + i%2)
		if f != kernels.Q6_K {
			s.Width += 32 * (1 + i)
		}
		const vocab = 37 // no multiple of 16
		table := normal(r, "table", f, vocab, s.Width, 0.3)
		b := batch(24)
		for n := range b.Tokens {
			b.Tokens[n] = int32(r.IntN(vocab))
		}
		b.Tokens[3], b.Tokens[4] = vocab-1, 0
		run := func(k *kit) error {
			x := k.NewBuffer(s.Width)
			if err := k.Embed(x, k.matrix(table, kernels.ByRow), b); err != nil {
				return err
			}
			return k.emit("x", x, b.Rows())
		}
		want := results{}
		v := values(table)
		for _, t := range b.Tokens {
			want["x"] = append(want["x"], widen(v[int(t)*s.Width:(int(t)+1)*s.Width]))
		}
		for _, size := range d.Teams {
			sameBits(tb, fmt.Sprintf("%v, team of %d", f, size), execute(tb, d, options(s), size, run), want)
		}
	}
}

func checkNorm(tb TB, d Device) {
	tb.Helper()
	for i, width := range []int{32, 64, 96, 576, 1056} {
		r := rng(100 + uint64(i))
		s := small()
		s.Width = width
		table := normal(r, "table", kernels.F32, s.Vocab, width, math.Exp2(float64(i*4-8)))
		w := normal(r, "w", kernels.F32, 1, width, 1)
		run := func(k *kit) error {
			x, y, a := k.NewBuffer(width), k.NewBuffer(width), k.NewAct(width, kernels.Coarse)
			m := k.matrix(identity("identity", width), kernels.ByRow)
			return first(
				k.Embed(x, k.matrix(table, kernels.ByRow), batch(20)),
				k.Norm(a, x, k.vector(w), 1e-5, 20),
				k.Linear(y, m, a, 20),
				k.emit("y", y, 20))
		}
		want := reference(tb, d, fmt.Sprintf("norm %d", width), options(s), run)["y"]
		for _, size := range d.Teams {
			got := execute(tb, d, options(s), size, run)["y"]
			// The sum of squares is off by its operations in a row, of which the
			// root halves the effect; then a root, a division and two products.
			tolerance := (float64(width)/64 + 12) * unit
			within(tb, fmt.Sprintf("width %d, team of %d", width, size), got, want, func(r, c int) float64 { return tolerance * math.Abs(want[r][c]) })
		}
	}
}

// first is the first error. Operations go on after one, which a test can bear.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// signs is an embedding table of ±2^e rows: rows whose norm is exact, so that
// Norm with weights w makes activations of exactly ±w.
func signs(r *rand.Rand, vocab, width int) kernels.Tensor {
	v := make([]float32, vocab*width)
	for i := range vocab {
		size := float32(math.Exp2(float64(r.IntN(9) - 4)))
		for c := range width {
			v[i*width+c] = size
			if r.IntN(2) == 0 {
				v[i*width+c] = -size
			}
		}
	}
	return encode("signs", kernels.F32, vocab, width, v)
}

var precisions = []kernels.Precision{kernels.Coarse, kernels.Fine}

// productCase is rows rows of activations ±w times a matrix.
type productCase struct {
	precision kernels.Precision
	weights   kernels.Tensor
	w         []float32
	rows      int
}

// program computes the product, and once more on top of it.
func (c productCase) program(r *rand.Rand) (kernels.Shape, kernels.Tensor, program) {
	s := small()
	s.Width, s.MaxRows = c.weights.Cols, max(c.rows, s.MaxRows)
	s.Vocab = s.MaxRows
	table := signs(r, s.Vocab, s.Width)
	return s, table, func(k *kit) error {
		x, y, a := k.NewBuffer(s.Width), k.NewBuffer(c.weights.Rows), k.NewAct(s.Width, c.precision)
		m := k.matrix(c.weights, kernels.ByRow)
		return first(
			k.Embed(x, k.matrix(table, kernels.ByRow), batch(c.rows)),
			k.Norm(a, x, k.vector(floats("w", c.w)), 0, c.rows),
			k.Linear(y, m, a, c.rows),
			k.emit("y", y, c.rows),
			k.LinearAdd(y, m, a, c.rows),
			k.emit("sum", y, c.rows))
	}
}

func (c productCase) check(tb TB, d Device, r *rand.Rand, what string) {
	tb.Helper()
	s, table, run := c.program(r)
	v := values(c.weights)
	want := map[string][][]float64{}
	limit := make([][]float64, c.rows)
	terms := float64(c.weights.Cols)
	if d.Rounds && c.weights.Type >= kernels.Q4_0 {
		terms = terms/32*2 + 2 // a block's sum is exact; its scale, its minimum and the ends round
	}
	for i := range c.rows {
		a := make([]float64, s.Width)
		for k, x := range values(table)[i*s.Width : (i+1)*s.Width] {
			a[k] = math.Copysign(1, float64(x)) * float64(c.w[k])
		}
		in := a
		if d.Rounds && c.weights.Type >= kernels.Q4_0 {
			p := c.precision
			if d.AlwaysFine {
				p = kernels.Fine
			}
			in = ref.Quantised(a, p)
		}
		y, sum := make([]float64, c.weights.Rows), make([]float64, c.weights.Rows)
		limit[i] = make([]float64, c.weights.Rows)
		for row := range y {
			var size float64
			for k, x := range in {
				t := float64(v[row*s.Width+k]) * x
				y[row] += t
				size += math.Abs(t)
			}
			if c.weights.Type == kernels.Q4_1 {
				// What the minimum and the quants contribute can be larger than both
				// together.
				size += parts(c.weights, row, in)
			}
			sum[row] = 2 * y[row]
			limit[i][row] = (terms+4)*unit*size + 1e-37
		}
		want["y"], want["sum"] = append(want["y"], y), append(want["sum"], sum)
	}
	for _, size := range d.Teams {
		got := execute(tb, d, options(s), size, run)
		within(tb, fmt.Sprintf("%s, team of %d", what, size), got["y"], want["y"], func(r, c int) float64 { return limit[r][c] })
		within(tb, fmt.Sprintf("%s, added, team of %d", what, size), got["sum"], want["sum"], func(r, c int) float64 { return 3 * limit[r][c] })
	}
}

// parts is the size of the terms of a Q4_1 product when quants and minimum are
// summed apart.
func parts(t kernels.Tensor, row int, a []float64) (size float64) {
	bytes := t.Type.RowBytes(t.Cols)
	data := t.Data[int64(row)*bytes : int64(row+1)*bytes]
	for b := 0; b < t.Cols/32; b++ {
		low := kernels.Tensor{Type: t.Type, Rows: 1, Cols: 32, Data: append([]byte(nil), data[20*b:20*b+20]...)}
		clear(low.Data[4:]) // all quants 0: what is left is the minimum
		m := math.Abs(float64(values(low)[0]))
		full := values(kernels.Tensor{Type: t.Type, Rows: 1, Cols: 32, Data: data[20*b : 20*b+20]})
		for i, x := range full {
			size += (2*m + math.Abs(float64(x))) * math.Abs(a[32*b+i])
		}
	}
	return size
}

func checkProducts(tb TB, d Device) {
	tb.Helper()
	r := rng(200)
	for _, f := range formats {
		// 576 columns are 18 blocks and 96 are 3: no multiple of what a kernel may
		// take at once. 17 and 41 rows leave part of a group.
		for _, shape := range [][2]int{{16, 32}, {17, 64}, {41, 96}, {64, 256}, {33, 512}, {48, 576}, {80, 1536}} {
			rows, cols := shape[0], shape[1]
			if cols%f.Block() != 0 {
				continue
			}
			w := make([]float32, cols)
			for i := range w {
				w[i] = float32(r.NormFloat64())
				if i%50 == 7 {
					w[i] *= 30 // activations have such outliers
				}
			}
			for _, n := range []int{1 + r.IntN(9), 10 + r.IntN(14)} {
				weights := normal(r, "weights", f, rows, cols, 0.1)
				for _, p := range precisions {
					c := productCase{p, weights, w, n}
					c.check(tb, d, r, fmt.Sprintf("%v %d×%d, %d rows, precision %d", f, rows, cols, n, p))
				}
			}
		}
	}
}

func checkExtremes(tb TB, d Device) {
	tb.Helper()
	r := rng(300)
	for _, f := range formats {
		for i, c := range extremes(r, f) {
			c.check(tb, d, r, fmt.Sprintf("%v, case %d", f, i))
		}
	}
}

// extremes are products whose weights and activations are at the ends of what
// their formats hold.
func extremes(r *rand.Rand, f kernels.Type) (cases []productCase) {
	const cols = 768
	w := make([]float32, cols)
	for i := range w {
		switch i / 32 % 5 {
		case 0: // an empty block
		case 1: // all at the ends of the range, so that sums are as large as they get
			w[i] = 1
		case 2: // so small that 127 over it is infinite
			w[i] = float32(r.NormFloat64() * 1e-39)
		default:
			w[i] = float32(r.NormFloat64() * math.Exp2(float64(r.IntN(40)-20)))
		}
	}
	for i := range 3 {
		t := extreme(r, "weights", f, 32, cols)
		if i == 0 { // every quant the largest, all kinds of scales
			row := int(f.RowBytes(f.Block()))
			for j := range t.Data {
				switch at := j % row; {
				case f == kernels.Q8_0 && at >= 2:
					t.Data[j] = 0x80
				case f == kernels.Q4_0 && at >= 2, f == kernels.Q4_1 && at >= 4, f == kernels.Q6_K && at < 192:
					t.Data[j] = 0xff
				}
			}
		}
		for _, p := range precisions {
			cases = append(cases, productCase{p, t, w, 9})
		}
	}
	return cases
}

func checkSwiGLU(tb TB, d Device) {
	tb.Helper()
	r := rng(400)
	s := small()
	s.Width, s.Hidden, s.Vocab = 96, 160, 24
	table := signs(r, s.Vocab, s.Width)
	w := make([]float32, s.Width)
	for i := range w {
		w[i] = float32(r.NormFloat64() * math.Exp2(float64(r.IntN(12)-6)))
	}
	w[0], w[1], w[2], w[3] = 0, 88.6, 300, 3e38 // e^-x at its ends
	pick := func(name string) kernels.Tensor {
		return choose(name, s.Hidden, s.Width, func(int) (int, float32) { return r.IntN(s.Width), 1 })
	}
	gate, upper := pick("gate"), pick("up")
	for i := range 4 { // every gate of the ends appears, with a harmless factor
		v := values(gate)
		u := values(upper)
		for c := range s.Width {
			v[i*s.Width+c], u[i*s.Width+c] = 0, 0
		}
		v[i*s.Width+i], u[i*s.Width+10] = 1, 1
		gate, upper = encode("gate", kernels.F32, s.Hidden, s.Width, v), encode("up", kernels.F32, s.Hidden, s.Width, u)
	}
	run := func(k *kit) error {
		x, a := k.NewBuffer(s.Width), k.NewAct(s.Width, kernels.Coarse)
		g, u, h, y := k.NewBuffer(s.Hidden), k.NewBuffer(s.Hidden), k.NewAct(s.Hidden, kernels.Coarse), k.NewBuffer(s.Hidden)
		id, gm, um := k.matrix(identity("identity", s.Hidden), kernels.ByRow), k.matrix(gate, kernels.ByRow), k.matrix(upper, kernels.ByRow)
		return first(
			k.Embed(x, k.matrix(table, kernels.ByRow), batch(20)),
			k.Norm(a, x, k.vector(floats("w", w)), 0, 20),
			k.Linear(g, gm, a, 20), k.Linear(u, um, a, 20),
			k.SwiGLU(h, g, u, 20),
			k.Linear(y, id, h, 20),
			k.emit("y", y, 20))
	}
	want := reference(tb, d, "swiglu", options(s), run)["y"]
	for _, size := range d.Teams {
		got := execute(tb, d, options(s), size, run)["y"]
		// e^x to 2 units, a sum, a division, a product; below the smallest normal
		// number there are only absolute errors.
		within(tb, fmt.Sprintf("team of %d", size), got, want, func(r, c int) float64 {
			if math.IsInf(float64(float32(want[r][c])), 0) {
				return math.Inf(1)
			}
			return 8*unit*math.Abs(want[r][c]) + 1e-37
		})
	}
}

// shapes of attention: head sizes, query heads to a unit, pages; and the room
// for one block of keys, several, and an odd end.
var attentionShapes = []struct {
	units, ratio, headDim, page, context int
}{
	{3, 3, 64, 64, 540},
	{1, 1, 32, 64, 300},
	{2, 4, 128, 64, 300},
	{5, 8, 16, 16, 150},
	{2, 7, 96, 32, 280},
	{1, 12, 64, 64, 530},
}

// shapes are the attention shapes, by number, that a device is tested with.
func (d Device) shapes() []int {
	if d.Slow {
		return []int{1, 3}
	}
	return []int{0, 1, 2, 3, 4, 5}
}

func attentionShape(i int) kernels.Shape {
	c := attentionShapes[i]
	s := kernels.Shape{
		Geometry: kernels.Geometry{Layers: 2, Units: c.units, HeadDim: c.headDim, PageTokens: c.page},
		Heads:    c.units * c.ratio, Hidden: 64, Vocab: 48, MaxRows: 80, MaxOut: 8, Context: c.context,
	}
	s.Width = 64
	return s
}

// checkAttention compares attention alone: queries, keys and values are small
// whole numbers over 64, exact in binary16 and after quarter turns, so that
// nothing but attention rounds.
func checkAttention(tb TB, d Device) {
	tb.Helper()
	for _, i := range d.shapes() {
		r := rng(500 + uint64(i))
		s := attentionShape(i)
		o := Options{Shape: s, Rope: quarters(r, s)}
		q, kv := s.Heads*s.HeadDim, s.Units*s.HeadDim
		table := signs(r, s.Vocab, s.Width)
		w := make([]float32, s.Width)
		for i := range w {
			w[i] = float32(r.IntN(64)) / 64
		}
		pick := func(name string, rows int) kernels.Tensor {
			v := make([]float32, rows*s.Width)
			for row := range rows {
				for range 3 {
					v[row*s.Width+r.IntN(s.Width)] = float32(r.IntN(5) - 2)
				}
			}
			return encode(name, kernels.F32, rows, s.Width, v)
		}
		wq, wk, wv, id := pick("q", q), pick("k", kv), pick("v", kv), identity("identity", q)
		plan := cut(r, s, []int{s.Context - 1, s.Context / 2}, s.MaxRows, s.MaxRows)
		run := func(k *kit) error {
			x, a := k.NewBuffer(s.Width), k.NewAct(s.Width, kernels.Coarse)
			qb, kb, vb, y, att := k.NewBuffer(q), k.NewBuffer(kv), k.NewBuffer(kv), k.NewBuffer(q), k.NewAct(q, kernels.Coarse)
			t, mq, mk, mv, mi := k.matrix(table, kernels.ByRow), k.matrix(wq, kernels.ByRow), k.matrix(wk, kernels.ByUnit), k.matrix(wv, kernels.ByUnit), k.matrix(id, kernels.ByRow)
			norm := k.vector(floats("w", w))
			for _, b := range plan {
				n := b.Rows()
				err := first(
					k.Embed(x, t, b), k.Norm(a, x, norm, 0, n),
					k.Linear(qb, mq, a, n), k.Linear(kb, mk, a, n), k.Linear(vb, mv, a, n),
					k.RopeAppend(1, qb, kb, vb, b),
					k.Attend(1, att, qb, b),
					k.Linear(y, mi, att, n),
					k.emit("y", y, n))
				if err != nil {
					return err
				}
			}
			return nil
		}
		want := reference(tb, d, fmt.Sprintf("attention %d", i), o, run)["y"]
		length := 36 * float64(s.HeadDim) // the largest product of query and key: elements are below 6
		// A score is off by the rounding of its sum; a weight by as much, by e^x and
		// by the sums of weights; a result by that, by its own sum and the folding.
		score := (float64(s.HeadDim) + 3) * unit * length / math.Sqrt(float64(s.HeadDim)) / 8
		tolerance := 6 * (2*score + (256+32)*unit)
		for _, size := range d.Teams {
			got := execute(tb, d, o, size, run)["y"]
			within(tb, fmt.Sprintf("shape %+v, team of %d", attentionShapes[i], size), got, want, func(r, c int) float64 { return tolerance })
		}
	}
}

// checkCache puts values of all kinds into the cache and takes them out again:
// of one position the weight is 1.
func checkCache(tb TB, d Device) {
	tb.Helper()
	r := rng(550)
	s := small()
	s.Units, s.Heads, s.HeadDim, s.Width, s.Vocab = 2, 2, 32, 64, 2
	o := Options{Shape: s, Rope: quarters(r, s)}
	var all []float32
	for _, h := range []uint16{0, 1, 2, 0x3ff, 0x400, 0x401, 0x3c00, 0x3c01, 0x7bfe, 0x7bff} {
		x := float64(half.FromF16(h))
		next := float64(half.FromF16(h + 1))
		if h == 0x7bff {
			next = 65519 // from 65520 on it is infinite
		}
		for _, at := range []float64{0, 0.25, 0.5, 0.75} {
			v := float32(x + at*(next-x))
			all = append(all, v, math.Nextafter32(v, 0), math.Nextafter32(v, 1e9))
		}
	}
	all = append(all, 65519.99, 1e-9, 0x1p-25, 0x1.000002p-25)
	q := s.Heads * s.HeadDim
	nothing := normal(r, "nothing", kernels.F32, q, s.Width, 0)
	for len(all)%s.Width != 0 {
		all = append(all, float32(r.NormFloat64()))
	}
	for part := 0; part < len(all); part += s.Width {
		w := all[part : part+s.Width]
		run := func(k *kit) error {
			x, a := k.NewBuffer(s.Width), k.NewAct(s.Width, kernels.Coarse)
			qb, kb, vb, y, att := k.NewBuffer(q), k.NewBuffer(q), k.NewBuffer(q), k.NewBuffer(q), k.NewAct(q, kernels.Coarse)
			id, zero := k.matrix(identity("identity", s.Width), kernels.ByUnit), k.matrix(nothing, kernels.ByRow)
			zk := k.matrix(nothing, kernels.ByUnit)
			out := k.matrix(identity("out", q), kernels.ByRow)
			b := batch(1)
			return first(
				k.Embed(x, k.matrix(encode("ones", kernels.F32, 2, s.Width, ones(2*s.Width)), kernels.ByRow), b),
				k.Norm(a, x, k.vector(floats("w", w)), 0, 1),
				k.Linear(qb, zero, a, 1), k.Linear(kb, zk, a, 1), k.Linear(vb, id, a, 1),
				k.RopeAppend(0, qb, kb, vb, b), k.Attend(0, att, qb, b),
				k.Linear(y, out, att, 1),
				k.emit("y", y, 1))
		}
		want := make([]float64, s.Width)
		for i, v := range w {
			want[i] = float64(v)
			if d.Rounds {
				want[i] = float64(half.FromF16(half.ToF16(v)))
			}
		}
		for i := range want {
			if math.IsInf(want[i], 0) { // the identity makes NaN of it and its neighbours
				tb.Fatalf("the test itself: %v is infinite", w[i])
			}
		}
		for _, size := range d.Teams {
			sameBits(tb, fmt.Sprintf("team of %d", size), execute(tb, d, o, size, run), results{"y": {want}})
		}
	}
}

func ones(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = 1
	}
	return v
}

// checkRotation compares the rotation by real angles, seen through one position
// of a sequence: of one key the weight is 1, so a value comes out as it is; and
// queries and keys show in the weights of a few.
func checkRotation(tb TB, d Device) {
	tb.Helper()
	s := attentionShape(0)
	r := rng(600)
	n := network{s, r, kernels.F32}
	run := n.program(cut(rng(1), s, []int{70}, s.MaxRows, s.MaxRows), 1e-5)
	want := reference(tb, d, "rotation", options(s), run)
	worst := 0.0
	for _, size := range d.Teams {
		worst = max(worst, far(execute(tb, d, options(s), size, run)["x"], want["x"]))
	}
	// Keys and values that are rounded to binary16 differently when the float32
	// and the float64 lie to either side of a middle are rare.
	limit := 1e-5
	if d.Rounds {
		limit = 2e-4
	}
	if !(worst <= limit) {
		tb.Errorf("the residual stream is off by %.3g of its size, want at most %.3g", worst, limit)
	}
}

func checkLogits(tb TB, d Device) {
	tb.Helper()
	r := rng(700)
	for _, vocab := range []int{33, 500, 1040} {
		s := small()
		s.Vocab, s.Width = vocab, 64
		table := normal(r, "table", kernels.F32, vocab, s.Width, 1)
		w := normal(r, "w", kernels.F32, 1, s.Width, 1)
		v := values(normal(r, "", kernels.F32, vocab, s.Width, 1))
		head := encode("head", kernels.F32, vocab, s.Width, v)
		// Row 0 of tied has each logit twice: at i and at vocab-1-i.
		for i := range vocab / 2 {
			copy(v[(vocab-1-i)*s.Width:(vocab-i)*s.Width], v[i*s.Width:(i+1)*s.Width])
		}
		tied := encode("tied", kernels.F32, vocab, s.Width, v)
		for i := range v {
			if i/s.Width%3 != 1 {
				v[i] = float32(math.NaN())
			}
		}
		holes := kernels.Tensor{Name: "holes", Type: kernels.F32, Rows: vocab, Cols: s.Width, Data: raw(v)}
		for i := range v {
			v[i] = float32(math.NaN())
		}
		nothing := kernels.Tensor{Name: "nothing", Type: kernels.F32, Rows: vocab, Cols: s.Width, Data: raw(v)}
		b := batch(20)
		b.Out = []int32{0, 3, 4, 11, 19}
		run := func(k *kit) error {
			x := k.NewBuffer(s.Width)
			norm := k.vector(w)
			if err := k.Embed(x, k.matrix(table, kernels.ByRow), b); err != nil {
				return err
			}
			for _, t := range []kernels.Tensor{head, tied, holes, nothing} {
				l, err := k.Logits(x, norm, 1e-5, k.matrix(t, kernels.ByRow), b)
				if err != nil {
					return err
				}
				if k.rank != 0 {
					continue
				}
				for i := range b.Out {
					row := widen(l.Row(i))
					k.put(t.Name, row)
					best := l.Best(i)
					k.put(t.Name+" best", []float64{float64(best), float64(bestOf(row))})
				}
			}
			return k.Sync()
		}
		want := reference(tb, d, fmt.Sprintf("logits %d", vocab), options(s), run)
		for _, size := range d.Teams {
			got := execute(tb, d, options(s), size, run)
			for _, name := range []string{"head", "tied"} {
				within(tb, fmt.Sprintf("vocabulary %d, %s, team of %d", vocab, name, size), got[name], want[name], func(r, c int) float64 { return 1e-4 })
			}
			for _, name := range []string{"head", "tied", "holes", "nothing"} {
				if len(got[name]) != len(b.Out) {
					tb.Errorf("vocabulary %d: %d rows of logits, want %d", vocab, len(got[name]), len(b.Out))
				}
				for i, row := range got[name+" best"] {
					if row[0] != row[1] {
						tb.Errorf("vocabulary %d, team of %d, %s row %d: Best is %v, the lowest of the largest logits %v", vocab, size, name, i, row[0], row[1])
					}
				}
			}
		}
	}
}

// bestOf is the lowest index with the largest number, -1 if there is no number.
func bestOf(row []float64) int {
	best := -1
	for i, x := range row {
		if x == x && (best < 0 || x > row[best]) {
			best = i
		}
	}
	return best
}

func checkSteps(tb TB, d Device) {
	tb.Helper()
	s := small()
	var counts [2]uint64
	table := normal(rng(1), "table", kernels.F32, s.Vocab, s.Width, 1)
	execute(tb, d, options(s), 1, func(k *kit) error {
		x := k.NewBuffer(s.Width)
		m := k.matrix(table, kernels.ByRow)
		counts[0] = k.Steps()
		err := k.Embed(x, m, batch(3))
		counts[1] = k.Steps()
		return err
	})
	if counts[1] <= counts[0] {
		tb.Errorf("Steps went from %d to %d over an operation", counts[0], counts[1])
	}
}
