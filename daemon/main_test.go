package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tandem/daemon/admin"
	"tandem/daemon/cli"
	"tandem/model/modeltest"
)

// The tests below run the whole program. Under the name tandem this test binary is
// that program, workers included, so they run with the race detector wherever
// the tests do.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "tandem" {
		main()
	}
	code := m.Run()
	if dir := filepath.Dir(program()); dir != "." {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// program is a copy of this binary under its other name, where every user can
// run it; "" if it cannot be made.
var program = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", "tandem-bin-")
	if err != nil {
		return ""
	}
	path := filepath.Join(dir, "tandem")
	if errors.Join(os.Chmod(dir, 0o755), copyFile(path, "/proc/self/exe")) != nil {
		os.RemoveAll(dir)
		return ""
	}
	return path
})

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// limit bounds the wait for anything that should happen: far more than it takes
// on a busy machine under the race detector, so that only what never comes fails.
const limit = 2 * time.Minute

// home is a user's home of its own: state, sockets and models are in it.
type home struct {
	t   *testing.T
	dir string
}

// newHome makes one with a short path, as sockets need.
func newHome(t *testing.T) home {
	t.Helper()
	if program() == "" {
		t.Fatal("no copy of the program could be made")
	}
	dir, err := os.MkdirTemp("", "tandem-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return home{t, dir}
}

func (h home) path(name string) string { return filepath.Join(h.dir, name) }

// write makes a file in the home and returns its path.
func (h home) write(name, text string) string {
	h.t.Helper()
	if err := os.WriteFile(h.path(name), []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
	return h.path(name)
}

// command is a command line of tandem in this home. It is killed when the test ends.
func (h home) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit)
	h.t.Cleanup(cancel)
	c := exec.CommandContext(ctx, program(), args...)
	c.Dir = h.dir
	c.Env = []string{"HOME=" + h.dir, "XDG_STATE_HOME=" + h.path("state"), "XDG_DATA_HOME=" + h.path("data"), "XDG_RUNTIME_DIR=" + h.path("run")}
	for _, name := range []string{"PATH", "TMPDIR", "GORACE", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			c.Env = append(c.Env, name+"="+v)
		}
	}
	c.WaitDelay = 5 * time.Second
	return c
}

// run runs a command line to its end.
func (h home) run(args ...string) (stdout, stderr string, code int) {
	h.t.Helper()
	return finish(h.t, h.command(args...))
}

func finish(t *testing.T, c *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	c.Stdout, c.Stderr = &o, &e
	var exit *exec.ExitError
	if err := c.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", c.Args, err)
	}
	return o.String(), e.String(), c.ProcessState.ExitCode()
}

// serving are the arguments of serve in tests, with more settings.
func (h home) serving(settings ...string) []string {
	args := []string{"serve", "--set", "server.listen=127.0.0.1:0", "--set", "log.format=json", "--set", "kv.cpu_bytes=256MiB"}
	for _, s := range settings {
		args = append(args, "--set", s)
	}
	return args
}

// told is one event that the daemon logged.
type told struct {
	Level, Event, Msg, Reason, Address string
}

// appliance is a daemon that runs.
type appliance struct {
	t    *testing.T
	home home
	cmd  *exec.Cmd
	url  string
	done chan struct{} // closed when it has ended and all it said was read

	mu    sync.Mutex
	lines []told
	raw   strings.Builder
	more  chan struct{} // closed and replaced when lines grow
}

// begin starts a daemon and does not wait for anything.
func begin(h home, c *exec.Cmd) *appliance {
	h.t.Helper()
	a := &appliance{t: h.t, home: h, cmd: c, done: make(chan struct{}), more: make(chan struct{})}
	r, w, err := os.Pipe()
	if err != nil {
		h.t.Fatal(err)
	}
	c.Stdout, c.Stderr = w, w
	if err := c.Start(); err != nil {
		h.t.Fatal(err)
	}
	w.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer r.Close()
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			var l told
			_ = json.Unmarshal(lines.Bytes(), &l)
			a.mu.Lock()
			a.lines = append(a.lines, l)
			fmt.Fprintln(&a.raw, lines.Text())
			close(a.more)
			a.more = make(chan struct{})
			a.mu.Unlock()
		}
	}()
	go func() {
		_ = c.Wait()
		<-read
		close(a.done)
	}()
	h.t.Cleanup(a.end)
	return a
}

// start starts a daemon that serves the demo model and waits until it is ready.
func start(h home, settings ...string) *appliance {
	h.t.Helper()
	a := begin(h, h.command(h.serving(append([]string{"model.path=" + modeltest.Path(h.t)}, settings...)...)...))
	a.url = a.await("ready").Address
	return a
}

// await waits for an event and returns it.
func (a *appliance) await(event string) told {
	a.t.Helper()
	end := time.After(limit)
	for {
		a.mu.Lock()
		i := slices.IndexFunc(a.lines, func(l told) bool { return l.Event == event })
		more := a.more
		if i >= 0 {
			defer a.mu.Unlock()
			return a.lines[i]
		}
		a.mu.Unlock()
		select {
		case <-more:
		case <-a.done:
			a.t.Fatalf("the daemon ended and never said %s:\n%s", event, a.log())
		case <-end:
			a.t.Fatalf("the daemon does not say %s:\n%s", event, a.log())
		}
	}
}

func (a *appliance) log() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.raw.String()
}

// signal sends the daemon a signal.
func (a *appliance) signal(s syscall.Signal) {
	a.t.Helper()
	if err := a.cmd.Process.Signal(s); err != nil {
		a.t.Fatal(err)
	}
}

// exit waits for the daemon's end and returns its exit code.
func (a *appliance) exit() int {
	a.t.Helper()
	select {
	case <-a.done:
	case <-time.After(limit):
		a.signal(syscall.SIGABRT)
		<-a.done
		a.t.Fatalf("the daemon does not end:\n%s", a.log())
	}
	return a.cmd.ProcessState.ExitCode()
}

// end ends it with the test and looks whether it said something alarming.
func (a *appliance) end() {
	select {
	case <-a.done:
	default:
		_ = a.cmd.Process.Signal(syscall.SIGTERM)
		a.exit()
	}
	for _, alarm := range []string{"DATA RACE", "panic: ", "fatal error: "} {
		if strings.Contains(a.log(), alarm) {
			a.t.Errorf("%s:\n%s", alarm, a.log())
		}
	}
}

// status is what `tandem status` finds.
func (a *appliance) status() admin.Status {
	a.t.Helper()
	out, stderr, code := a.home.run("status", "--json")
	var s admin.Status
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != cli.ExitDone {
		a.t.Fatalf("tandem status: exit status %d, %v\n%s%s", code, err, out, stderr)
	}
	return s
}

// workers are the processes of the generation.
func (a *appliance) workers() []int {
	a.t.Helper()
	var pids []int
	for _, r := range a.status().Ranks {
		pids = append(pids, r.PID)
	}
	if len(pids) < 2 {
		a.t.Fatalf("workers: %v", pids)
	}
	return pids
}

// alive are those of pids that run. One that only waits for its parent to take
// notice does not.
func alive(pids []int) []int {
	return slices.DeleteFunc(slices.Clone(pids), func(pid int) bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return true
		}
		_, rest, _ := bytes.Cut(b, []byte(") "))
		return len(rest) > 0 && (rest[0] == 'Z' || rest[0] == 'X')
	})
}

// eventually waits until a condition holds that nobody announces.
func eventually(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(within); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not after %v: %s", within, what)
		}
	}
}

// answer is an answer that is being streamed.
type answer struct {
	id   string // of the request
	body io.ReadCloser
	in   *bufio.Scanner
	text strings.Builder
	over bool // the stream came to its proper end
}

// question is a prompt whose most likely answer is long.
const question = "Once upon a time"

// ask begins an answer of n tokens at most, always the same for the same model.
func ask(ctx context.Context, c *http.Client, url, prompt string, n int) (*answer, error) {
	body, err := json.Marshal(map[string]any{"model": "smollm2-135m", "prompt": prompt, "max_tokens": n, "temperature": 0, "stream": true})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
		return nil, &refusal{resp.StatusCode, resp.Header.Get("Retry-After"), string(b)}
	}
	a := &answer{id: resp.Header.Get("X-Request-Id"), body: resp.Body, in: bufio.NewScanner(resp.Body)}
	a.in.Buffer(nil, 1<<20)
	return a, nil
}

// refusal is an answer other than 200.
type refusal struct {
	status     int
	retryAfter string
	body       string
}

func (r *refusal) Error() string { return fmt.Sprintf("status %d: %s", r.status, r.body) }

// piece reads the next piece of the answer; false at its end.
func (a *answer) piece() (bool, error) {
	for a.in.Scan() {
		data, ok := strings.CutPrefix(a.in.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			a.over = true
			continue
		}
		var ev struct {
			Choices []struct{ Text string }
			Error   *struct{ Message string }
		}
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			return false, fmt.Errorf("%s: %w", data, err)
		}
		if ev.Error != nil {
			return false, errors.New(ev.Error.Message)
		}
		for _, c := range ev.Choices {
			a.text.WriteString(c.Text)
		}
		return true, nil
	}
	if err := a.in.Err(); err != nil {
		return false, err
	}
	if !a.over {
		return false, errors.New("the stream ended before its end")
	}
	return false, nil
}

// rest reads to the end and returns the whole text.
func (a *answer) rest() (string, error) {
	defer a.body.Close()
	for {
		if more, err := a.piece(); !more {
			return a.text.String(), err
		}
	}
}

// answer is the whole answer to a prompt.
func (a *appliance) answer(n int) string {
	a.t.Helper()
	s, err := ask(a.t.Context(), http.DefaultClient, a.url, question, n)
	if err != nil {
		a.t.Fatal(err)
	}
	text, err := s.rest()
	if err != nil || text == "" {
		a.t.Fatalf("the answer is %q: %v", text, err)
	}
	return text
}

// answering begins an answer and returns when a part of it is there.
func (a *appliance) answering(n int) *answer {
	a.t.Helper()
	s, err := ask(a.t.Context(), http.DefaultClient, a.url, question, n)
	if err != nil {
		a.t.Fatal(err)
	}
	for s.text.Len() == 0 {
		if more, err := s.piece(); !more {
			a.t.Fatalf("no text came: %v", err)
		}
	}
	return s
}

func TestServeAnswersAndEndsWhenToldTo(t *testing.T) {
	h := newHome(t)
	a := start(h)
	s := a.status()
	if !s.Ready || s.Generation != 1 || s.PID != a.cmd.Process.Pid {
		t.Errorf("status: %+v", s)
	}
	if first, second := a.answer(24), a.answer(24); first != second {
		t.Errorf("the same prompt was answered differently:\n%q\n%q", first, second)
	}
	workers := a.workers()
	a.signal(syscall.SIGTERM)
	if code := a.exit(); code != cli.ExitDone {
		t.Errorf("exit status %d:\n%s", code, a.log())
	}
	a.await("stopped")
	if left := alive(workers); len(left) > 0 {
		t.Errorf("workers %v outlived the daemon", left)
	}

	_, stderr, code := h.run("status")
	if code != cli.ExitFailed || !strings.Contains(stderr, "no daemon found") || !strings.Contains(stderr, h.path("run/tandem/admin.sock")) {
		t.Errorf("status without a daemon: exit status %d, %s", code, stderr)
	}
}

// TestAnswerInProgressIsFinished: who is told to stop keeps its promises first.
func TestAnswerInProgressIsFinished(t *testing.T) {
	a := start(newHome(t))
	const tokens = 400 // takes long enough to be in progress when the signal comes
	whole := a.answer(tokens)
	s := a.answering(tokens)
	a.signal(syscall.SIGTERM)
	a.await("stopping")
	if s.text.Len() >= len(whole) {
		t.Fatal("the answer was complete before the signal")
	}
	text, err := s.rest()
	if err != nil || text != whole {
		t.Errorf("%v; the answer is\n%q\nand should be\n%q", err, text, whole)
	}
	if code := a.exit(); code != cli.ExitDone {
		t.Errorf("exit status %d:\n%s", code, a.log())
	}
}

// TestNothingOutlivesAKilledDaemon kills the daemon in the middle of an answer. It
// has no chance to clean up, and its workers must be gone all the same: within two
// seconds, so that a service manager's next start finds their memory free. The
// next daemon takes the folder over and counts on.
func TestNothingOutlivesAKilledDaemon(t *testing.T) {
	h := newHome(t)
	a := start(h)
	whole := a.answer(24)
	before, workers := a.status().Generation, a.workers()
	s := a.answering(400)
	a.signal(syscall.SIGKILL)
	eventually(t, 2*time.Second, "the workers are gone", func() bool { return len(alive(workers)) == 0 })
	a.exit()
	if _, err := s.rest(); err == nil {
		t.Error("the answer of a killed daemon looks complete")
	}

	b := start(h)
	if after := b.status().Generation; after <= before {
		t.Errorf("generation %d after %d", after, before)
	}
	if text := b.answer(24); text != whole {
		t.Errorf("the next daemon answers %q, not %q", text, whole)
	}
}

func TestSecondDaemonNamesTheFirst(t *testing.T) {
	h := newHome(t)
	a := start(h)
	_, stderr, code := h.run(h.serving("model.path=" + modeltest.Path(t))...)
	complaint(t, stderr, code, cli.ExitFailed, "state.locked", "in use by another tandem serve", fmt.Sprintf("process %d", a.cmd.Process.Pid), "server.state_dir")
	if !a.status().Ready {
		t.Error("the first daemon suffered")
	}
}

// complaint checks that a daemon that did not start said why in one entry, with
// what to do, and ended with the right code.
func complaint(t *testing.T, stderr string, code, want int, event string, says ...string) {
	t.Helper()
	if code != want {
		t.Errorf("exit status %d, not %d", code, want)
	}
	var errs []told
	for l := range strings.Lines(stderr) {
		var e told
		if json.Unmarshal([]byte(l), &e) != nil {
			// Before it knows the format it writes text.
			_, rest, ok := strings.Cut(l, " error ")
			if !ok {
				t.Errorf("a line that is neither JSON nor an error: %s", l)
			}
			_, e.Event, _ = strings.Cut(strings.TrimSpace(l), " event=")
			e.Level, e.Msg = "error", rest
		}
		if e.Level == "error" {
			errs = append(errs, e)
		}
	}
	if len(errs) != 1 {
		t.Fatalf("%d errors, want one:\n%s", len(errs), stderr)
	}
	if errs[0].Event != event {
		t.Errorf("the event is %s, not %s", errs[0].Event, event)
	}
	for _, s := range says {
		if !strings.Contains(errs[0].Msg, s) {
			t.Errorf("it does not say %q: %s", s, errs[0].Msg)
		}
	}
	if strings.ContainsAny(errs[0].Msg, "\n") && errs[0].Reason != "" {
		t.Errorf("more than one line: %q", errs[0].Msg)
	}
}

// TestServeSaysWhatIsWrong: each bad state is one entry that names the thing and
// says what to do.
func TestServeSaysWhatIsWrong(t *testing.T) {
	demo := modeltest.Path(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())

	for _, c := range []struct {
		name     string
		settings func(h home) []string
		code     int
		event    string
		says     []string
	}{
		{"the port is taken", func(h home) []string { return []string{"server.listen=" + taken.Addr().String()} },
			cli.ExitFailed, "listen.failed", []string{"server.listen", "is in use", "ss -ltnp 'sport = :" + port + "'"}},
		{"the address is not this machine's", func(h home) []string { return []string{"server.listen=192.0.2.1:8000"} },
			cli.ExitFailed, "listen.failed", []string{"server.listen", "192.0.2.1:8000"}},
		{"the state path is a file", func(h home) []string { return []string{"server.state_dir=" + h.write("state", "")} },
			cli.ExitFailed, "state.failed", []string{"not a directory", "server.state_dir"}},
		{"the state path is below a file", func(h home) []string { return []string{"server.state_dir=" + h.write("state", "") + "/x"} },
			cli.ExitFailed, "state.failed", []string{"not a directory", "server.state_dir"}},
		{"the generation is not a number", func(h home) []string {
			if err := os.Mkdir(h.path("state"), 0o755); err != nil {
				t.Fatal(err)
			}
			return []string{"server.state_dir=" + filepath.Dir(h.write("state/generation", "seven\n"))}
		}, cli.ExitFailed, "state.failed", []string{"generation", "seven", "remove it"}},
		{"the model's file is missing", func(h home) []string { return []string{"model.path=" + h.path("nope.gguf")} },
			cli.ExitFailed, "model.failed", []string{"nope.gguf", "does not exist", "tandem model list"}},
		{"the model is not pulled", func(h home) []string { return []string{"model.path=smollm2-135m"} },
			cli.ExitFailed, "model.failed", []string{"smollm2-135m", "tandem model pull smollm2-135m"}},
		{"no model is called that", func(h home) []string { return []string{"model.path=nonesuch"} },
			cli.ExitFailed, "model.failed", []string{"nonesuch", "the catalogue has"}},
		{"the model is cut short", func(h home) []string { return []string{"model.path=" + cutShort(h, demo, 50_000_000)} },
			cli.ExitFailed, "model.failed", []string{"cut.gguf", "truncated", "50000000"}},
		{"the model is cut short in its header", func(h home) []string { return []string{"model.path=" + cutShort(h, demo, 1000)} },
			cli.ExitFailed, "model.failed", []string{"cut.gguf", "truncated"}},
		{"the model is something else", func(h home) []string { return []string{"model.path=" + h.write("x.gguf", "hello")} },
			cli.ExitFailed, "model.failed", []string{"x.gguf", "not a GGUF file"}},
		{"one sequence does not fit", func(h home) []string { return []string{"kv.cpu_bytes=16MiB"} },
			cli.ExitFailed, "model.failed", []string{"kv.cpu_bytes", "16MiB", "or more"}},
		{"the machine is too small", func(h home) []string { return []string{"kv.cpu_bytes=15TiB"} },
			cli.ExitFailed, "model.failed", []string{"does not fit", "15TiB", "lower kv.cpu_bytes"}},
		{"the window is too long", func(h home) []string { return []string{"model.context_length=9000"} },
			cli.ExitFailed, "model.failed", []string{"model.context_length", "9000", "8192"}},
		{"the file of keys is missing", func(h home) []string { return []string{"server.api_keys_file=" + h.path("keys")} },
			cli.ExitConfig, "config.rejected", []string{"server.api_keys_file", "keys", "no such file"}},
		{"a setting is misspelt", func(h home) []string { return []string{"server.lisen=x"} },
			cli.ExitConfig, "config.rejected", []string{"server.lisen", "unknown key", "server.listen"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHome(t)
			settings := c.settings(h)
			if c.name == "the model is not pulled" {
				if _, err := os.Stat("/var/lib/tandem/models/smollm2-135m.gguf"); err == nil {
					t.Skip("the packaged service's folder has it, and every daemon looks there")
				}
			}
			if !slices.ContainsFunc(settings, func(s string) bool { return strings.HasPrefix(s, "model.path=") }) {
				settings = append(settings, "model.path="+demo)
			}
			_, stderr, code := h.run(h.serving(settings...)...)
			complaint(t, stderr, code, c.code, c.event, c.says...)
		})
	}
}

// cutShort is a copy of the first n bytes of a model.
func cutShort(h home, model string, n int64) string {
	h.t.Helper()
	in, err := os.Open(model)
	if err != nil {
		h.t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(h.path("cut.gguf"))
	if err != nil {
		h.t.Fatal(err)
	}
	defer out.Close()
	if _, err := io.CopyN(out, in, n); err != nil {
		h.t.Fatal(err)
	}
	return out.Name()
}

func TestBadConfigurationNamesEveryPlace(t *testing.T) {
	h := newHome(t)
	file := h.write("tandem.toml", "[server]\nlisen = \"x\"\n\n[limits]\nmax_requests = 0\n")
	for _, args := range [][]string{{"serve", "--config", file}, {"config", "check", file}} {
		_, stderr, code := h.run(args...)
		if code != cli.ExitConfig {
			t.Errorf("%v: exit status %d", args, code)
		}
		for _, s := range []string{file + `:2:1: [server] lisen: unknown key; did you mean "listen"?`, file + ":5:16: [limits] max_requests: 0 is out of range"} {
			if !strings.Contains(stderr, s) {
				t.Errorf("%v does not say %s:\n%s", args, s, stderr)
			}
		}
		if args[0] == "serve" {
			complaint(t, stderr, code, cli.ExitConfig, "config.rejected")
		}
	}
}

func TestWrongUsageEndsWithTwo(t *testing.T) {
	h := newHome(t)
	for _, args := range [][]string{{"serve", "--bogus"}, {"serve", "extra"}, {"nonesuch"}, {"requests", "show"}} {
		_, stderr, code := h.run(args...)
		if code != cli.ExitUsage || !strings.HasPrefix(stderr, "tandem: ") || strings.Count(stderr, "\n") > 6 {
			t.Errorf("%v: exit status %d\n%s", args, code, stderr)
		}
	}
}

// TestStateFolderOfSomebodyElse runs the daemon as a user that may not write there.
func TestStateFolderOfSomebodyElse(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start a process as another user, and everything is writable for root")
	}
	h := newHome(t)
	if err := os.Mkdir(h.path("theirs"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := h.command(h.serving("server.state_dir="+h.path("theirs"), "model.path=/dev/null")...)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	_, stderr, code := finish(t, c)
	complaint(t, stderr, code, cli.ExitFailed, "state.failed", h.path("theirs"), "permission denied", "server.state_dir")
}

// onSmallDisk is a daemon whose state folder is a file system of some kilobytes, of
// which only so many are left.
func onSmallDisk(h home, kilobytes, left int) *exec.Cmd {
	h.t.Helper()
	if os.Getuid() != 0 {
		h.t.Skip("only root can mount a small file system")
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		h.t.Skip("no unshare: apt-get install util-linux")
	}
	if err := os.Mkdir(h.path("disk"), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if out, err := exec.Command(unshare, "--mount", "mount", "-t", "tmpfs", "tmpfs", h.path("disk")).CombinedOutput(); err != nil {
		h.t.Skipf("no file system can be mounted here: %s", out)
	}
	c := h.command(h.serving("server.state_dir="+h.path("disk"), "model.path="+modeltest.Path(h.t))...)
	script := fmt.Sprintf(`mount -t tmpfs -o size=%dk tmpfs "$0" && head -c %dk /dev/zero >"$0/ballast" && exec "$@"`, kilobytes, kilobytes-left)
	c.Args = append([]string{unshare, "--mount", "sh", "-c", script, h.path("disk")}, c.Args...)
	c.Path = unshare
	return c
}

func TestNoRoomForTheLock(t *testing.T) {
	h := newHome(t)
	_, stderr, code := finish(t, onSmallDisk(h, 4, 0))
	complaint(t, stderr, code, cli.ExitFailed, "state.failed", h.path("disk"), "no space left on device", "make room", "server.state_dir")
}

// TestNoRoomForTheGeneration: the lock fits, the number of the first generation does
// not. The daemon starts no worker, says why, and goes on by itself as soon as
// there is room.
func TestNoRoomForTheGeneration(t *testing.T) {
	h := newHome(t)
	a := begin(h, onSmallDisk(h, 8, 4))
	if e := a.await("state.failed"); !strings.Contains(e.Msg, "no space left on device") || !strings.Contains(e.Msg, h.path("disk")) {
		t.Errorf("it says %s", e.Msg)
	}
	out, stderr, code := h.run("status")
	if code != cli.ExitFailed || !strings.Contains(out, "NOT READY") || !strings.Contains(out, "no space left on device") {
		t.Errorf("status: exit status %d\n%s%s", code, out, stderr)
	}
	// Seen from here the disk is in the daemon's name space.
	if err := os.Remove(fmt.Sprintf("/proc/%d/root%s", a.cmd.Process.Pid, h.path("disk/ballast"))); err != nil {
		t.Fatal(err)
	}
	a.url = a.await("ready").Address
	a.answer(8)
}

// TestTwoDaemonsAtOnce: two daemons that start at once on one folder.
func TestTwoDaemonsAtOnce(t *testing.T) {
	h := newHome(t)
	args := h.serving("model.path="+modeltest.Path(t), "admin.socket="+h.path("a.sock"))
	one := begin(h, h.command(args...))
	two := begin(h, h.command(args...))
	var winner, loser *appliance
	select {
	case <-one.done:
		winner, loser = two, one
	case <-two.done:
		winner, loser = one, two
	case <-time.After(limit):
		t.Fatal("both run")
	}
	complaint(t, loser.log(), loser.exit(), cli.ExitFailed, "state.locked", fmt.Sprintf("process %d", winner.cmd.Process.Pid))
	winner.url = winner.await("ready").Address
	winner.answer(8)
}

// TestOutputThatNobodyReads: a pipe that is full, as of a terminal that is stopped,
// holds nothing up.
func TestOutputThatNobodyReads(t *testing.T) {
	h := newHome(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	c := h.command("serve", "--set", "server.listen="+address, "--set", "kv.cpu_bytes=256MiB", "--set", "model.path="+modeltest.Path(t), "--set", "log.level=debug")
	c.Stderr = w
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Wait()
	}()
	defer func() {
		_ = c.Process.Kill()
		<-ended
	}()
	ready := func() bool {
		resp, err := http.Get("http://" + address + "/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
	eventually(t, limit, "it is ready", ready)
	for range 40 { // each tells of a dozen states
		s, err := ask(t.Context(), http.DefaultClient, "http://"+address, question, 2)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.rest(); err != nil {
			t.Fatal(err)
		}
	}
	_ = c.Process.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(limit):
		t.Fatal("it does not end while nobody reads what it says")
	}
	if code := c.ProcessState.ExitCode(); code != cli.ExitDone {
		t.Errorf("exit status %d", code)
	}
}
