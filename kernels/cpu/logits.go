package cpu

import (
	"fmt"
	"math"

	"tandem/kernels"
)

// logits is the result of a pass, in memory that all ranks share.
type logits struct {
	b    *Backend
	ld   int
	rows []float32 // [MaxOut][ld]
	best []float32 // [rank][MaxOut][index as bits, logit]: each rank's best of its rows
	in   store     // the normalised rows
	use  use
	n    int
	win  []int32
}

// Row implements kernels.Logits.
func (l *logits) Row(i int) []float32 {
	l.check(i)
	return l.rows[i*l.ld : i*l.ld+l.b.shape.Vocab : i*l.ld+l.b.shape.Vocab]
}

// Best implements kernels.Logits. It is -1 if no logit is a number.
func (l *logits) Best(i int) int32 {
	l.check(i)
	return l.win[i]
}

func (l *logits) check(i int) {
	if i < 0 || i >= l.n {
		panic(fmt.Sprintf("cpu: row %d of %d logits", i, l.n))
	}
}

// Logits implements kernels.Backend.
func (b *Backend) Logits(x kernels.Buffer, w kernels.Vector, eps float32, head kernels.Matrix, batch *kernels.Batch) (kernels.Logits, error) {
	if b.err != nil {
		return nil, b.err
	}
	defer b.step()
	v, weight, m := x.(*buffer), w.(vector), head.(*matrix)
	l := &b.out
	mustMatch("the residual stream", v.cols, b.shape.Width)
	mustMatch("the norm", len(weight), v.cols)
	mustMatch("the head's input", m.Cols, v.cols)
	mustMatch("the head's result", m.Rows, b.shape.Vocab)
	n := len(batch.Out)
	if n > b.shape.MaxOut {
		panic(fmt.Sprintf("cpu: logits of %d rows, at most %d were announced", n, b.shape.MaxOut))
	}
	for _, r := range batch.Out {
		if r < 0 || int(r) >= batch.Rows() {
			panic(fmt.Sprintf("cpu: logits of row %d of %d", r, batch.Rows()))
		}
	}
	l.n = n
	if n == 0 {
		return l, nil
	}
	if err := b.read("Logits", &v.use); err != nil {
		return nil, err
	}
	if err := b.write("Logits", &l.use); err != nil {
		return nil, err
	}
	f, t := l.in.fill(need{floats: m.float, bytes: !m.float})
	for i, r := range batch.Out {
		b.kern.norm(v.row(int(r)), v.ld, weight, eps, v.cols, 1, i, f, leading(v.cols), t, l.in.fine, b.row)
	}
	lo, hi := b.share(byGroup, m.Rows)
	out := &buffer{cols: m.Rows, ld: l.ld, data: l.rows}
	b.product(out, m, &l.in, leading(v.cols), n, lo, hi, false)
	for i := range n {
		at := l.slot(b.team.Rank, i)
		best := -1
		if lo < hi {
			best = b.kern.argmax(l.rows[i*l.ld:], lo, hi)
		}
		l.best[at] = math.Float32frombits(uint32(int32(best)))
		if best >= 0 {
			l.best[at+1] = l.rows[i*l.ld+best]
		}
	}
	// Rank 0 reads all of it from here on.
	if err := b.read("Logits", &l.use); err != nil {
		return nil, err
	}
	if b.team.Rank == 0 {
		l.choose()
	}
	return l, nil
}

func (l *logits) slot(rank, i int) int { return (rank*l.b.shape.MaxOut + i) * 2 }

// choose finds the best of the ranks' best. Ranks have ascending rows, so the
// first of equals is the lowest.
func (l *logits) choose() {
	l.win = l.win[:0]
	for i := range l.n {
		win, top := int32(-1), float32(0)
		for rank := range l.b.team.Size {
			at := l.slot(rank, i)
			if k := int32(math.Float32bits(l.best[at])); k >= 0 && (win < 0 || l.best[at+1] > top) {
				win, top = k, l.best[at+1]
			}
		}
		l.win = append(l.win, win)
	}
}
