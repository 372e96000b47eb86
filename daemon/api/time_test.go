package api_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tandem/daemon/api"
	"tandem/daemon/api/apitest"
	"tandem/daemon/fault"
	"tandem/daemon/request"
)

func script(steps ...apitest.Step) *apitest.Engine {
	return &apitest.Engine{Life: 1, Script: func(request.Spec) []apitest.Step { return steps }}
}

func after(d time.Duration, out request.Output) apitest.Step {
	return apitest.Step{Wait: d, Out: out}
}

var finished = request.Output{Finish: request.FinishStop}

// A client hears something at least once in each period, before the first token
// as after it, and the header at once.
func TestSilenceIsBrokenByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := script(after(50*time.Second, apitest.Tokens(65)), after(40*time.Second, finished))
		w := newWorld(api.New(options(e)))
		defer w.end(t)
		start := time.Now()
		r, err := w.post(t.Context(), chatPath, chatBody("x", `"stream":true`))
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("the header came after %v", d)
		}
		var heard []string
		in := bufio.NewReader(r.Body)
		for {
			line, err := in.ReadString('\n')
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			what := "event"
			if strings.HasPrefix(line, ":") {
				what = "comment"
			}
			if line != "\n" {
				heard = append(heard, fmt.Sprintf("%v %s", time.Since(start), what))
			}
		}
		r.Body.Close()
		want := "15s comment, 30s comment, 45s comment, 50s event, 50s event, 1m5s comment, 1m20s comment, 1m30s event, 1m30s event"
		if got := strings.Join(heard, ", "); got != want {
			t.Errorf("heard %s\nwant  %s", got, want)
		}
		kept(t, e)
	})
}

// Tokens that bring no text, because it may become a stop string, are silence too.
func TestHeldTextIsSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var steps []apitest.Step
		for range 40 {
			steps = append(steps, after(time.Second, apitest.Tokens('a')))
		}
		e := script(append(steps, after(0, finished))...)
		w := newWorld(api.New(options(e)))
		defer w.end(t)
		r, err := w.post(t.Context(), chatPath, chatBody("x", `"stream":true`, `"stop":"`+strings.Repeat("a", 50)+`"`))
		if err != nil {
			t.Fatal(err)
		}
		body := readAll(t, r.Body)
		r.Body.Close()
		if _, comments := frames(t, body); comments != 2 {
			t.Errorf("%d comments in 40 s of silence", comments)
		}
		if text, _, _ := spoken(t, body); text != strings.Repeat("a", 40) {
			t.Errorf("%q", text)
		}
	})
}

func TestLongStreamIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var steps []apitest.Step
		for range 200 {
			steps = append(steps, after(20*time.Second, apitest.Tokens('a')))
		}
		e := script(append(steps, after(20*time.Second, finished))...)
		w := newWorld(api.New(options(e)))
		defer w.end(t)
		r, err := w.post(t.Context(), chatPath, chatBody("x", `"stream":true`))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if text, finish, _ := spoken(t, readAll(t, r.Body)); len(text) != 200 || finish != "stop" {
			t.Errorf("%d characters, %q", len(text), finish)
		}
		kept(t, e)
	})
}

// Ten minutes without a byte are right for an answer that is not streamed, and
// the connection serves the next request after them.
func TestLongAnswerIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := script(after(10*time.Minute, apitest.Tokens('a')), after(0, finished))
		w := newWorld(api.New(options(e)))
		defer w.end(t)
		for range 2 {
			r, err := w.post(t.Context(), chatPath, chatBody("x"))
			if err != nil {
				t.Fatal(err)
			}
			if body := readAll(t, r.Body); r.StatusCode != 200 || !strings.Contains(body, `"content":"a"`) {
				t.Errorf("%d %s", r.StatusCode, body)
			}
			r.Body.Close()
			time.Sleep(2 * time.Minute) // idle, but less than the limit
		}
		kept(t, e)
	})
}

func TestClientLeaves(t *testing.T) {
	for _, mode := range []string{`"stream":true`, `"stream":false`} {
		for tokens, stage := range map[int]string{0: "in the queue", 1: "after the first token", 5: "in the middle"} {
			t.Run(mode+" "+stage, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var steps []apitest.Step
					for range tokens {
						steps = append(steps, after(time.Second, apitest.Tokens('a')))
					}
					e := script(steps...) // and then silence
					w := newWorld(api.New(options(e)))
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					answered := make(chan struct{})
					go func() {
						defer close(answered)
						r, err := w.post(ctx, chatPath, chatBody("x", mode))
						if err == nil {
							_, _ = io.Copy(io.Discard, r.Body)
							r.Body.Close()
						}
					}()
					time.Sleep(6 * time.Second)
					synctest.Wait()
					s := e.Streams()[0]
					if c := s.Calls(); len(c.Cancels)+c.Closes > 0 {
						t.Fatalf("before it left: %+v", c)
					}
					leave()
					synctest.Wait() // no time passes
					if c := s.Calls(); len(c.Cancels) != 1 || c.Cancels[0] != "client gone" || c.Closes != 1 {
						t.Errorf("%+v", c)
					}
					<-answered
					w.end(t)
					kept(t, e)
				})
			})
		}
	}
}

// request writes one request on a bare connection.
func rawRequest(body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: tandem\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(body), body)
}

func TestClientThatReadsNothingIsCut(t *testing.T) {
	for _, mode := range []string{`"stream":true`, `"stream":false`} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := script(after(0, apitest.Tokens('a')), after(0, finished))
				log := &logbook{}
				o := options(e)
				o.Recorder = log
				w := newWorld(api.New(o))
				c, err := w.dial()
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if _, err := io.WriteString(c, rawRequest(chatBody("x", mode))); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				synctest.Wait() // until it is submitted
				<-e.Streams()[0].Done()
				if d := time.Since(start); d > 30*time.Second || d < 26*time.Second {
					t.Errorf("cut after %v", d)
				}
				calls := e.Streams()[0].Calls()
				if calls.Flushes != 0 || mode == `"stream":true` && (len(calls.Cancels) != 1 || !strings.Contains(calls.Cancels[0], "took no byte for 30s")) {
					t.Errorf("%+v", calls)
				}
				w.end(t)
				if n := len(log.lines); n == 0 || log.lines[n-1] != chatPath+" 499 client_stalled" {
					t.Errorf("%q", log.lines)
				}
				kept(t, e)
			})
		})
	}
}

// A client that stops reading in the middle holds its request no longer.
func TestClientThatStopsReadingIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := script(after(0, apitest.Tokens('a')), after(time.Minute, apitest.Tokens('b')), after(time.Minute, finished))
		w := newWorld(api.New(options(e)))
		c, err := w.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, rawRequest(chatBody("x", `"stream":true`))); err != nil {
			t.Fatal(err)
		}
		readUntil(t, bufio.NewReaderSize(c, 1), `"content":"a"`)
		<-e.Streams()[0].Done()
		w.end(t)
		if calls := e.Streams()[0].Calls(); len(calls.Cancels) != 1 {
			t.Errorf("%+v", calls)
		}
		kept(t, e)
	})
}

func TestSlowClientThatReadsIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := says("abcdefgh")
		w := newWorld(api.New(options(e)))
		c, err := w.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, rawRequest(chatBody("x", `"stream":true`))); err != nil {
			t.Fatal(err)
		}
		all := ""
		for buf := make([]byte, 4096); !strings.Contains(all, "[DONE]"); {
			time.Sleep(20 * time.Second)
			n, err := c.Read(buf)
			if err != nil {
				t.Fatalf("after %q: %v", all, err)
			}
			all += string(buf[:n])
		}
		go func() { _, _ = io.Copy(io.Discard, c) }() // the end of the body, until c is closed
		w.end(t)
		kept(t, e)
	})
}

func TestEngineSaysTheClientStalled(t *testing.T) {
	for _, mode := range []string{`"stream":true`, `"stream":false`} {
		synctest.Test(t, func(t *testing.T) {
			e := script(after(time.Second, apitest.Fail(fault.ClientStalled, "no byte")))
			w := newWorld(api.New(options(e)))
			r, err := w.post(t.Context(), chatPath, chatBody("x", mode))
			if err == nil {
				var b []byte
				b, err = io.ReadAll(r.Body)
				r.Body.Close()
				if err == nil {
					t.Errorf("%s: the answer looks whole: %d %q", mode, r.StatusCode, b)
				}
			}
			w.end(t)
			kept(t, e)
		})
	}
}

// An engine that breaks its word ends the request, and the client hears why.
func TestNextFails(t *testing.T) {
	for _, mode := range []string{`"stream":true`, `"stream":false`} {
		e := script(after(0, apitest.Tokens('a')), apitest.Step{Err: errors.New("out of order")})
		w := ask(api.New(options(e)), "POST", chatPath, chatBody("x", mode))
		if mode == `"stream":true` {
			if text, _, code := spoken(t, w.Body.String()); text != "a" || code != "internal_error" {
				t.Errorf("%q, %q", text, code)
			}
		} else if w.Code != 500 || !strings.Contains(w.Body.String(), "out of order") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		kept(t, e)
		if c := e.Streams()[0].Calls(); len(c.Cancels) != 1 {
			t.Errorf("%s: the request runs on: %+v", mode, c)
		}
	}
}

// A long answer goes out in pieces, each with its own time, so a client may take
// far longer for the whole than for one of them.
func TestLongAnswerToASlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		e := &apitest.Engine{Script: func(request.Spec) []apitest.Step {
			return []apitest.Step{{Out: request.Output{Tokens: apitest.Encode(strings.Repeat("a", size)), Finish: request.FinishStop}}}
		}}
		w := newWorld(api.New(options(e)))
		c, err := w.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, rawRequest(chatBody("x"))); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		got := 0
		for buf := make([]byte, 8<<10); got < size; {
			time.Sleep(2 * time.Second)
			n, err := c.Read(buf)
			if err != nil {
				t.Fatalf("after %d bytes and %v: %v", got, time.Since(start), err)
			}
			got += n
		}
		if d := time.Since(start); d < 2*time.Minute {
			t.Errorf("the client was not slow: %v", d)
		}
		go func() { _, _ = io.Copy(io.Discard, c) }() // what is left, until c is closed
		w.end(t)
		kept(t, e)
	})
}

func TestBodyThatEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := says("")
		log := &logbook{}
		o := options(e)
		o.Recorder = log
		w := newWorld(api.New(o))
		c, err := w.dial()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: tandem\r\nContent-Length: 1000\r\n\r\n{", chatPath); err != nil {
			t.Fatal(err)
		}
		c.Close()
		w.end(t)
		if len(e.Streams()) > 0 || fmt.Sprint(log.lines) != "["+chatPath+" 400 invalid_request]" {
			t.Errorf("%d streams, %q", len(e.Streams()), log.lines)
		}
	})
}

func TestPanicInTheMiddleCutsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := says("abc")
		e.PanicAfter = 2
		w := newWorld(api.New(options(e)))
		r, err := w.post(t.Context(), chatPath, chatBody("x", `"stream":true`))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		if err == nil || strings.Contains(string(b), "[DONE]") {
			t.Errorf("the answer looks whole: %q", b)
		}
		r.Body.Close()
		w.end(t)
		kept(t, e)
		if c := e.Streams()[0].Calls(); len(c.Cancels) != 1 {
			t.Errorf("%+v", c)
		}
	})
}

// A body that does not come holds nothing for long, whether or not the path
// wants one.
func TestBodyThatDoesNotCome(t *testing.T) {
	for _, c := range []struct {
		path    string
		trickle time.Duration
		want    string
		by      time.Duration
	}{
		{chatPath, 0, "HTTP/1.1 408", 5 * time.Second},
		{chatPath, 4 * time.Second, "HTTP/1.1 408", time.Minute},
		{"/nowhere", 0, "HTTP/1.1 404", 5 * time.Second},
	} {
		t.Run(fmt.Sprint(c.path, c.trickle), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := says("")
				w := newWorld(api.New(options(e)))
				conn, err := w.dial()
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				start := time.Now()
				if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: tandem\r\nContent-Length: 1000\r\n\r\n{", c.path); err != nil {
					t.Fatal(err)
				}
				trickled := make(chan struct{})
				if c.trickle == 0 {
					close(trickled)
				} else {
					go func() {
						defer close(trickled)
						for {
							time.Sleep(c.trickle)
							if _, err := conn.Write([]byte(" ")); err != nil {
								return
							}
						}
					}()
				}
				b, err := io.ReadAll(conn)
				if !strings.HasPrefix(string(b), c.want) || err != nil {
					t.Errorf("%q, %v", b, err)
				}
				// net/http lingers half a second so that the answer is not lost.
				if d := time.Since(start); d < c.by || d > c.by+time.Second {
					t.Errorf("closed after %v, want %v", d, c.by)
				}
				conn.Close()
				<-trickled
				w.end(t)
				if len(e.Streams()) > 0 {
					t.Error("submitted")
				}
			})
		})
	}
}

func TestConnectionsWithoutARequestAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(api.New(options(says(""))))
		silent, err := w.dial()
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := io.ReadAll(silent); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("a connection without a header lived %v", d)
		}
		idle, err := w.dial()
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.WriteString(idle, "GET /health HTTP/1.1\r\nHost: tandem\r\n\r\n") }()
		start = time.Now()
		if _, err := io.ReadAll(idle); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d != 3*time.Minute {
			t.Errorf("an idle connection lived %v", d)
		}
		silent.Close()
		idle.Close()
		w.end(t)
	})
}

func TestShutdownWaitsForAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := script(after(0, apitest.Tokens('a')), after(20*time.Second, apitest.Tokens('b')), after(time.Second, finished))
		w := newWorld(api.New(options(e)))
		r, err := w.post(t.Context(), chatPath, chatBody("x", `"stream":true`))
		if err != nil {
			t.Fatal(err)
		}
		late := make(chan *http.Response, 1)
		go func() { // not streamed, so its header is written while draining
			r, err := w.post(t.Context(), chatPath, chatBody("x"))
			if err != nil {
				t.Error(err)
			}
			late <- r
		}()
		synctest.Wait()
		down := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			down <- w.server.Shutdown(ctx)
		}()
		synctest.Wait()
		if err := <-w.served; err != nil {
			t.Error(err)
		}
		if _, err := w.dial(); err == nil {
			t.Error("a new connection is accepted while draining")
		}
		if text, finish, _ := spoken(t, readAll(t, r.Body)); text != "ab" || finish != "stop" {
			t.Errorf("%q, %q", text, finish)
		}
		r.Body.Close()
		l := <-late
		if body := readAll(t, l.Body); !l.Close || !strings.Contains(body, `"ab"`) {
			t.Errorf("Connection: close is %v; %s", l.Close, body)
		}
		l.Body.Close()
		if err := <-down; err != nil {
			t.Error(err)
		}
		w.client.CloseIdleConnections()
		kept(t, e)
	})
}

// A request that is on its way when the server is told to stop has an answer: on
// a new connection, and on one that was in use.
func TestShutdownServesWhatIsOnItsWay(t *testing.T) {
	for range 50 { // for as many orders of events
		synctest.Test(t, func(t *testing.T) {
			e := says("x")
			w := newWorld(api.New(options(e)))
			c, err := w.dial()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			answer := make(chan string, 1)
			if _, err := io.WriteString(c, rawRequest(chatBody("x"))); err != nil {
				t.Fatal(err)
			}
			go func() {
				b, _ := io.ReadAll(c)
				answer <- string(b)
			}()
			w.end(t)
			if a := <-answer; !strings.HasPrefix(a, "HTTP/1.1 200") {
				t.Errorf("%q", a)
			}
			kept(t, e)
		})
	}
}

// A connection that never asks does not hold a shutdown up.
func TestShutdownDoesNotWaitForTheSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(api.New(options(says(""))))
		c, err := w.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		synctest.Wait()
		start := time.Now()
		w.end(t)
		if d := time.Since(start); d > 7*time.Second { // net/http's own patience is 5 s
			t.Errorf("took %v", d)
		}
	})
}

func TestShutdownCutsWhatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := script(after(0, apitest.Tokens('a')))
		w := newWorld(api.New(options(e)))
		r, err := w.post(t.Context(), chatPath, chatBody("x", `"stream":true`))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		if err := w.server.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("took %v", d)
		}
		// Shutdown returned, so nothing runs.
		if c := e.Streams()[0].Calls(); len(c.Cancels) != 1 || c.Closes != 1 {
			t.Errorf("%+v", c)
		}
		if b, err := io.ReadAll(r.Body); err == nil {
			t.Errorf("the cut answer looks whole: %q", b)
		}
		r.Body.Close()
		if err := <-w.served; err != nil {
			t.Error(err)
		}
		w.client.CloseIdleConnections()
	})
}

func TestServesOnSeveralListeners(t *testing.T) {
	e := says("hello")
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unix, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := api.NewServer(api.New(options(e)), nil)
	served := make(chan error, 1)
	go func() { served <- s.Serve(tcp, unix) }()
	for _, l := range []net.Listener{tcp, unix} {
		tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			return net.Dial(l.Addr().Network(), l.Addr().String())
		}}
		r, err := (&http.Client{Transport: tr}).Post("http://tandem"+chatPath, "application/json", strings.NewReader(chatBody("x", `"stream":true`)))
		if err != nil {
			t.Fatal(err)
		}
		if text, _, _ := spoken(t, readAll(t, r.Body)); text != "hello" {
			t.Errorf("%s: %q", l.Addr(), text)
		}
		r.Body.Close()
		tr.CloseIdleConnections()
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	kept(t, e)
}

func TestServeEndsWhenAListenerFails(t *testing.T) {
	bad, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bad.Close()
	good := newPipes()
	s := api.NewServer(api.New(options(says(""))), nil)
	if err := s.Serve(good, bad); err == nil || !strings.Contains(err.Error(), bad.Addr().String()) {
		t.Errorf("%v", err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if s.Serve() == nil {
		t.Error("serving on nothing succeeds")
	}
}

// The kernel's buffers take a lot from a server before it notices that nobody
// reads; a stream without end fills them. Time is real here and not asserted.
func TestStalledClientOnARealSocket(t *testing.T) {
	e := &apitest.Engine{Script: func(request.Spec) []apitest.Step {
		steps := make([]apitest.Step, 1<<14)
		for i := range steps {
			steps[i].Out = apitest.Tokens(apitest.Encode(strings.Repeat("a", 1<<10))...)
		}
		return steps
	}}
	o := options(e)
	o.ClientStall = 100 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	submitted := make(chan *apitest.Stream, 1)
	e.OnSubmit = func(s *apitest.Stream) { submitted <- s }
	s := api.NewServer(api.New(o), nil)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, rawRequest(chatBody("x", `"stream":true`))); err != nil {
		t.Fatal(err)
	}
	st := <-submitted
	<-st.Done()
	if calls := st.Calls(); len(calls.Cancels) != 1 || !strings.Contains(calls.Cancels[0], "took no byte") || calls.Flushes == 0 {
		t.Errorf("%+v", calls)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
