package kerneltest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"tandem/kernels"
)

// raw is the bytes of floats as they are, NaN included.
func raw(v []float32) []byte {
	b := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(x))
	}
	return b
}

// cut makes a plan of batches that compute sequences of the given lengths, with
// at most rows rows a batch and at most chunk of one sequence. Sequences take
// turns, so that batches mix them; pages are spread at random.
func cut(r *rand.Rand, s kernels.Shape, lengths []int, rows, chunk int) []*kernels.Batch {
	per := (s.Context + s.PageTokens - 1) / s.PageTokens
	free := r.Perm(3 * per)
	pages := make([][]uint32, len(lengths))
	for i, n := range lengths {
		for range (n + s.PageTokens - 1) / s.PageTokens {
			pages[i] = append(pages[i], uint32(free[0]))
			free = free[1:]
		}
	}
	done := make([]int, len(lengths))
	var plan []*kernels.Batch
	for {
		b := &kernels.Batch{Pages: pages}
		order := r.Perm(len(lengths))
		for _, seq := range order {
			n := min(lengths[seq]-done[seq], chunk, rows-b.Rows())
			for range n {
				b.Tokens = append(b.Tokens, token(seq, done[seq], s.Vocab))
				b.Pos = append(b.Pos, int32(done[seq]))
				b.Seq = append(b.Seq, int32(seq))
				done[seq]++
			}
			if n > 0 && len(b.Out) < s.MaxOut {
				b.Out = append(b.Out, int32(b.Rows()-1))
			}
		}
		if b.Rows() == 0 {
			return plan
		}
		plan = append(plan, b)
	}
}

// token of a position: any function does.
func token(seq, pos, vocab int) int32 {
	return int32((seq*7919 + pos*pos*31 + pos*17) % (vocab - 1)) // the last one is poison
}

// A network is a small one of random weights.
type network struct {
	s kernels.Shape
	r *rand.Rand
	t kernels.Type // of its matrices, where the shape allows
}

// program computes a plan on the network and emits, for every row in order of
// sequence and position, the residual stream, and the logits that were asked.
//
// Before that a pass of poison goes through all buffers and pages: whatever is
// used without having been written in this pass is not a number.
func (n network) program(plan []*kernels.Batch, eps float32) program {
	s := n.s
	q, kv := s.Heads*s.HeadDim, s.Units*s.HeadDim
	format := func(cols int) kernels.Type {
		if cols%n.t.Block() != 0 {
			return kernels.Q8_0
		}
		return n.t
	}
	mat := func(name string, rows, cols int) kernels.Tensor {
		return normal(n.r, name, format(cols), rows, cols, 1/math.Sqrt(float64(cols)))
	}
	// Files mix formats, and matrices of different ones read the same activations.
	// A network of float32 has nothing else, so that nothing rounds.
	other := func(name string, t kernels.Type, rows, cols int) kernels.Tensor {
		if n.t == kernels.F32 {
			t = n.t
		}
		return normal(n.r, name, t, rows, cols, 1/math.Sqrt(float64(cols)))
	}
	v := values(normal(n.r, "", kernels.F32, s.Vocab, s.Width, 1))
	for i := range s.Width {
		v[(s.Vocab-1)*s.Width+i] = float32(math.NaN())
	}
	table := kernels.Tensor{Name: "table", Type: kernels.F32, Rows: s.Vocab, Cols: s.Width, Data: raw(v)}
	head := mat("head", s.Vocab, s.Width)
	norm := func(name string) kernels.Tensor {
		w := make([]float32, s.Width)
		for i := range w {
			w[i] = float32(1 + 0.2*n.r.NormFloat64())
		}
		return floats(name, w)
	}
	type layer struct{ n1, q, k, v, o, n2, gate, up, down kernels.Tensor }
	var layers []layer
	for i := range s.Layers {
		at := func(name string) string { return fmt.Sprintf("%s %d", name, i) }
		layers = append(layers, layer{
			norm(at("n1")), mat(at("q"), q, s.Width), mat(at("k"), kv, s.Width), other(at("v"), kernels.F16, kv, s.Width), mat(at("o"), s.Width, q),
			norm(at("n2")), mat(at("gate"), s.Hidden, s.Width), other(at("up"), kernels.Q8_0, s.Hidden, s.Width), mat(at("down"), s.Width, s.Hidden),
		})
	}
	last := norm("last")
	poison := &kernels.Batch{Pages: [][]uint32{nil}}
	for p := range 3 * ((s.Context + s.PageTokens - 1) / s.PageTokens) {
		poison.Pages[0] = append(poison.Pages[0], uint32(p))
	}
	for r := range min(s.MaxRows, s.Context) {
		poison.Tokens = append(poison.Tokens, int32(s.Vocab-1))
		poison.Pos = append(poison.Pos, int32(r))
		poison.Seq = append(poison.Seq, 0)
	}
	poison.Out = []int32{0}
	return func(k *kit) error {
		// Memory for values is made before matrices are bound on purpose.
		x, qb, kb, vb, gb, ub := k.NewBuffer(s.Width), k.NewBuffer(q), k.NewBuffer(kv), k.NewBuffer(kv), k.NewBuffer(s.Hidden), k.NewBuffer(s.Hidden)
		a, att, h := k.NewAct(s.Width, kernels.Coarse), k.NewAct(q, kernels.Fine), k.NewAct(s.Hidden, kernels.Coarse)
		emb, hm, ln := k.matrix(table, kernels.ByRow), k.matrix(head, kernels.ByRow), k.vector(last)
		type bound struct {
			n1, n2                     kernels.Vector
			q, k, v, o, gate, up, down kernels.Matrix
		}
		var ls []bound
		for _, l := range layers {
			ls = append(ls, bound{
				k.vector(l.n1), k.vector(l.n2), k.matrix(l.q, kernels.ByRow), k.matrix(l.k, kernels.ByUnit), k.matrix(l.v, kernels.ByUnit),
				k.matrix(l.o, kernels.ByRow), k.matrix(l.gate, kernels.ByRow), k.matrix(l.up, kernels.ByRow), k.matrix(l.down, kernels.ByRow),
			})
		}
		forward := func(b *kernels.Batch) (kernels.Logits, error) {
			m := b.Rows()
			if err := k.Embed(x, emb, b); err != nil {
				return nil, err
			}
			for i, l := range ls {
				if err := first(
					k.Norm(a, x, l.n1, eps, m),
					k.Linear(qb, l.q, a, m), k.Linear(kb, l.k, a, m), k.Linear(vb, l.v, a, m),
					k.RopeAppend(i, qb, kb, vb, b), k.Attend(i, att, qb, b), k.LinearAdd(x, l.o, att, m),
					k.Norm(a, x, l.n2, eps, m),
					k.Linear(gb, l.gate, a, m), k.Linear(ub, l.up, a, m), k.SwiGLU(h, gb, ub, m), k.LinearAdd(x, l.down, h, m)); err != nil {
					return nil, err
				}
			}
			return k.Logits(x, ln, eps, hm, b)
		}
		if _, err := forward(poison); err != nil {
			return err
		}
		type place struct{ seq, pos int }
		streams, answers := map[place][]float64{}, map[place][]float64{}
		var order []place
		for _, b := range plan {
			l, err := forward(b)
			if err != nil {
				return err
			}
			if k.rank == 0 {
				for i, r := range b.Out {
					row := widen(l.Row(i))
					answers[place{int(b.Seq[r]), int(b.Pos[r])}] = append(row, float64(l.Best(i)))
				}
			}
			rows, err := k.collect(x, b.Rows())
			if err != nil {
				return err
			}
			for r, row := range rows {
				p := place{int(b.Seq[r]), int(b.Pos[r])}
				streams[p] = row
				order = append(order, p)
			}
		}
		if k.rank != 0 {
			return nil
		}
		slices.SortFunc(order, func(a, b place) int { return (a.seq-b.seq)<<20 + a.pos - b.pos })
		for _, p := range order {
			k.put("x", streams[p])
			if row, ok := answers[p]; ok {
				k.put(fmt.Sprintf("logits of %d at %d", p.seq, p.pos), row)
			}
		}
		return nil
	}
}

// collect is a copy of the first rows of a buffer, for rank 0.
func (k *kit) collect(v kernels.Buffer, rows int) ([][]float64, error) {
	name := "collected"
	if err := k.emit(name, v, rows); err != nil {
		return nil, err
	}
	if k.rank != 0 {
		return nil, nil
	}
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	out := k.run.out[name]
	delete(k.run.out, name)
	return out, nil
}

// networks of the bitwise scenarios: shapes with their formats. Widths are
// multiples of 32 that leave groups and blocks unevenly dealt.
func networkShape(i int) (kernels.Shape, kernels.Type) {
	s := attentionShape(i)
	s.MaxOut = 4
	switch i {
	case 0:
		s.Width, s.Hidden = 288, 352
	case 4:
		s.Width, s.Hidden = 256, 512
	default:
		s.Width, s.Hidden = 96, 160
	}
	return s, []kernels.Type{kernels.Q4_1, kernels.Q8_0, kernels.Q4_0, kernels.F16, kernels.Q6_K, kernels.BF16}[i]
}

// lengths of the sequences of a scenario: across several blocks of keys, and one
// that starts late.
func lengths(s kernels.Shape) []int { return []int{s.Context - 3, s.PageTokens + 1, s.Context / 2} }

func checkNetwork(tb TB, d Device) {
	tb.Helper()
	for _, i := range d.shapes() {
		s, t := networkShape(i)
		n := network{s, rng(800 + uint64(i)), t}
		run := n.program(cut(rng(2), s, []int{150, 40}, s.MaxRows, s.MaxRows), 1e-5)
		want := reference(tb, d, fmt.Sprintf("network %d", i), options(s), run)
		got := execute(tb, d, options(s), d.Teams[len(d.Teams)-1], run)
		// A value that falls to the other side of a rounding changes what is
		// computed from it, by a 127th of the block's largest at most and rarely;
		// random networks spread that through their layers. Float32 has no such
		// steps.
		limit := 1e-5
		if d.Rounds {
			limit = 1e-2
		}
		if e := far(got["x"], want["x"]); !(e <= limit) {
			tb.Errorf("%v network of %+v: the residual stream is off by %.3g of its size, want at most %.3g", t, attentionShapes[i], e, limit)
		}
	}
}

// checkChunks computes the same sequences in different pieces.
func checkChunks(tb TB, d Device) {
	tb.Helper()
	for _, i := range d.shapes() {
		s, t := networkShape(i)
		trace := func(p []*kernels.Batch) results {
			n := network{s, rng(900 + uint64(i)), t}
			run := n.program(p, 1e-5)
			return execute(tb, d, options(s), d.Teams[0], run)
		}
		l := lengths(s)
		want := trace(cut(rng(3), s, l, s.MaxRows, s.MaxRows))
		for _, c := range [][2]int{{len(l), 1}, {7, 3}, {s.MaxRows, 17}, {33, 33}} {
			got := trace(cut(rng(uint64(4+c[0])), s, l, c[0], c[1]))
			sameBits(tb, fmt.Sprintf("%v network of %+v: %d rows a pass, at most %d of a sequence", t, attentionShapes[i], c[0], c[1]), got, common(got, want))
		}
	}
}

// common leaves of want what got has too, of which the residual stream of all
// rows must be: which logits are asked depends on how rows are cut.
func common(got, want results) results {
	c := results{"x": want["x"]}
	for name, rows := range want {
		if _, ok := got[name]; ok {
			c[name] = rows
		}
	}
	return c
}

// checkPages computes the same batches on other pages.
func checkPages(tb TB, d Device) {
	tb.Helper()
	s, t := networkShape(d.shapes()[0])
	trace := func(seed uint64) results {
		plan := cut(rng(5), s, lengths(s), 50, 40)
		pages := rng(seed).Perm(3 * ((s.Context + s.PageTokens - 1) / s.PageTokens))
		for seq, table := range plan[0].Pages { // all batches share it
			for p := range table {
				plan[0].Pages[seq][p] = uint32(pages[0])
				pages = pages[1:]
			}
		}
		n := network{s, rng(1000), t}
		run := n.program(plan, 1e-5)
		return execute(tb, d, options(s), d.Teams[0], run)
	}
	want := trace(1)
	for seed := range uint64(2) {
		sameBits(tb, fmt.Sprintf("pages %d", seed+2), trace(seed+2), want)
	}
}

// checkTeams computes the same batches with every size of team.
func checkTeams(tb TB, d Device) {
	tb.Helper()
	for _, i := range d.shapes() {
		s, t := networkShape(i)
		for _, c := range [][2]int{{3, 1}, {s.MaxRows, 50}} {
			trace := func(size int) results {
				l := lengths(s)
				if c[1] == 1 { // decode is slow to test: start it late
					l = []int{70, 20, 40}
				}
				n := network{s, rng(1100 + uint64(i)), t}
				run := n.program(cut(rng(6), s, l, c[0], c[1]), 1e-5)
				return execute(tb, d, options(s), size, run)
			}
			want := trace(d.Teams[0])
			for _, size := range d.Teams[1:] {
				sameBits(tb, fmt.Sprintf("%v network of %+v, %d rows a pass: team of %d", t, attentionShapes[i], c[0], size), trace(size), want)
			}
		}
	}
}

// Trace is what networks and extreme products compute, for comparing devices
// that should give the same bits.
func Trace(tb TB, d Device) map[string][][]float64 {
	tb.Helper()
	all := results{}
	for i := range attentionShapes {
		s, run := traced(i)
		for name, rows := range execute(tb, d, options(s), d.Teams[0], run) {
			all[fmt.Sprintf("network %d, %s", i, name)] = rows
		}
	}
	r := rng(1300)
	for _, f := range formats {
		for i, c := range extremes(r, f) {
			s, _, run := c.program(r)
			for name, rows := range execute(tb, d, options(s), d.Teams[0], run) {
				all[fmt.Sprintf("%v extreme %d, %s", f, i, name)] = rows
			}
		}
	}
	return all
}

func traced(i int) (kernels.Shape, program) {
	s, t := networkShape(i)
	n := network{s, rng(1200 + uint64(i)), t}
	return s, n.program(cut(rng(7), s, lengths(s), s.MaxRows, 30), 1e-5)
}

// RankOptions are the options of Rank's backend, but for the team.
func RankOptions() Options {
	s, _ := traced(0)
	return options(s)
}

// RankPages is how many pages each unit has in Rank.
func RankPages() int { return pagesOf(RankOptions()) }

// Rank runs a traced network on one rank of a replica whose ranks are anywhere,
// for example processes, and returns what rank 0 got. units is this rank's argument
// of OpenKV.
func Rank(d Device, b kernels.Backend, rank int, units []kernels.Mem) (map[string][][]float64, error) {
	_, run := traced(0)
	e := &execution{d: d, packed: map[string]kernels.Packed{}, out: results{}}
	if err := b.OpenKV(units); err != nil {
		return nil, err
	}
	return e.out, run(&kit{Backend: b, rank: rank, run: e})
}

// SameBits fails unless two traces are equal bit for bit.
func SameBits(tb TB, what string, got, want map[string][][]float64) {
	tb.Helper()
	sameBits(tb, what, got, want)
}
