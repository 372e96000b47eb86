package cuda

import (
	"fmt"
	"unsafe"

	"tandem/gpu/driver"
	"tandem/kernels"
)

// logits is the result of a pass, in rank 0's memory.
type logits struct {
	b    *Backend
	ld   int
	rows int64      // in the arena, [MaxOut][ld]
	in   driver.Ptr // the normalised rows
	n    int
	have []bool // rows that the host has
	// The epoch in which rank 0 began to read.
	touched int64
}

// Row implements kernels.Logits. It panics where the card failed in between, as the
// next operation will say.
func (l *logits) Row(i int) []float32 {
	l.check(i)
	b, v := l.b, l.b.shape.Vocab
	at := hostHead + 4*b.shape.MaxOut + 4*v*i
	if !l.have[i] {
		from := b.values.base + driver.Ptr(l.rows) + driver.Ptr(4*l.ld*i)
		if err := first(b.ctx.Copy(b.stream, b.host.at+driver.Ptr(at), from, int64(4*v)), b.wait("Logits")); err != nil {
			_ = b.fail(err)
			clear(b.host.mem[at : at+4*v])
		}
		l.have[i] = true
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&b.host.mem[at])), v)
}

// Best implements kernels.Logits. It is -1 if no logit is a number.
func (l *logits) Best(i int) int32 {
	l.check(i)
	return *(*int32)(unsafe.Pointer(&l.b.host.mem[hostHead+4*i]))
}

func (l *logits) check(i int) {
	if i < 0 || i >= l.n {
		panic(fmt.Sprintf("cuda: row %d of %d logits", i, l.n))
	}
}

// Logits implements kernels.Backend.
func (b *Backend) Logits(x kernels.Buffer, w kernels.Vector, eps float32, head kernels.Matrix, batch *kernels.Batch) (kernels.Logits, error) {
	if b.err != nil {
		return nil, b.err
	}
	defer b.step()
	v, weight, m := &x.(*buffer).value, w.(*vector), head.(*matrix)
	l := &b.out
	mustMatch("the residual stream", v.cols, b.shape.Width)
	mustMatch("the norm", weight.cols, v.cols)
	mustMatch("the head's input", m.Cols, v.cols)
	mustMatch("the head's result", m.Rows, b.shape.Vocab)
	l.n = len(batch.Out)
	l.have = append(l.have[:0], make([]bool, l.n)...)
	if l.n == 0 {
		return l, nil
	}
	if err := b.meta.use(b, batch); err != nil {
		return nil, err
	}
	at, err := b.load(weight)
	if err != nil {
		return nil, b.fail(err)
	}
	if err := b.local(v); err != nil {
		return nil, err
	}
	bases, err := b.mates.bases(b)
	if err != nil {
		return nil, b.fail(err)
	}
	p := normParams{a: l.in, x: b.own(v), w: at, rows: b.meta.out, eps: eps, ldA: int32(up32(v.cols)), ldX: int32(v.ld), cols: int32(v.cols)}
	if err := b.fail(launch(b.code, b.stream, "norm", [3]int{l.n, 1, 1}, 256, &p)); err != nil {
		return nil, err
	}
	if l.touched == b.epoch { // rank 0 may still be reading the ones before
		if err := b.meet(); err != nil {
			return nil, err
		}
	}
	lo, hi := b.share(evenly, m.Rows)
	to := peers{p: [maxRanks]driver.Ptr{bases[0] + driver.Ptr(l.rows)}, n: 1}
	if err := b.product(linearParams{out: to, a: l.in, ldOut: int32(l.ld), ldA: int32(up32(v.cols))}, m, lo, hi, l.n); err != nil {
		return nil, err
	}
	if err := b.meet(); err != nil {
		return nil, err
	}
	l.touched = b.epoch
	if b.team.Rank == 0 {
		p := argmaxParams{x: bases[0] + driver.Ptr(l.rows), best: b.host.at + hostHead, ld: int32(l.ld), n: int32(b.shape.Vocab)}
		if err := b.fail(launch(b.code, b.stream, "argmax", [3]int{l.n, 1, 1}, 256, &p)); err != nil {
			return nil, err
		}
	}
	if err := b.mark(); err != nil {
		return nil, err
	}
	return l, b.wait("Logits")
}
