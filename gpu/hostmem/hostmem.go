// Package hostmem is page-aligned host memory that another process can map: a
// memfd, passed by descriptor, nameless. Who may write is decided by which
// descriptor a process was given, not by agreement.
package hostmem

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Region is a memfd and, where this process mapped it, its bytes. It belongs to
// whoever created or mapped it, until Close.
type Region struct {
	file *os.File
	mem  []byte
	once sync.Once
}

// Create makes a region of size zero bytes, mapped read-write. The name shows in
// /proc/PID/maps and nowhere else. No memory is taken until a page is written.
func Create(name string, size int64) (*Region, error) {
	fd, err := unix.MemfdCreate("tandem-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("shared memory %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.Ftruncate(fd, size); err != nil {
		f.Close()
		return nil, fmt.Errorf("shared memory %s of %d bytes: %w", name, size, err)
	}
	r, err := Map(f, true)
	if err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

// Map maps all of f, whose size is read from f itself. It takes over f, also
// when it fails to map.
func Map(f *os.File, writable bool) (*Region, error) {
	r := &Region{file: f}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("shared memory %s: %w", f.Name(), err)
	}
	if st.Size() == 0 {
		return r, nil
	}
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	r.mem, err = unix.Mmap(int(f.Fd()), 0, int(st.Size()), prot, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("map shared memory %s of %d bytes: %w", f.Name(), st.Size(), err)
	}
	return r, nil
}

// Bytes is the mapped memory, valid until Close.
func (r *Region) Bytes() []byte { return r.mem }

// File is the descriptor to pass on. It remains the region's.
func (r *Region) File() *os.File { return r.file }

// ReadOnly opens the region anew for reading alone: a process that gets this
// descriptor cannot map the memory writable. The caller closes it.
func (r *Region) ReadOnly() (*os.File, error) {
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", r.file.Fd()))
	if err != nil {
		return nil, fmt.Errorf("shared memory %s: reopen for reading: %w", r.file.Name(), err)
	}
	return f, nil
}

// Freeze unmaps the region here and forbids every later write to it, by anyone,
// for as long as it exists. Bytes is a read-only mapping after it.
//
// It fails while another process has the region mapped writable, for longer than
// patience. Patience is needed after a process that wrote was reaped: its memory
// outlives it for as long as somebody looks at it through /proc.
func (r *Region) Freeze(patience time.Duration) error {
	if r.mem != nil {
		if err := unix.Munmap(r.mem); err != nil {
			return err
		}
		r.mem = nil
	}
	seals := unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	for limit := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		_, err := unix.FcntlInt(r.file.Fd(), unix.F_ADD_SEALS, seals)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EBUSY) || !time.Now().Before(limit) {
			return fmt.Errorf("shared memory %s: forbid writing: %w", r.file.Name(), err)
		}
	}
	st, err := r.file.Stat()
	if err != nil {
		return err
	}
	r.mem, err = unix.Mmap(int(r.file.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	return err
}

// Huge asks the kernel for large pages. It is advice: the kernel may not have them.
func (r *Region) Huge() {
	if len(r.mem) > 0 {
		_ = unix.Madvise(r.mem, unix.MADV_HUGEPAGE)
	}
}

// Close unmaps and closes. Other processes keep their own mappings.
func (r *Region) Close() error {
	var err error
	r.once.Do(func() {
		if r.mem != nil {
			err = unix.Munmap(r.mem)
			r.mem = nil
		}
		if e := r.file.Close(); err == nil {
			err = e
		}
	})
	return err
}

// Word32 is the 32-bit word at the start of b, which other processes may map too.
func Word32(b []byte) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&b[:4][0])) }
