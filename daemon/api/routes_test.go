package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/daemon/api"
	"tandem/daemon/api/apitest"
	"tandem/daemon/fault"
	"tandem/daemon/request"
)

func TestUnknownPathsAndMethods(t *testing.T) {
	h := api.New(options(says("")))
	for _, c := range []struct {
		method, path string
		code         int
		errCode, say string
	}{
		{"POST", "/nowhere", 404, "not_found", "POST /nowhere"},
		{"POST", "/chat/completions", 404, "not_found", "did you mean /v1/chat/completions?"},
		{"GET", "/v1/models/", 404, "model_not_found", ""},
		{"GET", "/v1/models/other", 404, "model_not_found", `"other"`},
		{"GET", "/metrics", 404, "not_found", ""},
		{"GET", chatPath, 405, "method_not_allowed", "want POST"},
		{"POST", "/v1/models", 405, "method_not_allowed", "want GET, HEAD"},
		{"DELETE", "/v1/models/tiny", 405, "method_not_allowed", "GET"},
		{"BREW", "/health", 405, "method_not_allowed", "BREW"},
	} {
		w := ask(h, c.method, c.path, "")
		o := errorOf(t, w.Body.Bytes())
		if w.Code != c.code || o.Code != c.errCode || !strings.Contains(o.Message, c.say) || (c.code == 405) != (w.Header().Get("Allow") != "") {
			t.Errorf("%s %s: %d %v %+v", c.method, c.path, w.Code, w.Header(), o)
		}
	}
	if w := ask(h, "OPTIONS", chatPath, ""); w.Code != 204 || w.Header().Get("Allow") != "POST, OPTIONS" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

func TestModels(t *testing.T) {
	h := api.New(options(says("")))
	var list struct {
		Object string
		Data   []map[string]any
	}
	if err := json.Unmarshal(ask(h, "GET", "/v1/models", "").Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	if list.Object != "list" || len(list.Data) != 1 {
		t.Fatalf("%+v", list)
	}
	m := list.Data[0]
	if m["id"] != "tiny" || m["object"] != "model" || m["owned_by"] != "tandem" || m["max_model_len"] != float64(window) || m["max_output_tokens"] != 128. ||
		fmt.Sprint(m["aliases"]) != "[gpt-4o org/tiny]" || m["created"].(float64) < 1e9 {
		t.Errorf("%v", m)
	}
	for _, name := range []string{"tiny", "gpt-4o", "org/tiny", "org%2Ftiny"} {
		w := ask(h, "GET", "/v1/models/"+name, "")
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"id":"tiny"`) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

func TestModelNames(t *testing.T) {
	h := api.New(options(says("")))
	for name, code := range map[string]int{`"tiny"`: 200, `"gpt-4o"`: 200, `""`: 200, `null`: 200, `"no-such-model"`: 404, `"TINY"`: 404} {
		w := ask(h, "POST", chatPath, chatBody("x", `"model":`+name))
		if w.Code != code || code == 404 && errorOf(t, w.Body.Bytes()).Code != "model_not_found" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	if w := ask(h, "POST", "/tokenize", `{"content":"x","model":"nope"}`); w.Code != 404 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestTokenize(t *testing.T) {
	h := api.New(options(says("")))
	for body, want := range map[string]string{
		`{"content":"A<|end|>"}`:                         `[65,60,124,101,110,100,124,62]`,
		`{"prompt":"A<|end|>","parse_special":true}`:     `[65,257]`,
		`{"content":"A","add_special":true}`:             `[256,65]`,
		`{"content":""}`:                                 `[]`,
		`{"messages":[{"role":"user","content":"A"}]}`:   `[256,117,115,101,114,10,65,257,256,97,115,115,105,115,116,97,110,116,10]`,
		`{"content":"A","model":"tiny","with_pieces":1}`: `[65]`,
	} {
		w := ask(h, "POST", "/tokenize", body)
		n := strings.Count(want, ",") + 1
		if want == "[]" {
			n = 0
		}
		if exp := fmt.Sprintf(`{"tokens":%s,"count":%d,"max_model_len":%d}`+"\n", want, n, window); w.Code != 200 || w.Body.String() != exp {
			t.Errorf("%s: %d %s want %s", body, w.Code, w.Body, exp)
		}
	}
	for body, param := range map[string]string{
		`{}`: "content", `{"content":"a","prompt":"b"}`: "prompt", `{"content":7}`: "content", `{"messages":[]}`: "messages",
		`{"content":"a","messages":[{"role":"user","content":"x"}]}`: "messages", `{"content":"a","add_special":1}`: "add_special",
	} {
		w := ask(h, "POST", "/tokenize", body)
		if o := errorOf(t, w.Body.Bytes()); w.Code != 400 || o.Param == nil || *o.Param != param {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
}

func TestDetokenize(t *testing.T) {
	h := api.New(options(says("")))
	for body, want := range map[string]string{`{"tokens":[65,257,195,169]}`: `{"content":"A\u003c|end|\u003eé"}`, `{"tokens":[]}`: `{"content":""}`, `{"tokens":[195]}`: "{\"content\":\"\ufffd\"}"} {
		if w := ask(h, "POST", "/detokenize", body); w.Code != 200 || strings.TrimSpace(w.Body.String()) != want {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
	for _, body := range []string{`{}`, `{"tokens":null}`, `{"tokens":"x"}`, `{"tokens":[258]}`, `{"tokens":[-1]}`} {
		if w := ask(h, "POST", "/detokenize", body); w.Code != 400 || !strings.Contains(errorOf(t, w.Body.Bytes()).Message, "token") {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
}

func TestProbes(t *testing.T) {
	e := says("")
	h := api.New(options(e))
	for path, want := range map[string]string{"/health": `{"status":"ok","generation":7}`, "/ready": `{"status":"ready","generation":7,"model":"tiny"}`} {
		if w := ask(h, "GET", path, ""); w.Code != 200 || strings.TrimSpace(w.Body.String()) != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	e.NotReady, e.Retry = fault.New(fault.NotReady, "decode/0.1 is starting"), 5*time.Second
	if w := ask(h, "GET", "/health", ""); w.Code != 200 {
		t.Errorf("the process lives, but /health says %d", w.Code)
	}
	w := ask(h, "GET", "/ready", "")
	var got struct {
		Status, Reason string
		Error          struct{ Code, Message string }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if w.Code != 503 || w.Header().Get("Retry-After") != "5" || got.Status != "not_ready" || got.Reason != "decode/0.1 is starting" || got.Error.Code != "not_ready" {
		t.Errorf("%d %v %+v", w.Code, w.Header(), got)
	}
	e.NotReady = fmt.Errorf("unnamed")
	if w := ask(h, "GET", "/ready", ""); w.Code != 503 || !strings.Contains(w.Body.String(), `"code":"not_ready"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestHello(t *testing.T) {
	h := api.New(options(says("")))
	for _, m := range []string{"GET", "HEAD"} {
		if w := ask(h, m, "/", ""); w.Code != 200 || w.Header().Get("X-Request-Id") == "" {
			t.Errorf("%s: %d %s", m, w.Code, w.Body)
		}
	}
}

func TestMetricsAreHandedOn(t *testing.T) {
	o := options(says(""))
	o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "tandem_generation 7\n") })
	if w := ask(api.New(o), "GET", "/metrics", ""); w.Code != 200 || w.Body.String() != "tandem_generation 7\n" || w.Header().Get("X-Request-Id") == "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestRequestIDs(t *testing.T) {
	h := api.New(options(says("")))
	seen := map[string]bool{}
	for range 100 {
		id := ask(h, "GET", "/nowhere", "").Header().Get("X-Request-Id")
		if !strings.HasPrefix(id, "req-") || seen[id] {
			t.Fatalf("%q", id)
		}
		seen[id] = true
	}
	for id, kept := range map[string]bool{"abc-1": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, "a b": false, "é": false, "a\x7f": false} {
		if got := ask(h, "GET", "/health", "", "X-Request-Id", id).Header().Get("X-Request-Id"); (got == id) != kept {
			t.Errorf("%q: %q", id, got)
		}
	}
}

func TestAPIKeys(t *testing.T) {
	o := options(says("x"))
	o.APIKeys = []string{"k1", "k2"}
	o.CORSOrigins = []string{"http://page"}
	h := api.New(o)
	for _, c := range []struct {
		header []string
		code   int
	}{
		{nil, 401}, {[]string{"Authorization", "Bearer k3"}, 401}, {[]string{"Authorization", "Basic k1"}, 401}, {[]string{"Authorization", "Bearer "}, 401}, {[]string{"Authorization", "k1"}, 401},
		{[]string{"Authorization", "Bearer k1"}, 200}, {[]string{"Authorization", "bearer k2"}, 200}, {[]string{"X-Api-Key", "k2"}, 200},
	} {
		for _, path := range []string{chatPath, "/v1/models"} {
			method := map[string]string{chatPath: "POST", "/v1/models": "GET"}[path]
			w := ask(h, method, path, goodChat, c.header...)
			if w.Code != c.code {
				t.Errorf("%s %q: %d", path, c.header, w.Code)
			}
			if c.code == 401 && (errorOf(t, w.Body.Bytes()).Code != "invalid_api_key" || w.Header().Get("WWW-Authenticate") != "Bearer") {
				t.Errorf("%s %q: %v %s", path, c.header, w.Header(), w.Body)
			}
		}
	}
	for _, path := range []string{"/health", "/ready", "/"} {
		if w := ask(h, "GET", path, ""); w.Code != 200 {
			t.Errorf("%s wants a key: %d", path, w.Code)
		}
	}
	if w := ask(h, "OPTIONS", chatPath, "", "Origin", "http://page", "Access-Control-Request-Method", "POST"); w.Code != 204 || w.Header().Get("Access-Control-Allow-Origin") != "http://page" {
		t.Errorf("a pre-flight carries no key, and yet: %d %v", w.Code, w.Header())
	}
}

func TestPagesInBrowsers(t *testing.T) {
	o := options(says("x"))
	o.CORSOrigins = []string{"http://page:3000/"}
	h := api.New(o)
	w := ask(h, "OPTIONS", chatPath, "", "Origin", "http://page:3000", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type,x-stainless-os")
	if w.Code != 204 || w.Header().Get("Access-Control-Allow-Headers") != "content-type,x-stainless-os" || w.Header().Get("Access-Control-Allow-Methods") != "POST, OPTIONS" || w.Header().Get("Vary") != "Origin" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	w = ask(h, "POST", chatPath, goodChat, "Origin", "http://page:3000")
	if w.Code != 200 || w.Header().Get("Access-Control-Allow-Origin") != "http://page:3000" || !strings.Contains(w.Header().Get("Access-Control-Expose-Headers"), "X-Request-Id") {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	// An error must be readable, too.
	if w = ask(h, "POST", chatPath, "{", "Origin", "http://page:3000"); w.Header().Get("Access-Control-Allow-Origin") == "" {
		t.Errorf("%v", w.Header())
	}
	for _, origin := range []string{"http://evil", "null", "http://page:3000.evil"} {
		w = ask(h, "OPTIONS", chatPath, "", "Origin", origin, "Access-Control-Request-Method", "POST")
		if w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s may", origin)
		}
		w = ask(h, "POST", chatPath, goodChat, "Origin", origin)
		if w.Code != 403 || errorOf(t, w.Body.Bytes()).Code != "origin_not_allowed" {
			t.Errorf("%s: %d %s", origin, w.Code, w.Body)
		}
	}
	if w = ask(h, "POST", chatPath, goodChat, "Origin", "http://example.com"); w.Code != 200 { // httptest's host
		t.Errorf("a page of this server: %d", w.Code)
	}
	if w = ask(h, "POST", chatPath, goodChat); w.Code != 200 || w.Header().Get("Vary") != "" {
		t.Errorf("a program: %d %v", w.Code, w.Header())
	}
	o.CORSOrigins = []string{"*"}
	if w = ask(api.New(o), "POST", chatPath, goodChat, "Origin", "null"); w.Code != 200 || w.Header().Get("Access-Control-Allow-Origin") != "null" {
		t.Errorf("*: %d %v", w.Code, w.Header())
	}
}

func TestBodyLimits(t *testing.T) {
	o := options(says("x"))
	o.MaxBody = int64(len(goodChat))
	h := api.New(o)
	if w := ask(h, "POST", chatPath, goodChat); w.Code != 200 {
		t.Errorf("a body of the limit: %d", w.Code)
	}
	w := ask(h, "POST", chatPath, goodChat+" ")
	if o := errorOf(t, w.Body.Bytes()); w.Code != 413 || o.Code != "body_too_large" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for _, enc := range []string{"gzip", "zstd"} {
		if w := ask(h, "POST", chatPath, goodChat, "Content-Encoding", enc); w.Code != 415 || errorOf(t, w.Body.Bytes()).Code != "unsupported_encoding" {
			t.Errorf("%s: %d %s", enc, w.Code, w.Body)
		}
	}
	// curl -d says that JSON is a form.
	for _, typ := range []string{"application/x-www-form-urlencoded", "text/plain", "", "application/json; charset=utf-8"} {
		if w := ask(h, "POST", chatPath, goodChat, "Content-Type", typ, "Content-Encoding", "identity"); w.Code != 200 {
			t.Errorf("%q: %d %s", typ, w.Code, w.Body)
		}
	}
}

// noRecorder is a Recorder to embed.
type noRecorder struct{}

func (noRecorder) Answered(string, int, string, time.Duration) {}
func (noRecorder) FirstToken(time.Duration)                    {}
func (noRecorder) NextTokens(time.Duration, int)               {}
func (noRecorder) Ignored(string)                              {}

type logbook struct {
	mu    sync.Mutex
	lines []string
}

func (l *logbook) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *logbook) Answered(route string, status int, code string, _ time.Duration) {
	l.add("%s %d %s", route, status, code)
}
func (l *logbook) FirstToken(time.Duration)          { l.add("first") }
func (l *logbook) NextTokens(_ time.Duration, n int) { l.add("next %d", n) }
func (l *logbook) Ignored(f string)                  { l.add("ignored %s", f) }

func TestRecorderHearsOfEverything(t *testing.T) {
	e := &apitest.Engine{Script: func(request.Spec) []apitest.Step {
		return []apitest.Step{{Out: apitest.Tokens(65)}, {Out: apitest.Tokens(66, 67)}, {Out: apitest.Fail(fault.TokenStall, "stuck")}}
	}}
	log := &logbook{}
	o := options(e)
	o.Recorder = log
	h := api.New(o)
	ask(h, "POST", chatPath, chatBody("x", `"stream":true`))
	ask(h, "POST", chatPath, chatBody("x"))
	ask(h, "POST", chatPath, "{")
	ask(h, "GET", "/nowhere", "")
	ask(h, "GET", "/health", "")
	want := []string{"first", "next 2", chatPath + " 200 token_stall", "first", "next 2", chatPath + " 504 token_stall",
		chatPath + " 400 invalid_request", "other 404 not_found", "/health 200 ok"}
	if !slices.Equal(log.lines, want) {
		t.Errorf("%q", log.lines)
	}
}

func TestPanicBeforeTheAnswerIsAnError(t *testing.T) {
	e := says("abc")
	e.PanicAfter = 1
	w := ask(api.New(options(e)), "POST", chatPath, chatBody("x"))
	if o := errorOf(t, w.Body.Bytes()); w.Code != 500 || o.Code != "internal_error" || strings.Contains(o.Message, "told to") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	kept(t, e)
	if c := e.Streams()[0].Calls(); len(c.Cancels) != 1 {
		t.Errorf("the request runs on: %+v", c)
	}
}
