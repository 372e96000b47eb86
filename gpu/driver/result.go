package driver

import (
	"errors"
	"fmt"
)

// Errors of opening a driver.
var (
	// ErrNoDriver: there is no driver library on this machine, or this build cannot load one.
	ErrNoDriver = errors.New("no CUDA driver")
	// ErrOldDriver: the driver lacks something that we need.
	ErrOldDriver = errors.New("CUDA driver is too old")
	// ErrNoDevice: the driver sees no device. In a container that is often one that was not given to it.
	ErrNoDevice = errors.New("CUDA driver sees no device")
	// ErrNoPermission: device nodes exist that this user may not open.
	ErrNoPermission = errors.New("no permission for the CUDA device nodes")
)

// Result is a CUresult. It is an error; zero never is one.
type Result int

// The results that somebody asks for by name.
const (
	Invalid           Result = 1
	OutOfMemory       Result = 2
	NotInitialized    Result = 3
	DeviceUnavailable Result = 46
	NoDevice          Result = 100
	InvalidDevice     Result = 101
	InvalidImage      Result = 200
	InvalidContext    Result = 201
	NoBinary          Result = 209
	ECC               Result = 214
	PeerUnsupported   Result = 217
	InvalidPTX        Result = 218
	PTXTooNew         Result = 222
	OperatingSystem   Result = 304
	InvalidHandle     Result = 400
	NotFound          Result = 500
	NotReady          Result = 600
	IllegalAddress    Result = 700
	LaunchResources   Result = 701
	LaunchTimeout     Result = 702
	PeerEnabled       Result = 704
	PeerNotEnabled    Result = 705
	ContextDestroyed  Result = 709
	Assert            Result = 710
	HostRegistered    Result = 712
	HostNotRegistered Result = 713
	LaunchFailed      Result = 719
	NotPermitted      Result = 800
	NotSupported      Result = 801
	CaptureForbidden  Result = 900
	CaptureInvalid    Result = 901
	CaptureUnjoined   Result = 904
	GraphUpdate       Result = 910
	Unknown           Result = 999
)

var names = map[Result]string{
	1: "invalid value", 2: "out of memory", 3: "not initialized", 4: "deinitialized", 34: "stub library",
	35: "insufficient driver", 46: "device unavailable", 100: "no device", 101: "invalid device", 200: "invalid image",
	201: "invalid context", 205: "map failed", 206: "unmap failed", 209: "no binary for this GPU",
	214: "uncorrectable memory error", 215: "unsupported limit", 216: "context already in use",
	217: "peer access unsupported", 218: "invalid PTX", 220: "uncorrectable NVLink error", 221: "no JIT compiler",
	222: "PTX is newer than the driver", 223: "JIT compilation disabled", 226: "contained error",
	300: "invalid source", 301: "file not found", 302: "shared object symbol not found", 304: "operating system",
	400: "invalid handle", 401: "illegal state", 500: "not found", 600: "not ready", 700: "illegal address",
	701: "out of launch resources", 702: "launch timed out", 704: "peer access already enabled",
	705: "peer access not enabled", 708: "primary context active", 709: "context destroyed", 710: "assertion failed",
	711: "too many peers", 712: "host memory already registered", 713: "host memory not registered",
	714: "hardware stack error", 715: "illegal instruction", 716: "misaligned address", 717: "invalid address space",
	718: "invalid program counter", 719: "launch failed", 720: "cooperative launch too large",
	721: "tensor memory leak", 800: "not permitted", 801: "not supported", 802: "system not ready",
	803: "driver and kernel module do not match", 804: "not supported on this device", 900: "not allowed while capturing",
	901: "capture invalidated", 902: "captures cannot merge", 903: "stream is not captured", 904: "capture has unjoined streams",
	905: "capture isolation", 906: "capture depends on the default stream", 907: "captured event", 908: "capture of another thread",
	909: "timeout", 910: "graph cannot be updated that way", 912: "invalid cluster size", 999: "unknown error",
}

func (r Result) Error() string {
	if n, ok := names[r]; ok {
		return n
	}
	return fmt.Sprintf("CUDA error %d", int(r))
}

// Class is what to do about a result.
type Class uint8

const (
	// Refused: this call did nothing, and the context is as it was. Our bug, or a limit.
	Refused Class = iota + 1
	// Memory: refused for want of memory on the device.
	Memory
	// Pending: not an error. What was asked about has not happened yet.
	Pending
	// Lost: the context is destroyed, by some call or kernel before; every later call in it says the same. The
	// process must be replaced.
	Lost
	// DeviceLost: the device does not answer. A new process will not get it either, unless it is reset.
	DeviceLost
)

func (c Class) String() string {
	return [...]string{"none", "refused", "memory", "pending", "lost", "device lost"}[c]
}

// Class says what to do about r. Zero for success.
func (r Result) Class() Class {
	switch r {
	case 0:
		return 0
	case OutOfMemory:
		return Memory
	case NotReady:
		return Pending
	// A card that fell off the bus gives 999 in processes that use it. The driver uses it for other things that
	// it cannot name, and to trust the device after one of those would be wrong too.
	case DeviceUnavailable, Unknown:
		return DeviceLost
	case ECC, 220, 226, IllegalAddress, LaunchTimeout, ContextDestroyed, Assert, 714, 715, 716, 717, 718, LaunchFailed, 721:
		return Lost
	}
	return Refused
}

// ClassOf is the class of the Result in err. Zero if there is none.
func ClassOf(err error) Class {
	var r Result
	if errors.As(err, &r) {
		return r.Class()
	}
	return 0
}

// Error is a call that failed.
type Error struct {
	Call   string // the driver's function, without version suffix
	Device int
	Result Result
	Detail string // what was asked, or what the driver's compiler said; may be empty
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s on gpu %d: %v (%d)", e.Call, e.Device, e.Result, int(e.Result))
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

func (e *Error) Unwrap() error { return e.Result }
