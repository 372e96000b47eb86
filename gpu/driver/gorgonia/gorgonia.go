//go:build gorgonia && linux && cgo

package gorgonia

import (
	"errors"
	"reflect"
	"runtime"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"tandem/gpu/driver"
	"tandem/gpu/driver/nvidia"
)

// library answers for the driver as a whole. Contexts are where the difference is.
type library struct{ driver.Driver }

// Open is nvidia.Open: the library must be the one that package cu was linked with, or loads.
func Open(o nvidia.Options) (driver.Driver, error) {
	d, err := nvidia.Open(o)
	if err != nil {
		return nil, err
	}
	return library{d}, nil
}

func (l library) Version() int { return cu.Version() }

func (l library) Open(ordinal int) (driver.Context, error) {
	c, err := l.Driver.Open(ordinal)
	if err != nil {
		return nil, err
	}
	h := c.(nvidia.Handle).CUcontext()
	return &context{Context: c, h: h, cu: *(*cu.CUContext)(unsafe.Pointer(&h))}, nil
}

// context does what package cu can do, and leaves the rest to the context below it.
type context struct {
	driver.Context
	h  uintptr
	cu cu.CUContext
}

func (c *context) CUcontext() uintptr { return c.h }

// Its types hold one handle each, which they show nobody.
func stream(s driver.Stream) cu.Stream { return *(*cu.Stream)(unsafe.Pointer(&s)) }
func event(e driver.Event) cu.Event    { return *(*cu.Event)(unsafe.Pointer(&e)) }

// in runs f on a thread where the context is current.
func (c *context) in(call string, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cu.SetCurrentContext(c.cu)
	if err == nil {
		err = f()
	}
	return c.wrap(call, err)
}

// wrap makes its errors ours: they are of an integer type that has no name outside of it.
func (c *context) wrap(call string, err error) error {
	if err == nil {
		return nil
	}
	if v := reflect.ValueOf(err); v.Kind() == reflect.Int {
		return &driver.Error{Call: call, Device: c.Device().Ordinal, Result: driver.Result(v.Int())}
	}
	return err
}

// asked is err of a query: not ready is an answer.
func asked(err error) (bool, error) {
	if errors.Is(err, driver.NotReady) {
		return false, nil
	}
	return err == nil, err
}

func (c *context) Sync() error { return c.in("cuCtxSynchronize", cu.Synchronize) }

func (c *context) MemInfo() (free, total int64, err error) {
	err = c.in("cuMemGetInfo", func() (err error) { free, total, err = cu.MemInfo(); return err })
	return free, total, err
}

func (c *context) Alloc(bytes int64) (driver.Ptr, error) {
	var p cu.DevicePtr
	err := c.in("cuMemAlloc", func() (err error) { p, err = cu.MemAlloc(bytes); return err })
	return driver.Ptr(p), err
}

func (c *context) Free(p driver.Ptr) error {
	return c.in("cuMemFree", func() error { return cu.MemFree(cu.DevicePtr(p)) })
}

func (c *context) Range(p driver.Ptr) (driver.Ptr, int64, error) {
	var base cu.DevicePtr
	var n int64
	err := c.in("cuMemGetAddressRange", func() (err error) { n, base, err = cu.DevicePtr(p).AddressRange(); return err })
	return driver.Ptr(base), n, err
}

func (c *context) Write(to driver.Ptr, from []byte) error {
	if len(from) == 0 {
		return nil
	}
	return c.in("cuMemcpyHtoD", func() error { return cu.MemcpyHtoD(cu.DevicePtr(to), unsafe.Pointer(&from[0]), int64(len(from))) })
}

func (c *context) Read(to []byte, from driver.Ptr) error {
	if len(to) == 0 {
		return nil
	}
	return c.in("cuMemcpyDtoH", func() error { return cu.MemcpyDtoH(unsafe.Pointer(&to[0]), cu.DevicePtr(from), int64(len(to))) })
}

func (c *context) Copy(s driver.Stream, to, from driver.Ptr, bytes int64) error {
	if bytes == 0 {
		return nil
	}
	return c.in("cuMemcpyAsync", func() error { return cu.MemcpyAsync(cu.DevicePtr(to), cu.DevicePtr(from), bytes, stream(s)) })
}

func (c *context) Fill8(s driver.Stream, to driver.Ptr, value byte, count int64) error {
	if count == 0 {
		return nil
	}
	return c.in("cuMemsetD8Async", func() error { return cu.MemsetD8Async(cu.DevicePtr(to), value, count, stream(s)) })
}

func (c *context) Fill32(s driver.Stream, to driver.Ptr, value uint32, count int64) error {
	if count == 0 {
		return nil
	}
	return c.in("cuMemsetD32Async", func() error { return cu.MemsetD32Async(cu.DevicePtr(to), uint(value), count, stream(s)) })
}

func (c *context) NewStream() (driver.Stream, error) {
	var s cu.Stream
	err := c.in("cuStreamCreate", func() (err error) { s, err = cu.MakeStream(cu.NonBlocking); return err })
	return *(*driver.Stream)(unsafe.Pointer(&s)), err
}

func (c *context) CloseStream(s driver.Stream) error {
	h := stream(s)
	return c.in("cuStreamDestroy", h.Destroy)
}

func (c *context) SyncStream(s driver.Stream) error {
	return c.in("cuStreamSynchronize", stream(s).Synchronize)
}

func (c *context) Done(s driver.Stream) (bool, error) {
	return asked(c.in("cuStreamQuery", stream(s).Query))
}

func (c *context) NewEvent(f driver.EventFlags) (driver.Event, error) {
	flags := cu.DefaultEvent
	if f&driver.Timing == 0 {
		flags |= cu.DisableTiming
	}
	if f&driver.Interprocess != 0 {
		flags |= cu.InterprocessEvent
	}
	if f&driver.Blocking != 0 {
		flags |= cu.BlockingSyncEvent
	}
	var e cu.Event
	err := c.in("cuEventCreate", func() (err error) { e, err = cu.MakeEvent(flags); return err })
	return *(*driver.Event)(unsafe.Pointer(&e)), err
}

func (c *context) CloseEvent(e driver.Event) error {
	h := event(e)
	return c.in("cuEventDestroy", func() error { return cu.DestroyEvent(&h) })
}

func (c *context) Record(s driver.Stream, e driver.Event) error {
	return c.in("cuEventRecord", func() error { return event(e).Record(stream(s)) })
}

func (c *context) WaitEvent(s driver.Stream, e driver.Event) error {
	return c.in("cuStreamWaitEvent", func() error { return stream(s).Wait(event(e), 0) })
}

func (c *context) SyncEvent(e driver.Event) error {
	return c.in("cuEventSynchronize", event(e).Synchronize)
}

func (c *context) Happened(e driver.Event) (bool, error) {
	return asked(c.in("cuEventQuery", event(e).Query))
}

func (c *context) Elapsed(from, to driver.Event) (time.Duration, error) {
	var ms float64
	err := c.in("cuEventElapsedTime", func() (err error) { ms, err = event(from).Elapsed(event(to)); return err })
	return time.Duration(ms * float64(time.Millisecond)), err
}

func (c *context) Write32(s driver.Stream, p driver.Ptr, value uint32) error {
	return c.in("cuStreamWriteValue32", func() error { return stream(s).WriteValue32(cu.DevicePtr(p), value, 0) })
}

func (c *context) Wait32(s driver.Stream, p driver.Ptr, value uint32, cond driver.Cond) error {
	return c.in("cuStreamWaitValue32", func() error { return stream(s).WaitOnValue32(cu.DevicePtr(p), value, uint(cond)) })
}
