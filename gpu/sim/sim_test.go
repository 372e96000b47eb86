//go:build linux && cgo

package sim_test

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tandem/gpu/driver"
	"tandem/gpu/driver/drivertest"
	"tandem/gpu/driver/nvidia"
	"tandem/gpu/sim"
)

// hang is how long a test waits for what takes no time.
const hang = 60 * time.Second

// Every test here is of processes of their own, since contexts that are ended stay so. A process does what it is
// told line by line, and answers each line by one: "ok", "ok VALUE" or an error.
func TestMain(m *testing.M) {
	if os.Getenv("SIM_TEST_PROCESS") == "" {
		os.Exit(m.Run())
	}
	if err := obey(bufio.NewScanner(os.Stdin)); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// machine is a box, with what processes need to be on it.
type machine struct {
	t *testing.T
	*sim.Box
	env []string
}

func newMachine(t *testing.T, env ...string) *machine {
	t.Helper()
	library, err := sim.Library()
	check(t, err)
	root, err := sim.Root()
	check(t, err)
	kernels, err := sim.Kernels("libdrivertest.so", []string{filepath.Join(root, "gpu/driver/drivertest/kernels/kernels.cc")}, nil)
	check(t, err)
	box, err := sim.NewBox(filepath.Join(t.TempDir(), "box"))
	check(t, err)
	t.Cleanup(func() { check(t, box.Close()) })
	return &machine{t, box, append([]string{"SIM_TEST_PROCESS=1", "SIM_TEST_LIBRARY=" + library, "CUSIM_KERNELS=" + kernels, "CUSIM_CONTROL=" + box.Path()}, env...)}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// process is one that obeys. It is killed at the end of the test.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func (m *machine) start(env ...string) *process {
	m.t.Helper()
	p := &process{t: m.t, cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(append(os.Environ(), m.env...), env...)
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := p.cmd.StdinPipe()
	check(m.t, err)
	out, err := p.cmd.StdoutPipe()
	check(m.t, err)
	p.in, p.out = in, bufio.NewReader(out)
	check(m.t, p.cmd.Start())
	m.t.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

func (p *process) tell(format string, a ...any) { fmt.Fprintf(p.in, format+"\n", a...) }

func (p *process) answer() string {
	p.t.Helper()
	timer := time.AfterFunc(hang, p.kill)
	defer timer.Stop()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("%q: %v", line, err)
	}
	return strings.TrimSpace(line)
}

// ok has the process do something that must succeed, and returns the value.
func (p *process) ok(format string, a ...any) string {
	p.t.Helper()
	p.tell(format, a...)
	got := p.answer()
	if got != "ok" && !strings.HasPrefix(got, "ok ") {
		p.t.Fatalf("%s: %s", fmt.Sprintf(format, a...), got)
	}
	return strings.TrimPrefix(strings.TrimPrefix(got, "ok"), " ")
}

// fails has the process do something that must fail so.
func (p *process) fails(class driver.Class, r driver.Result, format string, a ...any) {
	p.t.Helper()
	p.tell(format, a...)
	if got, want := p.answer(), fmt.Sprintf("%v %d", class, int(r)); got != want {
		p.t.Errorf("%s: got %q, want %q", fmt.Sprintf(format, a...), got, want)
	}
}

// obey is such a process. Memory and streams go by names that the commands give them.
func obey(in *bufio.Scanner) error {
	d, err := nvidia.Open(nvidia.Options{Library: os.Getenv("SIM_TEST_LIBRARY")})
	if err != nil {
		return err
	}
	contexts := map[string]driver.Context{}
	memory := map[string]driver.Ptr{}
	streams := map[string]driver.Stream{}
	functions := map[string]driver.Func{}
	for in.Scan() {
		w := strings.Fields(in.Text())
		num := func(i int) int64 {
			n, err := strconv.ParseInt(w[i], 0, 64)
			if err != nil {
				panic(err)
			}
			return n
		}
		var c driver.Context
		if w[0] != "open" && w[0] != "devices" && w[0] != "peer" {
			c = contexts[w[1]]
		}
		s := driver.Stream(0)
		if c != nil {
			s = streams[w[1]]
		}
		var said any
		var err error
		switch w[0] {
		case "devices":
			var ids []string
			for _, v := range d.Devices() {
				ids = append(ids, fmt.Sprint(v.UUID[15]))
			}
			said = strings.Join(ids, " ")
		case "peer": // from to
			var p driver.Peer
			p, err = d.Peer(int(num(1)), int(num(2)))
			said = p.Access
		case "open": // ordinal: a context and a stream of that name
			if c, err = d.Open(int(num(1))); err != nil {
				break
			}
			contexts[w[1]] = c
			if streams[w[1]], err = c.NewStream(); err != nil {
				break
			}
			var m driver.Module
			if m, err = c.Load(drivertest.PTX); err != nil {
				break
			}
			for _, f := range []string{"count", "astray"} {
				if functions[w[1]+f], err = c.Func(m, f); err != nil {
					break
				}
			}
		case "alloc": // ordinal name bytes
			memory[w[2]], err = c.Alloc(num(3))
		case "free": // ordinal name
			err = c.Free(memory[w[2]])
		case "available":
			said, _, err = c.MemInfo()
		case "export":
			var h driver.IPCHandle
			h, err = c.ExportIPC(memory[w[2]])
			said = fmt.Sprintf("%x", h)
		case "import": // ordinal name handle
			var h driver.IPCHandle
			if _, err = hex.Decode(h[:], []byte(w[3])); err != nil {
				break
			}
			memory[w[2]], err = c.OpenIPC(h)
		case "close":
			err = c.CloseIPC(memory[w[2]])
		case "virtual": // ordinal name: 2 MiB, mapped; access is asked for by "access"
			const bytes = 2 << 20
			var m driver.Mem
			if m, err = c.Create(bytes); err != nil {
				break
			}
			if memory[w[2]], err = c.Reserve(bytes); err != nil {
				break
			}
			err = c.Map(memory[w[2]], bytes, m)
		case "access": // ordinal name device access
			err = c.SetAccess(memory[w[2]], 2<<20, int(num(3)), driver.Access(num(4)))
		case "reach": // ordinal other
			err = c.EnablePeer(contexts[w[2]])
		case "fill": // ordinal name value count
			err = c.Fill32(s, memory[w[2]], uint32(num(3)), num(4))
		case "copy": // ordinal to from bytes
			err = c.Copy(s, memory[w[2]], memory[w[3]], num(4))
		case "count": // ordinal name first
			var a driver.Args
			err = c.Launch(s, functions[w[1]+"count"], driver.Grid{Threads: [3]int{32}}, a.Ptr(memory[w[2]]).U32(uint32(num(3))).U32(32))
		case "astray":
			err = c.Launch(s, functions[w[1]+"astray"], driver.Grid{}, &driver.Args{})
		case "short": // arguments that do not fill the parameters
			var a driver.Args
			err = c.Launch(s, functions[w[1]+"count"], driver.Grid{}, a.Ptr(memory[w[2]]).U32(1))
		case "sync":
			err = c.SyncStream(s)
		case "done":
			said, err = c.Done(s)
		case "word": // ordinal name: the first word, after all that was queued
			if err = c.SyncStream(s); err != nil {
				break
			}
			b := make([]byte, 4)
			err = c.Read(b, memory[w[2]])
			said = uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
		case "nil": // a nil dereference of Go's is still a panic
			said = func() (got any) {
				defer func() { got = recover() != nil }()
				var p *int
				return *p
			}()
		default:
			return fmt.Errorf("what is %q?", in.Text())
		}
		var r driver.Result
		switch {
		case errors.As(err, &r):
			fmt.Println(r.Class(), int(r))
		case err != nil:
			return err
		case said != nil:
			fmt.Println("ok", said)
		default:
			fmt.Println("ok")
		}
	}
	return in.Err()
}

func (p *process) open(ordinals ...int) *process {
	p.t.Helper()
	for _, o := range ordinals {
		p.ok("open %d", o)
	}
	return p
}

func (p *process) word(ordinal int, name string, want int) {
	p.t.Helper()
	if got := p.ok("word %d %s", ordinal, name); got != strconv.Itoa(want) {
		p.t.Errorf("%s on card %d: the word is %s, want %d", name, ordinal, got, want)
	}
}

func TestVisibleDevices(t *testing.T) {
	m := newMachine(t)
	if got := m.start().ok("devices"); got != "0 1 2 3 4 5 6 7" {
		t.Errorf("all: %s", got)
	}
	if got := m.start("CUDA_VISIBLE_DEVICES=3,GPU-c0510000-0000-4000-8000-000000000001,x,2").ok("devices"); got != "3 1" {
		t.Errorf("some: %s", got)
	}
}

func TestFaultOfOneProcess(t *testing.T) {
	m := newMachine(t)
	a, b := m.start().open(0, 1), m.start().open(0)
	for _, p := range []*process{a, b} {
		p.ok("alloc 0 x 4")
	}
	m.Fault(0, int(driver.ECC), a.cmd.Process.Pid)
	a.fails(driver.Lost, driver.ECC, "sync 0")
	a.fails(driver.Lost, driver.ECC, "alloc 0 y 4")
	a.fails(driver.Lost, driver.ECC, "free 0 x")
	a.ok("alloc 1 y 4")
	b.ok("fill 0 x 5 1")
	b.word(0, "x", 5)
	// A context that was ended stays so; those of other processes never were.
	m.Fault(0, 0, 0)
	a.fails(driver.Lost, driver.ECC, "sync 0")
	m.start().open(0)
}

func TestLostDevice(t *testing.T) {
	m := newMachine(t)
	a := m.start().open(2, 3)
	a.ok("alloc 2 x 4096")
	m.Lose(2, int(driver.Unknown))
	for _, c := range []string{"sync 2", "alloc 2 y 4", "word 2 x", "available 2", "free 2 x", "peer 2 3", "peer 3 2"} {
		a.fails(driver.DeviceLost, driver.Unknown, "%s", c)
	}
	a.ok("alloc 3 y 4")
	m.Lose(2, 0)
	a.fails(driver.DeviceLost, driver.Unknown, "sync 2")
	m.start().open(2)
}

func TestMemoryIsOfTheMachine(t *testing.T) {
	m := newMachine(t)
	a, b := m.start().open(0, 1), m.start().open(0)
	all := b.ok("available 0")
	a.ok("alloc 0 x %d", 90<<30)
	b.fails(driver.Memory, driver.OutOfMemory, "alloc 0 y %d", 10<<30)
	b.ok("alloc 0 y %d", 5<<30)
	a.ok("alloc 1 y %d", 90<<30)
	b.ok("free 0 y")
	a.kill()
	if got := b.ok("available 0"); got != all {
		t.Errorf("%s bytes are free after the holder was killed, were %s", got, all)
	}
	b.ok("alloc 0 y %d", 95<<30)

	m.Exhaust(0, true)
	b.fails(driver.Memory, driver.OutOfMemory, "alloc 0 z 4")
	m.Exhaust(0, false)
	b.ok("alloc 0 z 4")
}

func TestMemoryIsKeptByWhoOpenedIt(t *testing.T) {
	m := newMachine(t)
	a, b := m.start().open(0), m.start().open(0, 1)
	all := b.ok("available 0")
	a.ok("alloc 0 x %d", 8<<20)
	a.ok("fill 0 x 7 100")
	a.word(0, "x", 7)
	name := a.ok("export 0 x")
	a.fails(driver.Refused, driver.InvalidContext, "import 0 y %s", name)
	b.ok("import 1 x %s", name)
	b.fails(driver.Refused, driver.Invalid, "free 1 x")
	a.kill()
	b.word(1, "x", 7)
	if got := b.ok("available 0"); got == all {
		t.Error("memory that is open is free")
	}
	b.ok("close 1 x")
	if got := b.ok("available 0"); got != all {
		t.Errorf("%s bytes are free, were %s", got, all)
	}
	b.fails(driver.Refused, driver.Invalid, "import 1 x %s", name)

	// The other way round: who opened it dies, and holds nothing.
	b.ok("alloc 0 z %d", 8<<20)
	name = b.ok("export 0 z")
	c := m.start().open(0)
	c.ok("import 0 z %s", name)
	c.ok("fill 0 z 9 1")
	c.word(0, "z", 9)
	c.kill()
	b.word(0, "z", 9)
	b.ok("free 0 z")
	if got := b.ok("available 0"); got != all {
		t.Errorf("%s bytes are free, were %s", got, all)
	}
	// A name of memory that is freed leads nowhere, also when its number is used again.
	b.ok("alloc 0 w %d", 8<<20)
	m.start().open(0).fails(driver.Refused, driver.Invalid, "import 0 z %s", name)
}

func TestHungStreams(t *testing.T) {
	m := newMachine(t)
	a := m.start().open(0, 1)
	a.ok("alloc 0 x 4096")
	a.ok("fill 0 x 1 1")
	a.word(0, "x", 1)
	m.Hang(0, true)
	a.ok("count 0 x 50")
	time.Sleep(5 * time.Millisecond)
	if got := a.ok("done 0"); got != "false" {
		t.Errorf("done while it hangs: %s", got)
	}
	a.ok("sync 1")
	m.Hang(0, false)
	a.ok("sync 0")
	a.word(0, "x", 50)
	// Who waits is told when the context ends.
	m.Hang(0, true)
	a.ok("count 0 x 60")
	a.tell("sync 0")
	time.Sleep(5 * time.Millisecond)
	m.Fault(0, int(driver.LaunchTimeout), 0)
	if got := a.answer(); got != "lost 702" {
		t.Errorf("got %q", got)
	}
}

func TestWiresBetweenDevices(t *testing.T) {
	m := newMachine(t)
	a := m.start().open(0, 1)
	a.ok("alloc 0 x 4096")
	a.ok("alloc 1 y 4096")
	a.ok("reach 0 1")
	a.ok("reach 1 0")
	set := func(value int) {
		a.ok("fill 0 x %d 1024", value)
		a.ok("sync 0")
	}
	push := func() { a.ok("copy 0 y x 4096"); a.ok("sync 0") }
	pull := func() { a.ok("copy 1 y x 4096"); a.ok("sync 1") }

	set(1)
	push()
	a.word(1, "y", 1)
	if n := m.Copied(0, 1); n != 4096 || m.Copied(1, 0) != 0 {
		t.Errorf("%d bytes copied from 0 to 1, %d back", n, m.Copied(1, 0))
	}
	m.Wire(0, 1, sim.DropWrites)
	set(2)
	push()
	a.word(1, "y", 1)
	pull()
	a.word(1, "y", 2)
	// The other direction is in order.
	a.ok("copy 1 x y 4096")
	a.ok("sync 1")
	a.word(0, "x", 2)

	// A word in the middle is wrong: the last word of the first half, seen through a smaller copy.
	m.Wire(0, 1, sim.CorruptWrites)
	set(3)
	a.ok("copy 0 y x 2")
	a.ok("sync 0")
	if got := a.ok("word 1 y"); got == "3" || got == "2" {
		t.Errorf("a damaged copy arrived as %s", got)
	}
	pull()
	a.word(1, "y", 3)
	m.Wire(0, 1, sim.CorruptReads)
	push()
	a.word(1, "y", 3)
	a.ok("copy 1 y x 2")
	a.ok("sync 1")
	if got := a.ok("word 1 y"); got == "3" {
		t.Error("a damaged read arrived whole")
	}
	m.Wire(0, 1, 0)
	push()
	a.word(1, "y", 3)
}

func TestUnreachableMemory(t *testing.T) {
	m := newMachine(t)
	m.NoPeer(3, true)
	a := m.start().open(0, 1, 2, 3)
	for i := range 4 {
		a.ok("alloc %d m%d 4096", i, i)
	}
	if got := a.ok("peer 0 1") + a.ok("peer 0 3") + a.ok("peer 3 0"); got != "truefalsefalse" {
		t.Errorf("claims of access: %s", got)
	}
	a.fails(driver.Refused, driver.PeerUnsupported, "reach 0 3")
	// Copies go by way of the host, and count as no direct ones.
	a.ok("fill 1 m1 8 4")
	a.ok("sync 1")
	a.ok("copy 0 m0 m1 16")
	a.ok("sync 0")
	a.word(0, "m0", 8)
	if n := m.Copied(1, 0); n != 0 {
		t.Errorf("%d bytes copied directly without access", n)
	}
	// Kernels do not.
	a.ok("count 0 m1 1")
	a.fails(driver.Lost, driver.IllegalAddress, "sync 0")
	a.ok("reach 1 2")
	a.ok("count 1 m2 5")
	a.ok("sync 1")
	a.word(2, "m2", 5)
}

func TestFaultsEndTheContext(t *testing.T) {
	m := newMachine(t)
	for name, commands := range map[string][]string{
		"copy beyond the target":   {"copy 0 x y 8192"},
		"copy beyond the source":   {"copy 0 y x 8192"},
		"fill beyond":              {"fill 0 x 1 2000"},
		"kernel where nothing is":  {"astray 0"},
		"kernel into what is read": {"virtual 0 v", "access 0 v 0 1", "count 0 v 1"},
		"copy into what is read":   {"virtual 0 v", "access 0 v 0 1", "copy 0 v x 16"},
		"mapped, no access":        {"virtual 0 v", "count 0 v 1"},
		"another card's access":    {"virtual 0 v", "access 0 v 1 3", "fill 0 v 1 1"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &machine{t, m.Box, m.env}
			a := m.start().open(0, 1)
			a.ok("alloc 0 x 4096")
			a.ok("alloc 0 y 16384")
			for _, c := range commands {
				a.ok("%s", c)
			}
			a.fails(driver.Lost, driver.IllegalAddress, "sync 0")
			a.fails(driver.Lost, driver.IllegalAddress, "alloc 0 z 4")
			a.ok("alloc 1 z 4")
			a.ok("fill 1 z 3 1")
			a.ok("sync 1")
			a.word(1, "z", 3)
		})
	}
}

func TestRefusals(t *testing.T) {
	a := newMachine(t).start().open(0)
	a.ok("alloc 0 x 4096")
	a.fails(driver.Refused, driver.Invalid, "short 0 x")
	a.ok("virtual 0 v")
	a.fails(driver.Refused, driver.Invalid, "export 0 v")
	a.fails(driver.Refused, driver.Invalid, "free 0 v")
	a.ok("access 0 v 0 3")
	a.ok("count 0 v 9")
	a.ok("sync 0")
	a.word(0, "v", 9)
}

// The simulated driver catches faults of its streams' threads. All others are Go's, as before.
func TestGoPanicsAsBefore(t *testing.T) {
	a := newMachine(t).start().open(0, 1)
	a.ok("astray 0")
	a.fails(driver.Lost, driver.IllegalAddress, "sync 0")
	if got := a.ok("nil 1"); got != "true" {
		t.Errorf("recovered a panic: %s", got)
	}
}

func TestLaunchesAreCounted(t *testing.T) {
	m := newMachine(t)
	a := m.start().open(4)
	a.ok("alloc 4 x 4096")
	for range 3 {
		a.ok("count 4 x 1")
	}
	a.ok("sync 4")
	if n := m.Launches(4); n != 3 {
		t.Errorf("%d launches", n)
	}
}
