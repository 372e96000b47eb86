// Package kerneltest is the suite that every backend must pass: a device's
// operations against the float64 reference, each within the error that its float
// arithmetic may have, and against themselves, bit for bit, however the rows are
// cut into calls, the pages placed and the ranks counted.
//
// A scenario is a program: a function that every rank of a replica runs on its
// own backend, as a model's forward pass is. The same program on the reference
// says what should come out.
package kerneltest

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"tandem/kernels"
	"tandem/kernels/ref"
)

// TB is what the suite needs of testing.TB.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// Options say what backend a test needs.
type Options struct {
	Shape kernels.Shape
	Rope  []float32 // [Context][HeadDim/2][cos, sin]
	Team  kernels.Team
}

// A Device is what the suite tests.
type Device struct {
	Packer kernels.Packer
	// New returns the backend of rank o.Team.Rank, Close ends it.
	New   func(o Options) (kernels.Backend, error)
	Close func(kernels.Backend)
	// Read is a copy of row r of a buffer of b's, after Sync. Where ranks share no
	// memory it gathers.
	Read func(b kernels.Backend, v kernels.Buffer, r int) []float32
	// SharedBytes is what Team.Shared must have; nil for devices that use none.
	SharedBytes func(o Options) int64
	// Memory makes memory for a rank's own units, on its device and with these
	// contents; nil for devices that take kernels.Host memory, all ranks the same.
	Memory    func(b kernels.Backend, contents []byte) kernels.Mem
	ElemBytes int // of the KV cache
	// Rounds says that the device rounds activations to 8 bits where they meet
	// quantised weights, and the KV cache to binary16.
	Rounds bool
	// AlwaysFine says that it rounds all activations as fine ones.
	AlwaysFine bool
	// Slow devices are spared the larger scenarios.
	Slow bool
	// Teams are the sizes of teams to test; the first is the yardstick.
	Teams []int
}

// unit is the relative error of one float32 operation.
const unit = 0x1p-24

// Run runs the suite.
func Run(t *testing.T, d Device) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) { c.run(t, d) })
	}
}

type check struct {
	name string
	run  func(tb TB, d Device)
}

// A program is what each rank runs.
type program func(k *kit) error

// A kit is one rank's side of a program.
type kit struct {
	kernels.Backend
	rank int
	run  *execution
}

// An execution is a program running on all ranks.
type execution struct {
	d      Device // zero for the reference
	o      Options
	onRef  bool
	mu     sync.Mutex
	packed map[string]kernels.Packed
	out    results
}

// results are what a program emitted, by name. The reference's are float64.
type results map[string][][]float64

// execute runs p on a fresh replica of size ranks.
func execute(tb TB, d Device, o Options, size int, p program) results {
	tb.Helper()
	e := &execution{d: d, o: o, packed: map[string]kernels.Packed{}, out: results{}}
	bytes := int(o.Shape.UnitPageBytes(d.ElemBytes)) * pagesOf(o)
	units := make([]kernels.Mem, o.Shape.Units)
	if d.Memory == nil {
		for u := range units {
			units[u] = kernels.Host(garbage(bytes))
		}
	}
	if d.SharedBytes != nil && size > 1 {
		shared, err := unix.Mmap(-1, 0, int(d.SharedBytes(withSize(o, size))), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			tb.Fatalf("shared memory: %v", err)
		}
		defer unix.Munmap(shared)
		o.Team.Shared = shared
	}
	ranks := make([]kernels.Backend, size)
	for rank := range ranks {
		o := o
		o.Team.Rank, o.Team.Size, o.Team.Crowded = rank, size, size > runtime.NumCPU()
		b, err := d.New(o)
		if err != nil {
			tb.Fatalf("rank %d of %d: %v", rank, size, err)
		}
		defer d.Close(b)
		ranks[rank] = b
	}
	errs := make([]error, size)
	var wg sync.WaitGroup
	for rank, b := range ranks {
		wg.Go(func() {
			runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
			k := &kit{Backend: b, rank: rank, run: e}
			units := units
			if d.Memory != nil {
				units = make([]kernels.Mem, o.Shape.Units)
				for u, end := o.Shape.Owner(rank, size); u < end; u++ {
					units[u] = d.Memory(b, garbage(bytes))
				}
			}
			if errs[rank] = b.OpenKV(units); errs[rank] == nil {
				errs[rank] = p(k)
			}
		})
	}
	wg.Wait()
	for rank, err := range errs {
		if err != nil {
			tb.Fatalf("rank %d of %d: %v", rank, size, err)
		}
	}
	return e.out
}

func withSize(o Options, size int) Options {
	o.Team.Size = size
	return o
}

// reference runs p on the reference, which rounds where d does. What it computes
// for a scenario of one name is the same for all devices that round alike, so it
// is computed once.
func reference(tb TB, d Device, name string, o Options, p program) results {
	tb.Helper()
	key := fmt.Sprintf("%s, rounding %v, slow %v", name, d.Rounds, d.Slow)
	references.Lock()
	defer references.Unlock()
	if r, ok := references.known[key]; ok {
		return r
	}
	e := &execution{o: o, onRef: true, packed: map[string]kernels.Packed{}, out: results{}}
	units := make([]kernels.Mem, o.Shape.Units)
	for u := range units {
		units[u] = kernels.Host(garbage(int(o.Shape.UnitPageBytes(ref.ElemBytes)) * pagesOf(o)))
	}
	b := ref.New(ref.Options{Shape: o.Shape, Rope: o.Rope, Quantise: d.Rounds, AlwaysFine: d.AlwaysFine, HalfCache: d.Rounds})
	if err := b.OpenKV(units); err != nil {
		tb.Fatalf("reference: %v", err)
	}
	if err := p(&kit{Backend: b, run: e}); err != nil {
		tb.Fatalf("reference: %v", err)
	}
	references.known[key] = e.out
	return e.out
}

var references = struct {
	sync.Mutex
	known map[string]results
}{known: map[string]results{}}

// garbage is memory that is not a number in any format: whoever uses what was
// never written gets NaN.
func garbage(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 0xff
	}
	return b
}

// pagesOf is how many pages each unit of a test has: for a few sequences of the
// whole context.
func pagesOf(o Options) int {
	return 3 * ((o.Shape.Context + o.Shape.PageTokens - 1) / o.Shape.PageTokens)
}

// pack packs a tensor once for all ranks.
func (k *kit) pack(t kernels.Tensor) kernels.Packed {
	e := k.run
	e.mu.Lock()
	defer e.mu.Unlock()
	if p, ok := e.packed[t.Name]; ok {
		return p
	}
	packer := e.d.Packer
	if e.onRef {
		packer = ref.Packer{}
	}
	n, err := packer.PackedBytes(t.Type, t.Rows, t.Cols)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", t.Name, err))
	}
	if n%64 != 0 {
		panic(fmt.Sprintf("%s: %d packed bytes are no multiple of 64", t.Name, n))
	}
	p := kernels.Packed{Type: t.Type, Rows: t.Rows, Cols: t.Cols, Data: garbage(int(n))}
	if err := packer.Pack(p.Data, t); err != nil {
		panic(fmt.Sprintf("%s: %v", t.Name, err))
	}
	e.packed[t.Name] = p
	return p
}

func (k *kit) matrix(t kernels.Tensor, p kernels.Partition) kernels.Matrix {
	return k.Matrix(k.pack(t), p)
}

func (k *kit) vector(t kernels.Tensor) kernels.Vector { return k.Vector(k.pack(t)) }

// emit gives the first rows of a buffer away as a result.
func (k *kit) emit(name string, v kernels.Buffer, rows int) error {
	if err := k.Sync(); err != nil {
		return err
	}
	if k.rank == 0 {
		for r := range rows {
			if k.run.onRef {
				k.put(name, append([]float64(nil), v.(*ref.Buffer).Row(r)...))
			} else {
				k.put(name, widen(k.run.d.Read(k.Backend, v, r)))
			}
		}
	}
	return k.Sync() // before anybody writes on
}

// put appends a row to a result.
func (k *kit) put(name string, row []float64) {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	k.run.out[name] = append(k.run.out[name], row)
}

func widen(x []float32) []float64 {
	w := make([]float64, len(x))
	for i, v := range x {
		w[i] = float64(v)
	}
	return w
}

// sameBits fails unless two results are equal bit for bit. NaN equals NaN.
func sameBits(tb TB, what string, got, want results) {
	tb.Helper()
	for name, rows := range want {
		if len(got[name]) != len(rows) {
			tb.Errorf("%s: %s has %d rows, want %d", what, name, len(got[name]), len(rows))
			continue
		}
		for r, row := range rows {
			for c, x := range row {
				y := got[name][r][c]
				if math.Float64bits(x) != math.Float64bits(y) && (x == x || y == y) {
					tb.Errorf("%s: %s row %d column %d is %v, want the same bits as %v", what, name, r, c, y, x)
					return
				}
			}
		}
	}
}

// within fails unless every |got - want| is at most allowed(row, col).
func within(tb TB, what string, got, want [][]float64, allowed func(r, c int) float64) {
	tb.Helper()
	if len(got) != len(want) {
		tb.Errorf("%s: %d rows, want %d", what, len(got), len(want))
		return
	}
	for r := range want {
		for c := range want[r] {
			if e, limit := math.Abs(got[r][c]-want[r][c]), allowed(r, c); !(e <= limit) {
				tb.Errorf("%s: row %d column %d is %v, want %v within %.3g (off by %.3g)", what, r, c, got[r][c], want[r][c], limit, e)
				return
			}
		}
	}
}

// far is the error of got relative to the size of want, both as root mean square.
func far(got, want [][]float64) float64 {
	var e, w float64
	for r := range want {
		for c := range want[r] {
			d := got[r][c] - want[r][c]
			e += d * d
			w += want[r][c] * want[r][c]
		}
	}
	return math.Sqrt(e / w)
}
