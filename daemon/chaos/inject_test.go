package chaos

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// all is set by `make chaos`: without it the scenarios that take longest are left out.
var all = flag.Bool("all", false, "run every scenario, also those that take longest")

// seed decides what random faults do and when. A failing run prints it.
var seed = flag.Uint64("seed", 0, "of random faults; 0: of the time")

func chooseSeed(t testing.TB) uint64 {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", s)
	return s
}

func long(t *testing.T, why string) {
	t.Helper()
	if !*all {
		t.Skip("part of make chaos: " + why)
	}
}

// startFaulty runs an appliance whose workers misbehave when told to, see
// daemon/worker/faults_on.go. Its log is read for events.
func startFaulty(t testing.TB, settings ...string) *appliance {
	t.Helper()
	a := prepare(t, faulty, append([]string{"log.format=json"}, settings...))
	a.run()
	a.waitReady()
	return a
}

// inject makes these rules, and no others, hold from now on.
func (a *appliance) inject(rules ...string) {
	a.t.Helper()
	a.rule++
	text := fmt.Sprintf("%d %d\n%s\n", a.rule, max(*seed, 1), strings.Join(rules, "\n"))
	path := filepath.Join(a.home, "rules")
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		a.t.Fatal(err)
	}
}

// calm ends all misbehaviour.
func (a *appliance) calm() { a.inject() }

// injection is one fault that a worker committed.
type injection struct {
	id, do, rank, kind string
	pid                int
	attempt            uint64
	at                 time.Time
}

// injected is what the present rules, and those before, have caused so far.
func (a *appliance) injected() []injection {
	a.t.Helper()
	b, err := os.ReadFile(filepath.Join(a.home, "done"))
	if err != nil && !os.IsNotExist(err) {
		a.t.Fatal(err)
	}
	var out []injection
	for l := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSuffix(l, "\n"), "\t")
		if len(f) != 8 || !strings.HasSuffix(l, "\n") {
			continue // still being written
		}
		pid, _ := strconv.Atoi(f[5])
		attempt, _ := strconv.ParseUint(f[6], 10, 64)
		ns, _ := strconv.ParseInt(f[7], 10, 64)
		out = append(out, injection{id: f[1], do: f[2], rank: f[3], kind: f[4], pid: pid, attempt: attempt, at: time.Unix(0, ns)})
	}
	return out
}

// mustInject fails a scenario in which nothing went wrong: it would show nothing.
func (a *appliance) mustInject() []injection {
	a.t.Helper()
	is := a.injected()
	if len(is) == 0 {
		a.t.Fatal("no fault was injected: the scenario shows nothing")
	}
	return is
}

// logged is one event of the daemon's log.
type logged struct {
	Time                                                           time.Time
	Event, Msg, Request, Attempt, State, Reason, Code, Role, Level string
	Rank                                                           any
	Generation                                                     uint64
}

// events are the events of a kind, oldest first.
func (a *appliance) events(kind string) []logged {
	a.t.Helper()
	f, err := os.Open(filepath.Join(a.home, "log"))
	if err != nil {
		a.t.Fatal(err)
	}
	defer f.Close()
	var out []logged
	in := bufio.NewScanner(f)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var l logged
		if !bytes.Contains(in.Bytes(), []byte(`"`+kind+`"`)) || json.Unmarshal(in.Bytes(), &l) != nil || l.Event != kind {
			continue
		}
		out = append(out, l)
	}
	return out
}

// sum adds up the metrics whose names begin so.
func (a *appliance) sum(prefix string) float64 {
	a.t.Helper()
	n := 0.0
	for name, v := range a.scrape() {
		if strings.HasPrefix(name, prefix) {
			n += v
		}
	}
	return n
}

// reference is what an undisturbed appliance answers to the questions. It is asked
// once in a run.
var reference struct {
	sync.Once
	texts []string
}

func want(t *testing.T) []string {
	t.Helper()
	reference.Do(func() { reference.texts = undisturbed(t) })
	if reference.texts == nil {
		t.Fatal("there are no answers to compare with")
	}
	return reference.texts
}

// crowd is n questions, and their undisturbed answers.
func crowd(t *testing.T, n int) (qs []question, answers []string) {
	w := want(t)
	for i := range n {
		qs = append(qs, questions[i%len(questions)])
		answers = append(answers, w[i%len(w)])
	}
	return qs, answers
}

// clients is how many ask at once. `make chaos` takes thirty, as the table of faults
// says; with the few of `make test` the same is shown in less time.
func clients() int {
	if *all {
		return 30
	}
	return 9
}

// storm has clients ask, does something when so many requests are in a
// state, and wants every answer undisturbed.
func (a *appliance) storm(t *testing.T, state string, n int, do func()) {
	t.Helper()
	qs, answers := crowd(t, clients())
	before := a.status().Generation
	done := a.begin(qs)
	a.await(state, n)
	do()
	compare(t, "in the storm", answers, texts((<-done).must(t)))
	a.waitReady()
	t.Logf("generations %d to %d", before, a.status().Generation)
}

// await waits until so many requests are in a state.
func (a *appliance) await(state string, n int) {
	a.t.Helper()
	a.within(20*time.Second, fmt.Sprintf("%d requests %s", n, state), func() bool { return a.count(state) >= n })
}

func (a *appliance) count(state string) int {
	a.t.Helper()
	for _, s := range a.status().States {
		if s.State == state {
			return s.Count
		}
	}
	a.t.Fatalf("there is no state %s", state)
	return 0
}

// generations fails the test if there were not so many changes since a generation.
func (a *appliance) changed(since uint64, n uint64) {
	a.t.Helper()
	if now := uint64(a.status().Generation); now != since+n {
		a.t.Errorf("generation %d follows %d, want %d changes; the last because %s", now, since, n, a.status().LastEndText)
	}
}

func (a *appliance) gen() uint64 { a.t.Helper(); return uint64(a.status().Generation) }

func (a *appliance) signal(rank string, s syscall.Signal) int {
	a.t.Helper()
	pid := a.pid(rank)
	if err := syscall.Kill(pid, s); err != nil {
		a.t.Fatal(err)
	}
	return pid
}

// workers are the living processes that the daemon started, reaped or not.
func workers(daemon int) (pids []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", daemon))
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		for _, w := range strings.Fields(string(b)) {
			pid, _ := strconv.Atoi(w)
			pids = append(pids, pid)
		}
	}
	return pids
}

// oneGeneration watches that there are never more processes than one generation has.
// The function it returns ends the watch.
func (a *appliance) oneGeneration() (end func()) {
	ranks, daemon := len(a.status().Ranks), a.cmd.Process.Pid
	stop, done := make(chan struct{}), make(chan struct{})
	worst := 0
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
				worst = max(worst, len(workers(daemon)))
			}
		}
	}()
	return func() {
		a.t.Helper()
		close(stop)
		<-done
		if worst > ranks {
			a.t.Errorf("%d worker processes at once, of generations of %d", worst, ranks)
		}
		if worst == 0 {
			a.t.Error("no worker process was ever seen")
		}
	}
}

// holdings is what the daemon has of things that leak.
type holdings struct{ goroutines, fds int }

func (a *appliance) holds() holdings {
	a.t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", a.cmd.Process.Pid))
	if err != nil {
		a.t.Fatal(err)
	}
	return holdings{int(a.scrape()["go_goroutines"]), len(fds)}
}

// leaksNothing waits until the daemon has no more of anything than it had. What the
// measurement itself takes, a connection and its goroutines, is in both.
func (a *appliance) leaksNothing(before holdings) {
	a.t.Helper()
	a.http.CloseIdleConnections()
	var now holdings
	defer func() { a.t.Logf("goroutines and descriptors: %v before, %v after", before, now) }()
	a.within(20*time.Second, "goroutines and descriptors given back", func() bool {
		now = a.holds()
		return now.goroutines <= before.goroutines+4 && now.fds <= before.fds+4
	})
}

// rss is the daemon's resident memory in bytes.
func (a *appliance) rss() int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", a.cmd.Process.Pid))
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0
	}
	n, _ := strconv.ParseInt(f[1], 10, 64)
	return n * int64(os.Getpagesize())
}

// limit sets a resource limit of the running daemon.
func (a *appliance) limit(resource int, n uint64) (was unix.Rlimit) {
	a.t.Helper()
	if err := unix.Prlimit(a.cmd.Process.Pid, resource, nil, &was); err != nil {
		a.t.Fatal(err)
	}
	if err := unix.Prlimit(a.cmd.Process.Pid, resource, &unix.Rlimit{Cur: n, Max: was.Max}, nil); err != nil {
		a.t.Fatal(err)
	}
	return was
}

// one picks one of a list.
func one[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

// The program that is shipped has no place to misbehave at; the one that the
// scenarios use has.
func TestShippedBinaryHasNoFaults(t *testing.T) {
	symbols := func(program func() (string, error)) []string {
		bin, err := program()
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("go", "tool", "nm", bin).Output()
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for l := range strings.Lines(string(out)) {
			if strings.Contains(strings.ToLower(l), "worker.fault") {
				found = append(found, strings.TrimSpace(l))
			}
		}
		b, err := os.ReadFile(bin)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("TANDEM_"+"FAULTS")) {
			found = append(found, "the name of the variable")
		}
		return found
	}
	if f := symbols(binary); len(f) > 0 {
		t.Errorf("the shipped binary has %q", f)
	}
	if f := symbols(faulty); !slices.Contains(f, "the name of the variable") || len(f) < 6 {
		t.Errorf("the faulty binary has only %q: the check would see nothing", f)
	}
}
