//go:build linux && cgo

package nvidia

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "bind.h"
*/
import "C"

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tandem/gpu/driver"
)

// library is a loaded driver. Its table never changes.
type library struct {
	d       *C.struct_cuda
	version int
	devices []driver.Device
}

// Open loads the driver library and initializes it. See driver's errors for what may be missing.
func Open(o Options) (driver.Driver, error) {
	name := o.Library
	if name == "" {
		name = "libcuda.so.1"
	}
	var missing *C.char
	var why [512]C.char
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	l := &library{d: C.cu_open(cname, &missing, &why[0], C.size_t(len(why)))}
	switch {
	case l.d != nil:
	case missing != nil:
		return nil, fmt.Errorf("%w: %s has no %s; CUDA 12.0 is the least", driver.ErrOldDriver, name, C.GoString(missing))
	default:
		return nil, fmt.Errorf("%w: %s", driver.ErrNoDriver, C.GoString(&why[0]))
	}
	var version, count C.int
	r := C.cu_init(l.d, &version, &count)
	l.version = int(version)
	if err := openError(name, driver.Result(r), l.version, int(count), "/dev"); err != nil {
		return nil, err
	}
	for i := range int(count) {
		var f C.struct_cu_facts
		if r := C.cu_facts(l.d, C.int(i), &f); r != 0 {
			return nil, &driver.Error{Call: "cuDeviceGetAttribute", Device: i, Result: driver.Result(r)}
		}
		l.devices = append(l.devices, driver.Device{
			Ordinal: i, Name: C.GoString(&f.name[0]), UUID: *(*[16]byte)(unsafe.Pointer(&f.uuid)), PCI: C.GoString(&f.pci[0]),
			Major: int(f.major), Minor: int(f.minor), Bytes: int64(f.bytes), SMs: int(f.sms), Warp: int(f.warp), L2: int64(f.l2),
			SharedPerSM: int(f.sharedPerSM), SharedPerBlock: int(f.sharedPerBlock),
			VMM: f.vmm != 0, MemFD: f.memfd != 0, HostIsSame: f.hostIsSame != 0,
		})
	}
	return l, nil
}

// openError says what initialization came to. A user that may not open a device node gets the same result as
// a machine with no device, so the nodes in dev are looked at.
func openError(name string, r driver.Result, version, count int, dev string) error {
	if version != 0 && version < minVersion {
		return fmt.Errorf("%w: %s implements CUDA %d.%d; 12.0 is the least", driver.ErrOldDriver, name, version/1000, version%1000/10)
	}
	if r == 0 && count > 0 {
		return nil
	}
	nodes, _ := filepath.Glob(filepath.Join(dev, "nvidia*"))
	for _, n := range nodes {
		if unix.Access(n, unix.R_OK|unix.W_OK) == unix.EACCES {
			return fmt.Errorf("%w: %s", driver.ErrNoPermission, n)
		}
	}
	switch r {
	case 0, driver.NoDevice:
		return fmt.Errorf("%w: %s", driver.ErrNoDevice, name)
	case 34: // a library of the toolkit, for linking only
		return fmt.Errorf("%w: %s is a stub", driver.ErrNoDriver, name)
	case 35, 803:
		return fmt.Errorf("%w: %s: %w", driver.ErrOldDriver, name, r)
	}
	return fmt.Errorf("%s: cuInit: %w (%d)", name, r, int(r))
}

func (l *library) Version() int             { return l.version }
func (l *library) Devices() []driver.Device { return append([]driver.Device(nil), l.devices...) }

func (l *library) Peer(from, to int) (driver.Peer, error) {
	var access, atomics, rank C.int
	if r := C.cu_peer(l.d, C.int(from), C.int(to), &access, &atomics, &rank); r != 0 {
		return driver.Peer{}, &driver.Error{Call: "cuDeviceCanAccessPeer", Device: from, Result: driver.Result(r), Detail: fmt.Sprintf("peer %d", to)}
	}
	return driver.Peer{Access: access != 0, Atomics: atomics != 0, Rank: int(rank)}, nil
}

func (l *library) Open(ordinal int) (driver.Context, error) {
	c := &context{d: l.d}
	if r := C.cu_retain(l.d, C.int(ordinal), &c.h); r != 0 {
		return nil, &driver.Error{Call: "cuDevicePrimaryCtxRetain", Device: ordinal, Result: driver.Result(r)}
	}
	c.device = l.devices[ordinal]
	return c, nil
}

// context is a retained primary context. It never changes.
type context struct {
	d      *C.struct_cuda
	h      C.word
	device driver.Device
}

// A Handle is a context of this package, or one built on it.
type Handle interface{ CUcontext() uintptr }

// CUcontext is the driver's own handle, for code that calls the driver by another way.
func (c *context) CUcontext() uintptr { return uintptr(c.h) }

// ok is r as an error. The details cost nothing unless there is one.
func (c *context) ok(call string, r C.CUresult) error {
	if r == 0 {
		return nil
	}
	return &driver.Error{Call: call, Device: c.device.Ordinal, Result: driver.Result(r)}
}

func (c *context) failed(call string, r C.CUresult, format string, a ...any) error {
	return &driver.Error{Call: call, Device: c.device.Ordinal, Result: driver.Result(r), Detail: fmt.Sprintf(format, a...)}
}

func (c *context) Device() driver.Device { return c.device }
func (c *context) Close() error {
	return c.ok("cuDevicePrimaryCtxRelease", C.cu_release(c.d, C.int(c.device.Ordinal)))
}
func (c *context) Sync() error { return c.ok("cuCtxSynchronize", C.cu_sync(c.d, c.h)) }

// contextOf is the driver's handle of a context that came from some implementation over this one.
func (c *context) contextOf(call string, other driver.Context) (C.word, error) {
	h, ok := other.(Handle)
	if !ok {
		return 0, c.failed(call, C.CUresult(driver.InvalidContext), "a context of %T", other)
	}
	return C.word(h.CUcontext()), nil
}

func (c *context) EnablePeer(other driver.Context) error {
	h, err := c.contextOf("cuCtxEnablePeerAccess", other)
	if err != nil {
		return err
	}
	if r := C.cu_enable_peer(c.d, c.h, h); r != 0 && driver.Result(r) != driver.PeerEnabled {
		return c.failed("cuCtxEnablePeerAccess", r, "peer %d", other.Device().Ordinal)
	}
	return nil
}

func (c *context) MemInfo() (free, total int64, err error) {
	var f, t C.size_t
	r := C.cu_mem_info(c.d, c.h, &f, &t)
	return int64(f), int64(t), c.ok("cuMemGetInfo", r)
}

func (c *context) Alloc(bytes int64) (driver.Ptr, error) {
	var p C.CUdeviceptr
	if r := C.cu_alloc(c.d, c.h, C.size_t(bytes), &p); r != 0 {
		return 0, c.failed("cuMemAlloc", r, "%d bytes", bytes)
	}
	return driver.Ptr(p), nil
}

func (c *context) Free(p driver.Ptr) error {
	return c.ok("cuMemFree", C.cu_free(c.d, c.h, C.CUdeviceptr(p)))
}

func (c *context) Range(p driver.Ptr) (driver.Ptr, int64, error) {
	var base C.CUdeviceptr
	var n C.size_t
	r := C.cu_range(c.d, c.h, C.CUdeviceptr(p), &base, &n)
	return driver.Ptr(base), int64(n), c.ok("cuMemGetAddressRange", r)
}

func (c *context) Register(mem []byte) (driver.Ptr, error) {
	var p C.CUdeviceptr
	if r := C.cu_register(c.d, c.h, unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)), &p); r != 0 {
		return 0, c.failed("cuMemHostRegister", r, "%d bytes", len(mem))
	}
	return driver.Ptr(p), nil
}

func (c *context) Unregister(mem []byte) error {
	return c.ok("cuMemHostUnregister", C.cu_unregister(c.d, c.h, unsafe.Pointer(unsafe.SliceData(mem))))
}

func (c *context) Granularity() (int64, error) {
	var n C.size_t
	r := C.cu_granularity(c.d, c.h, C.int(c.device.Ordinal), &n)
	return int64(n), c.ok("cuMemGetAllocationGranularity", r)
}

func (c *context) Create(bytes int64) (driver.Mem, error) {
	var m C.CUmemGenericAllocationHandle
	if r := C.cu_create(c.d, c.h, C.int(c.device.Ordinal), C.size_t(bytes), &m); r != 0 {
		return 0, c.failed("cuMemCreate", r, "%d bytes", bytes)
	}
	return driver.Mem(m), nil
}

func (c *context) ExportMem(m driver.Mem) (*os.File, error) {
	var fd C.int
	if r := C.cu_export_mem(c.d, c.h, C.CUmemGenericAllocationHandle(m), &fd); r != 0 {
		return nil, c.failed("cuMemExportToShareableHandle", r, "")
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("memory of gpu %d", c.device.Ordinal)), nil
}

func (c *context) ImportMem(f *os.File) (driver.Mem, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("import of memory: %w", err)
	}
	var m C.CUmemGenericAllocationHandle
	var r C.CUresult
	err = raw.Control(func(fd uintptr) { r = C.cu_import_mem(c.d, c.h, C.int(fd), &m) })
	if err != nil {
		return 0, fmt.Errorf("import of memory: %w", err)
	}
	return driver.Mem(m), c.ok("cuMemImportFromShareableHandle", r)
}

func (c *context) Release(m driver.Mem) error {
	return c.ok("cuMemRelease", C.cu_release_mem(c.d, c.h, C.CUmemGenericAllocationHandle(m)))
}

func (c *context) Reserve(bytes int64) (driver.Ptr, error) {
	var p C.CUdeviceptr
	if r := C.cu_reserve(c.d, c.h, C.size_t(bytes), &p); r != 0 {
		return 0, c.failed("cuMemAddressReserve", r, "%d bytes", bytes)
	}
	return driver.Ptr(p), nil
}

func (c *context) FreeReserved(p driver.Ptr, bytes int64) error {
	return c.ok("cuMemAddressFree", C.cu_free_reserved(c.d, c.h, C.CUdeviceptr(p), C.size_t(bytes)))
}

func (c *context) Map(p driver.Ptr, bytes int64, m driver.Mem) error {
	return c.ok("cuMemMap", C.cu_map(c.d, c.h, C.CUdeviceptr(p), C.size_t(bytes), C.CUmemGenericAllocationHandle(m)))
}

func (c *context) Unmap(p driver.Ptr, bytes int64) error {
	return c.ok("cuMemUnmap", C.cu_unmap(c.d, c.h, C.CUdeviceptr(p), C.size_t(bytes)))
}

func (c *context) SetAccess(p driver.Ptr, bytes int64, device int, a driver.Access) error {
	if r := C.cu_set_access(c.d, c.h, C.CUdeviceptr(p), C.size_t(bytes), C.int(device), C.uint(a)); r != 0 {
		return c.failed("cuMemSetAccess", r, "for gpu %d", device)
	}
	return nil
}

func (c *context) ExportIPC(p driver.Ptr) (h driver.IPCHandle, err error) {
	r := C.cu_export_ipc(c.d, c.h, C.CUdeviceptr(p), unsafe.Pointer(&h))
	return h, c.ok("cuIpcGetMemHandle", r)
}

func (c *context) OpenIPC(h driver.IPCHandle) (driver.Ptr, error) {
	var p C.CUdeviceptr
	r := C.cu_open_ipc(c.d, c.h, unsafe.Pointer(&h), &p)
	return driver.Ptr(p), c.ok("cuIpcOpenMemHandle", r)
}

func (c *context) CloseIPC(p driver.Ptr) error {
	return c.ok("cuIpcCloseMemHandle", C.cu_close_ipc(c.d, c.h, C.CUdeviceptr(p)))
}

func (c *context) Write(to driver.Ptr, from []byte) error {
	if len(from) == 0 {
		return nil
	}
	if r := C.cu_write(c.d, c.h, C.CUdeviceptr(to), unsafe.Pointer(&from[0]), C.size_t(len(from))); r != 0 {
		return c.failed("cuMemcpyHtoD", r, "%d bytes", len(from))
	}
	return nil
}

func (c *context) Read(to []byte, from driver.Ptr) error {
	if len(to) == 0 {
		return nil
	}
	if r := C.cu_read(c.d, c.h, unsafe.Pointer(&to[0]), C.CUdeviceptr(from), C.size_t(len(to))); r != 0 {
		return c.failed("cuMemcpyDtoH", r, "%d bytes", len(to))
	}
	return nil
}

func (c *context) Copy(s driver.Stream, to, from driver.Ptr, bytes int64) error {
	if bytes == 0 {
		return nil
	}
	if r := C.cu_copy(c.d, c.h, C.word(s), C.CUdeviceptr(to), C.CUdeviceptr(from), C.size_t(bytes)); r != 0 {
		return c.failed("cuMemcpyAsync", r, "%d bytes", bytes)
	}
	return nil
}

func (c *context) CopyPeer(s driver.Stream, to driver.Ptr, toContext driver.Context, from driver.Ptr, fromContext driver.Context, bytes int64) error {
	t, err := c.contextOf("cuMemcpyPeerAsync", toContext)
	if err != nil {
		return err
	}
	f, err := c.contextOf("cuMemcpyPeerAsync", fromContext)
	if err != nil || bytes == 0 {
		return err
	}
	if r := C.cu_copy_peer(c.d, c.h, C.word(s), C.CUdeviceptr(to), t, C.CUdeviceptr(from), f, C.size_t(bytes)); r != 0 {
		return c.failed("cuMemcpyPeerAsync", r, "%d bytes, gpu %d to %d", bytes, fromContext.Device().Ordinal, toContext.Device().Ordinal)
	}
	return nil
}

func (c *context) Fill8(s driver.Stream, to driver.Ptr, value byte, count int64) error {
	if count == 0 {
		return nil
	}
	return c.ok("cuMemsetD8Async", C.cu_fill8(c.d, c.h, C.word(s), C.CUdeviceptr(to), C.uchar(value), C.size_t(count)))
}

func (c *context) Fill32(s driver.Stream, to driver.Ptr, value uint32, count int64) error {
	if count == 0 {
		return nil
	}
	return c.ok("cuMemsetD32Async", C.cu_fill32(c.d, c.h, C.word(s), C.CUdeviceptr(to), C.uint(value), C.size_t(count)))
}

func (c *context) Load(image []byte) (driver.Module, error) {
	text := append(append(make([]byte, 0, len(image)+1), image...), 0) // PTX ends with a zero byte
	said := make([]byte, 16<<10)
	var m C.word
	r := C.cu_load(c.d, c.h, unsafe.Pointer(&text[0]), &m, (*C.char)(unsafe.Pointer(&said[0])), C.size_t(len(said)))
	if r != 0 {
		log, _, _ := strings.Cut(string(said), "\x00")
		return 0, c.failed("cuModuleLoadData", r, "%s", strings.TrimSpace(log))
	}
	return driver.Module(m), nil
}

func (c *context) Unload(m driver.Module) error {
	return c.ok("cuModuleUnload", C.cu_unload(c.d, c.h, C.word(m)))
}

func (c *context) Func(m driver.Module, name string) (driver.Func, error) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	var f C.word
	if r := C.cu_func(c.d, c.h, C.word(m), n, &f); r != 0 {
		return 0, c.failed("cuModuleGetFunction", r, "%s", name)
	}
	return driver.Func(f), nil
}

func (c *context) Global(m driver.Module, name string) (driver.Ptr, int64, error) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	var p C.CUdeviceptr
	var size C.size_t
	if r := C.cu_global(c.d, c.h, C.word(m), n, &p, &size); r != 0 {
		return 0, 0, c.failed("cuModuleGetGlobal", r, "%s", name)
	}
	return driver.Ptr(p), int64(size), nil
}

func (c *context) FuncInfo(f driver.Func) (driver.FuncInfo, error) {
	var i C.struct_cu_func_info
	r := C.cu_func_info(c.d, c.h, C.word(f), &i)
	return driver.FuncInfo{
		MaxThreads: int(i.maxThreads), Registers: int(i.registers), Shared: int(i.shared), Local: int(i.local), Binary: int(i.binary),
	}, c.ok("cuFuncGetAttribute", r)
}

func (c *context) AllowShared(f driver.Func, bytes int) error {
	if r := C.cu_allow_shared(c.d, c.h, C.word(f), C.int(bytes)); r != 0 {
		return c.failed("cuFuncSetAttribute", r, "%d bytes of shared memory", bytes)
	}
	return nil
}

func (c *context) Occupancy(f driver.Func, threads, shared int) (int, error) {
	var n C.int
	r := C.cu_occupancy(c.d, c.h, C.word(f), C.int(threads), C.size_t(shared), &n)
	return int(n), c.ok("cuOccupancyMaxActiveBlocksPerMultiprocessor", r)
}

func (c *context) Launch(s driver.Stream, f driver.Func, g driver.Grid, a *driver.Args) error {
	dim := func(n int) C.uint { return C.uint(max(n, 1)) }
	args := a.Bytes()
	r := C.cu_launch(c.d, c.h, C.word(s), C.word(f), dim(g.Blocks[0]), dim(g.Blocks[1]), dim(g.Blocks[2]),
		dim(g.Threads[0]), dim(g.Threads[1]), dim(g.Threads[2]), C.uint(g.Shared), unsafe.Pointer(unsafe.SliceData(args)), C.size_t(len(args)))
	if r != 0 {
		return c.failed("cuLaunchKernel", r, "%v blocks of %v threads, %d bytes of shared memory, %d of arguments", g.Blocks, g.Threads, g.Shared, len(args))
	}
	return nil
}

func (c *context) NewStream() (driver.Stream, error) {
	var s C.word
	r := C.cu_new_stream(c.d, c.h, &s)
	return driver.Stream(s), c.ok("cuStreamCreate", r)
}

func (c *context) CloseStream(s driver.Stream) error {
	return c.ok("cuStreamDestroy", C.cu_close_stream(c.d, c.h, C.word(s)))
}

func (c *context) SyncStream(s driver.Stream) error {
	return c.ok("cuStreamSynchronize", C.cu_sync_stream(c.d, c.h, C.word(s)))
}

// ready is r of a query: not ready is an answer, not an error.
func (c *context) ready(call string, r C.CUresult) (bool, error) {
	if driver.Result(r) == driver.NotReady {
		return false, nil
	}
	return r == 0, c.ok(call, r)
}

func (c *context) Done(s driver.Stream) (bool, error) {
	return c.ready("cuStreamQuery", C.cu_done(c.d, c.h, C.word(s)))
}

func (c *context) NewEvent(f driver.EventFlags) (driver.Event, error) {
	var flags C.uint
	if f&driver.Timing == 0 {
		flags |= C.CU_EVENT_DISABLE_TIMING
	}
	if f&driver.Interprocess != 0 {
		flags |= C.CU_EVENT_INTERPROCESS
	}
	if f&driver.Blocking != 0 {
		flags |= C.CU_EVENT_BLOCKING_SYNC
	}
	var e C.word
	r := C.cu_new_event(c.d, c.h, flags, &e)
	return driver.Event(e), c.ok("cuEventCreate", r)
}

func (c *context) CloseEvent(e driver.Event) error {
	return c.ok("cuEventDestroy", C.cu_close_event(c.d, c.h, C.word(e)))
}

func (c *context) Record(s driver.Stream, e driver.Event) error {
	return c.ok("cuEventRecord", C.cu_record(c.d, c.h, C.word(s), C.word(e)))
}

func (c *context) WaitEvent(s driver.Stream, e driver.Event) error {
	return c.ok("cuStreamWaitEvent", C.cu_wait_event(c.d, c.h, C.word(s), C.word(e)))
}

func (c *context) SyncEvent(e driver.Event) error {
	return c.ok("cuEventSynchronize", C.cu_sync_event(c.d, c.h, C.word(e)))
}

func (c *context) Happened(e driver.Event) (bool, error) {
	return c.ready("cuEventQuery", C.cu_happened(c.d, c.h, C.word(e)))
}

func (c *context) Elapsed(from, to driver.Event) (time.Duration, error) {
	var ms C.float
	r := C.cu_elapsed(c.d, c.h, C.word(from), C.word(to), &ms)
	return time.Duration(float64(ms) * float64(time.Millisecond)), c.ok("cuEventElapsedTime", r)
}

func (c *context) ExportEvent(e driver.Event) (h driver.IPCHandle, err error) {
	r := C.cu_export_event(c.d, c.h, C.word(e), unsafe.Pointer(&h))
	return h, c.ok("cuIpcGetEventHandle", r)
}

func (c *context) OpenEvent(h driver.IPCHandle) (driver.Event, error) {
	var e C.word
	r := C.cu_open_event(c.d, c.h, unsafe.Pointer(&h), &e)
	return driver.Event(e), c.ok("cuIpcOpenEventHandle", r)
}

func (c *context) Write32(s driver.Stream, p driver.Ptr, value uint32) error {
	return c.ok("cuStreamWriteValue32", C.cu_write32(c.d, c.h, C.word(s), C.CUdeviceptr(p), C.uint32_t(value)))
}

func (c *context) Wait32(s driver.Stream, p driver.Ptr, value uint32, cond driver.Cond) error {
	return c.ok("cuStreamWaitValue32", C.cu_wait32(c.d, c.h, C.word(s), C.CUdeviceptr(p), C.uint32_t(value), C.uint(cond)))
}

func (c *context) BeginCapture(s driver.Stream) error {
	return c.ok("cuStreamBeginCapture", C.cu_begin_capture(c.d, c.h, C.word(s)))
}

func (c *context) EndCapture(s driver.Stream) (driver.Graph, error) {
	var g C.word
	r := C.cu_end_capture(c.d, c.h, C.word(s), &g)
	return driver.Graph(g), c.ok("cuStreamEndCapture", r)
}

func (c *context) CloseGraph(g driver.Graph) error {
	return c.ok("cuGraphDestroy", C.cu_close_graph(c.d, c.h, C.word(g)))
}

func (c *context) Instantiate(g driver.Graph) (driver.Exec, error) {
	var x C.word
	r := C.cu_instantiate(c.d, c.h, C.word(g), &x)
	return driver.Exec(x), c.ok("cuGraphInstantiate", r)
}

func (c *context) Update(x driver.Exec, g driver.Graph) error {
	return c.ok("cuGraphExecUpdate", C.cu_update(c.d, c.h, C.word(x), C.word(g)))
}

func (c *context) LaunchGraph(s driver.Stream, x driver.Exec) error {
	return c.ok("cuGraphLaunch", C.cu_launch_graph(c.d, c.h, C.word(s), C.word(x)))
}

func (c *context) CloseExec(x driver.Exec) error {
	return c.ok("cuGraphExecDestroy", C.cu_close_exec(c.d, c.h, C.word(x)))
}
