package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Scenarios in which clients are the trouble: they leave, read slowly, are too many,
// or ask for what is not to be had.

// F17: clients leave at any time, before their answer begins and within it. They
// take nothing with them, neither pages nor goroutines nor descriptors.
func TestF17_ClientsLeave(t *testing.T) {
	n := 60
	if *all {
		n = 400
	}
	a := startFaulty(t, fmt.Sprintf("limits.max_queued=%d", n), `deadlines.quarantine="30s"`) // a machine with other work may take long to be quiet
	a.all(questions)
	a.settled()
	before, g := a.holds(), a.gen()
	rnd := rand.New(rand.NewPCG(chooseSeed(t), 17))
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		leave := time.Duration(rnd.IntN(4000)) * time.Millisecond
		go func() {
			defer wg.Done()
			ctx, cancel := context.WithTimeout(context.Background(), leave)
			defer cancel()
			_, err := a.get(ctx, questions[i%len(questions)])
			if err != nil && ctx.Err() == nil {
				t.Errorf("a client that had not left: %v", err)
			}
		}()
	}
	wg.Wait()
	a.settled()
	a.changed(g, 0)
	a.leaksNothing(before)
	if got := a.mustGet(questions[1]).text; got != want(t)[1] {
		t.Errorf("answered %q", got)
	}
}

// F19: one client reads a byte a second of an answer that does not fit what the
// kernel holds for it. It is cut off when it has taken no more for half a minute;
// nobody else notices.
func TestF19_ClientReadsOneByteASecond(t *testing.T) {
	long(t, "a client is given 30 s")
	// Each piece repeats the name that was asked for, so a long one makes an answer that
	// no buffer holds.
	name := strings.Repeat("n", 4000)
	a := startFaulty(t, "model.name="+name, `model.aliases=["smollm2-135m"]`)
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1) })
	}}
	c, err := d.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", a.port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	body := `{"model":"` + name + `","prompt":[1,2,3],"stream":true,"max_tokens":8000,"ignore_eos":true}`
	fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	closed := make(chan time.Duration, 1)
	t0 := time.Now()
	go func() {
		b := make([]byte, 1)
		for {
			if _, err := c.Read(b); err != nil {
				closed <- time.Since(t0)
				return
			}
			time.Sleep(time.Second)
		}
	}()
	a.await("decoding", 1)
	for time.Since(t0) < 20*time.Second {
		compare(t, "beside the slow one", want(t), texts(a.all(questions)))
	}
	a.within(4*time.Minute, "the slow client gone", func() bool {
		s := a.status()
		return s.Running == 0 && s.Queued == 0
	})
	if e := a.events("request.done"); len(e) == 0 || e[len(e)-1].Code != "cancelled" || !strings.Contains(e[len(e)-1].Reason, "took no byte") {
		t.Errorf("the slow one ended with %+v", e[max(0, len(e)-1):])
	}
	t.Logf("cut off after %s", time.Since(t0).Round(time.Second))
	a.settled()
}

// F20: five hundred ask at once where there are thirty-two places. Never are more
// admitted; the rest is refused at once, and nothing that was accepted is refused
// later.
func TestF20_Burst(t *testing.T) {
	a := start(t, "limits.max_requests=8", "limits.max_queued=24")
	stop, watched := make(chan struct{}), make(chan int)
	go func() {
		most := 0
		for {
			select {
			case <-stop:
				watched <- most
				return
			default:
				var s struct{ Running, Queued int }
				if a.ask("/status", &s) == nil {
					most = max(most, s.Running+s.Queued)
				}
			}
		}
	}()
	var wg sync.WaitGroup
	var mu sync.Mutex
	ok, odd := 0, []string{}
	var refused []time.Duration
	for i := range 500 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			t0 := time.Now()
			_, err := a.get(context.Background(), question{prompt: []int32{1, int32(i)}, tokens: 60})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				ok++
			case strings.HasPrefix(err.Error(), "429"):
				refused = append(refused, time.Since(t0))
			default:
				odd = append(odd, err.Error())
			}
		}()
	}
	wg.Wait()
	close(stop)
	most := <-watched
	slices.Sort(refused)
	if ok < 32 || ok+len(refused) != 500 || len(odd) > 0 {
		t.Fatalf("%d answered, %d refused, others %q", ok, len(refused), odd)
	}
	if most > 32 || most == 0 {
		t.Errorf("%d requests held a place", most)
	}
	t.Logf("%d answered, %d refused, half of them within %s, at most %d places taken", ok, len(refused), refused[len(refused)/2], most)
	a.settled()
}

// F21: there are pages for three at a time, and many wait. They are served in the
// order in which they came; those whose time passes are told so; nothing locks up.
func TestF21_PoolForThree(t *testing.T) {
	a := startFaulty(t, "model.context_length=512", `kv.cpu_bytes="14MiB"`, `deadlines.queue="2500ms"`) // nine pages; a request here takes three
	before := a.gen()
	n := 50
	var qs []question
	for i := range n {
		qs = append(qs, question{prompt: []int32{1, 2, int32(100 + i)}, tokens: 130})
	}
	_, errs := a.each(qs)
	ok, late := 0, 0
	for _, err := range errs {
		switch {
		case err == nil:
			ok++
		case strings.Contains(err.Error(), "queue_timeout"):
			late++
		default:
			t.Error(err)
		}
	}
	if ok < 3 || late == 0 {
		t.Errorf("%d answered, %d waited too long", ok, late)
	}
	t.Logf("%d answered, %d waited too long", ok, late)
	// Those that were placed are those that came first.
	came, placed := map[string]int{}, []string{}
	for _, e := range a.events("request.state") {
		if e.Request != "canary" && e.State == "reserving" && !slices.Contains(placed, e.Request) {
			placed = append(placed, e.Request)
		}
	}
	for i, id := range placed {
		came[id] = i
	}
	type arrival struct {
		id string
		at time.Time
	}
	var in []arrival
	for _, id := range placed {
		in = append(in, arrival{id, a.stories(id).Arrived})
	}
	for i := 1; i < len(in); i++ {
		if in[i].at.Before(in[i-1].at) {
			t.Errorf("%s came %s before %s and was placed after it", in[i].id, in[i-1].at.Sub(in[i].at), in[i-1].id)
		}
	}
	a.changed(before, 0)
	a.settled()
}

// F23: what cannot be answered is refused before any page is touched, and the short
// answers are right.
func TestF23_EdgesOfARequest(t *testing.T) {
	a := startFaulty(t, "model.context_length=512")
	post := func(path string, body map[string]any) (int, string) {
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		r, err := a.http.Post(a.url(path), "application/json", bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		out, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(out)
	}
	prompt := func(n int) []int32 {
		p := make([]int32, n)
		for i := range p {
			p[i] = int32(200 + i)
		}
		return p
	}
	placed := func() int {
		seen := map[string]bool{}
		for _, e := range a.events("request.state") {
			if e.Request != "canary" {
				seen[e.Request] = true
			}
		}
		return len(seen)
	}
	before := placed()
	for name, body := range map[string]map[string]any{
		"as long as the window": {"prompt": prompt(512), "max_tokens": 1},
		"longer":                {"prompt": prompt(513), "max_tokens": 1},
		"empty":                 {"prompt": []int32{}, "max_tokens": 1},
		"no token wanted":       {"prompt": prompt(3), "max_tokens": 0},
		"too many wanted":       {"prompt": prompt(3), "max_tokens": 600},
	} {
		if code, out := post("/v1/completions", body); code != 400 && !(code == 200 && name == "too many wanted") {
			t.Errorf("%s: %d %s", name, code, out)
		}
	}
	if n := placed() - before; n > 1 { // "too many wanted" is clipped to the window, and served
		t.Errorf("%d requests that were refused went through states", n-1)
	}
	for name, body := range map[string]map[string]any{
		"one token":           {"prompt": prompt(3), "max_tokens": 1},
		"a prompt of one":     {"prompt": prompt(1), "max_tokens": 2},
		"the last position":   {"prompt": prompt(511), "max_tokens": 1},
		"whole pages":         {"prompt": prompt(128), "max_tokens": 2},
		"whole pages and one": {"prompt": prompt(129), "max_tokens": 2},
		"ends at once":        {"prompt": prompt(3), "max_tokens": 5, "logit_bias": map[string]int{"2": 100}}, // <|im_end|>
	} {
		code, out := post("/v1/completions", body)
		var r struct {
			Choices []struct {
				Text         string
				FinishReason string `json:"finish_reason"`
			}
			Usage struct {
				Completion int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(out), &r); code != 200 || err != nil || len(r.Choices) != 1 {
			t.Errorf("%s: %d %s", name, code, out)
			continue
		}
		if name == "ends at once" {
			if r.Choices[0].FinishReason != "stop" || r.Choices[0].Text != "" {
				t.Errorf("%s: %s", name, out)
			}
		} else if r.Usage.Completion != body["max_tokens"] || r.Choices[0].FinishReason != "length" {
			t.Errorf("%s: %s", name, out)
		}
	}
	a.settled()
}

// F37: told to stop under load, the daemon finishes what it accepted, refuses the
// rest, and ends with status 0 and a word.
func TestF37_StoppedUnderLoad(t *testing.T) {
	a := startFaulty(t)
	qs, answers := crowd(t, clients())
	done := a.begin(qs)
	a.await("decoding", clients()/3)
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	a.within(10*time.Second, "refused", func() bool {
		_, err := a.get(context.Background(), questions[0])
		return err != nil
	})
	compare(t, "while stopping", answers, texts((<-done).must(t)))
	select {
	case <-a.done:
	case <-time.After(30 * time.Second):
		t.Fatal("the daemon does not end")
	}
	if code := a.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	if len(a.events("stopped")) != 1 {
		t.Error("no event tells of the end")
	}
}
