package chaos

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tandem/daemon/wire"
)

// Scenarios in which the machine is the trouble: clocks, disks, descriptors.

// F26: the clock on the wall jumps. It cannot be made to jump for one process (a time
// namespace moves only the others), so this looks at the sources: what decides has no
// clock, and what gives it one reads the monotonic one. A time loses its monotonic
// reading when it is rounded, moved to a zone, or made of numbers.
func TestF26_NoDeadlineUsesTheWall(t *testing.T) {
	clocks := strings.Fields("Now Since Until After AfterFunc NewTimer NewTicker Tick Sleep")
	wall := strings.Fields("Unix UnixMilli UnixMicro UnixNano Date Parse UTC Local In Round Truncate AppendFormat")
	look := func(dir string, banned []string) (files int) {
		names, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, "faults_on.go") {
				continue
			}
			files++
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				on, _ := s.X.(*ast.Ident)
				for _, b := range banned {
					if s.Sel.Name == b && (on != nil && on.Name == "time" || reflect.ValueOf(s.X).Elem().Type() == reflect.TypeFor[ast.CallExpr]() && isTime(s.X)) {
						t.Errorf("%s: time's %s", fset.Position(n.Pos()), b)
					}
				}
				return true
			})
		}
		return files
	}
	n := 0
	for _, dir := range strings.Fields("core request transfer supervise admit batch") {
		n += look(dir, append(clocks, wall...))
	}
	for _, dir := range strings.Fields("control generation spawn worker") {
		n += look(dir, wall)
	}
	if n < 20 {
		t.Errorf("only %d files were looked at", n)
	}
}

// isTime reports whether an expression is a call of time.Now.
func isTime(e ast.Expr) bool {
	c, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	on, ok := s.X.(*ast.Ident)
	return ok && on.Name == "time" && s.Sel.Name == "Now"
}

// F27: the clocks of workers are off by seconds, each by its own. Nothing that they
// say has a time in it, so nothing changes.
func TestF27_WorkerClocksDiffer(t *testing.T) {
	for _, m := range []wire.Message{&wire.Setup{}, &wire.Expect{}, &wire.Prefill{}, &wire.Join{}, &wire.Grow{}, &wire.Quiesce{}, &wire.Dump{}, &wire.Stop{}, &wire.Hello{},
		&wire.Ready{}, &wire.Reserved{}, &wire.Sealed{}, &wire.Landed{}, &wire.Verified{}, &wire.Step{}, &wire.Quiet{}, &wire.Failed{}, &wire.Fatal{}, &wire.Dumped{}, &wire.Progress{}} {
		v := reflect.TypeOf(m).Elem()
		for i := range v.NumField() {
			f := v.Field(i)
			if f.Type == reflect.TypeFor[time.Time]() || f.Type == reflect.TypeFor[time.Duration]() {
				t.Errorf("%s.%s is a time", v.Name(), f.Name)
			}
		}
	}
	if out, err := exec.Command("unshare", "--time", "--monotonic", "5", "true").CombinedOutput(); err != nil {
		t.Skipf("this user cannot make a time namespace: %s", out)
	}
	a := prepare(t, faulty, []string{"log.format=json"})
	a.inject("at=start rank=prefill ms=5000 do=skew", "at=start rank=decode/0.0 ms=100000 do=skew")
	a.run()
	a.waitReady()
	before := a.gen()
	ours, err := os.Readlink("/proc/self/ns/time")
	if err != nil {
		t.Fatal(err)
	}
	for _, rank := range []string{"prefill/0.0", "decode/0.0"} {
		if theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/time", a.pid(rank))); err != nil || theirs == ours {
			t.Fatalf("%s has the clock %s, %v", rank, theirs, err)
		}
	}
	a.storm(t, "decoding", 1, func() {})
	a.changed(before, 0)
	a.settled()
}

// F28: the generation cannot be written down, for the disk is full or gone. The one
// that runs serves on; no other starts; that is told; and when there is room again it
// goes on by itself.
func TestF28_DiskFull(t *testing.T) {
	cases := map[string]func(t *testing.T, a *appliance, state string) (end func()){
		"gone": func(t *testing.T, a *appliance, state string) func() {
			if err := os.Rename(state, state+".away"); err != nil {
				t.Fatal(err)
			}
			return func() { _ = os.Rename(state+".away", state) }
		},
		"full": func(t *testing.T, a *appliance, state string) func() {
			fill := filepath.Join(state, "fill")
			f, err := os.Create(fill)
			if err != nil {
				t.Fatal(err)
			}
			for err == nil {
				_, err = f.Write(make([]byte, 4096))
			}
			f.Close()
			return func() { os.Remove(fill) }
		},
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			a := prepare(t, faulty, []string{"log.format=json", `restart.backoff_max="300ms"`})
			state := filepath.Join(a.home, "state")
			if name == "full" {
				if err := os.Mkdir(state, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := unix.Mount("none", state, "tmpfs", 0, "size=64k"); err != nil {
					t.Skipf("this user cannot mount a small disk: %v", err)
				}
				t.Cleanup(func() { _ = unix.Unmount(state, unix.MNT_DETACH) })
			}
			a.run()
			a.waitReady()
			before := a.gen()
			end := spoil(t, a, state)
			if got := a.mustGet(questions[1]).text; got != want(t)[1] {
				t.Errorf("answered %q", got)
			}
			a.changed(before, 0)
			a.signal("decode/0.0", unix.SIGKILL)
			a.within(20*time.Second, "not ready, and why", func() bool { s := a.status(); return !s.Ready && strings.Contains(s.Reason, "generation counter") })
			if n := len(workers(a.cmd.Process.Pid)); n > 0 {
				t.Errorf("%d workers run of a generation that was not written down", n)
			}
			if len(a.events("state.failed")) == 0 {
				t.Error("no event tells of it")
			}
			end()
			a.waitReady()
			if got := a.mustGet(questions[1]).text; got != want(t)[1] {
				t.Errorf("answered %q", got)
			}
			a.settled()
		})
	}
}

// F29: there are no descriptors for another generation. It does not start by halves;
// the reason is told; and when there are, it goes on by itself.
func TestF29_NoDescriptors(t *testing.T) {
	a := startFaulty(t, `restart.backoff_max="300ms"`)
	failures := func() (n int) {
		// Of a file, a memory or a socket: whichever was wanted next.
		for _, e := range slices.Concat(a.events("worker.exit"), a.events("state.failed"), a.events("generation.failed")) {
			if strings.Contains(e.Msg, "too many open files") {
				n++
			}
		}
		return n
	}
	for _, short := range []int{4, 12, 25} { // of what the generation before had
		a.waitReady()
		a.http.CloseIdleConnections()
		g, before, ranks, pid := a.gen(), failures(), len(a.status().Ranks), a.pid("decode/0.0")
		was := a.limit(unix.RLIMIT_NOFILE, uint64(a.holds().fds-short))
		_ = unix.Kill(pid, unix.SIGKILL) // nobody can ask for a status now
		a.within(20*time.Second, "a start failed", func() bool { return failures() > before })
		if n := len(workers(a.cmd.Process.Pid)); n >= ranks {
			t.Errorf("%d workers of a generation that could not be started", n)
		}
		a.limit(unix.RLIMIT_NOFILE, was.Cur)
		a.waitReady()
		if got := a.mustGet(questions[1]).text; got != want(t)[1] {
			t.Errorf("answered %q", got)
		}
		if a.gen() <= g+1 {
			t.Errorf("generation %d follows %d: none failed", a.gen(), g)
		}
		a.settled()
	}
}
