package observe

import (
	"fmt"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/request"
	"tandem/gpu/pagepool"
)

// world is a registry with a snapshot that a test can change.
type world struct {
	*Metrics
	mu   sync.Mutex
	snap Snapshot
	now  time.Time
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{now: time.Unix(1_800_000_000, 0)}
	w.snap = Snapshot{Taken: w.now, Requests: map[string]int{}, Oldest: map[string]time.Time{}}
	var states []string
	for _, s := range request.LiveStates() {
		states = append(states, s.String())
	}
	w.Metrics = NewMetrics(MetricsOptions{
		Build: BuildInfo{Version: "v1.2.3", Revision: "abc", Dirty: true}, ConfigDigest: "0123456789abcdef",
		RequestStates: states, PageStates: pagepool.StateNames(), Limits: []string{"max_requests", "max_queued"}, Reasons: []string{"worker_exit"},
		Behind:   func() time.Duration { return 7 * time.Millisecond },
		Edges:    [][2]string{{"prefill/0.0", "decode/0.0"}},
		Snapshot: func() Snapshot { w.mu.Lock(); defer w.mu.Unlock(); return w.snap },
		Dropped:  func() uint64 { return 4 },
		now:      func() time.Time { return w.now }, pedantic: true,
	})
	return w
}

// scrape gives the value of every series, under its name and labels.
func (w *world) scrape(t *testing.T) map[string]string {
	t.Helper()
	rec := httptest.NewRecorder()
	w.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	if rec.Code != 200 {
		t.Fatalf("GET /metrics: %d %s", rec.Code, rec.Body)
	}
	out := map[string]string{}
	for l := range strings.Lines(rec.Body.String()) {
		if l = strings.TrimSpace(l); l == "" || l[0] == '#' {
			continue
		}
		i := strings.LastIndexByte(l, ' ')
		out[l[:i]] = l[i+1:]
	}
	return out
}

func wantSeries(t *testing.T, got map[string]string, want map[string]string) {
	t.Helper()
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s = %q, want %q", k, got[k], v)
		}
	}
}

// drive uses every metric once.
func (w *world) drive() {
	w.snap.Generation = 7
	w.snap.Requests["decoding"] = 2
	w.snap.Oldest["decoding"] = w.now.Add(-3 * time.Second)
	w.snap.Quarantined = w.now.Add(-500 * time.Millisecond)
	w.snap.Admission = map[string]float64{"max_requests": 32, "max_queued": 64}
	w.snap.Pools = []PoolInfo{{Name: "decode/0", Pages: map[string]int{"free": 90, "leased": 10}}}
	w.snap.Workers = []WorkerInfo{{Rank: ident.Rank{Replica: ident.Replica{Role: ident.Prefill}, Rank: 1}, PID: 42, Generation: 7, Device: "cpu:1", Progress: w.now.Add(-250 * time.Millisecond)}}
	w.DeadlineExceeded("prefilling")
	w.GenerationEnded("worker_exit")
	w.Transferred("prefill/0.0", "decode/0.0", 2*time.Millisecond, 1<<20)
	w.TransferFailed("prefill/0.0", "decode/0.0", fault.DigestMismatch)
	w.VerifyFailed("digest")
	w.Rejected(fault.QueueFull)
	w.Fenced("step")
	w.Resumed(3)
	w.PromptTokens(Computed, 100)
	w.OutputTokens(5)
	w.FirstToken(30 * time.Millisecond)
	w.NextTokens(40*time.Millisecond, 4)
	w.Answered("/v1/chat/completions", 200, "ok", time.Second)
	w.Answered("/v1/completions", 499, "client_gone", time.Second)
	w.Answered("/health", 200, "ok", time.Millisecond)
	w.Ignored("logit_bias")
}

func TestEveryMetricUsersRelyOnExists(t *testing.T) {
	const contract = `tandem_requests{state} tandem_oldest_request_age_seconds{state} tandem_deadline_exceeded_total{state}
tandem_generation tandem_worker_info{role,rank,pid,generation,device} tandem_generation_changes_total{reason}
tandem_kv_pages{pool,state} tandem_kv_conservation_error{pool} tandem_transfer_seconds{src,dst}
tandem_transfer_bytes_total{src,dst} tandem_transfer_failures_total{src,dst,reason} tandem_verify_failures_total{reason}
tandem_admission{limit} tandem_rejected_total{reason} tandem_fenced_messages_total{kind} tandem_resumed_requests_total
tandem_time_to_first_token_seconds tandem_inter_token_seconds tandem_request_seconds{code}
tandem_prompt_tokens_total{source} tandem_output_tokens_total
tandem_last_completion_timestamp_seconds tandem_quarantine_age_seconds tandem_worker_progress_age_seconds{role,rank}
tandem_build_info{version,revision,dirty,config_digest}`
	w := newWorld(t)
	w.drive()
	families, err := w.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string][]string{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
			}
			slices.Sort(labels)
			have[f.GetName()] = labels
		}
	}
	for _, want := range strings.Fields(contract) {
		name, list, _ := strings.Cut(strings.TrimSuffix(want, "}"), "{")
		labels := strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
		slices.Sort(labels)
		got, ok := have[name]
		if !ok || !slices.Equal(got, labels) {
			t.Errorf("%s has the labels %v, want %v", name, got, labels)
		}
	}
	if problems, err := testutil.GatherAndLint(w.Gatherer()); err != nil || len(problems) != 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	n, err := testutil.GatherAndCount(w.Gatherer())
	if err != nil || n > 400 {
		t.Errorf("%d metrics, %v; want at most 400", n, err)
	}
}

func TestCountersBeginAtZero(t *testing.T) {
	w := newWorld(t)
	wantSeries(t, w.scrape(t), map[string]string{
		`tandem_requests{state="queued"}`: "0", `tandem_requests{state="draining"}`: "0", `tandem_oldest_request_age_seconds{state="queued"}`: "0",
		`tandem_deadline_exceeded_total{state="transferring"}`: "0", `tandem_generation_changes_total{reason="worker_exit"}`: "0",
		`tandem_rejected_total{reason="queue_full"}`: "0", `tandem_verify_failures_total{reason="digest"}`: "0",
		`tandem_request_seconds_count{code="generation_changed"}`: "0", `tandem_request_seconds_count{code="ok"}`: "0",
		`tandem_prompt_tokens_total{source="prefill_cache"}`:                                               "0",
		`tandem_transfer_failures_total{dst="decode/0.0",reason="kv_transfer_timeout",src="prefill/0.0"}`:  "0",
		`tandem_transfer_seconds_count{dst="decode/0.0",src="prefill/0.0"}`:                                "0",
		`tandem_resumed_requests_total`:                                                                    "0",
		`tandem_quarantine_age_seconds`:                                                                    "0",
		`tandem_last_completion_timestamp_seconds`:                                                         "0",
		`tandem_build_info{config_digest="0123456789abcdef",dirty="true",revision="abc",version="v1.2.3"}`: "1",
		`tandem_log_dropped_total`:                                                                         "4",
		`tandem_control_latency_seconds`:                                                                   "0.007",
	})
}

func TestWhatHappenedIsCounted(t *testing.T) {
	w := newWorld(t)
	w.drive()
	wantSeries(t, w.scrape(t), map[string]string{
		`tandem_generation`: "7", `tandem_requests{state="decoding"}`: "2", `tandem_oldest_request_age_seconds{state="decoding"}`: "3",
		`tandem_quarantine_age_seconds`: "0.5", `tandem_admission{limit="max_requests"}`: "32",
		`tandem_kv_pages{pool="decode/0",state="free"}`: "90", `tandem_kv_pages{pool="decode/0",state="quarantined"}`: "0", `tandem_kv_conservation_error{pool="decode/0"}`: "0",
		`tandem_worker_info{device="cpu:1",generation="7",pid="42",rank="0.1",role="prefill"}`:           "1",
		`tandem_worker_progress_age_seconds{rank="0.1",role="prefill"}`:                                  "0.25",
		`tandem_deadline_exceeded_total{state="prefilling"}`:                                             "1",
		`tandem_generation_changes_total{reason="worker_exit"}`:                                          "1",
		`tandem_transfer_bytes_total{dst="decode/0.0",src="prefill/0.0"}`:                                "1.048576e+06",
		`tandem_transfer_failures_total{dst="decode/0.0",reason="kv_digest_mismatch",src="prefill/0.0"}`: "1",
		`tandem_rejected_total{reason="queue_full"}`:                                                     "1", `tandem_fenced_messages_total{kind="step"}`: "1", `tandem_resumed_requests_total`: "3",
		`tandem_prompt_tokens_total{source="computed"}`: "100", `tandem_output_tokens_total`: "5",
		`tandem_time_to_first_token_seconds_count`: "1", `tandem_inter_token_seconds_count`: "4", `tandem_inter_token_seconds_sum`: "0.04",
		`tandem_request_seconds_count{code="ok"}`: "1", `tandem_request_seconds_count{code="client_gone"}`: "1",
		`tandem_http_answers_total{route="/health",status="200"}`: "1", `tandem_ignored_fields_total{field="logit_bias"}`: "1",
	})
	if v := w.scrape(t)["tandem_last_completion_timestamp_seconds"]; v == "0" {
		t.Error("a completion is not noted")
	}
}

// The owner hangs: its last snapshot is all there is, and the ages still grow.
func TestAgesGrowThoughTheOwnerHangs(t *testing.T) {
	w := newWorld(t)
	w.drive()
	w.now = w.now.Add(time.Minute)
	wantSeries(t, w.scrape(t), map[string]string{
		`tandem_oldest_request_age_seconds{state="decoding"}`: "63", `tandem_snapshot_age_seconds`: "60", `tandem_quarantine_age_seconds`: "60.5",
		`tandem_worker_progress_age_seconds{rank="0.1",role="prefill"}`: "60.25",
	})
}

func TestLabelsCannotGrowWithoutEnd(t *testing.T) {
	w := newWorld(t)
	for i := range 1000 {
		w.Ignored(fmt.Sprint("field", i))
		w.Fenced(fmt.Sprint("kind", i))
		w.GenerationEnded(fmt.Sprint("reason", i))
		w.Answered(fmt.Sprint("/route", i), 404, "not_found", 0)
		w.Answered("/v1/completions", 200, fmt.Sprint("code", i), 0)
	}
	n := map[string]int{}
	for k := range w.scrape(t) {
		name, _, _ := strings.Cut(k, "{")
		n[name]++
	}
	for _, name := range []string{"tandem_ignored_fields_total", "tandem_fenced_messages_total", "tandem_generation_changes_total", "tandem_http_answers_total", "tandem_request_seconds_count"} {
		if n[name] == 0 || n[name] > maxWords+1 {
			t.Errorf("%s has %d series, want at most %d", name, n[name], maxWords+1)
		}
	}
	if w.scrape(t)[`tandem_ignored_fields_total{field="other"}`] == "0" {
		t.Error("what does not fit is not counted as other")
	}
}

// A snapshot that names a pool or a rank twice is our bug; the scrape survives it.
func TestSnapshotThatRepeatsItself(t *testing.T) {
	w := newWorld(t)
	w.drive()
	w.snap.Pools = append(w.snap.Pools, w.snap.Pools[0])
	w.snap.Workers = append(w.snap.Workers, w.snap.Workers[0])
	w.snap.Requests["surprise"] = 1
	wantSeries(t, w.scrape(t), map[string]string{`tandem_requests{state="surprise"}`: "1", `tandem_generation`: "7"})
}

func TestMetricsFromManyGoroutines(t *testing.T) {
	w := newWorld(t)
	w.drive()
	before := testutil.ToFloat64(w.output)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				w.OutputTokens(1)
				w.Answered("/v1/messages", 200, "ok", time.Second)
				w.Transferred("a", "b", time.Millisecond, 1)
			}
		})
	}
	for range 5 {
		if _, err := w.Gatherer().Gather(); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if got := testutil.ToFloat64(w.output) - before; got != 800 {
		t.Errorf("%v tokens, want 800", got)
	}
}

func TestPromtoolTakesTheMetrics(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed")
	}
	w := newWorld(t)
	w.drive()
	rec := httptest.NewRecorder()
	w.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = rec.Body
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestBuildInfo(t *testing.T) {
	set := func(pairs ...string) *debug.BuildInfo {
		bi := &debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "(devel)"}}
		for i := 0; i < len(pairs); i += 2 {
			bi.Settings = append(bi.Settings, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return bi
	}
	const rev = "0123456789abcdef0123456789abcdef01234567"
	for _, c := range []struct {
		name    string
		bi      *debug.BuildInfo
		linked  string
		dirty   bool
		version string
		text    string
	}{
		{"committed", set("vcs.revision", rev, "vcs.modified", "false", "CGO_ENABLED", "1"), "", false, "devel", `^tandem devel 0123456789ab \(go1\.26\.8, \w+/\w+, cgo\)$`},
		{"not committed", set("vcs.revision", rev, "vcs.modified", "true"), "", true, "devel", `^tandem devel 0123456789ab DIRTY \(`},
		{"not stamped", set("CGO_ENABLED", "0"), "", true, "devel", `^tandem devel of unknown revision \(.*no cgo\)$`},
		{"named by the linker", set("vcs.revision", rev, "vcs.modified", "false"), "1.4.0", false, "1.4.0", `^tandem 1\.4\.0 0123456789ab \(`},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := buildInfo(c.bi, c.linked)
			if b.Dirty != c.dirty || b.Version != c.version || !regexp.MustCompile(c.text).MatchString(b.String()) {
				t.Errorf("%+v: %s", b, b)
			}
		})
	}
	if b := Build(); b.Go == "" || b.Platform == "" {
		t.Errorf("this binary: %+v", b)
	}
}
