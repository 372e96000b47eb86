package api_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"tandem/daemon/api"
	"tandem/daemon/ident"
	"tandem/daemon/request"
)

// flow is an engine whose stream gives one token at a time, n times, and keeps
// no books, so that a benchmark measures the endpoint.
type flow struct {
	n   int
	out request.Output
}

func newFlow(n int) *flow { return &flow{n: n, out: request.Output{Tokens: []int32{'x'}}} }

func (f *flow) Submit(request.Spec) (api.Stream, error) { return f, nil }
func (f *flow) Ready() error                            { return nil }
func (f *flow) Generation() ident.Generation            { return 1 }
func (f *flow) RetryAfter() time.Duration               { return 0 }
func (f *flow) Stop()                                   {}
func (f *flow) Cancel(string)                           {}
func (f *flow) Close()                                  {}
func (f *flow) Flushed()                                {}
func (f *flow) Next(context.Context) (request.Output, error) {
	if f.n--; f.n < 0 {
		return request.Output{Finish: request.FinishLength}, nil
	}
	return f.out, nil
}

// sink is a client that takes everything at once.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(int)             {}
func (s *sink) Flush()                      {}

// BenchmarkFrame is one token from Next to the frame's bytes, without a socket.
func BenchmarkFrame(b *testing.B) {
	e := newFlow(b.N)
	o := options(nil)
	o.Engine = e
	h := api.New(o)
	r, err := http.NewRequest("POST", chatPath, strings.NewReader(chatBody("x", `"stream":true`)))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	h.ServeHTTP(&sink{http.Header{}}, r)
}

// overTCP serves h on loopback, asks once, and reads the answer in pieces as a
// client does. The time is both sides' together; cpu-ns/op is what this process
// and the kernel on its behalf computed for a frame, both sides.
func overTCP(b *testing.B, h http.Handler) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := api.NewServer(h, nil)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	before := cpu(b)
	b.ResetTimer()
	if _, err := io.WriteString(c, strings.Replace(rawRequest(chatBody("x", `"stream":true`)), "Host:", "Connection: close\r\nHost:", 1)); err != nil {
		b.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
	c.Close()
	if err := s.Shutdown(b.Context()); err != nil {
		b.Fatal(err)
	}
	<-served
}

func cpu(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkFrameOverTCP is one token to a client on loopback.
func BenchmarkFrameOverTCP(b *testing.B) {
	o := options(nil)
	o.Engine = newFlow(b.N)
	overTCP(b, api.New(o))
}

// BenchmarkBareOverTCP is the least that net/http does for the same bytes.
func BenchmarkBareOverTCP(b *testing.B) {
	frame := []byte(`data: {"id":"chatcmpl-req-0123456789abcdef","object":"chat.completion.chunk","created":1795965988,"model":"tiny","choices":[{"index":0,"delta":{"content":"x"},"logprobs":null,"finish_reason":null}]}` + "\n\n")
	overTCP(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		for range b.N {
			if _, err := w.Write(frame); err != nil {
				b.Error(err)
				return
			}
			if err := rc.Flush(); err != nil {
				b.Error(err)
				return
			}
		}
	}))
}
