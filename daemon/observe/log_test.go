package observe

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/slogtest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nest puts "a.b.c" = v into maps within maps.
func nest(m map[string]any, key string, v any) {
	for {
		head, rest, more := strings.Cut(key, ".")
		if !more {
			m[key] = v
			return
		}
		sub, _ := m[head].(map[string]any)
		if sub == nil {
			sub = map[string]any{}
			m[head] = sub
		}
		m, key = sub, rest
	}
}

// direct is one of our handlers that collects what it would send.
func direct(f form, level slog.Level) (slog.Handler, *[][]byte) {
	var out [][]byte
	return &handler{form: f, level: level, put: func(_ slog.Level, b []byte) { out = append(out, b) }}, &out
}

func TestHandlersKeepSlogsRules(t *testing.T) {
	for _, c := range []struct {
		name  string
		form  form
		parse func(t *testing.T, b []byte) map[string]any
	}{
		{"text", textForm{}, parseText},
		{"json", jsonForm{}, func(t *testing.T, b []byte) map[string]any {
			var raw map[string]any
			if err := json.Unmarshal(b, &raw); err != nil {
				t.Fatalf("%v: %s", err, b)
			}
			m := map[string]any{}
			for k, v := range raw {
				nest(m, k, v)
			}
			return m
		}},
		{"journal", journalForm{}, func(t *testing.T, b []byte) map[string]any {
			m := map[string]any{}
			for k, vs := range parseNative(t, b) {
				switch v := vs[0]; {
				case k == "MESSAGE":
					m[slog.MessageKey] = v
				case k == "PRIORITY":
					m[slog.LevelKey] = v
				case k == "TANDEM_TIME":
					m[slog.TimeKey] = v
				case strings.HasPrefix(k, "TANDEM_"):
					// The suite's groups are G, H and I; its keys are small letters.
					key := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(k, "TANDEM_")), "_", ".")
					for _, g := range []string{"g", "h", "i"} {
						key = regexp.MustCompile(`\b`+g+`\.`).ReplaceAllString(key, strings.ToUpper(g)+".")
					}
					nest(m, key, v)
				}
			}
			return m
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out *[][]byte
			slogtest.Run(t, func(*testing.T) slog.Handler {
				var h slog.Handler
				h, out = direct(c.form, slog.LevelInfo)
				return h
			}, func(t *testing.T) map[string]any { return c.parse(t, (*out)[len(*out)-1]) })
		})
	}
}

var textField = regexp.MustCompile(`([\w.]+)=("(?:[^"\\]|\\.)*"|\S*)`)

func parseText(t *testing.T, b []byte) map[string]any {
	s := strings.TrimSuffix(string(b), "\n")
	if strings.Contains(s, "\n") {
		t.Fatalf("an event on several lines: %q", s)
	}
	m := map[string]any{}
	if len(s) > len(textTime) {
		if _, err := time.Parse(textTime, s[:len(textTime)]); err == nil {
			m[slog.TimeKey], s = s[:len(textTime)], s[len(textTime)+1:]
		}
	}
	m[slog.LevelKey], s = s[:5], s[6:]
	msg, fields, _ := strings.Cut(s, "  ")
	m[slog.MessageKey] = msg
	for _, f := range textField.FindAllStringSubmatch(fields, -1) {
		nest(m, f[1], f[2])
	}
	return m
}

// parseNative reads the journal's native protocol.
func parseNative(t *testing.T, b []byte) map[string][]string {
	t.Helper()
	m := map[string][]string{}
	for len(b) > 0 {
		i := bytes.IndexAny(b, "=\n")
		if i < 0 {
			t.Fatalf("no end of a field name in %q", b)
		}
		name := string(b[:i])
		var value []byte
		if b[i] == '=' {
			end := bytes.IndexByte(b, '\n')
			value, b = b[i+1:end], b[end+1:]
		} else {
			n := int(binary.LittleEndian.Uint64(b[i+1:]))
			value = b[i+9 : i+9+n]
			if b[i+9+n] != '\n' {
				t.Fatalf("field %s: no line break after %d bytes", name, n)
			}
			b = b[i+10+n:]
		}
		if !regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,63}$`).MatchString(name) {
			t.Errorf("the journal would drop the field %q", name)
		}
		m[name] = append(m[name], string(value))
	}
	return m
}

func everything() []Field {
	g := ident.Generation(7)
	return []Field{
		Request("req-1"), Generation(g), Attempt(ident.Attempt{Generation: g, Seq: 3}), State(ident.Decode), Rank(ident.Rank{Replica: ident.Replica{Role: ident.Prefill}, Rank: 1}),
		Device("cpu:1"), Age(1500 * time.Millisecond), Reason("a reason"), Code("stop"), Str("stack", "line one\nline two\n"), Int("tokens", 12),
		Bytes("moved", 1<<20), Bool("dirty", true), Took("prefill", 20*time.Microsecond),
	}
}

// journalServer listens where the journal would.
type journalServer struct {
	conn *net.UnixConn
	path string
}

func listenJournal(t *testing.T, path string) *journalServer {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &journalServer{conn, path}
}

// next is the next event, whether it came in a datagram or as a memory file.
func (s *journalServer) next(t *testing.T) map[string][]string {
	t.Helper()
	if err := s.conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b, oob := make([]byte, 1<<20), make([]byte, 64)
	n, oobn, _, _, err := s.conn.ReadMsgUnix(b, oob)
	if err != nil {
		t.Fatal(err)
	}
	if oobn == 0 {
		return parseNative(t, b[:n])
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "event")
	defer f.Close()
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_WRITE == 0 {
		t.Errorf("the memory file is not sealed: %x, %v", seals, err)
	}
	all, err := io.ReadAll(io.NewSectionReader(f, 0, 16<<20))
	if err != nil {
		t.Fatal(err)
	}
	return parseNative(t, all)
}

func TestJournalGetsTheFieldsUsersRelyOn(t *testing.T) {
	s := listenJournal(t, filepath.Join(t.TempDir(), "j"))
	l, err := Open(Options{Format: "journal", socket: s.path})
	if err != nil {
		t.Fatal(err)
	}
	l.Event(RequestStuck, "request req-1 is stuck in prefilling", everything()...)
	got := s.next(t)
	for name, want := range map[string]string{
		"MESSAGE": "request req-1 is stuck in prefilling", "PRIORITY": "3", "SYSLOG_IDENTIFIER": "tandem", "MESSAGE_ID": RequestStuck.MessageID(),
		"TANDEM_EVENT": "request.stuck", "TANDEM_GENERATION": "7", "TANDEM_REQUEST": "req-1", "TANDEM_ATTEMPT": "a7.3", "TANDEM_STATE": "decode",
		"TANDEM_ROLE": "prefill", "TANDEM_RANK": "0.1", "TANDEM_DEVICE": "cpu:1", "TANDEM_AGE_MS": "1500", "TANDEM_REASON": "a reason",
		"TANDEM_CODE": "stop", "TANDEM_STACK": "line one\nline two\n", "TANDEM_TOKENS": "12", "TANDEM_MOVED_BYTES": "1048576", "TANDEM_DIRTY": "true",
		"TANDEM_PREFILL_MS": "0.02",
	} {
		if len(got[name]) != 1 || got[name][0] != want {
			t.Errorf("%s = %q, want %q", name, got[name], want)
		}
	}
	if len(got["CODE_FILE"]) != 1 || !strings.HasSuffix(got["CODE_FILE"][0], "log_test.go") {
		t.Errorf("CODE_FILE = %q, want the caller's", got["CODE_FILE"])
	}
	if !l.Close(10 * time.Second) {
		t.Error("Close: something was lost")
	}
}

func TestEventThatFitsNoDatagramArrivesAsAMemoryFile(t *testing.T) {
	s := listenJournal(t, filepath.Join(t.TempDir(), "j"))
	l, err := Open(Options{Format: "journal", socket: s.path})
	if err != nil {
		t.Fatal(err)
	}
	stack := strings.Repeat("goroutine 1 [running]:\n", 10000) // 230 kB; a datagram takes some 200
	tooLong := strings.Repeat("x", maxValueBytes+10)
	l.Event(RequestStuck, "stuck", Str("stack", stack), Str("stack2", stack), Str("long", tooLong))
	got := s.next(t)
	if got["TANDEM_STACK"][0] != stack || got["TANDEM_STACK2"][0] != stack {
		t.Errorf("the stacks have %d and %d bytes, want %d", len(got["TANDEM_STACK"][0]), len(got["TANDEM_STACK2"][0]), len(stack))
	}
	if long := got["TANDEM_LONG"][0]; len(long) > maxValueBytes+40 || !strings.HasSuffix(long, "… (10 more bytes)") {
		t.Errorf("the endless value has %d bytes and ends in %q", len(long), long[len(long)-30:])
	}
	l.Close(10 * time.Second)
}

func TestJournalThatIsAwayGetsTheEventsWhenItIsBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	l, err := Open(Options{Format: "journal", socket: path})
	if err != nil {
		t.Fatal(err)
	}
	l.Event(Start, "before anybody listens")
	s := listenJournal(t, path)
	if got := s.next(t)["MESSAGE"]; got[0] != "before anybody listens" {
		t.Errorf("got %q", got)
	}
	// The journal restarts: its socket is another one under the same name.
	s.conn.Close()
	os.Remove(path)
	l.Event(Ready, "while it restarts")
	s = listenJournal(t, path)
	if got := s.next(t)["MESSAGE"]; got[0] != "while it restarts" {
		t.Errorf("got %q", got)
	}
	if !l.Close(10*time.Second) || l.Dropped() != 0 {
		t.Errorf("%d events were lost", l.Dropped())
	}
}

func TestJournalThatNeverComesCostsEventsAndNoTime(t *testing.T) {
	s, err := newJournalSink(filepath.Join(t.TempDir(), "absent"))
	if err != nil {
		t.Fatal(err)
	}
	s.patience = time.Millisecond
	q := newQueue(s, 8, func(n uint64) []byte { return []byte("lost") })
	for range 100 {
		q.put(slog.LevelError, []byte("x"))
	}
	if q.close(20 * time.Second) {
		t.Error("Close says that everything was told")
	}
	if n := q.dropped.Load(); n != 100 {
		t.Errorf("%d events are counted as lost, want 100", n)
	}
	s.stop()
}

func TestTextIsForPeople(t *testing.T) {
	h, out := direct(textForm{}, slog.LevelDebug)
	l := New(h)
	at := time.Date(2026, 11, 29, 15, 4, 5, 123e6, time.Local)
	l.With(Generation(3)).Event(WorkerExit, "worker decode 0.1 ended", Rank(ident.Rank{Replica: ident.Replica{Role: ident.Decode}, Rank: 1}),
		Reason("signal: killed"), Age(1234567*time.Microsecond), Int("pid", 42), Str("empty", ""))
	line := strings.Replace(string((*out)[0]), string((*out)[0][:len(textTime)]), at.Format(textTime), 1)
	want := `2026-11-29 15:04:05.123 warn  worker decode 0.1 ended  generation=3 role=decode rank=0.1 reason="signal: killed" age=1.235s pid=42 empty="" event=worker.exit` + "\n"
	if line != want {
		t.Errorf("got  %swant %s", line, want)
	}
}

// A client names its request and its session; neither may forge a line or steer
// a terminal.
func TestNothingFromOutsideBreaksALine(t *testing.T) {
	evil := "a\n2026-01-01 00:00:00.000 error forged\r\x1b[2J\x00\u2028\u202e\u009b\xff"
	for _, f := range []form{textForm{}, textForm{colour: true}, jsonForm{}} {
		h, out := direct(f, slog.LevelDebug)
		New(h).Event(RequestDone, evil, Request(ident.Request(evil)), Str("session", evil))
		b := string((*out)[0])
		b = strings.NewReplacer("\x1b[32m", "", "\x1b[0m", "", "\x1b[2m", "").Replace(b)
		if strings.Count(b, "\n") != 1 || strings.ContainsAny(b, "\r\x00\x1b\u2028\u202e\u009b") {
			t.Errorf("%T: %q", f, b)
		}
	}
	h, out := direct(journalForm{}, slog.LevelDebug)
	New(h).Event(RequestDone, evil, Request(ident.Request(evil)))
	if got := parseNative(t, (*out)[0]); got["TANDEM_REQUEST"][0] != evil || strings.ContainsAny(got["MESSAGE"][0], "\n\x1b") {
		t.Errorf("journal: %q", got)
	}
}

func TestLevels(t *testing.T) {
	h, out := direct(textForm{}, slog.LevelInfo)
	l := New(h)
	l.Event(RequestState, "queued → reserving")
	if len(*out) != 0 || l.Enabled(RequestState) || !l.Enabled(RequestDone) {
		t.Error("a debug event is told at level info")
	}
	l.Event(RequestState, "raised", At(slog.LevelWarn))
	l.Event(HealthChange, "lowered", At(slog.LevelDebug))
	if len(*out) != 1 || !strings.Contains(string((*out)[0]), " warn  raised  event=request.state") {
		t.Errorf("got %q", *out)
	}
}

func TestNilLogTellsNobody(t *testing.T) {
	var l *Log
	l.Event(Start, "x", Reason("y"))
	l.With(Reason("z")).Event(Start, "x")
	l.Slog().Info("x")
	if l.Enabled(Start) || l.Dropped() != 0 || !l.Close(0) {
		t.Error("a nil log did something")
	}
}

func TestFaultFieldHasCodeAndReason(t *testing.T) {
	h, out := direct(jsonForm{}, slog.LevelInfo)
	New(h).Event(RequestDone, "ended", Fault(fmt.Errorf("outer: %w", fault.New(fault.TransferTimeout, "no page for 2 s"))))
	var m map[string]any
	if err := json.Unmarshal((*out)[0], &m); err != nil || m["code"] != "kv_transfer_timeout" || m["reason"] != "outer: no page for 2 s" {
		t.Errorf("%v: %v", err, m)
	}
}

func TestWrongFieldNamesPanic(t *testing.T) {
	for _, name := range []string{"", "Request", "a-b", "_x", "9x", "a.b", "ä", strings.Repeat("a", 49)} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q is taken as a field's name", name)
				}
			}()
			Str(name, "x")
		}()
	}
	// What comes through log/slog is made to fit instead.
	h, out := direct(journalForm{}, slog.LevelInfo)
	slog.New(h).Info("x", "remote-addr", 1, "Straße", 2, strings.Repeat("k", 100), 3)
	parseNative(t, (*out)[0]) // complains of names that do not fit
}

// gate is a sink that is held shut.
type gate struct {
	open    chan struct{}
	entered chan struct{}
	once    sync.Once
	opened  sync.Once
	mu      sync.Mutex
	got     []string
	stopped bool
}

func newGate() *gate { return &gate{open: make(chan struct{}), entered: make(chan struct{})} }

func (g *gate) write(b []byte) error {
	g.once.Do(func() { close(g.entered) })
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return errors.New("stopped")
	}
	g.got = append(g.got, string(b))
	return nil
}

// release opens the gate.
func (g *gate) release() { g.opened.Do(func() { close(g.open) }) }

func (g *gate) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	g.release()
}

func TestFloodDropsSmallTalkKeepsErrorsAndTellsTheLoss(t *testing.T) {
	g := newGate()
	q := newQueue(g, 16, func(n uint64) []byte { return fmt.Appendf(nil, "lost %d", n) })
	q.put(slog.LevelInfo, []byte("first"))
	<-g.entered // the writer hangs; 16 places are left
	for i := range 100 {
		q.put(slog.LevelInfo, fmt.Appendf(nil, "info %d", i))
	}
	if n := q.dropped.Load(); n != 88 {
		t.Errorf("%d of 100 were dropped; 12 of the 16 places are theirs", n)
	}
	for i := range 6 {
		q.put(slog.LevelError, fmt.Appendf(nil, "error %d", i))
	}
	if n := q.dropped.Load(); n != 90 {
		t.Errorf("%d dropped; 4 places are kept for errors", n)
	}
	g.release()
	if !q.close(20 * time.Second) {
		t.Error("what waited was not written")
	}
	want := []string{"first"}
	for i := range 12 {
		want = append(want, fmt.Sprintf("info %d", i))
	}
	want = append(want, "error 0", "error 1", "error 2", "error 3")
	got := slices.DeleteFunc(slices.Clone(g.got), func(s string) bool { return strings.HasPrefix(s, "lost") })
	if !slices.Equal(got, want) {
		t.Errorf("written: %q", got)
	}
	if !slices.Contains(g.got, "lost 90") {
		t.Errorf("the loss is not told: %q", g.got)
	}
	q.put(slog.LevelError, []byte("late"))
	if q.dropped.Load() != 91 {
		t.Error("an event after Close is not counted as lost")
	}
}

// Large events have a limit of their own: by number alone, stacks that nobody takes
// away would fill the memory.
func TestQueueIsBoundedInBytes(t *testing.T) {
	g := newGate()
	q := newQueue(g, queueLen, func(uint64) []byte { return nil })
	q.put(slog.LevelInfo, []byte("first"))
	<-g.entered
	big := make([]byte, maxValueBytes)
	const fit = queueBytes / maxValueBytes
	for range 2 * fit {
		q.put(slog.LevelInfo, big)
	}
	if n := q.dropped.Load(); n != 2*fit-fit*3/4 {
		t.Errorf("%d of %d were dropped; three quarters of the bytes are theirs", n, 2*fit)
	}
	q.put(slog.LevelError, []byte("error")) // a quarter is kept for errors
	if n := q.dropped.Load(); n != 2*fit-fit*3/4 {
		t.Error("an error was pushed out by small talk")
	}
	g.release()
	if !q.close(20 * time.Second) {
		t.Error("what waited was not written")
	}
	if n := q.bytes.Load(); n != 0 {
		t.Errorf("%d bytes wait in an empty queue", n)
	}
}

func TestCloseEndsThoughTheWayOutIsBlocked(t *testing.T) {
	g := newGate()
	q := newQueue(g, 16, func(uint64) []byte { return nil })
	q.put(slog.LevelInfo, []byte("x"))
	<-g.entered
	if q.close(time.Millisecond) {
		t.Error("Close says that everything was told")
	}
}

// A pipe that nobody reads: telling does not wait, and Close returns.
func TestFullPipeBlocksNobody(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.Fd() // blocking, as an inherited stderr is
	l, err := Open(Options{Format: "text", Stderr: w})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 * queueLen {
		l.Event(RequestDone, strings.Repeat("x", 100))
	}
	if l.Dropped() == 0 {
		t.Error("nothing was dropped, so nothing was proved")
	}
	if l.Close(time.Millisecond) {
		t.Error("Close says that everything was told")
	}
	r.Close() // lets the writer go: its write fails
	<-l.q.ended
	w.Close()
}

func TestOpenChoosesTextOffTheJournalAndNoColourInAFile(t *testing.T) {
	t.Setenv("JOURNAL_STREAM", "")
	f, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, err := Open(Options{Level: "warn", Stderr: f})
	if err != nil {
		t.Fatal(err)
	}
	l.Event(Start, "not told")
	l.Event(DirtyBuild, "told")
	l.Slog().Error("from a library", "err", io.EOF)
	if !l.Close(10 * time.Second) {
		t.Error("Close: something was lost")
	}
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != 2 || strings.Contains(string(b), "\x1b") || !strings.HasSuffix(lines[0], " warn  told  event=build.dirty") || !strings.HasSuffix(lines[1], "error from a library  err=EOF") {
		t.Errorf("got %q", lines)
	}
	for _, o := range []Options{{Level: "loud"}, {Format: "xml"}} {
		if _, err := Open(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

func BenchmarkEvent(b *testing.B) {
	for _, f := range []form{textForm{}, jsonForm{}, journalForm{}} {
		b.Run(fmt.Sprintf("%T", f), func(b *testing.B) {
			l := New(&handler{form: f, level: slog.LevelInfo, put: func(slog.Level, []byte) {}})
			for b.Loop() {
				l.Event(RequestDone, "request done", Request("req-1"), Generation(3), Code("stop"), Took("took", time.Second), Int("tokens", 100))
			}
		})
	}
}
