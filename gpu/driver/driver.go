// Package driver is what we ask of a GPU's driver: memory, copies, kernels, streams, events and graphs, as
// the CUDA driver API has them, with Go's types and errors. It holds no state and no implementation; those
// are in the packages below it, and drivertest is the suite that each of them passes.
//
// Addresses are of one address space: memory of every device, and registered host memory, has a Ptr, and
// copies need not be told which is which. Sizes are bytes, counts are elements. What takes a Stream is
// queued on it and returns; the rest has happened on return. Work that failed on the device is reported by
// some later call, often an unrelated one; see Class.
//
// Any goroutine may call any method. Two calls on one stream are ordered only if the caller orders them.
package driver

import (
	"os"
	"time"
)

// Ptr is an address on a device, or of registered host memory as devices see it. Zero is none.
type Ptr uint64

// Handles of one context. They are the implementation's own words, valid until they are closed or the
// context is; a zero Stream is the context's default stream, of the others zero is none.
type (
	Stream uintptr
	Event  uintptr
	Module uintptr
	Func   uintptr // belongs to its module
	Graph  uintptr // a recording
	Exec   uintptr // a graph that can be launched
	Mem    uint64  // physical memory, mapped nowhere yet
)

// IPCHandle names memory or an event of a process to other processes. Plain bytes.
type IPCHandle [64]byte

// A Driver is a loaded driver library. It is never unloaded.
type Driver interface {
	// Version is 1000*major + 10*minor of the CUDA version that the driver implements.
	Version() int
	// Devices lists the devices of this process by ordinal, as they were when the driver was opened.
	Devices() []Device
	// Peer says what the driver claims of from reaching memory of to. Claims: on some boards writes are lost
	// all the same, so paths are probed before they are used.
	Peer(from, to int) (Peer, error)
	// Open retains the primary context of a device. Every Open wants its own Close.
	Open(ordinal int) (Context, error)
}

// Device is what does not change about a device.
type Device struct {
	Ordinal int
	Name    string
	UUID    [16]byte // the same in every process and in NVML, unlike the ordinal
	PCI     string   // domain:bus:device.function

	Major, Minor int // compute capability
	Bytes        int64
	SMs          int
	Warp         int // threads
	L2           int64

	// Shared memory: of one SM, and what one block may have if its function was allowed to.
	SharedPerSM, SharedPerBlock int

	VMM        bool // Create, Reserve, Map and their kin work
	MemFD      bool // ExportMem works
	HostIsSame bool // registered host memory has the same address on the device
}

// Peer is what a driver claims of one directed pair of devices.
type Peer struct {
	Access  bool
	Atomics bool
	Rank    int // relative performance, 0 is best
}

// Access is a device's right to mapped memory.
type Access uint8

const (
	NoAccess  Access = 0
	Read      Access = 1
	ReadWrite Access = 3
)

// EventFlags say what an event is for.
type EventFlags uint8

const (
	Timing       EventFlags = 1 << iota // Elapsed may be asked; not with Interprocess
	Interprocess                        // ExportEvent may be asked
	Blocking                            // SyncEvent sleeps instead of spinning
)

// Cond is when Wait32 lets a stream go on, given the word in memory and the value.
type Cond uint8

const (
	GreaterEqual Cond = iota // int32(word-value) >= 0: counters may wrap
	Equal
	AnyBit // word&value != 0
	NotAllBits
)

// Grid is the shape of a launch.
type Grid struct {
	Blocks  [3]int // zero counts as one
	Threads [3]int // a block; zero counts as one
	Shared  int    // bytes of dynamic shared memory a block
}

// FuncInfo is what the compiler made of a function.
type FuncInfo struct {
	MaxThreads int // a block
	Registers  int // a thread
	Shared     int // static bytes a block
	Local      int // bytes a thread; not zero means spills or an array that is indexed
	Binary     int // 10*major + minor of the architecture that the code is for
}

// Context is one device's primary context in this process: everything that lives on the device, and the
// thing that a fault in a kernel destroys. After an error of class Lost only Close is of use, and the process
// should end: other contexts of the process live, but nothing of this one can be got back.
type Context interface {
	Device() Device
	// Close gives the context back. With the last one, all that lives in it is freed.
	Close() error
	// Sync waits for everything queued on all streams.
	Sync() error
	// EnablePeer lets kernels and copies here reach memory that was allocated in the context other of the same
	// process. It may be called again.
	EnablePeer(other Context) error

	// MemInfo is of the whole device, not of this process.
	MemInfo() (free, total int64, err error)
	// Alloc returns at least bytes bytes, aligned to 256 or better; what is in them is undefined.
	Alloc(bytes int64) (Ptr, error)
	// Free takes what Alloc gave. Freeing memory that another process has opened is undefined.
	Free(p Ptr) error
	// Range finds the allocation that p lies in.
	Range(p Ptr) (base Ptr, bytes int64, err error)
	// Register pins host memory, for all contexts, and returns its address on the device. The memory must not be
	// of the Go heap (gpu/hostmem is right), and must stay mapped until Unregister.
	Register(mem []byte) (Ptr, error)
	Unregister(mem []byte) error

	// Granularity is what sizes and offsets of the calls below must be multiples of.
	Granularity() (int64, error)
	// Create makes physical memory on this device that can be exported.
	Create(bytes int64) (Mem, error)
	// ExportMem makes a descriptor that holds the memory, in any process, until it is closed. The caller owns it.
	ExportMem(m Mem) (*os.File, error)
	// ImportMem makes a handle out of such a descriptor, which may be closed then.
	ImportMem(f *os.File) (Mem, error)
	// Release drops the handle; memory that is mapped or held elsewhere stays until it is not.
	Release(m Mem) error
	// Reserve takes addresses, FreeReserved gives them back, once nothing is mapped there.
	Reserve(bytes int64) (Ptr, error)
	FreeReserved(p Ptr, bytes int64) error
	// Map maps the first bytes of m. Nobody has access until SetAccess says so.
	Map(p Ptr, bytes int64, m Mem) error
	Unmap(p Ptr, bytes int64) error
	SetAccess(p Ptr, bytes int64, device int, a Access) error

	// ExportIPC names the allocation that p is the beginning of; Create's memory has no such name.
	ExportIPC(p Ptr) (IPCHandle, error)
	// OpenIPC maps another process's allocation, for CloseIPC to unmap. The memory is kept, also beyond the
	// exporter's death, until then.
	OpenIPC(h IPCHandle) (Ptr, error)
	CloseIPC(p Ptr) error

	// Write and Read copy between the Go heap or any other host memory and a device, and wait. They are not
	// ordered after work on streams.
	Write(to Ptr, from []byte) error
	Read(to []byte, from Ptr) error
	// Copy copies within a device, between devices and from and to registered host memory.
	Copy(s Stream, to, from Ptr, bytes int64) error
	// CopyPeer copies between allocations of two contexts, by way of the host if need be.
	CopyPeer(s Stream, to Ptr, toContext Context, from Ptr, fromContext Context, bytes int64) error
	Fill8(s Stream, to Ptr, value byte, count int64) error
	Fill32(s Stream, to Ptr, value uint32, count int64) error

	// Load compiles PTX text, or takes a compiled image. Where that fails the compiler's own words are in the
	// error's Detail.
	Load(image []byte) (Module, error)
	Unload(m Module) error
	// Func finds an entry by name. Global finds a variable.
	Func(m Module, name string) (Func, error)
	Global(m Module, name string) (Ptr, int64, error)
	FuncInfo(f Func) (FuncInfo, error)
	// AllowShared lets f be launched with so many bytes of dynamic shared memory. Beyond 48 KiB it must be asked.
	AllowShared(f Func, bytes int) error
	// Occupancy is how many blocks of f an SM can hold at a time.
	Occupancy(f Func, threads, shared int) (int, error)
	// Launch queues f. The arguments are copied before it returns; they must fill f's parameters exactly.
	Launch(s Stream, f Func, g Grid, a *Args) error

	// NewStream makes a stream that is not ordered with the default stream.
	NewStream() (Stream, error)
	CloseStream(s Stream) error
	// SyncStream waits without limit: for a limit ask Done again and again.
	SyncStream(s Stream) error
	Done(s Stream) (bool, error)

	NewEvent(f EventFlags) (Event, error)
	CloseEvent(e Event) error
	Record(s Stream, e Event) error
	// WaitEvent makes s wait for what was recorded last in e by now; nothing recorded means no wait.
	WaitEvent(s Stream, e Event) error
	SyncEvent(e Event) error
	Happened(e Event) (bool, error)
	Elapsed(from, to Event) (time.Duration, error)
	ExportEvent(e Event) (IPCHandle, error)
	OpenEvent(h IPCHandle) (Event, error)

	// Write32 stores a word after all that was queued on s before it. Wait32 holds s until the word is as asked.
	// The driver does not know of such waits: what is to satisfy one must not be queued behind it.
	Write32(s Stream, p Ptr, value uint32) error
	Wait32(s Stream, p Ptr, value uint32, c Cond) error

	// BeginCapture records what is queued on s from now on instead of running it, along with what is queued on
	// streams that wait for events recorded there. EndCapture ends that.
	BeginCapture(s Stream) error
	EndCapture(s Stream) (Graph, error)
	CloseGraph(g Graph) error
	Instantiate(g Graph) (Exec, error)
	// Update gives x the arguments of g, which must have the same nodes; otherwise x is as before.
	Update(x Exec, g Graph) error
	LaunchGraph(s Stream, x Exec) error
	CloseExec(x Exec) error
}
