package kerneltest

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"tandem/kernels"
)

// Mutants breaks d in ways that kernels really break and fails unless the suite
// notices each. d itself should pass.
func Mutants(t *testing.T, d Device) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			caught := false
			for _, c := range checks {
				if c.name != m.by && m.by != "" {
					continue
				}
				if complaint := failure(c, m.breaks(d)); complaint != "" {
					t.Logf("caught: %s: %s", c.name, complaint)
					caught = true
					break
				}
			}
			if !caught {
				t.Errorf("not noticed by %q", m.by)
			}
		})
	}
}

// A mutant is a way to break a device and the check that should notice.
type mutant struct {
	name, by string
	breaks   func(Device) Device
}

var mutants = []mutant{
	{"attention sees one position too many", "attention", wrapped(func(b kernels.Backend, o Options) kernels.Backend { return &farSighted{b, o.Shape} })},
	{"queries are scaled a little wrong", "attention", func(d Device) Device {
		inner := d.New
		d.New = func(o Options) (kernels.Backend, error) {
			r := make([]float32, len(o.Rope))
			for i, x := range o.Rope {
				r[i] = x * 1.004
			}
			o.Rope = r
			return inner(o)
		}
		return d
	}},
	{"the last of 18 blocks is left out", "products of every format", func(d Device) Device {
		d.Packer = shortPacker{d.Packer}
		return d
	}},
	{"rows beyond whole eights are left out", "the same bits however rows are cut", wrapped(func(b kernels.Backend, _ Options) kernels.Backend { return &eights{b} })},
	{"many rows are computed in a slightly different way", "the same bits however rows are cut", wrapped(func(b kernels.Backend, _ Options) kernels.Backend { return &moody{b} })},
	{"all sequences read the first one's page", "attention", wrapped(func(b kernels.Backend, _ Options) kernels.Backend { return &onePage{b} })},
	{"pages are read in the order of their numbers", "the same bits wherever pages lie", wrapped(func(b kernels.Backend, _ Options) kernels.Backend { return &sorted{b} })},
	{"a rank computes something else", "the same bits for every size of team", wrapped(func(b kernels.Backend, o Options) kernels.Backend {
		if o.Team.Rank == 0 {
			return b
		}
		return &moody{b}
	})},
	{"Best is the last of equals", "Logits and Best", wrapped(func(b kernels.Backend, _ Options) kernels.Backend { return &late{b} })},
}

// wrapped makes a device whose backends are wrapped by w.
func wrapped(w func(kernels.Backend, Options) kernels.Backend) func(Device) Device {
	return func(d Device) Device {
		open, end := d.New, d.Close
		inner := map[kernels.Backend]kernels.Backend{}
		d.New = func(o Options) (kernels.Backend, error) {
			b, err := open(o)
			if err != nil {
				return nil, err
			}
			m := w(b, o)
			inner[m] = b
			return m, nil
		}
		d.Close = func(b kernels.Backend) { end(inner[b]) }
		read, memory := d.Read, d.Memory
		d.Read = func(b kernels.Backend, v kernels.Buffer, r int) []float32 { return read(inner[b], v, r) }
		if memory != nil {
			d.Memory = func(b kernels.Backend, contents []byte) kernels.Mem { return memory(inner[b], contents) }
		}
		return d
	}
}

type farSighted struct {
	kernels.Backend
	s kernels.Shape
}

func (b *farSighted) Attend(layer int, a kernels.Act, q kernels.Buffer, batch *kernels.Batch) error {
	c := *batch
	c.Pos = nil
	for r, p := range batch.Pos {
		if int(p+1) < b.s.Context && int(p+1) < len(batch.Pages[batch.Seq[r]])*b.s.PageTokens {
			p++
		}
		c.Pos = append(c.Pos, p)
	}
	return b.Backend.Attend(layer, a, q, &c)
}

type shortPacker struct{ kernels.Packer }

func (p shortPacker) Pack(dst []byte, t kernels.Tensor) error {
	if t.Cols != 576 || t.Type < kernels.Q4_0 {
		return p.Packer.Pack(dst, t)
	}
	row, block := t.Type.RowBytes(t.Cols), t.Type.RowBytes(t.Type.Block())
	t.Data = append([]byte(nil), t.Data...)
	for r := range int64(t.Rows) {
		clear(t.Data[(r+1)*row-block : (r+1)*row])
	}
	return p.Packer.Pack(dst, t)
}

type eights struct{ kernels.Backend }

func (b *eights) LinearAdd(x kernels.Buffer, m kernels.Matrix, a kernels.Act, rows int) error {
	if rows > 8 {
		rows &^= 7
	}
	return b.Backend.LinearAdd(x, m, a, rows)
}

type moody struct{ kernels.Backend }

func (b *moody) Norm(a kernels.Act, x kernels.Buffer, w kernels.Vector, eps float32, rows int) error {
	if rows > 8 {
		eps *= 1.01
	}
	return b.Backend.Norm(a, x, w, eps, rows)
}

type onePage struct{ kernels.Backend }

func (b *onePage) Attend(layer int, a kernels.Act, q kernels.Buffer, batch *kernels.Batch) error {
	c := *batch
	c.Pages = nil
	for _, table := range batch.Pages {
		c.Pages = append(c.Pages, append(append([]uint32(nil), batch.Pages[0][:1]...), table[1:]...))
	}
	return b.Backend.Attend(layer, a, q, &c)
}

type sorted struct{ kernels.Backend }

func (b *sorted) Attend(layer int, a kernels.Act, q kernels.Buffer, batch *kernels.Batch) error {
	c := *batch
	c.Pages = nil
	for seq, table := range batch.Pages {
		used := 0
		for r, p := range batch.Pos {
			if int(batch.Seq[r]) == seq {
				used = max(used, int(p)/64) // whole pages before the last
			}
		}
		table = slices.Clone(table)
		slices.Sort(table[:used])
		c.Pages = append(c.Pages, table)
	}
	return b.Backend.Attend(layer, a, q, &c)
}

type late struct{ kernels.Backend }

func (b *late) Logits(x kernels.Buffer, w kernels.Vector, eps float32, head kernels.Matrix, batch *kernels.Batch) (kernels.Logits, error) {
	l, err := b.Backend.Logits(x, w, eps, head, batch)
	return lateLogits{l}, err
}

type lateLogits struct{ kernels.Logits }

func (l lateLogits) Best(i int) int32 {
	best := l.Logits.Best(i)
	for c, v := range l.Row(i) {
		if best >= 0 && v == l.Row(i)[best] {
			best = int32(c)
		}
	}
	return best
}

// failure runs a check and returns its first complaint, "" if it has none.
func failure(c check, d Device) string {
	rec := &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(rec, d)
	}()
	<-done
	return rec.first
}

// A recorder is a TB that remembers the first complaint.
type recorder struct{ first string }

func (r *recorder) Helper()             {}
func (r *recorder) Logf(string, ...any) {}
func (r *recorder) Errorf(format string, args ...any) {
	if r.first == "" {
		r.first = fmt.Sprintf(format, args...)
	}
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}
