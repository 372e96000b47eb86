package drivertest

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tandem/gpu/driver"
)

func asWords(mem []byte) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(&mem[0])), len(mem)/4)
}

// gate is a word in host memory that streams wait for.
type gate struct {
	word *uint32
	ptr  driver.Ptr
}

// newGate opens at the end of the test at the latest, so that a failed one does not leave a stream behind.
func newGate(r *rig) gate {
	w, p := r.hostWords(1)
	g := gate{&w[0], p}
	r.t.Cleanup(g.open)
	return g
}

func (g gate) open() { atomic.StoreUint32(g.word, 1) }

func streamsAndEvents(t *testing.T, r *rig) {
	const n = 300
	p := r.alloc(4 * n)
	g := newGate(r)
	other := must(r.NewStream())(t)
	defer func() { check(t, r.CloseStream(other)) }()
	timed := func() driver.Event {
		e := must(r.NewEvent(driver.Timing))(t)
		t.Cleanup(func() { check(t, r.CloseEvent(e)) })
		return e
	}
	before, after := timed(), timed()

	// Nothing was recorded: nothing to wait for.
	if ok, err := r.Happened(before); !ok || err != nil {
		t.Errorf("an event that was never recorded: %v, %v", ok, err)
	}
	check(t, r.WaitEvent(other, before))

	check(t, r.Record(r.s, before))
	check(t, r.Wait32(r.s, g.ptr, 1, driver.Equal))
	r.count(r.s, p, 1, n)
	check(t, r.Record(r.s, after))
	check(t, r.WaitEvent(other, after))
	check(t, r.Fill32(other, p, 5, 1))

	for _, s := range []driver.Stream{r.s, other} {
		if done, err := r.Done(s); done || err != nil {
			t.Errorf("a stream that waits is done: %v, %v", done, err)
		}
	}
	if ok, err := r.Happened(after); ok || err != nil {
		t.Errorf("an event happened before its turn: %v, %v", ok, err)
	}
	if _, err := r.Elapsed(before, after); driver.ClassOf(err) != driver.Pending {
		t.Errorf("time until an event that did not happen: %v", err)
	}
	check(t, r.SyncEvent(before))
	time.Sleep(2 * time.Millisecond)
	g.open()
	eventually(t, "the second stream", func() (bool, error) { return r.Done(other) })
	check(t, r.SyncEvent(after))
	w := r.words(p, n)
	if w[0] != 5 {
		t.Errorf("the stream that waited for the other wrote first: %d", w[0])
	}
	counts(t, w[1:], 2)
	if d := must(r.Elapsed(before, after))(t); d < 2*time.Millisecond || d > hang {
		t.Errorf("%v between events that are at least 2ms apart", d)
	}

	untimed := must(r.NewEvent(driver.Blocking))(t)
	check(t, r.Record(r.s, untimed))
	check(t, r.SyncEvent(untimed))
	_, err := r.Elapsed(before, untimed)
	refused(t, err, driver.Refused, driver.InvalidHandle)
	check(t, r.CloseEvent(untimed))
}

func words(t *testing.T, r *rig) {
	w, p := r.hostWords(4)
	at := func(i int) driver.Ptr { return p + driver.Ptr(4*i) }
	for _, c := range []struct {
		name                string
		cond                driver.Cond
		value, wrong, right uint32
	}{
		{"greater or equal", driver.GreaterEqual, 5, 4, 6},
		{"greater or equal, wrapped", driver.GreaterEqual, 0xfffffffe, 0xfffffffd, 3},
		{"equal", driver.Equal, 5, 6, 5},
		{"any bit", driver.AnyBit, 6, 9, 2},
	} {
		atomic.StoreUint32(&w[0], c.wrong)
		atomic.StoreUint32(&w[1], 0)
		check(t, r.Wait32(r.s, at(0), c.value, c.cond))
		check(t, r.Write32(r.s, at(1), 77))
		time.Sleep(time.Millisecond)
		if v := atomic.LoadUint32(&w[1]); v != 0 {
			t.Errorf("%s: the stream went on at %d", c.name, c.wrong)
		}
		atomic.StoreUint32(&w[0], c.right)
		eventually(t, c.name, func() (bool, error) { return atomic.LoadUint32(&w[1]) == 77, nil })
	}
	check(t, r.SyncStream(r.s))
	// In device memory too.
	q := r.alloc(8)
	check(t, r.Fill32(r.s, q, 0, 2))
	check(t, r.Write32(r.s, q+4, 9))
	check(t, r.Wait32(r.s, q+4, 9, driver.Equal))
	if got := r.words(q, 2); got[0] != 0 || got[1] != 9 {
		t.Errorf("got %v", got)
	}
}

func hostMemory(t *testing.T, r *rig) {
	const n = 1024
	w, p := r.hostWords(n)
	if r.Device().HostIsSame && uintptr(p) != uintptr(unsafe.Pointer(&w[0])) {
		t.Errorf("registered at %#x, on the device %#x", unsafe.Pointer(&w[0]), p)
	}
	// Kernels and copies reach it.
	r.count(r.s, p, 3, n)
	check(t, r.SyncStream(r.s))
	counts(t, w, 3)
	q := r.alloc(4 * n)
	check(t, r.Copy(r.s, q, p, 4*n))
	counts(t, r.words(q, n), 3)
	check(t, r.Fill32(r.s, q, 8, n))
	check(t, r.Copy(r.s, p, q, 4*n))
	check(t, r.SyncStream(r.s))
	if w[0] != 8 || w[n-1] != 8 {
		t.Errorf("copied back %d and %d", w[0], w[n-1])
	}

	mem := must(unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS))(t)
	defer unix.Munmap(mem)
	must(r.Register(mem))(t)
	_, err := r.Register(mem)
	refused(t, err, driver.Refused, driver.HostRegistered)
	check(t, r.Unregister(mem))
	refused(t, r.Unregister(mem), driver.Refused, driver.HostNotRegistered, driver.Invalid)
}

func virtualMemory(t *testing.T, r *rig) {
	if !r.Device().VMM || !r.Device().MemFD {
		t.Skip("the device has no virtual memory management with descriptors")
	}
	g := must(r.Granularity())(t)
	free, _ := meminfo(t, r)
	m := must(r.Create(2 * g))(t)
	if after, _ := meminfo(t, r); after > free-2*g {
		t.Errorf("%d bytes free before %d were made, %d after", free, 2*g, after)
	}
	_, err := r.Create(g + 1)
	refused(t, err, driver.Refused, driver.Invalid)
	p := must(r.Reserve(4 * g))(t)
	check(t, r.Map(p, 2*g, m))
	refused(t, r.Map(p, 2*g, m), driver.Refused)
	check(t, r.SetAccess(p, 2*g, r.Device().Ordinal, driver.ReadWrite))

	// The same memory once more, by way of a descriptor.
	f := must(r.ExportMem(m))(t)
	again := must(r.ImportMem(f))(t)
	check(t, f.Close())
	check(t, r.Map(p+driver.Ptr(2*g), 2*g, again))
	check(t, r.SetAccess(p+driver.Ptr(2*g), 2*g, r.Device().Ordinal, driver.ReadWrite))
	r.count(r.s, p, 11, 500)
	counts(t, r.words(p+driver.Ptr(2*g), 500), 11)

	// It lives as long as something leads to it.
	check(t, r.Release(m))
	check(t, r.Release(again))
	refused(t, r.Release(m), driver.Refused, driver.Invalid)
	counts(t, r.words(p, 500), 11)
	refused(t, r.FreeReserved(p, 4*g), driver.Refused)
	check(t, r.Unmap(p, 2*g))
	counts(t, r.words(p+driver.Ptr(2*g), 500), 11)
	check(t, r.Unmap(p+driver.Ptr(2*g), 2*g))
	check(t, r.FreeReserved(p, 4*g))
	eventually(t, "the memory to be free again", func() (bool, error) {
		now, _, err := r.MemInfo()
		return now >= free, err
	})
	junk := must(os.Open(os.DevNull))(t)
	defer junk.Close()
	_, err = r.ImportMem(junk)
	refused(t, err, driver.Refused)
}

func graphs(t *testing.T, r *rig) {
	const n = 200
	p, q := r.alloc(4*n), r.alloc(4*n)
	record := func(first uint32) driver.Graph {
		check(t, r.BeginCapture(r.s))
		r.count(r.s, p, first, n)
		check(t, r.Copy(r.s, q, p, 4*n))
		return must(r.EndCapture(r.s))(t)
	}
	check(t, r.Fill32(r.s, q, 0, n))
	g := record(40)
	if w := r.words(q, 1); w[0] != 0 {
		t.Error("what was recorded ran")
	}
	x := must(r.Instantiate(g))(t)
	check(t, r.CloseGraph(g))
	for range 2 {
		check(t, r.Fill32(r.s, q, 0, n))
		check(t, r.LaunchGraph(r.s, x))
		counts(t, r.words(q, n), 40)
	}
	// Other arguments, the same nodes.
	g = record(90)
	check(t, r.Update(x, g))
	check(t, r.CloseGraph(g))
	check(t, r.LaunchGraph(r.s, x))
	counts(t, r.words(q, n), 90)
	// Other nodes.
	check(t, r.BeginCapture(r.s))
	check(t, r.Copy(r.s, q, p, 4))
	g = must(r.EndCapture(r.s))(t)
	refused(t, r.Update(x, g), driver.Refused, driver.GraphUpdate)
	check(t, r.CloseGraph(g))
	check(t, r.LaunchGraph(r.s, x))
	counts(t, r.words(q, n), 90)
	check(t, r.CloseExec(x))

	// A stream that records cannot be waited for.
	check(t, r.BeginCapture(r.s))
	refused(t, r.SyncStream(r.s), driver.Refused, driver.CaptureForbidden)
	_, err := r.EndCapture(r.s)
	refused(t, err, driver.Refused, driver.CaptureInvalid)
	r.count(r.s, p, 1, n)
	counts(t, r.words(p, n), 1)
}

func graphFork(t *testing.T, r *rig) {
	const n = 200
	p, q := r.alloc(4*n), r.alloc(4*n)
	side := must(r.NewStream())(t)
	fork, join := must(r.NewEvent(0))(t), must(r.NewEvent(0))(t)
	defer func() {
		check(t, r.CloseEvent(fork))
		check(t, r.CloseEvent(join))
		check(t, r.CloseStream(side))
	}()
	record := func(joined bool) (driver.Graph, error) {
		check(t, r.BeginCapture(r.s))
		r.count(r.s, p, 1, n)
		check(t, r.Record(r.s, fork))
		check(t, r.WaitEvent(side, fork))
		check(t, r.Copy(side, q, p, 4*n))
		check(t, r.Record(side, join))
		if joined {
			check(t, r.WaitEvent(r.s, join))
		}
		return r.EndCapture(r.s)
	}
	_, err := record(false)
	refused(t, err, driver.Refused, driver.CaptureUnjoined)
	g := must(record(true))(t)
	x := must(r.Instantiate(g))(t)
	check(t, r.CloseGraph(g))
	check(t, r.Fill32(r.s, q, 0, n))
	check(t, r.LaunchGraph(r.s, x))
	counts(t, r.words(q, n), 1)
	check(t, r.CloseExec(x))
}

func peers(t *testing.T, r *rig) {
	if n := len(r.d.Devices()); n < 2 {
		t.Skipf("needs two devices, this machine has %d", n)
	}
	claim := must(r.d.Peer(0, 1))(t)
	if !claim.Access {
		t.Skip("device 0 cannot reach device 1")
	}
	const n = 1000
	o := newRigOn(t, r.d, 1)
	here, there := r.alloc(4*n), o.alloc(4*n)
	// By way of the host, unless the two know each other.
	r.count(r.s, here, 20, n)
	check(t, r.CopyPeer(r.s, there, o.Context, here, r.Context, 4*n))
	check(t, r.SyncStream(r.s))
	counts(t, readWords(t, o, there, n), 20)

	check(t, r.EnablePeer(o.Context))
	check(t, r.EnablePeer(o.Context))
	r.count(r.s, there, 30, n)
	check(t, r.SyncStream(r.s))
	counts(t, readWords(t, o, there, n), 30)
	check(t, r.Copy(r.s, here, there, 4*n))
	counts(t, r.words(here, n), 30)

	if r.Device().VMM && r.Device().MemFD {
		g := must(r.Granularity())(t)
		m := must(o.Create(g))(t)
		p := must(r.Reserve(g))(t)
		check(t, r.Map(p, g, m))
		check(t, r.SetAccess(p, g, 0, driver.ReadWrite))
		r.count(r.s, p, 50, n)
		counts(t, r.words(p, n), 50)
		check(t, r.Unmap(p, g))
		check(t, r.FreeReserved(p, g))
		check(t, o.Release(m))
	}
}

// Calls of many goroutines land on many threads; each finds its context.
func goroutines(t *testing.T, r *rig) {
	const n, each = 64, 20
	var wg sync.WaitGroup
	for k := range 8 {
		rig := newRigOn(t, r.d, k%len(r.d.Devices()))
		p := rig.alloc(4 * n)
		wg.Go(func() {
			for i := range each {
				rig.count(rig.s, p, uint32(1000*k+i), n)
				runtime.Gosched()
				if err := rig.SyncStream(rig.s); err != nil {
					t.Error(err)
					return
				}
				buf := make([]byte, 4*n)
				if err := rig.Read(buf, p); err != nil {
					t.Error(err)
					return
				}
				if w := asWords(buf); w[0] != uint32(1000*k+i) || w[n-1] != uint32(1000*k+i+n-1) {
					t.Errorf("goroutine %d, round %d: %v", k, i, w)
					return
				}
			}
		})
	}
	wg.Wait()
}
