package api_test

import (
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"tandem/daemon/api"
)

// Bodies that arrive at the same time share what is set aside for them: one that does
// not fit any more is told to come again, and when the others are through it is served.
func TestBodiesTogetherHaveALimit(t *testing.T) {
	e := says("hello")
	o := options(e)
	o.MaxBody, o.MaxBodies = 1<<20, 2<<20
	h := api.New(o)
	big := chatBody("x", `"user":"`+strings.Repeat("u", 900<<10)+`"`)

	// Two bodies that are almost there hold all that there is.
	var ends []func() int
	for range 2 {
		r, w := io.Pipe()
		req := httptest.NewRequest("POST", chatPath, r)
		req.ContentLength = -1
		rec := httptest.NewRecorder()
		done := make(chan struct{})
		go func() {
			defer close(done)
			h.ServeHTTP(rec, req)
		}()
		// Each Write returns when the handler has read it.
		if _, err := io.WriteString(w, big[:len(big)-10]); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, func() int {
			_, _ = io.WriteString(w, big[len(big)-10:])
			w.Close()
			<-done
			return rec.Code
		})
	}
	w := ask(h, "POST", chatPath, big)
	if p := errorOf(t, w.Body.Bytes()); w.Code != 503 || p.Code != "overloaded" || w.Header().Get("Retry-After") == "" {
		t.Errorf("a third body: %d %+v %v", w.Code, p, w.Header())
	}
	for _, end := range ends {
		if code := end(); code != 200 {
			t.Errorf("a body that had its place: %d", code)
		}
	}
	// Everything was given back, on every way out: good answers, refusals, bad bodies.
	for i := range 20 {
		body := big
		if i%3 == 1 {
			body = big[:len(big)-10]
		}
		want := 200
		if i%3 == 1 {
			want = 400
		}
		if w := ask(h, "POST", chatPath, body); w.Code != want {
			t.Fatalf("body %d afterwards: %d %s", i, w.Code, w.Body)
		}
	}
	kept(t, e)
}

// One connection beyond the limit is told so, and when another closes there is room.
func TestConnectionsHaveALimit(t *testing.T) {
	e := says("hello")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := api.NewServer(api.New(options(e)), nil)
	s.MaxConns = 3
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()

	// try asks on a connection of its own, which it leaves open.
	try := func() (net.Conn, string) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 12)
		_, _ = fmt.Fprintf(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n") // refused before it is read, perhaps
		_, _ = io.ReadFull(c, b)
		return c, string(b)
	}
	var open []net.Conn
	for range 3 {
		c, status := try()
		if status != "HTTP/1.1 200" {
			t.Fatalf("a connection within the limit: %q", status)
		}
		open = append(open, c)
	}
	c, status := try()
	if status != "HTTP/1.1 503" {
		t.Errorf("a connection beyond the limit: %q", status)
	}
	if b, _ := io.ReadAll(c); !strings.Contains(string(b), `"code":"too_many_connections"`) {
		t.Errorf("it is told %q", b)
	}
	c.Close()
	open[0].Close()
	for { // the server notices in its own time; the test's limit is the limit
		c, status := try()
		c.Close()
		if status == "HTTP/1.1 200" {
			break
		}
	}
	for _, c := range open {
		c.Close()
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
