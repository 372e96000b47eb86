package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"tandem/daemon/api"
	"tandem/daemon/api/apitest"
	"tandem/daemon/request"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	chatPath = "/v1/chat/completions"
	compPath = "/v1/completions"
	window   = 512
)

// says is an engine that answers everything with text.
func says(text string) *apitest.Engine {
	return &apitest.Engine{Life: 7, Script: func(request.Spec) []apitest.Step { return apitest.Say(text, request.FinishStop) }}
}

func options(e *apitest.Engine) api.Options {
	return api.Options{
		Engine: e,
		Text:   apitest.Text{},
		Model:  api.Model{Name: "tiny", Aliases: []string{"gpt-4o", "org/tiny"}, Context: window, DefaultOutput: 64, MaxOutput: 128},
	}
}

// ask sends one request to a handler without a connection.
func ask(h http.Handler, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// errorOf reads an error object, strictly.
func errorOf(t *testing.T, body []byte) (o struct {
	Message, Type, Code string
	Param               *string
}) {
	t.Helper()
	var e struct {
		Error struct {
			Message *string `json:"message"`
			Type    *string `json:"type"`
			Param   *string `json:"param"`
			Code    *string `json:"code"`
		} `json:"error"`
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil || e.Error.Message == nil || e.Error.Type == nil || e.Error.Code == nil || *e.Error.Message == "" {
		t.Fatalf("no error object: %s (%v)", body, err)
	}
	o.Message, o.Type, o.Code, o.Param = *e.Error.Message, *e.Error.Type, *e.Error.Code, e.Error.Param
	return o
}

// frames cuts a stream of server-sent events into the data of its events.
// Comments are counted.
func frames(t *testing.T, body string) (data []string, comments int) {
	t.Helper()
	if !strings.HasSuffix(body, "\n\n") {
		t.Errorf("the stream ends in the middle of an event: %q", body)
	}
	for line := range strings.Lines(body) {
		switch {
		case line == "\n":
		case strings.HasPrefix(line, ":"):
			comments++
		case strings.HasPrefix(line, "data: "):
			data = append(data, strings.TrimSuffix(line[len("data: "):], "\n"))
		default:
			t.Errorf("not a line of an event: %q", line)
		}
	}
	return data, comments
}

// spoken puts a stream together as a client does and checks its shape.
func spoken(t *testing.T, body string) (text, finish string, errCode string) {
	t.Helper()
	data, _ := frames(t, body)
	if len(data) == 0 || data[len(data)-1] != "[DONE]" {
		t.Fatalf("no [DONE] at the end of %q", body)
	}
	for _, d := range data[:len(data)-1] {
		var c map[string]json.RawMessage
		if err := json.Unmarshal([]byte(d), &c); err != nil {
			t.Fatalf("%q: %v", d, err)
		}
		if _, has := c["error"]; has {
			return text, finish, errorOf(t, []byte(d)).Code
		}
		var chunk struct {
			Choices []struct {
				Index *int
				Delta struct {
					Role    *string
					Content string
				}
				Text         string
				FinishReason *string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(d), &chunk); err != nil {
			t.Fatalf("%q: %v", d, err)
		}
		for _, ch := range chunk.Choices {
			if ch.Index == nil || *ch.Index != 0 {
				t.Fatalf("%q: no index", d)
			}
			if finish != "" {
				t.Fatalf("%q comes after the finish reason", d)
			}
			text += ch.Delta.Content + ch.Text
			if ch.FinishReason != nil {
				finish = *ch.FinishReason
			}
		}
	}
	return text, finish, ""
}

// kept checks what must be true of every stream that an engine gave out, once
// the handlers have returned.
func kept(t *testing.T, e *apitest.Engine) {
	t.Helper()
	for i, s := range e.Streams() {
		c := s.Calls()
		if c.Closes != 1 || len(c.Wrong) > 0 || len(c.Cancels) > 1 {
			t.Errorf("stream %d: closed %d times, cancelled %q, wrong %q", i, c.Closes, c.Cancels, c.Wrong)
		}
	}
}

// pipes is a network of unbuffered connections, for tests whose time is not real.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.done) }); return nil }

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial() (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.done:
		return nil, errors.New("connection refused")
	}
}

// world is a server on pipes and a client of it.
type world struct {
	*pipes
	server *api.Server
	client *http.Client
	served chan error
}

func newWorld(h http.Handler) *world {
	w := &world{pipes: newPipes(), server: api.NewServer(h, nil), served: make(chan error, 1)}
	w.client = &http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return w.dial() },
	}}
	go func() { w.served <- w.server.Serve(w.pipes) }()
	return w
}

// end stops the server and checks that it stops well.
func (w *world) end(t *testing.T) {
	t.Helper()
	w.client.CloseIdleConnections()
	if err := w.server.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-w.served; err != nil {
		t.Error(err)
	}
}

func (w *world) post(ctx context.Context, path, body string, header ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://tandem"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return w.client.Do(r)
}

// readUntil reads lines until one contains what.
func readUntil(t *testing.T, r *bufio.Reader, what string) string {
	t.Helper()
	all := ""
	for {
		line, err := r.ReadString('\n')
		all += line
		if err != nil {
			t.Fatalf("%v before %q, after %q", err, what, all)
		}
		if strings.Contains(line, what) {
			return all
		}
	}
}

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Errorf("reading %q: %v", b, err)
	}
	return string(b)
}

func chatBody(content string, more ...string) string {
	c, err := json.Marshal(content)
	if err != nil {
		panic(err)
	}
	return `{"messages":[{"role":"user","content":` + string(c) + `}]` + strings.Join(slices.Concat([]string{""}, more), ",") + `}`
}
