package sim

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Where things are in a box's file: lib/box.h, which asserts the same numbers.
const (
	deviceAt, deviceBytes = 64, 64
	pairAt                = 1088
	launchesAt            = 2112
	copiedAt              = 2240
	boxBytes              = 12288 + 16384*64
	maxDevices            = 16
)

// Offsets within a device's words.
const (
	fault, faultPid, lost, noMemory, hang, noPeer, delay = 0, 4, 8, 12, 16, 20, 24
)

// Box is the machine that simulated processes share: its file is what CUSIM_CONTROL names. Whoever has it open
// can put devices out of order while other processes use them. Devices are counted as on the machine, whatever
// CUDA_VISIBLE_DEVICES says.
type Box struct {
	path string
	mem  []byte
}

// NewBox makes a machine in order, in a file of its own, which Close does not remove.
func NewBox(path string) (*Box, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(boxBytes); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, boxBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("box %s: %w", path, err)
	}
	return &Box{path, mem}, nil
}

// Close unmaps the file.
func (b *Box) Close() error { return unix.Munmap(b.mem) }

// Path is the file's, for CUSIM_CONTROL.
func (b *Box) Path() string { return b.path }

func (b *Box) word(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&b.mem[at])) }
func (b *Box) long(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b.mem[at])) }
func (b *Box) device(d, what int) *atomic.Uint32 {
	return b.word(deviceAt + d*deviceBytes + what)
}

func number(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}

// Fault ends every context that uses the device, with a CUresult such as 214 (memory error), 700 or 702; pid,
// unless zero, leaves other processes' alone. Contexts stay ended; zero spares those to come.
func (b *Box) Fault(device, result, pid int) {
	b.device(device, faultPid).Store(uint32(pid))
	b.device(device, fault).Store(uint32(result))
}

// Lose takes the device off the bus: every call about it fails with result, which usually is 999. Zero brings it
// back for processes that did not notice.
func (b *Box) Lose(device, result int) { b.device(device, lost).Store(uint32(result)) }

// Exhaust makes allocations on the device fail.
func (b *Box) Exhaust(device int, on bool) { b.device(device, noMemory).Store(number(on)) }

// Hang stops all streams of the device between two operations.
func (b *Box) Hang(device int, on bool) { b.device(device, hang).Store(number(on)) }

// NoPeer makes the device claim that it reaches no other one.
func (b *Box) NoPeer(device int, on bool) { b.device(device, noPeer).Store(number(on)) }

// Slow makes every operation of a stream on the device take so many microseconds longer.
func (b *Box) Slow(device, microseconds int) { b.device(device, delay).Store(uint32(microseconds)) }

// Damage is what happens to data that one device copies to or from another's memory directly. Stores of kernels
// are not touched.
type Damage uint32

const (
	DropWrites    Damage = 1 // what from writes to to is lost, and nobody is told
	CorruptWrites Damage = 2
	CorruptReads  Damage = 4 // what to reads from from is wrong
)

// Wire sets what the path from one device to another does. Zero is in order.
func (b *Box) Wire(from, to int, d Damage) {
	b.word(pairAt + 4*(from*maxDevices+to)).Store(uint32(d))
}

// Launches counts kernels that ran on the device. Copied counts bytes that were copied directly.
func (b *Box) Launches(device int) uint64 { return b.long(launchesAt + 8*device).Load() }
func (b *Box) Copied(from, to int) uint64 { return b.long(copiedAt + 8*(from*maxDevices+to)).Load() }
