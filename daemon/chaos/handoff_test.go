package chaos

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// memfds lists the memfds that a process has mapped or open, as name and inode.
func memfds(t *testing.T, pid int) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	maps, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(maps)) {
		if f := strings.Fields(l); len(f) >= 6 && strings.HasPrefix(f[5], "/memfd:") {
			out[f[5]+" "+f[4]] = true
		}
	}
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	fds, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		path := filepath.Join(dir, fd.Name())
		name, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(name, "/memfd:") {
			continue // it was closed meanwhile
		}
		var st syscall.Stat_t
		if syscall.Stat(path, &st) == nil {
			out[strings.TrimSuffix(name, " (deleted)")+" "+strconv.FormatUint(st.Ino, 10)] = true
		}
	}
	return out
}

// After a generation change nobody, neither the daemon nor a worker, has any memory of
// the old generation mapped or open. What both have is the weights, which no generation
// owns.
func TestOldMemoryIsGone(t *testing.T) {
	a := start(t, `prefill.devices=["cpu:0", "cpu:1"]`, "prefill.tensor_parallel=2", `decode.devices=["cpu:0", "cpu:1"]`, "decode.tensor_parallel=2", "kv.transport=pull")
	a.mustGet(questions[0])
	processes := func() []int {
		pids := []int{a.cmd.Process.Pid}
		for _, r := range a.status().Ranks {
			pids = append(pids, r.PID)
		}
		return pids
	}
	old := map[string]bool{}
	for _, pid := range processes() {
		for m := range memfds(t, pid) {
			old[m] = true
		}
	}
	if len(old) < 8 {
		t.Fatalf("only %d memfds are seen: %v", len(old), old)
	}
	if err := a.post("/restart", "reason=test"); err != nil {
		t.Fatal(err)
	}
	a.within(10*time.Second, "the next generation", func() bool { s := a.status(); return s.Generation == 2 && s.Ready })
	both := 0
	for _, pid := range processes() {
		for m := range memfds(t, pid) {
			if !old[m] {
				continue
			}
			if both++; !strings.HasPrefix(m, "/memfd:tandem-weights") {
				t.Errorf("process %d has %s of the generation before", pid, m)
			}
		}
	}
	if both == 0 {
		t.Error("not even the weights are seen: the test sees nothing")
	}
}

// The daemon is told to stop while a worker does not run and a client waits for it. It
// stops all the same, and leaves nobody behind.
func TestStopWhileARankIsStopped(t *testing.T) {
	a := start(t, `deadlines.progress="60s"`, `deadlines.token_stall="5s"`)
	begun := make(chan struct{}, 1)
	q := question{prompt: []int32{1, 2, 3}, tokens: 2000}
	q.on = func(pieces int, _ string) {
		if pieces == 3 {
			begun <- struct{}{}
		}
	}
	answer := a.begin([]question{q})
	<-begun
	var pids []int
	for _, r := range a.status().Ranks {
		pids = append(pids, r.PID)
	}
	if err := syscall.Kill(a.pid("decode/0.0"), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.done:
	case <-time.After(30 * time.Second):
		t.Fatal("it did not stop within 30 s")
	}
	if o := <-answer; o.err == nil {
		t.Error("an answer of a worker that was stopped")
	}
	for _, pid := range pids {
		if exists(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
}
