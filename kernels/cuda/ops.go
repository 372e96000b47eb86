package cuda

import (
	"fmt"
	"math"
	"strings"

	"tandem/kernels"
)

func mustMatch(what string, got, want int) {
	if got != want {
		panic(fmt.Sprintf("cuda: %s has %d columns, want %d", what, got, want))
	}
}

// launchFor queues a kernel of a format: NAME_FORMAT of the source linear_FORMAT,
// which is loaded when it is first needed.
func launchFor[T any](b *Backend, t kernels.Type, name string, blocks [3]int, threads int, p *T) error {
	suffix := strings.ToLower(t.String())
	m := b.formats[t]
	if m == nil {
		var err error
		if m, err = load(b.ctx, "linear_"+suffix); err != nil {
			return err
		}
		if b.formats == nil {
			b.formats = map[kernels.Type]*module{}
		}
		b.formats[t] = m
	}
	return launch(m, b.stream, name+"_"+suffix, blocks, threads, p)
}

func over(n, by int) int { return (n + by - 1) / by }

// Embed implements kernels.Backend. Every rank does all of it.
func (b *Backend) Embed(x kernels.Buffer, table kernels.Matrix, batch *kernels.Batch) error {
	if b.err != nil {
		return b.err
	}
	defer b.step()
	v, m := &x.(*buffer).value, table.(*matrix)
	mustMatch("the residual stream", v.cols, m.Cols)
	for r, t := range batch.Tokens {
		if t < 0 || int(t) >= m.Rows {
			panic(fmt.Sprintf("cuda: row %d: token %d of %d", r, t, m.Rows))
		}
	}
	if err := b.meta.use(b, batch); err != nil {
		return err
	}
	w, err := b.weights(m, 0, m.Rows)
	if err != nil {
		return b.fail(err)
	}
	if err := b.local(v); err != nil {
		return err
	}
	v.deal = whole
	if batch.Rows() == 0 {
		return nil
	}
	p := embedParams{x: b.own(v), table: w, tokens: b.meta.tokens, ld: int32(v.ld), cols: int32(m.Cols)}
	return b.fail(launchFor(b, m.Type, "embed", [3]int{1, batch.Rows(), 1}, 256, &p))
}

// Norm implements kernels.Backend. Every rank does all of it.
func (b *Backend) Norm(a kernels.Act, x kernels.Buffer, w kernels.Vector, eps float32, rows int) error {
	if b.err != nil {
		return b.err
	}
	defer b.step()
	v, in, weight := &a.(*act).value, &x.(*buffer).value, w.(*vector)
	mustMatch("the activations", v.cols, in.cols)
	mustMatch("the norm", weight.cols, in.cols)
	b.checkRows(rows)
	at, err := b.load(weight)
	if err != nil {
		return b.fail(err)
	}
	if err := b.local(v, in); err != nil {
		return err
	}
	v.deal = whole
	if rows == 0 {
		return nil
	}
	p := normParams{a: b.own(v), x: b.own(in), w: at, eps: eps, ldA: int32(v.ld), ldX: int32(in.ld), cols: int32(in.cols)}
	return b.fail(launch(b.code, b.stream, "norm", [3]int{rows, 1, 1}, 256, &p))
}

// few is the number of rows up to which a warp computes each row of weights.
const few = 8

// product queues rows [lo, hi) of m times activations.
func (b *Backend) product(p linearParams, m *matrix, lo, hi, rows int) error {
	if lo >= hi || rows == 0 {
		return nil
	}
	w, err := b.weights(m, lo, hi)
	if err != nil {
		return b.fail(err)
	}
	p.w, p.n, p.cols, p.rows, p.to = w, int32(hi-lo), int32(m.Cols), int32(rows), int32(lo)
	name, grid, threads := "linear_many", [3]int{over(hi-lo, 64), over(rows, 32), 1}, 128
	switch {
	case rows == 1:
		name, grid, threads = "linear_one", [3]int{over(hi-lo, 8), 1, 1}, 256
	case rows <= few:
		name, grid, threads = "linear_few", [3]int{over(hi-lo, 8), over(rows, 4), 1}, 256
	}
	return b.fail(launchFor(b, m.Type, name, grid, threads, &p))
}

// Linear implements kernels.Backend.
func (b *Backend) Linear(out kernels.Buffer, m kernels.Matrix, a kernels.Act, rows int) error {
	if b.err != nil {
		return b.err
	}
	defer b.step()
	v, w, in := &out.(*buffer).value, m.(*matrix), &a.(*act).value
	mustMatch("the result", v.cols, w.Rows)
	mustMatch("the activations", in.cols, w.Cols)
	b.checkRows(rows)
	if err := b.local(v, in); err != nil {
		return err
	}
	v.deal = b.dealOf(w)
	lo, hi := b.share(v.deal, v.cols)
	return b.product(linearParams{out: b.alone(v), a: b.own(in), ldOut: int32(v.ld), ldA: int32(in.ld)}, w, lo, hi, rows)
}

// LinearAdd implements kernels.Backend.
func (b *Backend) LinearAdd(x kernels.Buffer, m kernels.Matrix, a kernels.Act, rows int) error {
	if b.err != nil {
		return b.err
	}
	defer b.step()
	v, w, in := &x.(*buffer).value, m.(*matrix), &a.(*act).value
	mustMatch("the residual stream", v.cols, w.Rows)
	mustMatch("the activations", in.cols, w.Cols)
	b.checkRows(rows)
	if err := b.local(in); err != nil {
		return err
	}
	d := v.deal // of what it is added to
	if d == whole {
		d = evenly
	}
	to, err := b.push(v)
	if err != nil {
		return err
	}
	v.deal = whole
	lo, hi := b.share(d, v.cols)
	return b.product(linearParams{out: to, a: b.own(in), ldOut: int32(v.ld), ldA: int32(in.ld), addd: 1}, w, lo, hi, rows)
}

// SwiGLU implements kernels.Backend.
func (b *Backend) SwiGLU(a kernels.Act, gate, up kernels.Buffer, rows int) error {
	if b.err != nil {
		return b.err
	}
	defer b.step()
	v, g, u := &a.(*act).value, &gate.(*buffer).value, &up.(*buffer).value
	mustMatch("gate", g.cols, v.cols)
	mustMatch("up", u.cols, v.cols)
	b.checkRows(rows)
	if g.deal != u.deal {
		panic("cuda: gate and up are dealt out differently")
	}
	if err := b.local(g, u); err != nil {
		return err
	}
	d := g.deal
	if d == whole {
		d = evenly
	}
	to, err := b.push(v)
	if err != nil {
		return err
	}
	v.deal = whole
	lo, hi := b.share(d, v.cols)
	if lo >= hi || rows == 0 {
		return nil
	}
	p := swigluParams{a: to, gate: b.own(g), up: b.own(u), ldA: int32(v.ld), ld: int32(g.ld), lo: int32(lo), hi: int32(hi)}
	return b.fail(launch(b.code, b.stream, "swiglu", [3]int{over(hi-lo, 256), rows, 1}, 256, &p))
}

func (b *Backend) cache(layer int) cache {
	if layer < 0 || layer >= b.shape.Layers {
		panic(fmt.Sprintf("cuda: layer %d of %d", layer, b.shape.Layers))
	}
	g := b.shape.Geometry
	return cache{
		units: b.units, pageBytes: uint64(g.UnitPageBytes(ElemBytes)),
		layer: int32(layer), headDim: int32(g.HeadDim), pageTokens: int32(g.PageTokens),
	}
}

// RopeAppend implements kernels.Backend.
func (b *Backend) RopeAppend(layer int, q, k, v kernels.Buffer, batch *kernels.Batch) error {
	if b.err != nil {
		return b.err
	}
	defer b.step()
	s := b.shape
	qb, kb, vb := &q.(*buffer).value, &k.(*buffer).value, &v.(*buffer).value
	mustMatch("q", qb.cols, s.Heads*s.HeadDim)
	mustMatch("k", kb.cols, s.Units*s.HeadDim)
	mustMatch("v", vb.cols, s.Units*s.HeadDim)
	if qb.deal == evenly || kb.deal == evenly || vb.deal == evenly {
		panic("cuda: q, k or v is not dealt out by units")
	}
	if err := b.meta.use(b, batch); err != nil {
		return err
	}
	if err := b.local(qb, kb, vb); err != nil {
		return err
	}
	lo, hi := s.Owner(b.team.Rank, b.team.Size)
	if batch.Rows() == 0 || lo == hi {
		return nil
	}
	each := s.Heads / s.Units
	p := ropeParams{
		kv: b.cache(layer), rows: b.meta.rows, q: b.own(qb), k: b.own(kb), v: b.own(vb), rope: b.rope,
		ldQ: int32(qb.ld), ldKV: int32(kb.ld), head: int32(lo * each), heads: int32((hi - lo) * each), unit: int32(lo), unitsOf: int32(hi - lo),
	}
	return b.fail(launch(b.code, b.stream, "rope_append_f32", [3]int{batch.Rows(), 1, 1}, 128, &p))
}

// Attend implements kernels.Backend.
func (b *Backend) Attend(layer int, a kernels.Act, q kernels.Buffer, batch *kernels.Batch) error {
	if b.err != nil {
		return b.err
	}
	defer b.step()
	s := b.shape
	v, qb := &a.(*act).value, &q.(*buffer).value
	mustMatch("q", qb.cols, s.Heads*s.HeadDim)
	mustMatch("the activations", v.cols, qb.cols)
	if qb.deal == evenly {
		panic("cuda: q is not dealt out by heads")
	}
	if err := b.meta.use(b, batch); err != nil {
		return err
	}
	if err := b.local(qb); err != nil {
		return err
	}
	to, err := b.push(v)
	if err != nil {
		return err
	}
	v.deal = whole
	lo, hi := s.Owner(b.team.Rank, b.team.Size)
	rows, each := batch.Rows(), s.Heads/s.Units
	if rows == 0 || lo == hi {
		return b.mark()
	}
	p := attendParams{
		out: to, kv: b.cache(layer), rows: b.meta.rows, q: b.own(qb), parts: b.parts,
		scale: float32(1 / math.Sqrt(float64(s.HeadDim))),
		ldOut: int32(v.ld), ldQ: int32(qb.ld), head: int32(lo * each), heads: int32((hi - lo) * each), each: int32(each),
		blocks: int32(over(b.meta.longest, 64)),
	}
	heads := (hi - lo) * each
	if rows > b.partRows || p.blocks == 1 {
		err = launch(b.code, b.stream, "attend_whole_f32", [3]int{heads, rows, 1}, 128, &p)
	} else {
		err = first(
			launch(b.code, b.stream, "attend_parts_f32", [3]int{heads, rows, int(p.blocks)}, 128, &p),
			launch(b.code, b.stream, "attend_join", [3]int{heads, rows, 1}, 128, &p))
	}
	return first(b.fail(err), b.mark())
}
