package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// blob is a file that does not compress and begins as GGUF does.
func blob(seed int64, n int) []byte {
	b := make([]byte, n)
	rand.New(rand.NewSource(seed)).Read(b)
	copy(b, "GGUF")
	return b
}

// server serves one file and misbehaves as a test wants.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	content  []byte
	etag     string
	noRange  bool                                                     // answers 200 to every request
	cut      func(n int) int                                          // body bytes of the n-th answer before the connection is cut; < 0: none
	before   func(n int, w http.ResponseWriter, r *http.Request) bool // true: it has answered
	requests []*http.Request
}

func serve(t *testing.T, content []byte) *server {
	t.Helper()
	s := &server{content: content, etag: `"one"`}
	s.Server = httptest.NewServer(http.HandlerFunc(s.handle))
	t.Cleanup(func() {
		s.Server.CloseClientConnections()
		s.Server.Close()
	})
	return s
}

func (s *server) handle(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r)
	n := len(s.requests)
	content, etag := s.content, s.etag
	s.mu.Unlock()
	if s.before != nil && s.before(n, w, r) {
		return
	}
	from := 0
	w.Header().Set("Content-Type", "application/octet-stream")
	if etag != "" {
		w.Header().Set("ETag", etag)
	}
	status := http.StatusOK
	if rng, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok && !s.noRange && (r.Header.Get("If-Range") == "" || r.Header.Get("If-Range") == etag) {
		from, _ = strconv.Atoi(strings.TrimSuffix(rng, "-"))
		if from >= len(content) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", len(content)))
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		status = http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(content)-1, len(content)))
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(content)-from))
	w.WriteHeader(status)
	body := content[from:]
	if s.cut != nil {
		if k := s.cut(n); k >= 0 && k < len(body) {
			_, _ = w.Write(body[:k])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler) // cuts the connection
		}
	}
	_, _ = w.Write(body)
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

func (s *server) request(i int) *http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[i]
}

// quick has no pauses between tries worth mentioning.
func quick() Options { return Options{retry: time.Millisecond} }

func wantFile(t *testing.T, r Result, err error, want []byte) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(r.Path)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the file has %d bytes and is not the server's %d, %v", len(got), len(want), err)
	}
	if r.Bytes != int64(len(want)) || r.SHA256 != digest(want) {
		t.Errorf("result %+v", r)
	}
}

func TestFetchByAddress(t *testing.T) {
	want := blob(1, 300_000)
	s := serve(t, want)
	dir := t.TempDir()
	var last Progress
	o := quick()
	o.Progress = func(p Progress) {
		if p.Phase == "fetching" {
			last = p
		}
	}
	r, err := Pull(context.Background(), s.URL+"/models/My%20Model%2F..%2Fx.Q4.gguf?token=secret", dir, o)
	wantFile(t, r, err, want)
	if r.Name != "x.Q4" || r.Already {
		t.Errorf("result %+v", r)
	}
	if last.Done != int64(len(want)) || last.Total != int64(len(want)) {
		t.Errorf("last progress %+v", last)
	}
	wantOnly(t, dir, "x.Q4.gguf")

	r, err = Pull(context.Background(), s.URL+"/models/My%20Model%2F..%2Fx.Q4.gguf?token=secret", dir, quick())
	if err != nil || !r.Already || s.count() != 1 {
		t.Errorf("a second time: %+v, %v, %d requests", r, err, s.count())
	}
	o.SHA256 = strings.Repeat("0", 64)
	if _, err = Pull(context.Background(), s.URL+"/x.Q4.gguf", dir, o); err == nil || !strings.Contains(err.Error(), "is there already, with the SHA-256 "+digest(want)) {
		t.Errorf("a wrong digest of what is there: %v", err)
	}
}

func TestConnectionCutAtRandomPointsIsResumed(t *testing.T) {
	for seed := range int64(20) {
		rnd := rand.New(rand.NewSource(seed))
		want := blob(seed, 50_000+rnd.Intn(200_000))
		s := serve(t, want)
		s.cut = func(n int) int { // each connection brings something, most are cut
			if n > 12 {
				return -1
			}
			return 1 + rnd.Intn(40_000)
		}
		o := quick()
		o.SHA256 = digest(want)
		dir := t.TempDir()
		r, err := Pull(context.Background(), s.URL+"/m.gguf", dir, o)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		wantFile(t, r, err, want)
		wantOnly(t, dir, "m.gguf")
		for i := 1; i < s.count(); i++ {
			if q := s.request(i); q.Header.Get("Range") == "" || q.Header.Get("If-Range") != `"one"` {
				t.Errorf("seed %d: try %d asks for everything again: %v", seed, i+1, q.Header)
			}
		}
		if s.count() < 2 {
			t.Errorf("seed %d: nothing was cut", seed)
		}
	}
}

func TestNextRunGoesOnWhereTheLastEnded(t *testing.T) {
	want := blob(3, 100_000)
	s := serve(t, want)
	s.cut = func(n int) int {
		if n == 1 {
			return 60_000
		}
		return -1
	}
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	o := quick()
	o.Progress = func(p Progress) {
		if p.Phase == "waiting" { // the first connection was cut: the process is ended here
			cancel()
		}
	}
	if _, err := Pull(ctx, s.URL+"/m.gguf", dir, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	wantOnly(t, dir, ".m.gguf.part", ".m.gguf.part.json")
	r, err := Pull(context.Background(), s.URL+"/m.gguf", dir, quick())
	wantFile(t, r, err, want)
	if got := s.request(1).Header.Get("Range"); got != "bytes=60000-" {
		t.Errorf("the second run asks for %q", got)
	}
	wantOnly(t, dir, "m.gguf")
}

func TestFileThatChangesOnTheServerIsFetchedAnew(t *testing.T) {
	old, changed := blob(4, 100_000), blob(5, 90_000)
	swap := func(s *server, etag string) {
		s.mu.Lock()
		s.content, s.etag = changed, etag
		s.mu.Unlock()
	}
	for name, after := range map[string]func(s *server) func(int, http.ResponseWriter, *http.Request) bool{
		"If-Range is heeded": func(s *server) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, r *http.Request) bool {
				if n == 2 {
					swap(s, `"two"`)
					s.handle(w, r) // sees the change; counts as one more
					return true
				}
				return false
			}
		},
		"If-Range is ignored, the total differs": func(s *server) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, r *http.Request) bool {
				if n == 2 {
					swap(s, `"two"`)
					r.Header.Del("If-Range")
					s.handle(w, r)
					return true
				}
				return false
			}
		},
		"the new file is shorter than what is there": func(s *server) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, r *http.Request) bool {
				if n == 2 {
					swap(s, `"two"`)
					w.Header().Set("Content-Range", "bytes */90000")
					w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
					return true
				}
				return false
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, old)
			s.cut = func(n int) int {
				if n == 1 {
					return 70_000
				}
				return -1
			}
			s.before = after(s)
			dir := t.TempDir()
			r, err := Pull(context.Background(), s.URL+"/m.gguf", dir, quick())
			wantFile(t, r, err, changed)
			wantOnly(t, dir, "m.gguf")
		})
	}
}

func TestServerWithoutRangesIsAskedForEverythingAgain(t *testing.T) {
	want := blob(6, 100_000)
	for name, prepare := range map[string]func(*server){
		"ignores Range":    func(s *server) { s.noRange = true },
		"has no validator": func(s *server) { s.etag = "" },
		"weak ETag only":   func(s *server) { s.etag = `W/"x"` },
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, want)
			prepare(s)
			s.cut = func(n int) int {
				if n <= 3 {
					return 20_000 * n
				}
				return -1
			}
			dir := t.TempDir()
			r, err := Pull(context.Background(), s.URL+"/m.gguf", dir, quick())
			wantFile(t, r, err, want)
			if s.count() != 4 {
				t.Errorf("%d requests", s.count())
			}
			wantOnly(t, dir, "m.gguf")
		})
	}
}

// raw answers with bytes that no decent server would send.
func raw(head string, body []byte) func(int, http.ResponseWriter, *http.Request) bool {
	return func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = rw.WriteString(head + "\r\n\r\n")
		_, _ = rw.Write(body)
		_ = rw.Flush()
		return true
	}
}

func TestWhatIsNotTheFileIsRefused(t *testing.T) {
	data := blob(7, 1000)
	page := []byte("<!DOCTYPE html><html>sign in</html>")
	status := func(code int) func(int, http.ResponseWriter, *http.Request) bool {
		return func(_ int, w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(code)
			return true
		}
	}
	for _, c := range []struct {
		name    string
		answer  func(int, http.ResponseWriter, *http.Request) bool
		sha     string
		want    string
		tries   int
		remains []string
	}{
		{"404", status(404), "", "/m.gguf: the server says 404 Not Found", 1, nil},
		{"403", status(403), "", "the server says 403 Forbidden", 1, nil},
		{"410", status(410), "", "the server says 410 Gone", 1, nil},
		{"500 again and again", status(500), "", "given up after 5 tries, with 0 bytes so far: the server says 500 Internal Server Error", 5, nil},
		{"416 for the whole file", status(416), "", "the server has no such part of the file", 1, nil},
		{"206 for the whole file", raw("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/10\r\nContent-Length: 10", data[:10]), "", "the server sent a part of the file though all of it was asked for", 1, nil},
		{"a page", func(_ int, w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write(page)
			return true
		}, "", `what the server sent is not a GGUF file: it begins with "<!DO" and calls itself "text/html"`, 1, nil},
		{"nothing", func(_ int, w http.ResponseWriter, _ *http.Request) bool { return true }, "", `is not a GGUF file: it begins with ""`, 1, nil},
		{"three bytes", raw("HTTP/1.1 200 OK\r\nContent-Length: 3", []byte("GGU")), "", `is not a GGUF file: it begins with "GGU"`, 1, nil},
		{"length too long", raw("HTTP/1.1 200 OK\r\nContent-Length: 2000", data), "", "given up after", 0, []string{".m.gguf.part", ".m.gguf.part.json"}},
		{"length too short", raw("HTTP/1.1 200 OK\r\nContent-Length: 500", data), digest(data), "is not the file that was wanted: expected SHA-256 " + digest(data) + ", got " + digest(data[:500]) + " (500 bytes); it was removed", 1, nil},
		{"no length at all", raw("HTTP/1.0 200 OK", data), "", "the server does not say how long the file is", 1, nil},
		{"chunks that end early", raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", []byte("3e8\r\n"+string(data))), "", "given up after", 0, []string{".m.gguf.part", ".m.gguf.part.json"}},
		{"compressed", raw("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1000", data), "", `in the encoding "gzip"`, 1, nil},
		{"two lengths", raw("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 1000", data), "", "given up after 5 tries", 5, nil},
		{"no HTTP", raw("220 mail.example ESMTP", nil), "", "given up after 5 tries", 5, nil},
		{"wrong digest", func(int, http.ResponseWriter, *http.Request) bool { return false }, strings.Repeat("ab", 32), "expected SHA-256 abab", 1, nil},
		{"redirects without end", func(n int, w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, fmt.Sprintf("/m%d.gguf?token=secret", n), http.StatusFound)
			return true
		}, "", "more than 5 redirects", 6, nil},
		{"redirect to a file", func(n int, w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(http.StatusFound)
			return true
		}, "", `a redirect to "file", which is no web address`, 1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, data)
			s.before = c.answer
			dir := t.TempDir()
			o := quick()
			o.SHA256 = c.sha
			u, _ := url.Parse(s.URL)
			_, err := Pull(context.Background(), "http://user:hunter2@"+u.Host+"/m.gguf?token=secret", dir, o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v; want %q in it", err, c.want)
			}
			if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "hunter2")) {
				t.Errorf("the error tells a secret: %v", err)
			}
			if c.tries > 0 && s.count() != c.tries {
				t.Errorf("%d requests, want %d", s.count(), c.tries)
			}
			wantOnly(t, dir, c.remains...)
			for _, f := range c.remains {
				if b, _ := os.ReadFile(filepath.Join(dir, f)); strings.Contains(string(b), "hunter2") || strings.Contains(string(b), "token") {
					t.Errorf("%s tells a secret", f)
				}
			}
		})
	}
}

func TestServerThatIsBusyIsAskedAgain(t *testing.T) {
	want := blob(8, 5000)
	s := serve(t, want)
	s.before = func(n int, w http.ResponseWriter, r *http.Request) bool {
		if n <= 2 {
			w.WriteHeader([]int{503, 429}[n-1])
		}
		return n <= 2
	}
	r, err := Pull(context.Background(), s.URL+"/m.gguf", t.TempDir(), quick())
	wantFile(t, r, err, want)
}

func TestRedirectsCarryNoSecretsToOtherHosts(t *testing.T) {
	want := blob(9, 5000)
	other := serve(t, want)
	other.cut = func(n int) int {
		if n == 1 {
			return 1000
		}
		return -1
	}
	s := serve(t, nil)
	s.before = func(n int, w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, strings.Replace(other.URL, "127.0.0.1", "localhost", 1)+"/cdn/blob", http.StatusFound)
		return true
	}
	u, _ := url.Parse(s.URL)
	r, err := Pull(context.Background(), "http://user:hunter2@"+u.Host+"/m.gguf?token=secret", t.TempDir(), quick())
	wantFile(t, r, err, want)
	if user, pass, ok := s.request(0).BasicAuth(); !ok || user != "user" || pass != "hunter2" {
		t.Error("the address's own host does not get its password")
	}
	for i := range other.count() {
		q := other.request(i)
		if q.Header.Get("Authorization") != "" || q.Header.Get("Referer") != "" || q.Header.Get("Cookie") != "" {
			t.Errorf("the other host is told %v", q.Header)
		}
	}
	if other.count() != 2 || other.request(1).Header.Get("Range") != "bytes=1000-" {
		t.Error("a cut behind a redirect is not resumed")
	}
}

func TestRemainsOfSomethingElseAreNotContinued(t *testing.T) {
	want := blob(10, 50_000)
	for name, remains := range map[string]struct{ part, meta string }{
		"of another address": {"GGUFother", `{"source":"00","validator":"\"one\"","total":50000}`},
		"without a record":   {"GGUFother", ""},
		"with junk":          {"GGUFother", "{{{"},
		"longer than it may": {strings.Repeat("x", 60_000), `{"source":"SOURCE","validator":"\"one\"","total":50000}`},
		"negative":           {"GGUFother", `{"source":"SOURCE","validator":"\"one\"","total":-1}`},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, want)
			dir := t.TempDir()
			address := s.URL + "/m.gguf"
			if err := os.WriteFile(filepath.Join(dir, ".m.gguf.part"), []byte(remains.part), 0o600); err != nil {
				t.Fatal(err)
			}
			if remains.meta != "" {
				meta := strings.Replace(remains.meta, "SOURCE", digest([]byte(address)), 1)
				if err := os.WriteFile(filepath.Join(dir, ".m.gguf.part.json"), []byte(meta), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r, err := Pull(context.Background(), address, dir, quick())
			wantFile(t, r, err, want)
			if s.request(0).Header.Get("Range") != "" {
				t.Error("it was continued")
			}
			wantOnly(t, dir, "m.gguf")
		})
	}
}

func TestNamesFromAddressesAreTame(t *testing.T) {
	for address, want := range map[string]string{
		"https://h/a/model.gguf":                "model.gguf",
		"https://h/a/model.Q4_K_M.GGUF?x=1#f":   "model.Q4_K_M.GGUF",
		"https://h/model":                       "model.gguf",
		"https://h/..%2f..%2fetc%2fpasswd":      "passwd.gguf",
		"https://h/%2e%2e":                      "",
		"https://h/":                            "",
		"https://h":                             "",
		"https://h/a%00b%0a%1b.gguf":            "a_b__.gguf",
		"https://h/.hidden.gguf":                "hidden.gguf",
		"https://h/-rf.gguf":                    "rf.gguf",
		"https://h/" + strings.Repeat("x", 300): strings.Repeat("x", 128) + ".gguf",
		"https://h/模型.gguf":                     "gguf.gguf",
	} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		got, err := fileName(u, "")
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", address, got, err, want)
		}
	}
	u, _ := url.Parse("https://h/x.gguf")
	for _, wish := range []string{"../x", "a/b", ".x", "-x", "a b", "ä", strings.Repeat("x", 250)} {
		if got, err := fileName(u, wish); err == nil {
			t.Errorf("the wish %q becomes %q", wish, got)
		}
	}
	if _, err := Pull(context.Background(), "https://h/smollm2-135m.gguf", t.TempDir(), quick()); err == nil || !strings.Contains(err.Error(), "is the file of the catalogue's model smollm2-135m") {
		t.Errorf("a stranger under a catalogue's name: %v", err)
	}
}

func TestStalledConnectionIsCut(t *testing.T) {
	// alive puts off the end that a timer brings, and only while bytes come.
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(time.Hour, cancel)
	a := &alive{r: strings.NewReader("x"), t: timer}
	if n, err := a.Read(make([]byte, 4)); n != 1 || err != nil || ctx.Err() != nil {
		t.Errorf("%d, %v, %v", n, err, ctx.Err())
	}
	if !timer.Reset(0) { // had not fired
		t.Error("the timer had fired")
	}
	<-ctx.Done()
}

// FuzzAnswer: whatever the head of an answer says, the decision about it is one
// of the few, and appending happens only at the right place of the same file.
func FuzzAnswer(f *testing.F) {
	f.Add(206, "bytes 5-9/10", `"a"`, "", int64(5), int64(5), int64(10), `"a"`)
	f.Add(206, "bytes 0-9/*", "", "Mon, 02 Jan 2006 15:04:05 GMT", int64(-1), int64(0), int64(0), "")
	f.Add(416, "bytes */10", "", "", int64(0), int64(10), int64(10), `"a"`)
	f.Add(200, "", `W/"x"`, "", int64(1<<62), int64(3), int64(0), "x")
	f.Add(206, "bytes 9223372036854775807-18446744073709551615/99999999999999999999", "", "", int64(1), int64(1), int64(1), "")
	f.Fuzz(func(t *testing.T, code int, rng, etag, lm string, length, off, total int64, val string) {
		if off < 0 || total < 0 {
			t.Skip()
		}
		h := http.Header{}
		h.Set("Content-Range", rng)
		h.Set("ETag", etag)
		h.Set("Last-Modified", lm)
		d := judge(&http.Response{StatusCode: code, Header: h, ContentLength: length, ProtoMajor: 1}, off, partial{Validator: val, Total: total})
		switch {
		case d.err != nil:
			if len(d.err.Error()) > 2000 {
				t.Errorf("error of %d bytes", len(d.err.Error()))
			}
		case d.whole:
			if code != 416 || (total != 0 && total != off) {
				t.Errorf("whole: %+v", d)
			}
		case d.anew:
			if off == 0 {
				t.Error("anew from the beginning, without end")
			}
		case d.from != 0:
			if code != 206 || d.from != off || (total > 0 && d.total != total) {
				t.Errorf("append: %+v", d)
			}
		default:
			if code != 200 {
				t.Errorf("%d is taken as the whole file", code)
			}
		}
		if d.total < 0 || d.wait < 0 || d.wait > time.Minute {
			t.Errorf("%+v", d)
		}
	})
}
