// Package chaos tests the whole appliance: the real binary, its workers, the real
// model, real sockets and signals. It has test files only. What it compares is
// answers, byte for byte: with one answer for one prompt, any lost, stale or
// misplaced byte of the KV cache shows.
package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tandem/daemon/admin"
	"tandem/daemon/core"
	"tandem/model/modeltest"
)

// workshop is a folder for what the tests of one run build.
var workshop = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "tandem-chaos-") })

// binary is the program under test, built once; faulty is the same with workers
// that can be told to misbehave.
var (
	binary = sync.OnceValues(func() (string, error) {
		if b := os.Getenv("TANDEM_TEST_BINARY"); b != "" {
			return b, nil
		}
		return build("tandem")
	})
	faulty = sync.OnceValues(func() (string, error) { return build("tandem-faults", "-tags", "faults") })
)

func build(name string, flags ...string) (string, error) {
	dir, err := workshop()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	out, err := exec.Command("go", append(append([]string{"build", "-o", path}, flags...), "tandem/daemon")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %v\n%s", err, out)
	}
	return path, nil
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if dir, err := workshop(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// appliance is a running `tandem serve` with a home of its own.
type appliance struct {
	t    testing.TB
	bin  string
	args []string
	cmd  *exec.Cmd
	home string
	port int
	sock string
	done chan struct{}
	http *http.Client
	rest resources // of the daemon when it had done nothing yet
	rule int       // versions of the fault rules written so far
}

// start runs the appliance with settings ("key=value") and waits until it is ready.
func start(t testing.TB, settings ...string) *appliance {
	t.Helper()
	a := launch(t, settings...)
	a.waitReady()
	var err error
	if a.rest, err = a.resources(); err != nil {
		t.Fatal(err)
	}
	return a
}

func launch(t testing.TB, settings ...string) *appliance {
	t.Helper()
	a := prepare(t, binary, settings)
	a.run()
	return a
}

// prepare makes the home of an appliance that is not running yet.
func prepare(t testing.TB, program func() (string, error), settings []string) *appliance {
	t.Helper()
	model := modeltest.Path(t)
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.MkdirTemp("", "tandem-home-") // t.TempDir's path may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	a := &appliance{t: t, bin: bin, home: home, sock: filepath.Join(home, "admin.sock"), http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	a.args = []string{"serve", "--set", fmt.Sprintf("server.listen=127.0.0.1:%d", a.port), "--set", "model.path=" + model, "--set", "model.name=smollm2-135m",
		"--set", "server.state_dir=" + filepath.Join(home, "state"), "--set", "admin.socket=" + a.sock, "--set", "log.level=debug"}
	for _, s := range settings {
		a.args = append(a.args, "--set", s)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	return a
}

// run starts the daemon, the first time or again in the same home.
func (a *appliance) run() {
	a.t.Helper()
	log, err := os.OpenFile(filepath.Join(a.home, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		a.t.Fatal(err)
	}
	defer log.Close()
	a.cmd = exec.Command(a.bin, a.args...)
	a.cmd.Env = append(os.Environ(), "TANDEM_FAULTS="+a.home)
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := a.cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	cmd, done := a.cmd, make(chan struct{})
	a.done = done
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	a.t.Cleanup(a.stop)
}

func (a *appliance) stop() {
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-a.done:
	case <-time.After(20 * time.Second):
		a.t.Errorf("the daemon did not stop on SIGTERM within 20 s")
		_ = a.cmd.Process.Kill()
		<-a.done
	}
	if a.t.Failed() {
		a.t.Logf("log of the daemon (%s):\n%s", a.home, tail(a.log(), 6000))
	}
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

func (a *appliance) log() string {
	b, _ := os.ReadFile(filepath.Join(a.home, "log"))
	return string(b)
}

func (a *appliance) url(path string) string {
	return fmt.Sprintf("http://127.0.0.1:%d%s", a.port, path)
}

// within polls until ok, and fails the test after limit.
func (a *appliance) within(limit time.Duration, what string, ok func() bool) {
	a.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
		select {
		case <-a.done:
			a.t.Fatalf("the daemon ended while waiting for: %s\n%s", what, tail(a.log(), 3000))
		default:
		}
		if time.Now().After(end) {
			a.t.Fatalf("not within %s: %s\n%s", limit, what, tail(a.log(), 3000))
		}
	}
}

func (a *appliance) waitReady() {
	a.t.Helper()
	a.within(30*time.Second, "ready", func() bool {
		r, err := a.http.Get(a.url("/ready"))
		if err != nil {
			return false
		}
		defer r.Body.Close()
		_, _ = io.Copy(io.Discard, r.Body)
		return r.StatusCode == 200
	})
}

// ask is a GET on the admin socket.
func (a *appliance) ask(path string, out any) error {
	c := &http.Client{Timeout: 10 * time.Second, Transport: a.unix()}
	r, err := c.Get("http://tandem" + path)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != 200 {
		b, _ := io.ReadAll(r.Body)
		return fmt.Errorf("%s: %s: %s", path, r.Status, b)
	}
	return json.NewDecoder(r.Body).Decode(out)
}

// unix is the way to the admin socket.
func (a *appliance) unix() http.RoundTripper {
	return &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", a.sock)
	}}
}

func (a *appliance) status() admin.Status {
	a.t.Helper()
	var s admin.Status
	if err := a.ask("/status", &s); err != nil {
		a.t.Fatal(err)
	}
	return s
}

// pid is the process of a rank, named as "decode/0.1".
func (a *appliance) pid(rank string) int {
	a.t.Helper()
	for _, r := range a.status().Ranks {
		if r.Ident().String() == rank {
			return r.PID
		}
	}
	a.t.Fatalf("no rank %s", rank)
	return 0
}

// settled waits until nothing is left of any request: no request in any state, every
// page free, every gauge 0, and no goroutine or file more than at the start.
func (a *appliance) settled() {
	a.t.Helper()
	var s admin.Status
	left := ""
	defer func() {
		if a.t.Failed() {
			b, _ := json.MarshalIndent(s, "", " ")
			a.t.Logf("%s\nstatus: %s", left, b)
		}
	}()
	a.within(10*time.Second, "everything given back", func() bool {
		s = a.status()
		if !s.Ready || s.Running != 0 || s.Queued != 0 {
			return false
		}
		for _, p := range s.Pools {
			if p.Drift != 0 {
				a.t.Fatalf("pool %s does not add up: %d", p.Name, p.Drift)
			}
			if p.States["free"] != p.Total {
				return false
			}
		}
		left = a.restless()
		return len(s.Pools) > 0 && left == ""
	})
}

func (a *appliance) stories(id string) (r core.Record) {
	a.t.Helper()
	if err := a.ask("/requests/"+id, &r); err != nil {
		a.t.Fatal(err)
	}
	return r
}

// question is one request for an answer.
type question struct {
	user        string
	prompt      []int32 // instead: /v1/completions
	tokens      int
	temperature float64
	topP        float64
	seed        int
	more        map[string]any
	on          func(pieces int, text string) // called for each piece of the answer
}

type answer struct {
	text   string
	finish string
	id     string
	gap    time.Duration // the longest between two pieces
}

// get streams an answer.
func (a *appliance) get(ctx context.Context, q question) (answer, error) {
	body := map[string]any{"model": "smollm2-135m", "stream": true, "max_tokens": q.tokens, "temperature": q.temperature}
	path := "/v1/chat/completions"
	if q.prompt != nil {
		path = "/v1/completions"
		body["prompt"] = q.prompt
		body["ignore_eos"] = true
	} else {
		body["messages"] = []map[string]string{{"role": "user", "content": q.user}}
	}
	if q.topP != 0 {
		body["top_p"] = q.topP
	}
	if q.temperature != 0 {
		body["seed"] = q.seed
	}
	for k, v := range q.more {
		body[k] = v
	}
	b, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, "POST", a.url(path), bytes.NewReader(b))
	if err != nil {
		return answer{}, err
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	out := answer{id: resp.Header.Get("X-Request-Id")}
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
		return out, fmt.Errorf("%s: %s", resp.Status, b)
	}
	in := bufio.NewReaderSize(resp.Body, 1<<16)
	last, pieces := time.Now(), 0
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return out, fmt.Errorf("the stream broke off after %q: %w", tail(out.text, 40), err)
		}
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			if out.finish == "" {
				return out, errors.New("[DONE] without a finish reason")
			}
			return out, nil
		}
		var ev struct {
			Choices []struct {
				Delta        struct{ Content string }
				Text         string
				FinishReason *string `json:"finish_reason"`
			}
			Error *struct{ Message, Code string }
		}
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			return out, fmt.Errorf("%q: %w", data, err)
		}
		if ev.Error != nil {
			return out, fmt.Errorf("error event %s: %s", ev.Error.Code, ev.Error.Message)
		}
		for _, c := range ev.Choices {
			if piece := c.Delta.Content + c.Text; piece != "" {
				if pieces++; pieces > 1 {
					out.gap = max(out.gap, time.Since(last))
				}
				last = time.Now()
				out.text += piece
				if q.on != nil {
					q.on(pieces, out.text)
				}
			}
			if c.FinishReason != nil {
				out.finish = *c.FinishReason
			}
		}
	}
}

func (a *appliance) mustGet(q question) answer {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := a.get(ctx, q)
	if err != nil {
		a.t.Fatalf("%.40q: %v", q.user, err)
	}
	return out
}

// all asks all questions at once.
func (a *appliance) all(qs []question) []answer {
	a.t.Helper()
	return (<-a.begin(qs)).must(a.t)
}

// outcome is what came of questions that were asked at once.
type outcome struct {
	answers []answer
	err     error
}

func (o outcome) must(t testing.TB) []answer {
	t.Helper()
	if o.err != nil {
		t.Fatal(o.err)
	}
	return o.answers
}

// begin asks all questions at once and does not wait for the answers.
func (a *appliance) begin(qs []question) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		out, errs := make([]answer, len(qs)), make([]error, len(qs))
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for i, q := range qs {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if out[i], errs[i] = a.get(ctx, q); errs[i] != nil {
					errs[i] = fmt.Errorf("question %d: %w", i, errs[i])
				}
			}()
		}
		wg.Wait()
		done <- outcome{out, errors.Join(errs...)}
	}()
	return done
}

func exists(pid int) bool { return syscall.Kill(pid, 0) == nil }

// traffic has n clients ask, each again and again what ask says, until end is called
// or the test is over.
func (a *appliance) traffic(t testing.TB, n int, ask func(i int) (q question, right func(string) bool)) (end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		q, right := ask(i)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				got, err := a.get(ctx, q)
				if err != nil || !right(got.text) {
					t.Errorf("%.40q was answered %q, %v", q.user, got.text, err)
					return
				}
			}
		}()
	}
	end = sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
		cancel()
	})
	t.Cleanup(end)
	return end
}

func lockThread() { runtime.LockOSThread() }
