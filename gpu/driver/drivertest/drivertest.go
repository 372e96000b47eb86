// Package drivertest is the suite that every driver.Driver passes, on a card or on simulated ones. What a
// machine cannot show, for want of a second device say, is skipped with the reason.
//
// Some of it needs other processes, which are the test binary started again: its TestMain calls Main.
package drivertest

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tandem/gpu/driver"
)

// PTX is what the suite launches. A simulated driver runs kernels/kernels.cc for it.
//
//go:embed kernels/kernels.ptx
var PTX []byte

// Open opens the driver under test. It may be called again, also in child processes.
type Open func() (driver.Driver, error)

const roleVariable = "DRIVERTEST_ROLE"

// hang is how long a test waits for something that takes no time. It is no statement about speed.
const hang = 60 * time.Second

// Main is for TestMain: it runs the tests, or the part of a test that this process was started for.
func Main(m *testing.M, open Open) int {
	name := os.Getenv(roleVariable)
	if name == "" {
		return m.Run()
	}
	for _, r := range roles {
		if r.name == name {
			d, err := open()
			if err == nil {
				err = r.run(d, bufio.NewReader(os.Stdin))
			}
			if err != nil {
				fmt.Println("error:", err)
				return 1
			}
			return 0
		}
	}
	fmt.Println("error: no role", name)
	return 1
}

// Run runs the suite.
func Run(t *testing.T, open Open) {
	d, err := open()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		f    func(*testing.T, *rig)
	}{
		{"Facts", facts},
		{"Memory", memory},
		{"Copies", copies},
		{"Kernels", kernels},
		{"BadImages", badImages},
		{"SharedMemory", sharedMemory},
		{"Globals", globals},
		{"StreamsAndEvents", streamsAndEvents},
		{"Words", words},
		{"HostMemory", hostMemory},
		{"VirtualMemory", virtualMemory},
		{"Graphs", graphs},
		{"GraphFork", graphFork},
		{"Peers", peers},
		{"Goroutines", goroutines},
		{"Processes/VMM", func(t *testing.T, r *rig) { processes(t, r, "vmm") }},
		{"Processes/IPC", func(t *testing.T, r *rig) { processes(t, r, "ipc") }},
		{"LostContext", lostContext},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, newRig(t, d)) })
	}
}

// rig is a context and what a test makes in it. It fails the test on any error.
type rig struct {
	t *testing.T
	d driver.Driver
	driver.Context
	s    driver.Stream
	m    driver.Module
	args driver.Args
}

func newRig(t *testing.T, d driver.Driver) *rig { return newRigOn(t, d, 0) }

func newRigOn(t *testing.T, d driver.Driver, ordinal int) *rig {
	t.Helper()
	c := must(d.Open(ordinal))(t)
	r := &rig{t: t, d: d, Context: c}
	r.s = must(c.NewStream())(t)
	r.m = must(c.Load(PTX))(t)
	t.Cleanup(func() {
		check(t, c.Unload(r.m))
		check(t, c.CloseStream(r.s))
		check(t, c.Close())
	})
	return r
}

// must is for must(f())(t): the value, or the end of the test.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refused checks that err is of a class, and of one of the results, if any are named.
func refused(t *testing.T, err error, class driver.Class, results ...driver.Result) {
	t.Helper()
	if driver.ClassOf(err) != class {
		t.Errorf("got %v, want an error of class %v", err, class)
		return
	}
	for _, r := range results {
		if errors.Is(err, r) {
			return
		}
	}
	if len(results) > 0 {
		t.Errorf("got %v, want one of %v", err, results)
	}
}

func (r *rig) alloc(bytes int64) driver.Ptr {
	r.t.Helper()
	p := must(r.Alloc(bytes))(r.t)
	r.t.Cleanup(func() { check(r.t, r.Free(p)) })
	return p
}

func (r *rig) fn(name string) driver.Func { return must(r.Func(r.m, name))(r.t) }

// count queues out[i] = first + i.
func (r *rig) count(s driver.Stream, out driver.Ptr, first uint32, n int) {
	r.t.Helper()
	check(r.t, r.Launch(s, r.fn("count"), driver.Grid{Blocks: [3]int{(n + 127) / 128}, Threads: [3]int{128}},
		r.args.Reset().Ptr(out).U32(first).U32(uint32(n))))
}

// words reads memory, after everything on the rig's stream.
func (r *rig) words(p driver.Ptr, n int) []uint32 {
	r.t.Helper()
	check(r.t, r.SyncStream(r.s))
	return readWords(r.t, r.Context, p, n)
}

func readWords(t *testing.T, c driver.Context, p driver.Ptr, n int) []uint32 {
	t.Helper()
	buf := make([]byte, 4*n)
	check(t, c.Read(buf, p))
	w := make([]uint32, n)
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(buf[4*i:])
	}
	return w
}

func counts(t *testing.T, w []uint32, first uint32) {
	t.Helper()
	for i, v := range w {
		if v != first+uint32(i) {
			t.Fatalf("word %d is %d, want %d", i, v, first+uint32(i))
		}
	}
}

func facts(t *testing.T, r *rig) {
	if r.d.Version() < 12000 {
		t.Errorf("version %d", r.d.Version())
	}
	seen := map[[16]byte]int{}
	for i, d := range r.d.Devices() {
		t.Logf("%+v", d)
		if d.Ordinal != i || d.Name == "" || d.Bytes < 1<<30 || d.SMs == 0 || d.Warp != 32 || d.L2 == 0 || d.Major < 7 || d.SharedPerBlock <= 48<<10 ||
			d.SharedPerSM < d.SharedPerBlock || len(strings.Split(d.PCI, ":")) != 3 {
			t.Errorf("device %d: %+v", i, d)
		}
		if j, twice := seen[d.UUID]; twice {
			t.Errorf("devices %d and %d have one UUID", i, j)
		}
		seen[d.UUID] = i
	}
	if _, err := r.d.Open(len(r.d.Devices())); driver.ClassOf(err) != driver.Refused {
		t.Errorf("a device that is not there: %v", err)
	}
}

func memory(t *testing.T, r *rig) {
	free, total := meminfo(t, r)
	if free <= 0 || total < free || total > r.Device().Bytes {
		t.Errorf("%d free of %d", free, total)
	}
	const size = 64 << 20
	p := must(r.Alloc(size))(t)
	if after, _ := meminfo(t, r); after > free-size {
		t.Errorf("%d bytes free before an allocation of %d, %d after it", free, size, after)
	}
	if p%256 != 0 {
		t.Errorf("memory at %#x", p)
	}
	base, n, err := r.Range(p + 1000)
	if err != nil || base != p || n < size {
		t.Errorf("range of an address within: %#x, %d, %v", base, n, err)
	}
	check(t, r.Free(p))
	refused(t, r.Free(p), driver.Refused, driver.Invalid)
	_, err = r.Alloc(total + 1<<30)
	refused(t, err, driver.Memory)
	_, err = r.Alloc(0)
	refused(t, err, driver.Refused, driver.Invalid)
	// The context is none the worse.
	q := r.alloc(4)
	check(t, r.Write(q, []byte{1, 2, 3, 4}))
	got := make([]byte, 4)
	check(t, r.Read(got, q))
	if !bytes.Equal(got, []byte{1, 2, 3, 4}) {
		t.Errorf("read %v", got)
	}
}

func meminfo(t *testing.T, c driver.Context) (free, total int64) {
	t.Helper()
	free, total, err := c.MemInfo()
	check(t, err)
	return free, total
}

func copies(t *testing.T, r *rig) {
	const n = 1000
	a, b := r.alloc(4*n), r.alloc(4*n)
	check(t, r.Fill32(r.s, a, 0xdeadbeef, n))
	check(t, r.Fill8(r.s, a+4, 0x11, 8))
	check(t, r.Copy(r.s, b, a, 4*n))
	w := r.words(b, n)
	if w[0] != 0xdeadbeef || w[1] != 0x11111111 || w[2] != 0x11111111 || w[3] != 0xdeadbeef || w[n-1] != 0xdeadbeef {
		t.Errorf("got %x", w[:4])
	}
	check(t, r.Write(a, nil))
	check(t, r.Copy(r.s, a, b, 0))
	check(t, r.Fill32(r.s, a, 1, 0))
	if w = r.words(a, 1); w[0] != 0xdeadbeef {
		t.Errorf("a fill of nothing wrote %x", w[0])
	}
}

func kernels(t *testing.T, r *rig) {
	const n = 1000
	p, q := r.alloc(4*n), r.alloc(4*n)
	r.count(r.s, p, 7, n)
	counts(t, r.words(p, n), 7)

	in := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(in[4*i:], math.Float32bits(float32(i)))
	}
	check(t, r.Write(p, in))
	check(t, r.Launch(r.s, r.fn("scale"), driver.Grid{Blocks: [3]int{4}, Threads: [3]int{256}}, r.args.Reset().Ptr(q).Ptr(p).F32(0.5).U32(n)))
	for i, v := range r.words(q, n) {
		if math.Float32frombits(v) != float32(i)/2 {
			t.Fatalf("element %d is %v", i, math.Float32frombits(v))
		}
	}

	s := make([]byte, 24)
	binary.LittleEndian.PutUint32(s[20:], 0xabcdef)
	mixed := r.fn("mixed")
	r.args.Reset().Struct([]byte{3}, 1).Struct([]byte{4, 0}, 2).U32(5).Struct(s, 8).F32(1.5).Ptr(q)
	check(t, r.Launch(r.s, mixed, driver.Grid{}, &r.args))
	if w := r.words(q, 3); w[0] != 3+4*256+5*65536 || w[1] != 0xabcdef || math.Float32frombits(w[2]) != 1.5 {
		t.Errorf("parameters of several sizes arrived as %x", w)
	}

	info := must(r.FuncInfo(mixed))(t)
	t.Logf("%+v", info)
	if info.MaxThreads != 32 || info.Shared != 0 || info.Local != 0 || info.Binary != 10*r.Device().Major+r.Device().Minor {
		t.Errorf("mixed: %+v", info)
	}
	if b := must(r.Occupancy(mixed, 32, 0))(t); b < 1 {
		t.Errorf("occupancy %d", b)
	}
	// More threads than it was compiled for, and than there are.
	refused(t, r.Launch(r.s, mixed, driver.Grid{Threads: [3]int{64}}, &r.args), driver.Refused, driver.Invalid, driver.LaunchResources)
	r.args.Reset().Ptr(p).U32(0).U32(0)
	refused(t, r.Launch(r.s, r.fn("count"), driver.Grid{Threads: [3]int{1025}}, &r.args), driver.Refused, driver.Invalid)
	refused(t, r.Launch(r.s, r.fn("count"), driver.Grid{Blocks: [3]int{1, 65536}}, &r.args), driver.Refused, driver.Invalid)
	_, err := r.Func(r.m, "nothing")
	refused(t, err, driver.Refused, driver.NotFound)
	check(t, r.Sync())
}

func badImages(t *testing.T, r *rig) {
	_, err := r.Load([]byte(strings.Replace(string(PTX), "add.u32 %r6, %r1, %r3;", "add.u32 %r6 %r1", 1)))
	// Simulated drivers do not read instructions.
	if err != nil {
		refused(t, err, driver.Refused, driver.InvalidPTX)
		var e *driver.Error
		if errors.As(err, &e) && !strings.Contains(e.Detail, "line") {
			t.Errorf("the compiler's words are missing: %v", err)
		}
		t.Log(err)
	}
	_, err = r.Load([]byte(strings.Replace(string(PTX), ".version 7.0", ".version 19.0", 1)))
	refused(t, err, driver.Refused, driver.PTXTooNew, driver.InvalidPTX)
	_, err = r.Load([]byte(strings.Replace(string(PTX), ".target sm_80", ".target sm_999", 1)))
	refused(t, err, driver.Refused, driver.NoBinary, driver.InvalidPTX, driver.PTXTooNew)
	_, err = r.Load([]byte("not a module"))
	refused(t, err, driver.Refused)
	check(t, r.Sync())
}

func sharedMemory(t *testing.T, r *rig) {
	f, out := r.fn("share"), r.alloc(4)
	sum := func(n int) uint32 {
		k := uint32(n / 4)
		return 4 * (k * (k - 1) / 2)
	}
	run := func(n int) error {
		return r.Launch(r.s, f, driver.Grid{Shared: n}, r.args.Reset().Ptr(out).U32(uint32(n)))
	}
	check(t, run(48<<10))
	if w := r.words(out, 1); w[0] != sum(48<<10) {
		t.Errorf("48 KiB: %d", w[0])
	}
	most := r.Device().SharedPerBlock
	refused(t, run(48<<10+1024), driver.Refused, driver.Invalid)
	refused(t, r.AllowShared(f, most+1024), driver.Refused, driver.Invalid)
	check(t, r.AllowShared(f, most))
	check(t, run(most))
	if w := r.words(out, 1); w[0] != sum(most) {
		t.Errorf("%d bytes: %d, want %d", most, w[0], sum(most))
	}
}

func globals(t *testing.T, r *rig) {
	p, n, err := r.Global(r.m, "counter")
	check(t, err)
	if n != 4 {
		t.Errorf("counter has %d bytes", n)
	}
	check(t, r.Write(p, make([]byte, 4)))
	for range 3 {
		check(t, r.Launch(r.s, r.fn("bump"), driver.Grid{}, r.args.Reset()))
	}
	if w := r.words(p, 1); w[0] != 3 {
		t.Errorf("counted %d", w[0])
	}
}

// eventually asks until it is so.
func eventually(t *testing.T, what string, so func() (bool, error)) {
	t.Helper()
	for end := time.Now().Add(hang); ; time.Sleep(time.Millisecond) {
		ok, err := so()
		check(t, err)
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, hang)
		}
	}
}

// hostWords is registered host memory.
func (r *rig) hostWords(n int) ([]uint32, driver.Ptr) {
	r.t.Helper()
	size := (4*n + os.Getpagesize() - 1) / os.Getpagesize() * os.Getpagesize()
	mem := must(unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS))(r.t)
	p := must(r.Register(mem))(r.t)
	r.t.Cleanup(func() {
		check(r.t, r.Unregister(mem))
		check(r.t, unix.Munmap(mem))
	})
	return asWords(mem)[:n], p
}
