package cpu

import (
	"fmt"

	"tandem/kernels"
)

// A segment is the rows of one sequence in a batch.
type segment struct{ row, n, seq, pos int }

// segments checks a batch and splits it by sequence. A batch is our own doing,
// so a wrong one panics, before any of its numbers becomes an address.
func (b *Backend) segments(batch *kernels.Batch) []segment {
	rows := batch.Rows()
	b.checkRows(rows)
	if len(batch.Pos) != rows || len(batch.Seq) != rows {
		panic(fmt.Sprintf("cpu: a batch of %d tokens, %d positions, %d sequences", rows, len(batch.Pos), len(batch.Seq)))
	}
	b.segs = b.segs[:0]
	for r := range rows {
		seq, pos := int(batch.Seq[r]), int(batch.Pos[r])
		if n := len(b.segs); n > 0 && b.segs[n-1].seq == seq && b.segs[n-1].pos+b.segs[n-1].n == pos {
			b.segs[n-1].n++
			continue
		}
		b.segs = append(b.segs, segment{row: r, n: 1, seq: seq, pos: pos})
	}
	for _, s := range b.segs {
		if s.seq < 0 || s.seq >= len(batch.Pages) {
			panic(fmt.Sprintf("cpu: row %d belongs to sequence %d of %d", s.row, s.seq, len(batch.Pages)))
		}
		if s.pos < 0 || s.pos+s.n > b.shape.Context {
			panic(fmt.Sprintf("cpu: row %d: positions %d to %d in a context of %d", s.row, s.pos, s.pos+s.n-1, b.shape.Context))
		}
		pages := batch.Pages[s.seq]
		used := (s.pos + s.n + b.shape.PageTokens - 1) / b.shape.PageTokens
		if used > len(pages) {
			panic(fmt.Sprintf("cpu: row %d: %d pages for %d positions", s.row, len(pages), s.pos+s.n))
		}
		for i, p := range pages[:used] {
			if int(p) >= b.nPages {
				panic(fmt.Sprintf("cpu: sequence %d: page %d is number %d of %d", s.seq, i, p, b.nPages))
			}
		}
	}
	return b.segs
}

func (b *Backend) checkRows(rows int) {
	if rows < 0 || rows > b.shape.MaxRows {
		panic(fmt.Sprintf("cpu: %d rows, at most %d were announced", rows, b.shape.MaxRows))
	}
}

func mustMatch(what string, got, want int) {
	if got != want {
		panic(fmt.Sprintf("cpu: %s has %d columns, want %d", what, got, want))
	}
}

// rowShare is this rank's part of rows rows, in whole tiles.
func (b *Backend) rowShare(rows int) (lo, hi int) {
	n, rank, size := rowsUp(rows)/tileRows, b.team.Rank, b.team.Size
	return min(n*rank/size*tileRows, rows), min(n*(rank+1)/size*tileRows, rows)
}

// alone reports whether each rank should compute all of so few rows itself.
func (b *Backend) alone(rows int) bool { return b.team.Size > 1 && rows <= few }

// Embed implements kernels.Backend.
func (b *Backend) Embed(x kernels.Buffer, table kernels.Matrix, batch *kernels.Batch) error {
	if b.err != nil {
		return b.err
	}
	defer b.step()
	v, m := x.(*buffer), table.(*matrix)
	mustMatch("the residual stream", v.cols, m.Cols)
	b.checkRows(batch.Rows())
	for r, t := range batch.Tokens {
		if t < 0 || int(t) >= m.Rows {
			panic(fmt.Sprintf("cpu: row %d: token %d of %d", r, t, m.Rows))
		}
	}
	if err := b.rewrite("Embed", v, byGroup); err != nil {
		return err
	}
	lo, hi := b.share(byGroup, v.cols)
	for r, t := range batch.Tokens {
		b.kern.embed(m.Type, m.Data, m.Cols, int(t), lo, hi, v.row(r))
	}
	return nil
}

// rewrite is write for a buffer whose columns are dealt out by d: if they were
// dealt out otherwise before, others may still be writing what becomes ours.
func (b *Backend) rewrite(op string, v *buffer, d deal) error {
	if v.deal != d && v.use.wrote == b.epoch {
		if err := b.meet(op); err != nil {
			return err
		}
	}
	v.deal = d
	return b.write(op, &v.use)
}

// Norm implements kernels.Backend.
func (b *Backend) Norm(a kernels.Act, x kernels.Buffer, w kernels.Vector, eps float32, rows int) error {
	if b.err != nil {
		return b.err
	}
	defer b.step()
	v, in, weight := a.(*act), x.(*buffer), w.(vector)
	mustMatch("the activations", v.cols, in.cols)
	mustMatch("the norm", len(weight), in.cols)
	b.checkRows(rows)
	if err := b.read("Norm", &in.use); err != nil {
		return err
	}
	if v.cols > len(b.row) {
		panic(fmt.Sprintf("cpu: a norm over %d columns, wider than anything in the shape", v.cols))
	}
	v.renew(rows)
	to, lo, hi := &v.private, 0, rows
	if !b.alone(rows) {
		to = &v.shared
		if err := b.write("Norm", &to.useFloats, &to.useBytes); err != nil {
			return err
		}
		lo, hi = b.rowShare(rows)
	}
	f, t := to.fill(b.form(v))
	if lo < hi {
		b.kern.norm(in.data[lo*in.ld:], in.ld, weight, eps, v.cols, hi-lo, lo, f, v.ld, t, to.fine, b.row)
	}
	return nil
}

// gather makes a whole in the form that m takes, waiting for the shares of
// others and computing what is still to be computed, and returns where it is.
func (b *Backend) gather(op string, a *act, m *matrix, rows int) (*store, error) {
	mustMatch("the activations", a.cols, m.Cols)
	if rows > a.rows {
		panic(fmt.Sprintf("cpu: %d rows of activations, of which there are %d", rows, a.rows))
	}
	rows = a.rows
	if a.parts {
		if err := b.join(op, a, !m.float); err != nil {
			return nil, err
		}
	}
	if m.float {
		switch {
		case a.private.hasFloats:
			return &a.private, nil
		case a.shared.hasFloats:
			return &a.shared, b.read(op, &a.shared.useFloats)
		}
		panic("cpu: activations were computed before the matrix that takes them was bound")
	}
	switch {
	case a.private.hasBytes:
		return &a.private, nil
	case a.shared.hasBytes:
		return &a.shared, b.read(op, &a.shared.useBytes)
	case a.private.hasFloats:
		a.private.hasBytes = true
		b.kern.quant(a.private.floats, a.ld, a.cols, 0, rows, a.private.bytes, a.private.fine)
		return &a.private, nil
	case !a.shared.hasFloats:
		panic("cpu: activations were computed before the matrix that takes them was bound")
	}
	if err := b.read(op, &a.shared.useFloats); err != nil {
		return nil, err
	}
	to, lo, hi := &a.private, 0, rows
	if !b.alone(rows) {
		to = &a.shared
		if err := b.write(op, &to.useBytes); err != nil {
			return nil, err
		}
		lo, hi = b.rowShare(rows)
	}
	to.hasBytes = true
	if lo < hi {
		b.kern.quant(a.shared.floats, a.ld, a.cols, lo, hi, to.bytes, to.fine)
	}
	if to == &a.private {
		return to, nil
	}
	return to, b.read(op, &to.useBytes)
}

// product computes rows [lo, hi) of m times the activations.
func (b *Backend) product(out *buffer, m *matrix, in *store, ld, rows, lo, hi int, add bool) {
	if lo >= hi || rows == 0 {
		return
	}
	groups := (hi+15)/16 - lo/16
	w, to := b.local.rows(m, lo/16, groups), out.data[lo/16*16:]
	if m.float {
		b.kern.gemmF(m.Type, w, 0, groups, m.Cols, in.floats, ld, rows, to, out.ld, add, b.expand, b.progress)
		return
	}
	b.kern.gemmQ(m.Type, w, 0, groups, m.Cols, in.bytes, in.fine, rows, to, out.ld, add, b.progress)
}

// Linear implements kernels.Backend.
func (b *Backend) Linear(out kernels.Buffer, m kernels.Matrix, a kernels.Act, rows int) error {
	if b.err != nil {
		return b.err
	}
	defer b.step()
	v, w, in := out.(*buffer), m.(*matrix), a.(*act)
	mustMatch("the result", v.cols, w.Rows)
	b.checkRows(rows)
	from, err := b.gather("Linear", in, w, rows)
	if err != nil {
		return err
	}
	d := b.dealOf(w)
	if err := b.rewrite("Linear", v, d); err != nil {
		return err
	}
	lo, hi := b.share(d, v.cols)
	b.product(v, w, from, in.ld, rows, lo, hi, false)
	return nil
}

// LinearAdd implements kernels.Backend.
func (b *Backend) LinearAdd(x kernels.Buffer, m kernels.Matrix, a kernels.Act, rows int) error {
	if b.err != nil {
		return b.err
	}
	defer b.step()
	v, w, in := x.(*buffer), m.(*matrix), a.(*act)
	mustMatch("the residual stream", v.cols, w.Rows)
	b.checkRows(rows)
	from, err := b.gather("LinearAdd", in, w, rows)
	if err != nil {
		return err
	}
	if err := b.rewrite("LinearAdd", v, byGroup); err != nil {
		return err
	}
	lo, hi := b.share(byGroup, v.cols)
	b.product(v, w, from, in.ld, rows, lo, hi, true)
	return nil
}

// SwiGLU implements kernels.Backend.
func (b *Backend) SwiGLU(a kernels.Act, gate, up kernels.Buffer, rows int) error {
	if b.err != nil {
		return b.err
	}
	defer b.step()
	v, g, u := a.(*act), gate.(*buffer), up.(*buffer)
	mustMatch("gate", g.cols, v.cols)
	mustMatch("up", u.cols, v.cols)
	b.checkRows(rows)
	d := byBlock
	if g.deal != d || u.deal != d {
		// Not the shares that can be quantised one by one: wait for all of both.
		if err := b.read("SwiGLU", &g.use, &u.use); err != nil {
			return err
		}
	}
	if err := b.write("SwiGLU", &v.shared.useFloats, &v.shared.useBytes); err != nil {
		return err
	}
	v.renew(rows)
	f, t := v.shared.fill(b.form(v))
	if lo, hi := b.share(d, v.cols); lo < hi && rows > 0 {
		b.kern.swiglu(g.data, u.data, g.ld, lo, hi, rows, f, v.ld, t, v.shared.fine, v.cols)
	}
	return nil
}
