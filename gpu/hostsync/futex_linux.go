package hostsync

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The two operations of futex(2), without FUTEX_PRIVATE_FLAG: the kernel then
// finds a word by the page behind it and not by its address.
const (
	futexOpWait = 0
	futexOpWake = 1
)

// futexWait sleeps while *word is old, for at most d. It may return early for
// any reason, a signal among them.
func futexWait(word *atomic.Uint32, old uint32, d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWait, uintptr(old),
		uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// futexWake wakes all who sleep on word.
func futexWake(word *atomic.Uint32) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWake, math.MaxInt32, 0, 0, 0)
}
