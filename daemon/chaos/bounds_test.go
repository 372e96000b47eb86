package chaos

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// `make bounds` sets both. How late the loop is depends on the machine and on what
// else runs there, so in other runs it is printed and not judged.
var (
	boundsStreams = flag.Int("bounds.streams", 300, "streams at the same time")
	boundsLate    = flag.Duration("bounds.late", 0, "how late 999 of 1000 events may be dealt with; 0: no matter")
)

// resources are what a process has of things that can run out.
type resources struct{ goroutines, files int }

// resources of the daemon, without the connections that this test keeps open.
func (a *appliance) resources() (r resources, err error) {
	a.http.CloseIdleConnections()
	c := &http.Client{Timeout: 10 * time.Second, Transport: a.unix()}
	resp, err := c.Get("http://tandem/debug/pprof/goroutine?debug=1")
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil {
		return r, err
	}
	if _, err := fmt.Sscanf(line, "goroutine profile: total %d", &r.goroutines); err != nil {
		return r, fmt.Errorf("%q: %w", line, err)
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", a.cmd.Process.Pid))
	r.files = len(files)
	return r, err
}

var sampleLine = regexp.MustCompile(`^(\w+)(?:\{(.*)\})? (\S+)$`)

// gauges reads those metrics that say what there is now, by name and labels.
func (a *appliance) gauges() (map[string]float64, error) {
	r, err := a.http.Get(a.url("/metrics"))
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	out := map[string]float64{}
	in := bufio.NewScanner(r.Body)
	for in.Scan() {
		m := sampleLine.FindStringSubmatch(in.Text())
		if m == nil {
			continue
		}
		switch m[1] {
		case "tandem_requests", "tandem_oldest_request_age_seconds", "tandem_kv_pages", "tandem_kv_conservation_error", "tandem_quarantine_age_seconds":
			if out[m[1]+"{"+m[2]+"}"], err = strconv.ParseFloat(m[3], 64); err != nil {
				return nil, err
			}
		}
	}
	return out, in.Err()
}

// ends counts the answers so far by how they ended.
func (a *appliance) ends() map[string]int {
	a.t.Helper()
	out := map[string]int{}
	for name, n := range a.scrape() {
		code, ok := strings.CutPrefix(name, `tandem_request_seconds_count{code="`)
		if ok && n > 0 {
			out[strings.TrimSuffix(code, `"}`)] = int(n)
		}
	}
	return out
}

// restless says what of a daemon that has nothing to do is not as it should be then:
// a gauge that is not 0, a page that is not free, goroutines or files that it did not
// have when it began. It is empty if all is well.
func (a *appliance) restless() string {
	gauges, err := a.gauges()
	if err != nil {
		return err.Error()
	}
	states := 0
	for _, name := range slices.Sorted(maps.Keys(gauges)) {
		if strings.HasPrefix(name, "tandem_requests{") {
			states++
		}
		if gauges[name] != 0 && !strings.Contains(name, `state="free"`) {
			return fmt.Sprintf("%s is %v", name, gauges[name])
		}
	}
	if states < 8 {
		return fmt.Sprintf("gauges of %d request states", states)
	}
	now, err := a.resources()
	switch {
	case err != nil:
		return err.Error()
	case a.rest == resources{}: // not measured
	case now.goroutines > a.rest.goroutines, now.files > a.rest.files:
		return fmt.Sprintf("%d goroutines and %d files, at the start %d and %d", now.goroutines, now.files, a.rest.goroutines, a.rest.files)
	}
	return ""
}

// memory of a process, in bytes: of its own, and all that is resident.
func memory(pid int) (own, all int64) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "RssAnon":
			own = n << 10
		case "VmRSS":
			all = n << 10
		}
	}
	return own, all
}

// sockets is the memory that the kernel has given to TCP buffers of all processes.
func sockets() int64 {
	b, _ := os.ReadFile("/proc/net/sockstat")
	_, rest, _ := strings.Cut(string(b), " mem ")
	rest, _, _ = strings.Cut(rest, "\n")
	n, _ := strconv.ParseInt(rest, 10, 64)
	return n * int64(os.Getpagesize())
}

// pace is how a client reads.
type pace int

const (
	brisk  pace = iota // all that comes
	crawls             // a byte a second, until it is told to hurry
	gapes              // nothing until then
)

// reading is a connection whose client reads at a pace, with a small buffer of its
// own, so that what it does not take comes to stand with the daemon.
type reading struct {
	net.Conn
	pace  pace
	hurry <-chan struct{}
}

func (r reading) Read(p []byte) (int, error) {
	switch r.pace {
	case crawls:
		select {
		case <-r.hurry:
		case <-time.After(time.Second):
			p = p[:1]
		}
	case gapes:
		<-r.hurry
	}
	return r.Conn.Read(p)
}

// client asks over a connection of its own for each answer, and reads at a pace.
func (a *appliance) client(p pace, hurry <-chan struct{}) *appliance {
	b := *a
	d := net.Dialer{Timeout: time.Minute}
	if p != brisk {
		d.Control = func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10) })
		}
	}
	b.http = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return reading{c, p, hurry}, nil
	}}}
	return &b
}

// percentiles of times, for people.
func percentiles(ds []time.Duration) string {
	if len(ds) == 0 {
		return "none"
	}
	slices.Sort(ds)
	at := func(share float64) time.Duration {
		return ds[min(int(share*float64(len(ds))), len(ds)-1)].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, most %s (%d)", at(0.5), at(0.9), at(0.99), ds[len(ds)-1].Round(100*time.Microsecond), len(ds))
}

func (a *appliance) lateness() string {
	l := a.status().Loop
	ms := func(s float64) string { return time.Duration(s * 1e9).Round(time.Microsecond).String() }
	return fmt.Sprintf("loop done with an event after: p50 %s, p99 %s, p99.9 %s, most %s (%d events)", ms(l.P50), ms(l.P99), ms(l.P999), ms(l.Max), l.Events)
}

// judgeLateness prints how late the loop was, and judges it where that is asked for.
func (a *appliance) judgeLateness(what string) {
	a.t.Helper()
	a.t.Logf("%s: %s", what, a.lateness())
	if late := a.status().Loop.P999; *boundsLate > 0 && late > boundsLate.Seconds() {
		a.t.Errorf("%s: one event in a thousand waits %.3f s for the loop, at most %s", what, late, *boundsLate)
	}
}

// Very many streams at once: every one ends with its right answer. A handful is
// running, the others wait for their turn; one in five reads a byte a second or
// nothing at all, of those that run one in four, until their answers have piled up in
// the daemon. Those that read do not notice. What a stream costs is printed.
func TestBoundsManyStreams(t *testing.T) {
	n := *boundsStreams
	const running, measured, tokens = 16, 8, 60
	// With a name of three kilobytes in each frame, an answer that is not read fills the
	// buffers of both sides and then waits in the daemon.
	name := strings.Repeat("long-name.", 300)
	a := start(t, fmt.Sprintf("limits.max_requests=%d", running), fmt.Sprintf("limits.max_queued=%d", n+running), "decode.max_batch=16", "model.context_length=512", `kv.cpu_bytes="192MiB"`,
		fmt.Sprintf("model.aliases=[%q]", name), `deadlines.queue="30m"`, `deadlines.request="60m"`, `server.keepalive="5s"`, "log.level=info")
	want := make([]string, 8)
	short := func(i int) question { return question{prompt: []int32{1, int32(200 + i%8), 17}, tokens: 4} }
	long := func(i int) question {
		return question{prompt: []int32{1, int32(500 + i), 23, 42}, tokens: tokens, more: map[string]any{"model": name}}
	}
	for i := range want {
		want[i] = a.mustGet(short(i)).text
	}
	idle, idleAll := memory(a.cmd.Process.Pid)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()

	// run has long answers fill all running places, and gives the gaps between tokens
	// of those that are measured. The rest of them read at these paces.
	var texts [2][]string
	run := func(round int, others func(i int) pace, hurry chan struct{}, meanwhile func()) (gaps []time.Duration, slow []error) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var begun atomic.Int32
		texts[round] = make([]string, running)
		slow = make([]error, running)
		var fast sync.WaitGroup
		for i := range running {
			wg.Add(1)
			p := brisk
			if i >= measured {
				p = others(i)
			} else {
				fast.Add(1)
			}
			go func() {
				defer wg.Done()
				q := long(i)
				var last time.Time
				q.on = func(pieces int, _ string) {
					if pieces == 1 {
						begun.Add(1)
					} else if i < measured {
						mu.Lock()
						gaps = append(gaps, time.Since(last))
						mu.Unlock()
					}
					last = time.Now()
				}
				out, err := a.client(p, hurry).get(ctx, q)
				texts[round][i] = out.text
				if p == brisk && err != nil {
					t.Errorf("long answer %d: %v", i, err)
				}
				if slow[i] = err; i < measured {
					fast.Done()
				}
			}()
		}
		a.within(time.Minute, "running", func() bool { return a.status().Running == running })
		meanwhile()
		fast.Wait()
		wg.Wait()
		return gaps, slow
	}

	hurry := make(chan struct{})
	gaps, _ := run(0, func(int) pace { return brisk }, nil, func() {})
	t.Logf("gaps of %d readers beside %d that read as well: %s", measured, running-measured, percentiles(gaps))
	alone := slices.Max(gaps)

	// The same again beside those that do not read, with n streams behind them.
	var crowd sync.WaitGroup
	var peak, peakAll, peakTCP int64
	odd := make(chan string, n)
	begun := time.Now()
	hurryOnce := sync.OnceFunc(func() { close(hurry) })
	defer hurryOnce()
	gaps, slow := run(1, func(i int) pace { return []pace{brisk, brisk, crawls, gapes}[i%4] }, hurry, func() {
		for i := range n {
			crowd.Add(1)
			go func() {
				defer crowd.Done()
				p := []pace{brisk, brisk, brisk, brisk, brisk, brisk, brisk, brisk, crawls, gapes}[i%10]
				out, err := a.client(p, hurry).get(ctx, short(i))
				switch {
				case err != nil:
					odd <- fmt.Sprintf("stream %d: %v", i, err)
				case out.text != want[i%8]:
					odd <- fmt.Sprintf("stream %d: %q instead of %q", i, out.text, want[i%8])
				}
			}()
		}
		if a.restless() == "" {
			t.Error("a daemon with much to do passes for one with nothing to do")
		}
		go func() { // until the test ends
			for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
				own, all := memory(a.cmd.Process.Pid)
				atomic.StoreInt64(&peak, max(atomic.LoadInt64(&peak), own))
				atomic.StoreInt64(&peakAll, max(atomic.LoadInt64(&peakAll), all))
				atomic.StoreInt64(&peakTCP, max(atomic.LoadInt64(&peakTCP), sockets()))
			}
		}()
		most := 0
		a.within(10*time.Minute, "all streams at once", func() bool {
			s := a.status()
			most = max(most, s.Running+s.Queued)
			return most >= n || s.Running+s.Queued == 0
		})
		t.Logf("%d streams held a place at the same time, %s after the first came", most, time.Since(begun).Round(10*time.Millisecond))
		if most < n*9/10 {
			t.Errorf("only %d of %d streams were there at the same time", most, n)
		}
		// The brisk ones end; what is left are those that do not read, whose answers the
		// kernel holds. Then they hurry too.
		stuck := false // an answer waits in the daemon for its client
		a.within(20*time.Minute, "the queue to empty", func() bool {
			s := a.status()
			for _, st := range s.States {
				if st.State == "draining" && st.Oldest > 0.5 {
					stuck = true
				}
			}
			return s.Queued == 0 && s.Running <= running/4
		})
		if !stuck {
			t.Error("no answer waited in the daemon for its client: the buffers of the kernel held them all")
		}
		hurryOnce()
	})
	crowd.Wait()
	close(odd)
	for o := range odd {
		t.Error(o)
	}
	t.Logf("%d streams ended in %s", n, time.Since(begun).Round(10*time.Millisecond))
	t.Logf("gaps of %d readers beside %d of which half do not read, and %d streams: %s", measured, running-measured, n, percentiles(gaps))
	// A daemon that waits for one client would keep the others for as long as that
	// client may take: 30 s. Anything less than that is the machine's affair.
	if most := slices.Max(gaps); most > 10*alone+5*time.Second {
		t.Errorf("a reader waited %s for a token beside slow ones, and %s without", most, alone)
	}
	for i := range running {
		switch {
		case slow[i] == nil && texts[0][i] != texts[1][i]:
			t.Errorf("long answer %d: %q instead of %q", i, texts[1][i], texts[0][i])
		case slow[i] != nil && !strings.HasPrefix(texts[0][i], texts[1][i]):
			t.Errorf("long answer %d was cut (%v) after %q, which is not the beginning of %q", i, slow[i], texts[1][i], texts[0][i])
		case slow[i] != nil:
			t.Logf("long answer %d was cut after %d bytes: %v", i, len(texts[1][i]), slow[i])
		}
	}
	per := func(now, before int64) string { return fmt.Sprintf("%.1f KiB", float64(now-before)/1024/float64(n)) }
	t.Logf("memory of the daemon: %.1f MiB idle, %.1f at its peak: %s a stream (resident with shared pages %.1f and %.1f MiB); the kernel's TCP buffers, both sides and all processes: %.1f MiB at most, %s a stream",
		float64(idle)/(1<<20), float64(peak)/(1<<20), per(peak, idle), float64(idleAll)/(1<<20), float64(peakAll)/(1<<20), float64(peakTCP)/(1<<20), per(peakTCP, 0))
	if most := int64(256 << 10); (peak-idle)/int64(n) > most {
		t.Errorf("a stream costs more than %d KiB", most>>10)
	}
	a.judgeLateness(fmt.Sprintf("%d streams", n))
	a.settled()
	// Every answer has an end with a name.
	ends, total := a.ends(), 0
	for _, n := range ends {
		total += n
	}
	t.Logf("ends: %v", ends)
	cut := len(slow) - len(slices.DeleteFunc(slow, func(err error) bool { return err != nil }))
	if asked := len(want) + 2*running + n; total != asked || ends["ok"] != asked-cut || ends["client_stalled"] != cut {
		t.Errorf("%d requests of which %d were cut, and these ends: %v", asked, cut, ends)
	}
}

// The loop goes on at its pace though one worker does not read its socket: decode is
// at work, prefill's leader is stopped, and orders for it pile up behind its socket.
func TestBoundsBlockedWorker(t *testing.T) {
	for _, n := range []int{30, *boundsStreams} {
		t.Run(fmt.Sprintf("%d streams", n), func(t *testing.T) {
			// Pages are set aside for all of them, and used by none: nothing is computed.
			a := start(t, "limits.max_requests=4096", "limits.max_queued=10", "model.context_length=512", `kv.cpu_bytes="5GiB"`, `deadlines.progress="10m"`,
				`deadlines.prefill_stall="10m"`, `deadlines.quarantine="10m"`, `deadlines.token_stall="10m"`, "log.level=info")
			first, cut := context.WithCancel(t.Context())
			defer cut()
			var decoding sync.WaitGroup
			tokens := make(chan struct{}, 1<<16)
			for i := range 4 { // go on at decode, which reads
				decoding.Add(1)
				go func() {
					defer decoding.Done()
					_, _ = a.get(first, question{prompt: []int32{1, int32(i)}, tokens: 500, on: func(int, string) { tokens <- struct{}{} }})
				}()
			}
			for range 8 {
				<-tokens
			}
			if err := syscall.Kill(a.pid("prefill/0.0"), syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			prompt := make([]int32, 60) // a page with its answer; all together are more than a socket holds
			for i := range prompt {
				prompt[i] = int32(100 + i)
			}
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			var clients sync.WaitGroup
			for range n {
				clients.Add(1)
				go func() {
					defer clients.Done()
					if _, err := a.client(brisk, nil).get(ctx, question{prompt: prompt, tokens: 4}); err == nil {
						t.Error("an answer without prefill")
					}
				}()
			}
			prefilling := func() int {
				for _, s := range a.status().States {
					if s.State == "prefilling" {
						return s.Count
					}
				}
				return 0
			}
			a.within(2*time.Minute, "all waiting for prefill", func() bool { return prefilling() == n })
			before, ready := len(tokens), a.status().Ready
			time.Sleep(3 * time.Second)
			if after := len(tokens); after == before {
				t.Error("decode stands still although only prefill is stopped")
			}
			a.judgeLateness(fmt.Sprintf("one worker does not read, %d streams wait for it (ready: %v)", n, ready))
			leave()
			clients.Wait()
			cut()
			decoding.Wait()
			a.judgeLateness("and after they left")
			// Each that left is one more order that is not read. When too many wait the rank
			// is given up; before that, it is an operator's affair.
			if n < 2000 {
				if err := a.post("/restart", "reason=the test has seen enough"); err != nil {
					t.Fatal(err)
				}
			}
			a.within(time.Minute, "a new generation", func() bool { return a.status().Generation == 2 })
			if why := a.status().LastEnd; n >= 2000 && why != "not_reading" {
				t.Errorf("the generation ended because of %s", why)
			}
			a.waitReady()
			a.settled()
		})
	}
}

// The bodies of clients that announce much and send slowly take no more memory than is
// set aside, and those that come in small go through meanwhile.
func TestBoundsBodies(t *testing.T) {
	a := start(t, `server.max_body="4MiB"`)
	idle, _ := memory(a.cmd.Process.Pid)
	const clients, each = 40, 3 << 20
	var wg sync.WaitGroup
	var refused, waiting atomic.Int32
	go1 := make(chan struct{})
	for range clients {
		wg.Add(1)
		go func() {
			defer wg.Done()
			c, err := net.Dial("tcp", strings.TrimPrefix(a.url(""), "http://"))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{\"prompt\":\"", each)
			// Most of it at once; the rest never, which the daemon allows for some seconds.
			_, _ = io.WriteString(c, strings.Repeat("x", each-1000))
			waiting.Add(1)
			<-go1
			b := make([]byte, 12)
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			_, _ = io.ReadFull(c, b)
			if strings.HasSuffix(string(b), "503") {
				refused.Add(1)
			}
		}()
	}
	peak := int64(0)
	end := time.Now().Add(3 * time.Second)
	for time.Now().Before(end) && waiting.Load() < clients {
		now, _ := memory(a.cmd.Process.Pid)
		peak = max(peak, now)
		time.Sleep(5 * time.Millisecond)
	}
	small := a.mustGet(question{user: "Hello", tokens: 2})
	close(go1)
	wg.Wait()
	now, _ := memory(a.cmd.Process.Pid)
	peak = max(peak, now)
	t.Logf("%d bodies of %d MiB: %d were refused; the daemon grew by %.1f MiB at most", clients, each>>20, refused.Load(), float64(peak-idle)/(1<<20))
	if refused.Load() == 0 {
		t.Error("bodies of more than is set aside, and none was refused")
	}
	if small.text == "" {
		t.Error("a small request was not answered meanwhile")
	}
	a.settled()
}
