package drivertest

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"tandem/gpu/driver"
)

const sharedCount = 5000

// role is what a child process does. It reads from the test and prints to it, line by line.
type role struct {
	name string
	run  func(d driver.Driver, in *bufio.Reader) error
}

var roles = []role{{"vmm", func(d driver.Driver, in *bufio.Reader) error { return export(d, in, true) }},
	{"ipc", func(d driver.Driver, in *bufio.Reader) error { return export(d, in, false) }},
	{"astray", astray}}

// child is a process of a role. It is killed at the end of the test.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(t *testing.T, role string, files ...*os.File) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(must(os.Executable())(t))}
	c.cmd.Env = append(os.Environ(), roleVariable+"="+role)
	c.cmd.ExtraFiles = files
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.in = must(c.cmd.StdinPipe())(t)
	c.out = bufio.NewReader(must(c.cmd.StdoutPipe())(t))
	check(t, c.cmd.Start())
	t.Cleanup(c.kill)
	return c
}

func (c *child) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

// hear is the next line, which must come in time.
func (c *child) hear() string {
	c.t.Helper()
	timer := time.AfterFunc(hang, c.kill)
	defer timer.Stop()
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatalf("%q: %v", line, err)
	}
	return strings.TrimSpace(line)
}

func (c *child) say(line string) { fmt.Fprintln(c.in, line) }

// export is a writer: it fills memory, records an event, and hands both over: memory by a descriptor over
// the socket that is descriptor 3, or by name. Then it waits to be killed.
func export(d driver.Driver, in *bufio.Reader, vmm bool) error {
	c, err := d.Open(0)
	if err != nil {
		return err
	}
	s, err := c.NewStream()
	if err != nil {
		return err
	}
	m, err := c.Load(PTX)
	if err != nil {
		return err
	}
	f, err := c.Func(m, "count")
	if err != nil {
		return err
	}
	e, err := c.NewEvent(driver.Interprocess)
	if err != nil {
		return err
	}
	var p driver.Ptr
	var mem driver.Mem
	bytes := int64(64 << 20)
	if vmm {
		if mem, err = c.Create(bytes); err != nil {
			return err
		}
		if p, err = c.Reserve(bytes); err != nil {
			return err
		}
		if err = c.Map(p, bytes, mem); err != nil {
			return err
		}
		if err = c.SetAccess(p, bytes, 0, driver.ReadWrite); err != nil {
			return err
		}
	} else if p, err = c.Alloc(bytes); err != nil {
		return err
	}
	var a driver.Args
	if err := c.Launch(s, f, driver.Grid{Blocks: [3]int{sharedCount/128 + 1}, Threads: [3]int{128}}, a.Ptr(p).U32(100).U32(sharedCount)); err != nil {
		return err
	}
	if err := c.Record(s, e); err != nil {
		return err
	}
	eh, err := c.ExportEvent(e)
	if err != nil {
		return err
	}
	var mh driver.IPCHandle
	if vmm {
		f, err := c.ExportMem(mem)
		if err != nil {
			return err
		}
		if err := syscall.Sendmsg(3, []byte{0}, syscall.UnixRights(int(f.Fd())), nil, 0); err != nil {
			return err
		}
		f.Close()
	} else {
		if mh, err = c.ExportIPC(p); err != nil {
			return err
		}
		if _, err := c.OpenIPC(mh); driver.ClassOf(err) != driver.Refused {
			return fmt.Errorf("opened a name of its own: %w", err)
		}
	}
	fmt.Println(hex.EncodeToString(mh[:]), hex.EncodeToString(eh[:]))
	_, err = in.ReadString('\n')
	return err
}

// processes has another process write memory and hand it over, and kills it: the memory stays with who has it
// open, and is free when that one lets go.
func processes(t *testing.T, r *rig, how string) {
	if how == "vmm" && (!r.Device().VMM || !r.Device().MemFD) {
		t.Skip("the device has no virtual memory management with descriptors")
	}
	free, _ := meminfo(t, r)
	pair := must(syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0))(t)
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	w := start(t, how, theirs)
	theirs.Close()
	line := w.hear()
	var mh, eh driver.IPCHandle
	names := strings.Fields(line)
	if len(names) != 2 {
		t.Fatalf("the writer says %q", line)
	}
	must(hex.Decode(mh[:], []byte(names[0])))(t)
	must(hex.Decode(eh[:], []byte(names[1])))(t)

	var p driver.Ptr
	var closeMemory func()
	if how == "vmm" {
		f := receive(t, pair[0])
		m := must(r.ImportMem(f))(t)
		f.Close()
		const bytes = 64 << 20
		p = must(r.Reserve(bytes))(t)
		check(t, r.Map(p, bytes, m))
		check(t, r.Release(m))
		check(t, r.SetAccess(p, bytes, 0, driver.Read))
		closeMemory = func() {
			check(t, r.Unmap(p, bytes))
			check(t, r.FreeReserved(p, bytes))
		}
	} else {
		p = must(r.OpenIPC(mh))(t)
		// It is not ours to free.
		refused(t, r.Free(p), driver.Refused, driver.Invalid)
		closeMemory = func() {
			check(t, r.CloseIPC(p))
			refused(t, r.CloseIPC(p), driver.Refused)
		}
	}
	e := must(r.OpenEvent(eh))(t)
	check(t, r.WaitEvent(r.s, e))
	q := r.alloc(4 * sharedCount)
	check(t, r.Copy(r.s, q, p, 4*sharedCount))
	counts(t, r.words(q, sharedCount), 100)

	w.kill()
	check(t, r.Fill32(r.s, q, 0, sharedCount))
	check(t, r.Copy(r.s, q, p, 4*sharedCount))
	counts(t, r.words(q, sharedCount), 100)
	// A card's driver takes its time to see that a process is gone, so only the end is waited for.
	if now, _ := meminfo(t, r); now > free-32<<20 {
		t.Errorf("the memory is free while it is open here: %d before, %d now", free, now)
	}
	check(t, r.CloseEvent(e))
	closeMemory()
	eventually(t, "the memory to be free again", func() (bool, error) {
		now, _, err := r.MemInfo()
		return now >= free-32<<20, err // q, and what the context itself took meanwhile
	})
	if how == "ipc" {
		_, err := r.OpenIPC(mh)
		refused(t, err, driver.Refused)
	}
}

func receive(t *testing.T, socket int) *os.File {
	t.Helper()
	oob := make([]byte, syscall.CmsgSpace(4))
	_, n, _, _, err := syscall.Recvmsg(socket, make([]byte, 1), oob, syscall.MSG_CMSG_CLOEXEC)
	check(t, err)
	msgs := must(syscall.ParseSocketControlMessage(oob[:n]))(t)
	if len(msgs) != 1 {
		t.Fatalf("%d control messages", len(msgs))
	}
	fds := must(syscall.ParseUnixRights(&msgs[0]))(t)
	return os.NewFile(uintptr(fds[0]), "memory")
}

// astray faults in a kernel, and says what follows.
func astray(d driver.Driver, in *bufio.Reader) error {
	c, err := d.Open(0)
	if err != nil {
		return err
	}
	m, err := c.Load(PTX)
	if err != nil {
		return err
	}
	f, err := c.Func(m, "astray")
	if err != nil {
		return err
	}
	var a driver.Args
	if err := c.Launch(0, f, driver.Grid{}, &a); err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	for _, err := range []error{c.Sync(), second(c.Alloc(4)), second(c.NewStream())} {
		var r driver.Result
		errors.As(err, &r)
		fmt.Println(int(r), driver.ClassOf(err))
	}
	return nil
}

func second[T any](_ T, err error) error { return err }

// lostContext: after a fault in a kernel every call says so; other processes do not notice.
func lostContext(t *testing.T, r *rig) {
	c := start(t, "astray")
	for range 3 {
		if line := c.hear(); !strings.HasSuffix(line, driver.Lost.String()) {
			t.Errorf("after a fault: %q", line)
		}
	}
	p := r.alloc(4)
	check(t, r.Fill32(r.s, p, 1, 1))
	if w := r.words(p, 1); w[0] != 1 {
		t.Error("another process's context does not work")
	}
}
