package cpu_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tandem/kernels"
	"tandem/kernels/cpu"
	"tandem/kernels/kerneltest"
)

// The tests that need a second process start this binary again as a rank, with
// the shared memory and the KV cache as file descriptor 3.
const rankVar = "CPU_TEST_RANK"

func TestMain(m *testing.M) {
	switch os.Getenv(rankVar) {
	case "":
		os.Exit(m.Run())
	case "computes":
		if _, err := compute(1, 3); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "hangs":
		fmt.Println("here")
		unix.Pause()
	}
	os.Exit(0)
}

const ranks = 2

// sizes of the two memories, which lie one after the other.
func sizes() (shared, unit int64, units int) {
	o := kerneltest.RankOptions()
	o.Team.Size = ranks
	d := device(cpu.Fast, "", 1)
	return (d.SharedBytes(o) + 4095) &^ 4095, o.Shape.UnitPageBytes(d.ElemBytes) * int64(kerneltest.RankPages()), o.Shape.Units
}

// compute is one rank's side of the traced network.
func compute(rank, fd int) (map[string][][]float64, error) {
	shared, unit, n := sizes()
	mem, err := unix.Mmap(fd, 0, int(shared+unit*int64(n)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	units := make([][]byte, n)
	for u := range units {
		units[u] = mem[shared+int64(u)*unit:][:unit]
	}
	o := kerneltest.RankOptions()
	o.Team = kernels.Team{Rank: rank, Size: ranks, Shared: mem[:shared]}
	d := device(cpu.Fast, "", 1)
	b, err := d.New(o)
	if err != nil {
		return nil, err
	}
	defer d.Close(b)
	return kerneltest.Rank(d, b, rank, kernels.HostUnits(units))
}

func memfd(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("cpu-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "shared")
	t.Cleanup(func() { f.Close() })
	shared, unit, n := sizes()
	if err := f.Truncate(shared + unit*int64(n)); err != nil {
		t.Fatal(err)
	}
	return f
}

func start(t *testing.T, f *os.File, role string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), rankVar+"="+role)
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stderr = os.Stderr
	return cmd
}

func TestRanksAreProcesses(t *testing.T) {
	f := memfd(t)
	other := start(t, f, "computes")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Process.Kill() })
	got, err := compute(0, int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Wait(); err != nil {
		t.Fatalf("rank 1: %v", err)
	}
	d := device(cpu.Fast, "", 1)
	o := kerneltest.RankOptions()
	o.Team.Size = 1
	b, err := d.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(b)
	_, unit, n := sizes()
	units := make([][]byte, n)
	for u := range units {
		units[u] = make([]byte, unit)
	}
	want, err := kerneltest.Rank(d, b, 0, kernels.HostUnits(units))
	if err != nil {
		t.Fatal(err)
	}
	if len(want) == 0 {
		t.Fatal("nothing was computed")
	}
	kerneltest.SameBits(t, "two processes", got, want)
}

// A rank is killed while the other waits for it in an operation; whoever reaps
// it aborts the team.
func TestRankIsKilled(t *testing.T) {
	f := memfd(t)
	other := start(t, f, "hangs")
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	go func() {
		_, err := compute(0, int(f.Fd()))
		failed <- err
	}()
	other.Process.Kill()
	other.Wait()
	shared, _, _ := sizes()
	mem, err := unix.Mmap(int(f.Fd()), 0, int(shared), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	cpu.AbortTeam(mem)
	if err := <-failed; !errors.Is(err, kernels.ErrTeam) {
		t.Errorf("the other rank got %v, want ErrTeam", err)
	}
}

func team(t *testing.T, o cpu.Options, size int) []*cpu.Backend {
	t.Helper()
	o.Team.Size = size
	o.Team.Shared = make([]byte, cpu.SharedBytes(o))
	var bs []*cpu.Backend
	for rank := range size {
		o.Team.Rank = rank
		b, err := cpu.New(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		bs = append(bs, b)
	}
	return bs
}

func TestNobodyComes(t *testing.T) {
	o := smallest()
	o.Patience = 3 * time.Millisecond
	bs := team(t, o, 2)
	err := bs[0].Sync()
	if !errors.Is(err, kernels.ErrTeam) {
		t.Errorf("Sync alone = %v, want ErrTeam", err)
	}
	if err := bs[1].Sync(); !errors.Is(err, kernels.ErrTeam) {
		t.Errorf("Sync of the one who comes too late = %v, want ErrTeam", err)
	}
	if err2 := bs[0].Sync(); !errors.Is(err2, kernels.ErrTeam) {
		t.Errorf("Sync after an error = %v, want ErrTeam again", err2)
	}
}

func TestAbort(t *testing.T) {
	bs := team(t, smallest(), 3)
	failed := make(chan error)
	go func() { failed <- bs[0].Sync() }()
	bs[2].Abort()
	if err := <-failed; !errors.Is(err, kernels.ErrTeam) {
		t.Errorf("Sync = %v, want ErrTeam", err)
	}
}

// Every row of every matrix is some rank's and no two ranks' own.
func TestSharesCoverAllRowsOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		units := 1 + r.IntN(9)
		s := kernels.Shape{
			Geometry: kernels.Geometry{Layers: 1, Units: units, HeadDim: 32 * (1 + r.IntN(4)), PageTokens: 16},
			Heads:    units * (1 + r.IntN(5)), Width: 32 * (1 + r.IntN(30)), Hidden: 32 * (1 + r.IntN(50)),
			Vocab: 1 + r.IntN(1000), MaxRows: 1, MaxOut: 1, Context: 16,
		}
		o := cpu.Options{Shape: s, Rope: make([]float32, s.Context*s.HeadDim)}
		bs := team(t, o, 1+r.IntN(9))
		for _, m := range []struct {
			rows int
			part kernels.Partition
		}{
			{s.Heads * s.HeadDim, kernels.ByRow}, {s.Units * s.HeadDim, kernels.ByUnit}, {s.Hidden, kernels.ByRow},
			{s.Width, kernels.ByRow}, {s.Vocab, kernels.ByRow},
		} {
			at, addAt := 0, 0
			for rank, b := range bs {
				lo, hi, addLo, addHi := cpu.Share(b, m.rows, m.part)
				if lo != at || hi < lo || addLo != addAt || addHi < addLo {
					t.Fatalf("%+v, rank %d of %d, %d rows: shares [%d,%d) and [%d,%d) after %d and %d", s, rank, len(bs), m.rows, lo, hi, addLo, addHi, at, addAt)
				}
				if hi%16 != 0 && hi != m.rows || addHi%16 != 0 && addHi != m.rows {
					t.Fatalf("%+v: a share of %d rows ends at %d or %d, inside a group", s, m.rows, hi, addHi)
				}
				at, addAt = hi, addHi
			}
			if at != m.rows || addAt != m.rows {
				t.Fatalf("%+v: %d ranks have %d and %d of %d rows", s, len(bs), at, addAt, m.rows)
			}
		}
		for _, b := range bs {
			b.Close()
		}
	}
}

// A supervisor in another process reads the count where it asked for it, and
// sees it move within one long operation.
func TestProgressMovesInsideAnOperation(t *testing.T) {
	o := smallest()
	mem := make([]byte, 64)
	o.Progress = (*atomic.Uint64)(unsafe.Pointer(&mem[8]))
	o.ISA = "generic"
	o.Shape.Width, o.Shape.MaxRows, o.Shape.Vocab = 512, 64, 4096
	b, err := cpu.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ts := kernels.Tensor{Name: "w", Type: kernels.Q8_0, Rows: o.Shape.Vocab, Cols: o.Shape.Width}
	ts.Data = make([]byte, ts.Type.RowBytes(ts.Cols)*int64(ts.Rows))
	p := cpu.NewPacker()
	n, err := p.PackedBytes(ts.Type, ts.Rows, ts.Cols)
	if err != nil {
		t.Fatal(err)
	}
	w := kernels.Packed{Type: ts.Type, Rows: ts.Rows, Cols: ts.Cols, Data: make([]byte, n)}
	if err := p.Pack(w.Data, ts); err != nil {
		t.Fatal(err)
	}
	m, x, a := b.Matrix(w, kernels.ByRow), b.NewBuffer(512), b.NewAct(512, kernels.Coarse)
	batch := &kernels.Batch{Tokens: make([]int32, 64)}
	one := b.Vector(kernels.Packed{Type: kernels.F32, Rows: 1, Cols: 512, Data: make([]byte, 2048)})
	if err := errors.Join(b.Embed(x, m, batch), b.Norm(a, x, one, 1, 64)); err != nil {
		t.Fatal(err)
	}
	before := o.Progress.Load()
	if err := b.Linear(b.NewBuffer(4096), m, a, 64); err != nil {
		t.Fatal(err)
	}
	if moved := o.Progress.Load() - before; moved < 10 {
		t.Errorf("the count moved by %d during 134 million multiplications, want at least 10", moved)
	}
	if b.Steps() != o.Progress.Load() {
		t.Errorf("Steps = %d, the supervisor reads %d", b.Steps(), o.Progress.Load())
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for name, change := range map[string]func(*cpu.Options){
		"set":          func(o *cpu.Options) { o.Set = "float16" },
		"isa":          func(o *cpu.Options) { o.ISA = "mmx" },
		"width":        func(o *cpu.Options) { o.Shape.Width = 48 },
		"hidden":       func(o *cpu.Options) { o.Shape.Hidden = 100 },
		"head size":    func(o *cpu.Options) { o.Shape.HeadDim = 40 },
		"page":         func(o *cpu.Options) { o.Shape.PageTokens = 24 },
		"heads":        func(o *cpu.Options) { o.Shape.Units, o.Shape.Heads = 2, 3 },
		"no layers":    func(o *cpu.Options) { o.Shape.Layers = 0 },
		"short table":  func(o *cpu.Options) { o.Rope = o.Rope[1:] },
		"rank":         func(o *cpu.Options) { o.Team.Rank = 1 },
		"nobody":       func(o *cpu.Options) { o.Team.Size = 0 },
		"no sharing":   func(o *cpu.Options) { o.Team.Size = 2 },
		"small shared": func(o *cpu.Options) { o.Team.Size, o.Team.Shared = 2, make([]byte, 4096) },
	} {
		o := smallest()
		change(&o)
		if b, err := cpu.New(o); err == nil {
			b.Close()
			t.Errorf("%s: New accepted %+v", name, o)
		}
	}
}

func TestPackerRefusesWhatNoKernelTakes(t *testing.T) {
	p := cpu.NewPacker()
	for _, c := range []struct {
		t          kernels.Type
		rows, cols int
	}{
		{0, 16, 32}, {kernels.Q6_K + 1, 16, 32}, {kernels.F32, 16, 33}, {kernels.F16, 16, 16}, {kernels.Q4_1, 16, 48},
		{kernels.Q6_K, 16, 128}, {kernels.F32, 0, 32}, {kernels.F32, 16, 0}, {kernels.F32, -1, 32}, {kernels.Q8_0, 1 << 40, 32},
	} {
		if n, err := p.PackedBytes(c.t, c.rows, c.cols); !errors.Is(err, kernels.ErrUnsupported) {
			t.Errorf("PackedBytes(%v, %d, %d) = %d, %v, want ErrUnsupported", c.t, c.rows, c.cols, n, err)
		}
	}
	ts := kernels.Tensor{Name: "w", Type: kernels.Q4_1, Rows: 17, Cols: 64, Data: make([]byte, 17*40)}
	n, err := p.PackedBytes(ts.Type, ts.Rows, ts.Cols)
	if err != nil || n%64 != 0 {
		t.Fatalf("PackedBytes = %d, %v", n, err)
	}
	if err := p.Pack(make([]byte, n-64), ts); err == nil {
		t.Error("Pack into too little memory succeeded")
	}
	ts.Data = ts.Data[1:]
	if err := p.Pack(make([]byte, n), ts); err == nil {
		t.Error("Pack of a tensor that is cut short succeeded")
	}
}

// Numbers of a batch become addresses, so wrong ones stop the rank before.
func TestWrongBatchesPanic(t *testing.T) {
	o := smallest()
	o.Shape.MaxRows = 4
	b, err := cpu.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	g := o.Shape.Geometry
	if err := b.OpenKV([]kernels.Mem{make(kernels.Host, 3*g.UnitPageBytes(2))}); err != nil {
		t.Fatal(err)
	}
	good := kernels.Batch{Tokens: []int32{1, 2}, Pos: []int32{0, 1}, Seq: []int32{0, 0}, Pages: [][]uint32{{2}}}
	table := make([]byte, 4*16*32)
	m := b.Matrix(kernels.Packed{Type: kernels.F32, Rows: 16, Cols: 32, Data: table}, kernels.ByRow)
	x, q, a := b.NewBuffer(32), b.NewBuffer(32), b.NewAct(32, kernels.Coarse)
	run := func(c kernels.Batch) (panicked any) {
		defer func() { panicked = recover() }()
		if err := b.Embed(x, m, &c); err != nil {
			t.Error(err)
		}
		if err := b.Attend(0, a, q, &c); err != nil {
			t.Error(err)
		}
		return nil
	}
	if p := run(good); p != nil {
		t.Fatalf("a good batch panics: %v", p)
	}
	for name, change := range map[string]func(*kernels.Batch){
		"token too large":  func(c *kernels.Batch) { c.Tokens = []int32{1, 16} },
		"token below 0":    func(c *kernels.Batch) { c.Tokens = []int32{-1, 2} },
		"page too large":   func(c *kernels.Batch) { c.Pages = [][]uint32{{3}} },
		"no page":          func(c *kernels.Batch) { c.Pages = [][]uint32{{}} },
		"no such sequence": func(c *kernels.Batch) { c.Seq = []int32{0, 1} },
		"sequence below 0": func(c *kernels.Batch) { c.Seq = []int32{-1, -1} },
		"position too far": func(c *kernels.Batch) { c.Pos = []int32{15, 16}; c.Pages = [][]uint32{{0, 1}} },
		"position below 0": func(c *kernels.Batch) { c.Pos = []int32{-1, 0} },
		"lengths differ":   func(c *kernels.Batch) { c.Pos = c.Pos[:1] },
		"more than allowed": func(c *kernels.Batch) {
			c.Tokens = make([]int32, 5)
			c.Pos = make([]int32, 5)
			c.Seq = make([]int32, 5)
		},
	} {
		c := good
		c.Pos = slices.Clone(good.Pos)
		change(&c)
		if run(c) == nil {
			t.Errorf("%s: no panic", name)
		}
	}
	if err := b.OpenKV(nil); err == nil {
		t.Error("OpenKV without units succeeded")
	}
	if err := b.OpenKV([]kernels.Mem{make(kernels.Host, 100)}); err == nil {
		t.Error("OpenKV of part of a page succeeded")
	}
}

// Two results of attention may be pending at once, and activations may be taken
// for fewer rows than there are, in any order.
func TestActsKeepTheirValues(t *testing.T) {
	o := smallest()
	o.Shape.MaxRows, o.Shape.Width, o.Shape.Context = 24, 64, 32
	o.Rope = make([]float32, o.Shape.Context*o.Shape.HeadDim)
	for i := range o.Rope {
		o.Rope[i] = float32(i%2) * 0.5
	}
	g := o.Shape.Geometry
	run := func(size int) []float32 {
		bs := team(t, o, size)
		unit := make([]byte, 2*g.UnitPageBytes(2))
		var out []float32
		done := make(chan error, size)
		for rank, b := range bs {
			go func() {
				done <- func() error {
					if err := b.OpenKV([]kernels.Mem{kernels.Host(unit)}); err != nil {
						return err
					}
					m := func(typ kernels.Type, rows, cols int, p kernels.Partition) kernels.Matrix {
						return b.Matrix(benchMatrix(t, typ, rows, cols), p)
					}
					x, q, k, v := b.NewBuffer(64), b.NewBuffer(32), b.NewBuffer(32), b.NewBuffer(32)
					y := b.NewBuffer(64)
					a, a1, a2 := b.NewAct(64, kernels.Coarse), b.NewAct(32, kernels.Coarse), b.NewAct(32, kernels.Coarse)
					table, mq, mk, mo, mf := m(kernels.F32, 64, 64, kernels.ByRow), m(kernels.Q8_0, 32, 64, kernels.ByRow), m(kernels.Q4_1, 32, 64, kernels.ByUnit), m(kernels.Q8_0, 64, 32, kernels.ByRow), m(kernels.F16, 64, 32, kernels.ByRow)
					one := b.Vector(benchMatrix(t, kernels.F32, 1, 64))
					batch := &kernels.Batch{Pages: [][]uint32{{1, 0}}}
					for r := range 20 {
						batch.Tokens, batch.Pos, batch.Seq = append(batch.Tokens, int32(r)), append(batch.Pos, int32(r)), append(batch.Seq, 0)
					}
					last := &kernels.Batch{Tokens: batch.Tokens[19:], Pos: batch.Pos[19:], Seq: batch.Seq[19:], Pages: batch.Pages}
					steps := []func() error{
						func() error { return b.Embed(x, table, batch) },
						func() error { return b.Norm(a, x, one, 1e-5, 20) },
						func() error { return b.Linear(q, mq, a, 4) }, // fewer first
						func() error { return b.Linear(q, mq, a, 20) },
						func() error { return b.Linear(k, mk, a, 20) },
						func() error { return b.Linear(v, mk, a, 20) },
						func() error { return b.RopeAppend(0, q, k, v, batch) },
						func() error { return b.Attend(0, a1, q, last) }, // two pending, of one row each
						func() error { return b.Attend(0, a2, v, last) },
						func() error { return b.LinearAdd(x, mo, a1, 1) },
						func() error { return b.LinearAdd(x, mf, a2, 1) },
						func() error { return b.Attend(0, a1, q, batch) },
						func() error { return b.Linear(y, mf, a1, 3) },
						func() error { return b.LinearAdd(y, mo, a1, 3) },
						func() error { return b.LinearAdd(x, mo, a1, 20) },
						b.Sync,
					}
					for i, s := range steps {
						if err := s(); err != nil {
							return fmt.Errorf("step %d: %w", i, err)
						}
					}
					if rank == 0 {
						for r := range 20 {
							out = append(out, cpu.Row(x, r)...)
						}
						for r := range 3 {
							out = append(out, cpu.Row(y, r)...)
						}
					}
					return b.Sync()
				}()
			}()
		}
		for range bs {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	want := run(1)
	for size := 2; size <= 3; size++ {
		got := run(size)
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("team of %d: element %d is %v, alone %v", size, i, got[i], want[i])
			}
		}
	}
	if want[0] == want[64] || want[0] != want[0] {
		t.Errorf("the rows look like %v and %v", want[0], want[64])
	}
}
