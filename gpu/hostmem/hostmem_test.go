package hostmem

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestReadOnlyDescriptorCannotBeMappedWritable(t *testing.T) {
	r, err := Create("t", 8192)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f, err := r.ReadOnly()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Map(dup(t, f), true); err == nil {
		t.Error("a read-only descriptor was mapped writable")
	}
	ro, err := Map(f, false)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	r.Bytes()[5000] = 7
	if ro.Bytes()[5000] != 7 {
		t.Error("the two mappings are not the same memory")
	}
}

func TestFrozenRegionCannotBeWritten(t *testing.T) {
	r, err := Create("t", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Bytes()[9] = 3
	if err := r.Freeze(0); err != nil {
		t.Fatal(err)
	}
	if r.Bytes()[9] != 3 {
		t.Error("freezing lost a byte")
	}
	if _, err := unix.Pwrite(int(r.File().Fd()), []byte{1}, 0); err == nil {
		t.Error("a frozen region took a write")
	}
	if _, err := Map(dup(t, r.File()), true); err == nil {
		t.Error("a frozen region was mapped writable")
	}
}

func TestFreezeRefusesWhileSomebodyMayWrite(t *testing.T) {
	r, err := Create("t", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w, err := Map(dup(t, r.File()), true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := r.Freeze(0); err == nil {
		t.Error("frozen under a writable mapping")
	}
}

// A process that wrote has been reaped, and somebody still looks at its memory.
func TestFreezeWaitsForTheLastWriter(t *testing.T) {
	r, err := Create("t", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w, err := Map(dup(t, r.File()), true)
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan error)
	go func() {
		time.Sleep(20 * time.Millisecond)
		gone <- w.Close()
	}()
	if err := r.Freeze(time.Minute); err != nil {
		t.Error(err)
	}
	if err := <-gone; err != nil {
		t.Error(err)
	}
}

func dup(t *testing.T, f *os.File) *os.File {
	t.Helper()
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), f.Name())
}
