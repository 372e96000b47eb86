package main

import (
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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tandem/daemon/admin"
	"tandem/daemon/cli"
	"tandem/daemon/core"
	"tandem/model/modeltest"
)

// The tests of this file run the service as it is shipped: the binary that `make
// build` makes, the units, the folders and the catalogue where a package puts
// them, under a real systemd on a machine of its own for each scenario. The
// scenarios are compiled into this test binary, which is run again inside.

// scenarios are the tests that run inside.
var scenarios = []struct {
	name string
	run  func(m *machine)
}{
	{"units-have-no-fault", unitsHaveNoFault},
	{"start-waits-for-a-request-that-completes", startWaits},
	{"first-client-starts-the-service", firstClientStarts},
	{"restart-refuses-nobody", restartRefusesNobody},
	{"killed-daemon-comes-back", killedDaemonComesBack},
	{"killed-worker-does-not-end-the-answer", killedWorker},
	{"bad-configuration-keeps-the-sockets", badConfiguration},
	{"missing-model-keeps-the-sockets", missingModel},
	{"second-daemon-is-refused", secondDaemon},
	{"stopped-daemon-is-restarted-by-the-watchdog", watchdog},
	{"user-files-and-permissions", userAndFiles},
	{"stop-finishes-answers", stopFinishes},
	{"package-from-installation-to-purge", packageLife},
}

// insideVar names the environment variable that tells the binary it runs inside.
const insideVar = "TANDEM_TEST_INSIDE"

func TestUnderSystemd(t *testing.T) {
	if os.Getenv(insideVar) != "" {
		t.Skip("this is the machine inside")
	}
	if testing.Short() {
		t.Skip("it boots a dozen machines")
	}
	script := filepath.Join(checkout(t), "scripts", "with-systemd")
	// Another distribution's systemd: a folder with a root that has systemd, dbus and
	// man-db, as mmdebstrap makes one.
	root := os.Getenv("TANDEM_TEST_ROOT")
	if root == "" {
		root = "/"
	}
	if out, err := exec.Command(script, "--check", "-r", root).CombinedOutput(); err != nil {
		t.Skipf("%s; run it with `sudo make test-systemd`", strings.TrimSpace(string(out)))
	}
	model := modeltest.Path(t)

	// What goes inside: the binary, this test, what is generated.
	stage := t.TempDir()
	build(t, checkout(t), filepath.Join(stage, "tandem"))
	if err := copyFile(filepath.Join(stage, "units.test"), "/proc/self/exe"); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"man", "completions"} {
		c := exec.Command("go", "run", "./packaging/gen", what, filepath.Join(stage, "generated", what))
		c.Dir = checkout(t)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c.Args, err, out)
		}
	}

	packages := true
	for _, tool := range []string{"dpkg", "dpkg-deb", "readelf"} {
		if _, err := exec.LookPath(tool); err != nil {
			packages = false
		}
	}
	if packages {
		for _, version := range []string{"1", "2"} {
			c := exec.Command(filepath.Join(checkout(t), "packaging/deb/build"), stage+"/tandem", stage+"/generated", version, stage+"/tandem_"+version+".deb")
			c.Env = append(os.Environ(), "DEB_COMPRESSION=none")
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", c.Args, err, out)
			}
		}
	}

	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			if strings.HasPrefix(s.name, "package") && !packages {
				t.Skip("no Debian package can be made here: apt-get install dpkg binutils")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			c := exec.CommandContext(ctx, script, "-r", root,
				"-b", stage+":/mnt/stage", "-b", checkout(t)+":/mnt/checkout", "-b", filepath.Dir(model)+":/mnt/models", "--",
				"env", insideVar+"=/mnt/models/"+filepath.Base(model),
				"/mnt/stage/units.test", "-test.run", "^TestInside$/^"+s.name+"$", "-test.v", "-test.timeout=150s")
			c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // it takes the machine down
			c.WaitDelay = 20 * time.Second
			out, err := c.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			// A scenario that did not run proves nothing.
			if !bytes.Contains(out, []byte("--- PASS: TestInside/"+s.name)) {
				t.Fatalf("the scenario did not run:\n%s", out)
			}
			t.Logf("%s", out)
		})
	}
}

func TestInside(t *testing.T) {
	model := os.Getenv(insideVar)
	if model == "" {
		t.Skip("TestUnderSystemd runs this inside a machine")
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			m := &machine{t}
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(m.try("journalctl -q --no-pager -o short-precise -n 150; systemctl --no-pager status tandem.service tandem.socket"))
				}
			})
			if s.name != "package-from-installation-to-purge" {
				m.install(model)
			}
			s.run(m)
		})
	}
}

// machine is the machine inside, as its operator and its clients see it.
type machine struct{ *testing.T }

const endpoint = "http://127.0.0.1:8000"

// try runs a shell command and returns all it says and its exit code.
func (m *machine) try(command string) (string, int) {
	m.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		m.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out), c.ProcessState.ExitCode()
}

// sh runs a shell command that must succeed.
func (m *machine) sh(command string) string {
	m.Helper()
	out, code := m.try(command)
	if code != 0 {
		m.Fatalf("%s: exit status %d\n%s", command, code, out)
	}
	return strings.TrimSpace(out)
}

// install does what a package's installation does, and brings the model.
func (m *machine) install(model string) {
	m.sh("/mnt/checkout/packaging/install /mnt/stage/tandem /mnt/stage/generated")
	m.sh("systemd-sysusers && systemd-tmpfiles --create && journalctl --update-catalog && systemctl daemon-reload")
	m.sh("ln -s " + model + " /var/lib/tandem/models/smollm2-135m.gguf")
	m.sh("systemctl start tandem.socket tandem-admin.socket")
}

// show is a property of the service, or of another unit.
func (m *machine) show(property string, unit ...string) string {
	m.Helper()
	return m.sh("systemctl show --value -p " + property + " " + strings.Join(append([]string{"tandem.service"}, unit...)[len(unit):], " "))
}

func (m *machine) number(property string) int {
	m.Helper()
	n, err := strconv.Atoi(m.show(property))
	if err != nil {
		m.Fatalf("%s: %v", property, err)
	}
	return n
}

// eventually waits for what nobody announces.
func (m *machine) eventually(what string, cond func() bool) {
	m.Helper()
	eventually(m.T, 40*time.Second, what, cond)
}

// status is what `tandem status` says to root.
func (m *machine) status() admin.Status {
	m.Helper()
	var s admin.Status
	if err := json.Unmarshal([]byte(m.sh("tandem status --json")), &s); err != nil {
		m.Fatal(err)
	}
	return s
}

// entry is one entry of the journal.
type entry map[string]any

func (e entry) get(field string) string {
	s, _ := e[field].(string)
	return s
}

// journal are the entries that match, oldest first.
func (m *machine) journal(matches string) []entry {
	m.Helper()
	m.sh("journalctl --sync")
	// No entry that matches is an exit status of its own, and no failure.
	out, _ := m.try("journalctl -q --no-pager -o json --all " + matches)
	var es []entry
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var e entry
		err := d.Decode(&e)
		if err == io.EOF {
			return es
		}
		if err != nil {
			m.Fatalf("journalctl %s: %v\n%s", matches, err, out)
		}
		es = append(es, e)
	}
}

// event is the last entry of a kind; it must be there.
func (m *machine) event(kind string) entry {
	m.Helper()
	es := m.journal("-u tandem TANDEM_EVENT=" + kind)
	if len(es) == 0 {
		m.Fatalf("the journal has no %s", kind)
	}
	return es[len(es)-1]
}

// client is a client without habits: a connection for each request.
func client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: 60 * time.Second}).DialContext}}
}

// answer is the answer to the question, asked as an SDK does: again when there
// is a Retry-After.
func (m *machine) answer(n int) string {
	m.Helper()
	text, _, err := persist(m.Context(), client(), n, nil)
	if err != nil {
		m.Fatal(err)
	}
	if text == "" {
		m.Fatal("an empty answer")
	}
	return text
}

// tally is what clients met.
type tally struct {
	refused atomic.Int64 // connections nobody accepted
	broken  atomic.Int64 // connections that ended before the first byte of an answer
	later   atomic.Int64 // 429 and 503 with Retry-After
	done    atomic.Int64 // whole answers
}

// persist asks until it has an answer, as the SDKs do: after 429 and 503 with
// Retry-After, and after a connection that broke before the first byte. Any other
// failure is one. It returns the answer and the request's name.
func persist(ctx context.Context, c *http.Client, n int, count *tally) (text, id string, err error) {
	if count == nil {
		count = &tally{}
	}
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for {
		a, err := ask(ctx, c, endpoint, question, n)
		var later *refusal
		pause := 20 * time.Millisecond
		switch {
		case err == nil:
			text, err := a.rest()
			if err == nil {
				count.done.Add(1)
			}
			return text, a.id, err
		case errors.As(err, &later):
			seconds, e := strconv.Atoi(later.retryAfter)
			if later.status != http.StatusServiceUnavailable && later.status != http.StatusTooManyRequests || e != nil {
				return "", "", err
			}
			count.later.Add(1)
			pause = time.Duration(seconds) * time.Second
		case errors.Is(err, syscall.ECONNREFUSED):
			count.refused.Add(1)
		case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE):
			count.broken.Add(1)
		default:
			return "", "", err
		}
		select {
		case <-ctx.Done():
			return "", "", errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// crowd is some clients that ask without a break.
type crowd struct {
	tally
	stop   context.CancelFunc
	ended  sync.WaitGroup
	mu     sync.Mutex
	wrong  []string // what was not the right answer
	fading atomic.Bool
}

// gather lets clients ask until disperse; each answer must be want.
func (m *machine) gather(clients, n int, want string) *crowd {
	ctx, cancel := context.WithCancel(context.Background())
	c := &crowd{stop: cancel}
	for range clients {
		c.ended.Add(1)
		go func() {
			defer c.ended.Done()
			for !c.fading.Load() {
				text, _, err := persist(ctx, client(), n, &c.tally)
				if err != nil || text != want {
					c.mu.Lock()
					c.wrong = append(c.wrong, fmt.Sprintf("%q, %v", text, err))
					c.mu.Unlock()
				}
			}
		}()
	}
	return c
}

// disperse lets the clients finish their last request and checks that all fared well.
func (m *machine) disperse(c *crowd) {
	m.Helper()
	c.fading.Store(true)
	c.ended.Wait()
	c.stop()
	m.Logf("%d whole answers, %d times told to come later, %d connections broken before an answer, %d refused", c.done.Load(), c.later.Load(), c.broken.Load(), c.refused.Load())
	if n := c.refused.Load(); n > 0 {
		m.Errorf("%d connections were refused", n)
	}
	for _, w := range c.wrong {
		m.Errorf("a client got %s", w)
	}
}

// pardon takes off the list what a daemon that was killed could not help: the answers
// that were in progress, at most one a client.
func (m *machine) pardon(c *crowd, clients int) {
	m.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.wrong)
	c.wrong = slices.DeleteFunc(c.wrong, func(w string) bool {
		return strings.Contains(w, "EOF") || strings.Contains(w, "reset by peer") || strings.Contains(w, "before its end")
	})
	cut := before - len(c.wrong)
	m.Logf("%d answers were cut short", cut)
	if cut > clients {
		m.Errorf("%d clients had %d answers in progress", clients, cut)
	}
}

// more waits until the crowd got n more whole answers.
func (m *machine) more(c *crowd, n int64) {
	m.Helper()
	before := c.done.Load()
	m.eventually(fmt.Sprintf("%d more answers", n), func() bool { return c.done.Load() >= before+n })
}

func unitsHaveNoFault(m *machine) {
	// verify tells of mistakes and still succeeds: whatever it says is one. Where there
	// is no man, it cannot find the pages.
	verify := "systemd-analyze verify "
	if _, code := m.try("command -v man"); code != 0 {
		verify += "--man=no "
	}
	if out := m.sh(verify + "tandem.service tandem.socket tandem-admin.socket tandem.slice"); out != "" {
		m.Errorf("%s", out)
	}
	if out, code := m.try("systemd-analyze security --threshold=20 tandem.service"); code != 0 {
		m.Errorf("the service is exposed by more than 2.0:\n%s", out)
	}
	// A start that is not tried again makes the sockets fail, and clients refused.
	for property, want := range map[string]string{"Restart": "always", "StartLimitIntervalUSec": "0", "RestartPreventExitStatus": "", "Type": "notify", "KillMode": "mixed", "NotifyAccess": "main"} {
		if got := m.show(property); got != want {
			m.Errorf("%s=%s, not %s", property, got, want)
		}
	}
	if m.show("LogRateLimitIntervalUSec") == "0" {
		m.Error("LogRateLimitIntervalSec=0 is the journal's default, not no limit")
	}
}

func startWaits(m *machine) {
	m.sh("systemctl start tandem")
	// It is ready at this very moment, not soon.
	resp, err := http.Get(endpoint + "/ready")
	if err != nil {
		m.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		m.Errorf("/ready answers %s: %s", resp.Status, body)
	}
	if s := m.status(); !s.Ready || s.LastCompletion.IsZero() {
		m.Errorf("no request has completed, and systemd was told that it is ready: %+v", s)
	}
	if got := m.show("ActiveState"); got != "active" {
		m.Errorf("the service is %s", got)
	}
	if got := m.show("StatusText"); !regexp.MustCompile(`^generation 1, \d+ running, \d+ queued$`).MatchString(got) {
		m.Errorf("systemctl status shows %q", got)
	}
	// In the journal: ready comes before systemd's word that it started.
	var order []string
	for _, e := range m.journal("UNIT=tandem.service + _SYSTEMD_UNIT=tandem.service") {
		switch {
		case e.get("TANDEM_EVENT") == "ready":
			order = append(order, "ready")
		case e.get("JOB_RESULT") == "done" && e.get("JOB_TYPE") == "start":
			order = append(order, "started")
		}
	}
	if !slices.Equal(order, []string{"ready", "started"}) {
		m.Errorf("the journal's order: %v", order)
	}
	if _, code := m.try("tandem status"); code != cli.ExitDone {
		m.Errorf("tandem status: exit status %d", code)
	}
	if first, second := m.answer(16), m.answer(16); first != second {
		m.Errorf("the same prompt was answered differently:\n%q\n%q", first, second)
	}
}

func firstClientStarts(m *machine) {
	if got := m.show("ActiveState"); got != "inactive" {
		m.Fatalf("the service is %s before anybody asked", got)
	}
	c := &tally{}
	text, id, err := persist(m.Context(), client(), 16, c)
	if err != nil || text == "" {
		m.Fatalf("%q, %v", text, err)
	}
	if c.refused.Load()+c.broken.Load() > 0 {
		m.Errorf("%d refused, %d broken", c.refused.Load(), c.broken.Load())
	}
	if got := m.show("ActiveState"); got != "active" {
		m.Errorf("the service is %s", got)
	}
	if es := m.journal("-u tandem TANDEM_EVENT=request.done TANDEM_REQUEST=" + id); len(es) != 1 {
		m.Errorf("%d entries tell of the request's end", len(es))
	}
}

func restartRefusesNobody(m *machine) {
	m.sh("systemctl start tandem")
	const n = 6
	c := m.gather(3, n, m.answer(n))
	m.more(c, 10)
	first := m.number("MainPID")
	for range 2 {
		m.sh("systemctl restart tandem")
		m.more(c, 10)
	}
	// An upgrade: another file under the same name, then a restart.
	m.sh("cp /usr/bin/tandem /usr/bin/tandem.new && mv /usr/bin/tandem.new /usr/bin/tandem && systemctl restart tandem")
	m.more(c, 10)
	m.disperse(c)
	if m.number("MainPID") == first {
		m.Error("the service was not restarted")
	}
	if got := m.status().Generation; got != 4 {
		m.Errorf("generation %d after four starts", got)
	}
}

func killedDaemonComesBack(m *machine) {
	m.sh("systemctl start tandem")
	const n = 6
	c := m.gather(2, n, m.answer(n))
	m.more(c, 5)
	before := m.status()
	var workers []int
	for _, r := range before.Ranks {
		workers = append(workers, r.PID)
	}
	if len(workers) < 2 {
		m.Fatalf("workers: %v", workers)
	}
	if err := syscall.Kill(before.PID, syscall.SIGKILL); err != nil {
		m.Fatal(err)
	}
	eventually(m.T, 2*time.Second, "the workers are gone", func() bool { return len(alive(workers)) == 0 })
	// Answers that had begun end with their daemon: that much cannot be promised.
	// Everybody else waits for the next one.
	m.eventually("the service is back", func() bool { return m.show("ActiveState") == "active" && m.number("MainPID") != before.PID })
	m.more(c, 5)
	m.pardon(c, 2)
	m.disperse(c)
	after := m.status()
	if after.Generation <= before.Generation {
		m.Errorf("generation %d after %d", after.Generation, before.Generation)
	}
	if m.number("NRestarts") != 1 {
		m.Errorf("%d restarts", m.number("NRestarts"))
	}
}

func killedWorker(m *machine) {
	m.sh("systemctl start tandem")
	const n = 2000 // seconds: the worker must die before the end
	whole := m.answer(n)
	for _, role := range []string{"prefill", "decode"} {
		before := m.status()
		a, err := ask(m.Context(), client(), endpoint, question, n)
		if err != nil {
			m.Fatal(err)
		}
		for a.text.Len() < 40 {
			if more, err := a.piece(); !more {
				m.Fatalf("no text: %v", err)
			}
		}
		i := slices.IndexFunc(before.Ranks, func(r core.RankView) bool { return r.Role.String() == role })
		if i < 0 {
			m.Fatalf("no %s worker", role)
		}
		if err := syscall.Kill(before.Ranks[i].PID, syscall.SIGKILL); err != nil {
			m.Fatal(err)
		}
		text, err := a.rest()
		if err != nil || text != whole {
			m.Errorf("the %s worker was killed, %v: the answer is\n%q\nand should be\n%q", role, err, text, whole)
		}
		after := m.status()
		if after.Generation != before.Generation+1 {
			m.Errorf("generation %d after %d", after.Generation, before.Generation)
		}
		if after.PID != before.PID || m.number("NRestarts") != 0 {
			m.Error("the daemon was restarted; only the workers should be")
		}
		var rec core.Record
		if err := json.Unmarshal([]byte(m.sh("tandem requests show --json "+a.id)), &rec); err != nil {
			m.Fatal(err)
		}
		if rec.Attempts < 2 {
			m.Fatalf("the worker was killed after the answer: %+v", rec)
		}

		// Its story, by its name alone.
		var story []string
		for _, e := range m.journal("-u tandem TANDEM_REQUEST=" + a.id) {
			story = append(story, e.get("TANDEM_EVENT"))
		}
		if !slices.Contains(story, "request.again") || len(story) == 0 || story[len(story)-1] != "request.done" {
			m.Errorf("the journal tells of request %s: %v", a.id, story)
		}
		exit := m.event("worker.exit")
		if exit.get("TANDEM_ROLE") != role || exit.get("TANDEM_GENERATION") != fmt.Sprint(before.Generation) || !strings.Contains(exit.get("MESSAGE"), "killed") {
			m.Errorf("worker.exit: %v", exit)
		}
	}
	// What to do about it, from the catalogue.
	end := m.event("generation.end")
	if end.get("MESSAGE_ID") == "" {
		m.Fatal("generation.end has no MESSAGE_ID")
	}
	text := m.sh("journalctl -q --no-pager -x -u tandem MESSAGE_ID=" + end.get("MESSAGE_ID"))
	for _, want := range []string{"Subject: Generation " + end.get("TANDEM_GENERATION") + " ended", "Both groups of workers were ended together", "Defined-By: tandem"} {
		if !strings.Contains(text, want) {
			m.Errorf("journalctl -x does not say %q:\n%s", want, text)
		}
	}
}

// drop writes a drop-in for the service.
func (m *machine) drop(lines string) {
	m.Helper()
	m.sh("mkdir -p /run/systemd/system/tandem.service.d")
	if err := os.WriteFile("/run/systemd/system/tandem.service.d/test.conf", []byte("[Service]\n"+lines+"\n"), 0o644); err != nil {
		m.Fatal(err)
	}
	m.sh("systemctl daemon-reload")
}

const configFile = "/etc/tandem/tandem.toml"

func badConfiguration(m *machine) {
	good, err := os.ReadFile(configFile)
	if err != nil {
		m.Fatal(err)
	}
	m.drop("RestartSec=100ms") // to see many starts in a short time
	m.sh("systemctl start tandem")
	want := m.answer(6)

	if err := os.WriteFile(configFile, []byte("[server]\nlisen = \"127.0.0.1:8000\"\n"), 0o644); err != nil {
		m.Fatal(err)
	}
	if _, code := m.try("systemctl restart tandem"); code == 0 {
		m.Error("systemctl restart succeeded with a bad configuration")
	}
	// Clients that come now wait.
	c := m.gather(3, 6, want)
	// More starts than any limit of systemd's on starts or on triggers of a socket.
	m.eventually("it was started 25 times", func() bool { return m.number("NRestarts") >= 25 })
	if n := len(m.journal("UNIT=tandem.service EXIT_STATUS=" + strconv.Itoa(cli.ExitConfig))); n < 25 {
		m.Errorf("systemd saw exit status %d only %d times", cli.ExitConfig, n)
	}
	for _, socket := range []string{"tandem.socket", "tandem-admin.socket"} {
		if got := m.show("ActiveState", socket); got != "active" {
			m.Errorf("%s is %s", socket, got)
		}
	}
	es := m.journal("-u tandem -p err TANDEM_EVENT=config.rejected")
	if len(es) == 0 || !strings.Contains(es[0].get("MESSAGE"), configFile+`:2:1: [server] lisen: unknown key; did you mean "listen"?`) {
		m.Fatalf("the journal says %v", es)
	}
	first := es[0].get("_PID")
	if all := m.journal("-p err _PID=" + first); len(all) != 1 {
		m.Errorf("one start told of %d errors", len(all))
	}
	if n := c.done.Load(); n != 0 {
		m.Errorf("%d answers while nothing ran", n)
	}

	if err := os.WriteFile(configFile, good, 0o644); err != nil {
		m.Fatal(err)
	}
	m.more(c, 6) // nobody restarts it by hand
	m.disperse(c)
}

func missingModel(m *machine) {
	m.drop("RestartSec=100ms")
	m.sh("mv /var/lib/tandem/models/smollm2-135m.gguf /var/lib/tandem/")
	if _, code := m.try("systemctl start tandem"); code == 0 {
		m.Error("systemctl start succeeded without a model")
	}
	answer := make(chan error, 1)
	go func() {
		_, _, err := persist(context.Background(), client(), 6, nil)
		answer <- err
	}()
	m.eventually("it was started a few times", func() bool { return m.number("NRestarts") >= 5 })
	if e := m.event("model.failed"); !strings.Contains(e.get("MESSAGE"), "tandem model pull smollm2-135m") || e.get("PRIORITY") != "3" {
		m.Errorf("the journal says %v", e)
	}
	m.sh("mv /var/lib/tandem/smollm2-135m.gguf /var/lib/tandem/models/")
	select {
	case err := <-answer:
		if err != nil {
			m.Error(err)
		}
	case <-time.After(limit):
		m.Error("the client that waited was never answered")
	}
}

func secondDaemon(m *machine) {
	m.sh("systemctl start tandem")
	out, code := m.try("setpriv --reuid=tandem --regid=tandem --clear-groups /usr/bin/tandem serve --set server.listen=127.0.0.1:8001 --set server.state_dir=/var/lib/tandem")
	if code != cli.ExitFailed || !strings.Contains(out, "process "+m.show("MainPID")) {
		m.Errorf("exit status %d\n%s", code, out)
	}
	if m.answer(6) == "" || m.number("NRestarts") != 0 {
		m.Error("the service suffered")
	}
}

func watchdog(m *machine) {
	m.drop("WatchdogSec=3")
	m.sh("systemctl start tandem")
	want, before := m.answer(6), m.status()
	if err := syscall.Kill(before.PID, syscall.SIGSTOP); err != nil {
		m.Fatal(err)
	}
	c := m.gather(2, 6, want) // they wait in the socket
	m.eventually("the service is back", func() bool { return m.number("NRestarts") == 1 && m.show("ActiveState") == "active" })
	m.more(c, 4)
	// To be told to abort it must be woken, and may begin an answer before it dies.
	m.pardon(c, 2)
	m.disperse(c)
	if after := m.status(); after.Generation <= before.Generation || after.PID == before.PID {
		m.Errorf("generation %d, process %d after %d, %d", after.Generation, after.PID, before.Generation, before.PID)
	}
	// Where it stood is in the journal.
	stacks := 0
	for _, e := range m.journal(fmt.Sprintf("-u tandem _PID=%d", before.PID)) {
		if regexp.MustCompile(`^goroutine \d+ .*\[`).MatchString(e.get("MESSAGE")) {
			stacks++
		}
	}
	if stacks < 5 {
		m.Errorf("%d stacks in the journal", stacks)
	}
	if len(m.journal("UNIT=tandem.service -g 'Watchdog timeout'")) == 0 {
		m.Error("it was not the watchdog")
	}
}

func userAndFiles(m *machine) {
	m.sh("systemctl start tandem")
	m.answer(6)
	s := m.status()
	pids := []string{strconv.Itoa(s.PID)}
	for _, r := range s.Ranks {
		pids = append(pids, strconv.Itoa(r.PID))
	}
	for _, pid := range pids {
		status := m.sh("cat /proc/" + pid + "/status")
		for _, want := range []string{`Uid:\s+UID\s+UID\s+UID\s+UID`, `CapEff:\s+0+\n`, `CapBnd:\s+0+\n`, `NoNewPrivs:\s+1`, `Seccomp:\s+2`} {
			want = strings.ReplaceAll(want, "UID", m.sh("id -u tandem"))
			if !regexp.MustCompile(want).MatchString(status) {
				m.Errorf("process %s has not %s:\n%s", pid, want, status)
			}
		}
		if cg := m.sh("cat /proc/" + pid + "/cgroup"); !strings.Contains(cg, "/tandem.slice/tandem.service") {
			m.Errorf("process %s is in %s", pid, cg)
		}
	}

	for path, want := range map[string]string{
		"/run/tandem":                "755 root root",
		"/run/tandem/admin.sock":     "666 root root",
		"/var/lib/tandem":            "750 tandem tandem",
		"/var/lib/tandem/models":     "750 tandem tandem",
		"/var/lib/tandem/generation": "600 tandem tandem",
		"/etc/tandem/tandem.toml":    "644 root root",
	} {
		if got := m.sh("stat -c '%a %U %G' " + path); got != want {
			m.Errorf("%s: %s, not %s", path, got, want)
		}
	}
	if strays := m.sh("find / -xdev -user tandem -not -path '/proc/*' -not -path '/var/lib/tandem*' -not -path '/tmp/*' -not -path '/mnt/*'"); strays != "" {
		m.Errorf("files of the service elsewhere:\n%s", strays)
	}

	// Everyone may look; root and the service's user may change things.
	const nobody = "setpriv --reuid=nobody --regid=nogroup --clear-groups "
	if out, code := m.try(nobody + "tandem status"); code != cli.ExitDone || !strings.Contains(out, "generation") {
		m.Errorf("status for nobody: exit status %d\n%s", code, out)
	}
	for _, verb := range []string{"restart", "drain", "requests cancel x"} {
		if out, code := m.try(nobody + "tandem " + verb); code != cli.ExitFailed || !strings.Contains(out, "may look but not change") {
			m.Errorf("%s by nobody: exit status %d\n%s", verb, code, out)
		}
	}
	if got := m.status().Generation; got != s.Generation {
		m.Fatalf("nobody made generation %d", got)
	}
	m.sh("setpriv --reuid=tandem --regid=tandem --clear-groups tandem restart --reason 'a test'")
	m.eventually("the next generation", func() bool { s := m.status(); return s.Ready && s.Generation == 2 })
	m.sh("tandem restart --reason 'another test'")
	m.eventually("the next generation", func() bool { s := m.status(); return s.Ready && s.Generation == 3 })
	if e := m.event("generation.end"); !strings.Contains(e.get("TANDEM_REASON"), "another test") {
		m.Errorf("the journal does not say why: %v", e)
	}
}

func stopFinishes(m *machine) {
	m.sh("systemctl start tandem")
	const n = 400
	whole := m.answer(n)
	a, err := ask(m.Context(), client(), endpoint, question, n)
	if err != nil {
		m.Fatal(err)
	}
	for a.text.Len() < 40 {
		if more, err := a.piece(); !more {
			m.Fatalf("no text: %v", err)
		}
	}
	m.sh("systemctl stop --no-block tandem.socket tandem-admin.socket tandem.service")
	m.eventually("it is stopping", func() bool { return len(m.journal("-u tandem TANDEM_EVENT=stopping")) > 0 })
	if a.text.Len() >= len(whole) {
		m.Fatal("the answer was complete before the stop")
	}
	text, err := a.rest()
	if err != nil || text != whole {
		m.Errorf("%v: the answer is\n%q\nand should be\n%q", err, text, whole)
	}
	m.eventually("it has stopped", func() bool { return m.show("ActiveState") == "inactive" })
	if got := m.show("Result"); got != "success" {
		m.Errorf("systemd calls it %s", got)
	}
	if got := m.show("ExecMainStatus"); got != "0" {
		m.Errorf("exit status %s", got)
	}
	if left := m.sh("cat /sys/fs/cgroup/tandem.slice/tandem.service/cgroup.procs 2>/dev/null || true"); left != "" {
		m.Errorf("processes are left: %s", left)
	}
	m.event("stopped")
	// The sockets are closed with it: nothing starts it again.
	if _, err := net.Dial("tcp", "127.0.0.1:8000"); !errors.Is(err, syscall.ECONNREFUSED) {
		m.Errorf("after the stop a client meets %v", err)
	}
}

func packageLife(m *machine) {
	const quiet = "DEBIAN_FRONTEND=noninteractive dpkg --force-confold "
	out := m.sh(quiet + "-i /mnt/stage/tandem_1.deb 2>&1")
	if !strings.Contains(out, "tandem model pull --dir /var/lib/tandem/models smollm2-135m") {
		m.Errorf("the installation does not say what to do next:\n%s", out)
	}
	for unit, want := range map[string]string{"tandem.socket": "active", "tandem-admin.socket": "active", "tandem.service": "inactive"} {
		if got := m.show("ActiveState", unit); got != want {
			m.Errorf("after the installation %s is %s", unit, got)
		}
		if got := m.show("UnitFileState", unit); got != "enabled" {
			m.Errorf("after the installation %s is %s", unit, got)
		}
	}
	m.sh("ln -s " + os.Getenv(insideVar) + " /var/lib/tandem/models/smollm2-135m.gguf")
	const n = 6
	want := m.answer(n) // which starts the service

	// An upgrade while clients ask.
	before := m.status()
	c := m.gather(3, n, want)
	m.more(c, 10)
	m.sh(quiet + "-i /mnt/stage/tandem_2.deb")
	m.more(c, 10)
	m.disperse(c)
	after := m.status()
	if after.PID == before.PID || after.Generation <= before.Generation {
		m.Errorf("process %d, generation %d after %d, %d: the new version does not run", after.PID, after.Generation, before.PID, before.Generation)
	}

	// An upgrade with a configuration that has mistakes leaves the old version running.
	if err := os.WriteFile(configFile, []byte("[server]\nlisen = \"127.0.0.1:8000\"\n"), 0o644); err != nil {
		m.Fatal(err)
	}
	out = m.sh(quiet + "-i /mnt/stage/tandem_1.deb 2>&1")
	if !strings.Contains(out, configFile+":2:1") || !strings.Contains(out, "systemctl restart tandem") {
		m.Errorf("the upgrade does not say what is wrong:\n%s", out)
	}
	if s := m.status(); s.PID != after.PID || !s.Ready {
		m.Errorf("process %d, ready %v, after %d", s.PID, s.Ready, after.PID)
	}
	if text := m.answer(n); text != want {
		m.Errorf("the answer is %q, not %q", text, want)
	}

	m.sh(quiet + "-r tandem")
	if _, err := net.Dial("tcp", "127.0.0.1:8000"); !errors.Is(err, syscall.ECONNREFUSED) {
		m.Errorf("after the removal a client meets %v", err)
	}
	if got := m.sh("cat " + configFile); !strings.Contains(got, "lisen") {
		m.Errorf("the removal took the configuration: %q", got)
	}
	out = m.sh(quiet + "-P tandem 2>&1")
	if !strings.Contains(out, "models are left in /var/lib/tandem/models") {
		m.Errorf("the purge does not say what is left:\n%s", out)
	}
	if left := m.sh("find /etc/tandem /var/lib/tandem /run/tandem/admin.sock /usr/bin/tandem /usr/lib/systemd/system/tandem* 2>/dev/null || true"); left != "/var/lib/tandem\n/var/lib/tandem/models\n/var/lib/tandem/models/smollm2-135m.gguf" {
		m.Errorf("after the purge there are\n%s", left)
	}
	if failed := m.sh("systemctl --failed --quiet --plain"); failed != "" {
		m.Errorf("failed units: %s", failed)
	}
}
