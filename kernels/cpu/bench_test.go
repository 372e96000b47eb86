package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"tandem/kernels"
	"tandem/kernels/cpu"
)

// The shape of the demo model.
func demoShape() kernels.Shape {
	return kernels.Shape{
		Geometry: kernels.Geometry{Layers: 30, Units: 3, HeadDim: 64, PageTokens: 64},
		Width:    576, Heads: 9, Hidden: 1536, Vocab: 49152, MaxRows: 512, MaxOut: 64, Context: 8192,
	}
}

// benchBackend is one rank of the demo model's shape, with n pages of KV.
func benchBackend(b *testing.B, set string, pages int) *cpu.Backend {
	b.Helper()
	s := demoShape()
	k, err := cpu.New(cpu.Options{Set: set, Shape: s, Rope: make([]float32, s.Context*s.HeadDim), Team: kernels.Team{Size: 1}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { k.Close() })
	units := make([][]byte, s.Units)
	for u := range units {
		units[u] = make([]byte, int64(pages)*s.UnitPageBytes(cpu.ElemBytes(set)))
	}
	if err := k.OpenKV(kernels.HostUnits(units)); err != nil {
		b.Fatal(err)
	}
	return k
}

// benchMatrix is a packed matrix of small random weights.
func benchMatrix(b testing.TB, t kernels.Type, rows, cols int) kernels.Packed {
	b.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	ts := kernels.Tensor{Name: "w", Type: t, Rows: rows, Cols: cols, Data: make([]byte, t.RowBytes(cols)*int64(rows))}
	for i := range ts.Data {
		ts.Data[i] = byte(r.Uint32()) & 0x3f // as binary16 at most 1.98
	}
	p := cpu.NewPacker()
	n, err := p.PackedBytes(t, rows, cols)
	if err != nil {
		b.Fatal(err)
	}
	w := kernels.Packed{Type: t, Rows: rows, Cols: cols, Data: make([]byte, n)}
	if err := p.Pack(w.Data, ts); err != nil {
		b.Fatal(err)
	}
	return w
}

// BenchmarkLinear multiplies the demo model's matrices with 1 to 512 rows. GB/s
// count the weights as packed, once.
func BenchmarkLinear(b *testing.B) {
	for _, t := range []kernels.Type{kernels.Q4_1, kernels.Q4_0, kernels.Q8_0, kernels.Q6_K, kernels.F16, kernels.BF16, kernels.F32} {
		for _, shape := range [][2]int{{576, 576}, {1536, 576}, {576, 1536}, {49152, 576}} {
			rows, cols := shape[0], shape[1]
			if cols%t.Block() != 0 {
				cols = cols / t.Block() * t.Block()
			}
			for _, n := range []int{1, 8, 64, 512} {
				if rows == 49152 && n > 64 {
					continue
				}
				b.Run(fmt.Sprintf("%v/%dx%d/rows=%d", t, rows, cols, n), func(b *testing.B) {
					s := demoShape()
					s.Width = cols
					k, err := cpu.New(cpu.Options{Shape: s, Rope: make([]float32, s.Context*s.HeadDim), Team: kernels.Team{Size: 1}})
					if err != nil {
						b.Fatal(err)
					}
					defer k.Close()
					w := benchMatrix(b, t, rows, cols)
					m := k.Matrix(w, kernels.ByRow)
					x, out, a := k.NewBuffer(cols), cpu.WideBuffer(k, rows, n), k.NewAct(cols, kernels.Coarse)
					one := k.Vector(benchMatrix(b, kernels.F32, 1, cols))
					if err := k.Norm(a, x, one, 1, n); err != nil {
						b.Fatal(err)
					}
					measure(b, 2*float64(rows)*float64(cols)*float64(n), float64(len(w.Data)), func() error {
						return k.Linear(out, m, a, n)
					})
				})
			}
		}
	}
}

// measure runs f, once to warm up and then as often as the benchmark wants, and
// adds rates of operations and bytes by the time that the thread had a processor:
// what else the machine does then matters less.
func measure(b *testing.B, ops, bytes float64, f func() error) {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := f(); err != nil {
		b.Fatal(err)
	}
	start := threadTime(b)
	for b.Loop() {
		if err := f(); err != nil {
			b.Fatal(err)
		}
	}
	seconds := (threadTime(b) - start) / float64(b.N)
	b.ReportMetric(seconds*1e9, "cpu-ns/op")
	if ops > 0 {
		b.ReportMetric(ops/seconds*1e-9, "GOP/s")
	}
	if bytes > 0 {
		b.ReportMetric(bytes/seconds*1e-9, "GB/s")
	}
}

func threadTime(b *testing.B) float64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return float64(ts.Nano()) * 1e-9
}

// BenchmarkAttend is one layer's attention: one row against a context, and a
// prompt of 512.
func BenchmarkAttend(b *testing.B) {
	s := demoShape()
	for _, c := range []struct {
		name      string
		pos, rows int
	}{{"decode/context=512", 511, 1}, {"decode/context=4096", 4095, 1}, {"prefill/512", 0, 512}} {
		b.Run(c.name, func(b *testing.B) {
			k := benchBackend(b, cpu.Fast, 64)
			batch := &kernels.Batch{Pages: [][]uint32{{}}}
			for p := range 64 {
				batch.Pages[0] = append(batch.Pages[0], uint32(p))
			}
			keys := 0
			for r := range c.rows {
				batch.Tokens, batch.Pos, batch.Seq = append(batch.Tokens, 0), append(batch.Pos, int32(c.pos+r)), append(batch.Seq, 0)
				keys += c.pos + r + 1
			}
			q, a := k.NewBuffer(s.Heads*s.HeadDim), k.NewAct(s.Heads*s.HeadDim, kernels.Coarse)
			measure(b, float64(keys*s.Heads*s.HeadDim*4), float64((c.pos+c.rows)*s.Units*s.HeadDim*4), func() error {
				return k.Attend(0, a, q, batch)
			})
		})
	}
}

// BenchmarkRows is the work per row besides products and attention.
func BenchmarkRows(b *testing.B) {
	s := demoShape()
	const n = 64
	k := benchBackend(b, cpu.Fast, 8)
	k.Matrix(benchMatrix(b, kernels.Q4_1, 16, s.Width), kernels.ByRow)
	k.Matrix(benchMatrix(b, kernels.Q4_1, 16, s.Hidden), kernels.ByRow)
	x, a := k.NewBuffer(s.Width), k.NewAct(s.Width, kernels.Coarse)
	one := k.Vector(benchMatrix(b, kernels.F32, 1, s.Width))
	g, u, h := k.NewBuffer(s.Hidden), k.NewBuffer(s.Hidden), k.NewAct(s.Hidden, kernels.Coarse)
	b.Run("norm/rows=64", func(b *testing.B) {
		measure(b, 0, 0, func() error { return k.Norm(a, x, one, 1, n) })
	})
	b.Run("swiglu/rows=64", func(b *testing.B) {
		measure(b, 0, 0, func() error { return k.SwiGLU(h, g, u, n) })
	})
}
