package observe

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tandem/daemon/fault"
)

// MetricsOptions say what metrics are about. Snapshot is needed.
type MetricsOptions struct {
	Build        BuildInfo
	ConfigDigest string

	// RequestStates, PageStates, Limits and Reasons are the values of the labels state,
	// limit and, of generations that end, reason, so that a state that nothing is in
	// reads 0 rather than being absent.
	RequestStates []string
	PageStates    []string
	Limits        []string
	Reasons       []string
	// Edges are the pairs of replicas between which KV moves, as source and target.
	Edges [][2]string

	// Snapshot is asked at every scrape. It must not wait for the owner of the
	// state: the owner publishes a snapshot, and this returns the last one.
	Snapshot func() Snapshot
	// Behind is how far the control loop was behind at most since it was asked last; nil
	// if there is none.
	Behind func() time.Duration
	// Dropped is how many events the log lost so far; nil if there is no log.
	Dropped func() uint64

	now      func() time.Time // in tests
	pedantic bool
}

// Metrics is the registry of everything that is measured. Its methods may be
// called from any goroutine and return at once.
type Metrics struct {
	registry *prometheus.Registry

	deadline    *counterVec
	generations *counterVec
	transfer    *prometheus.HistogramVec
	moved       *prometheus.CounterVec
	failures    *prometheus.CounterVec
	verify      *counterVec
	rejected    *counterVec
	fenced      *counterVec
	resumed     prometheus.Counter
	firstToken  prometheus.Histogram
	interToken  prometheus.Histogram
	request     *prometheus.HistogramVec
	prompt      *counterVec
	output      prometheus.Counter
	completion  prometheus.Gauge
	http        *prometheus.CounterVec
	ignored     *counterVec

	codes, edges, routes *words
}

// maxWords bounds the values of a label whose values come from elsewhere in the
// program; those beyond it are counted as "other".
const maxWords = 64

// words is the set of values a label has had. It keeps a programming mistake
// from making metrics without end.
type words struct {
	mu   sync.Mutex
	seen map[string]bool
	most int
}

func newWords(most int, known ...string) *words {
	w := &words{seen: map[string]bool{}, most: most}
	for _, k := range known {
		w.seen[k] = true
	}
	return w
}

// bound is word, or "other" if there are too many already.
func (w *words) bound(word string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.seen[word] {
		if len(w.seen) >= w.most {
			return "other"
		}
		w.seen[word] = true
	}
	return word
}

// counterVec is a counter with one label of bounded values.
type counterVec struct {
	*prometheus.CounterVec
	words *words
}

func (c *counterVec) add(word string, n float64) {
	c.WithLabelValues(c.words.bound(word)).Add(n)
}

// Sources of prompt tokens, the label source of tandem_prompt_tokens_total.
const (
	Computed     = "computed"
	PrefillCache = "prefill_cache"
	DecodeCache  = "decode_cache"
)

// The outcomes of an answer besides the codes of faults.
var goodCodes = []string{"ok", "stop", "length"}

// NewMetrics makes the registry.
func NewMetrics(o MetricsOptions) *Metrics {
	if o.Snapshot == nil {
		panic("observe: MetricsOptions needs a Snapshot")
	}
	if o.now == nil {
		o.now = time.Now
	}
	m := &Metrics{registry: prometheus.NewRegistry(), edges: newWords(4096), routes: newWords(maxWords)}
	if o.pedantic {
		m.registry = prometheus.NewPedanticRegistry()
	}
	reg := m.registry.MustRegister

	var faults []string
	for _, k := range fault.Kinds() {
		faults = append(faults, k.String())
	}
	m.codes = newWords(maxWords, append(append([]string{"client_gone"}, goodCodes...), faults...)...)

	counters := func(name, help, label string, known ...string) *counterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		for _, k := range known {
			v.WithLabelValues(k)
		}
		reg(v)
		return &counterVec{v, newWords(maxWords, known...)}
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg(c)
		return c
	}
	// Classic buckets for every scraper; native ones, 10 % wide, for those that take them.
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}
	}

	m.deadline = counters("tandem_deadline_exceeded_total", "Requests that exceeded the deadline of a state, by that state.", "state", o.RequestStates...)
	m.generations = counters("tandem_generation_changes_total", "Generations that ended, by the reason.", "reason", o.Reasons...)
	m.verify = counters("tandem_verify_failures_total", "KV caches that arrived and were not what had been sent, by what was wrong.", "reason", "digest", "epoch", "range", "layout")
	m.rejected = counters("tandem_rejected_total", "Requests that were refused at the door, by the reason.", "reason",
		fault.QueueFull.String(), fault.NotReady.String(), fault.Draining.String(), fault.ContextLength.String(), fault.Invalid.String(), fault.UnknownModel.String(), fault.Unauthorized.String())
	m.fenced = counters("tandem_fenced_messages_total", "Messages of another generation that were dropped, by their kind.", "kind")
	m.resumed = counter("tandem_resumed_requests_total", "Requests that were run again in a new generation.")
	m.output = counter("tandem_output_tokens_total", "Tokens delivered to clients.")
	m.prompt = counters("tandem_prompt_tokens_total", "Prompt tokens, by where their KV came from.", "source", Computed, PrefillCache, DecodeCache)
	m.ignored = counters("tandem_ignored_fields_total", "Fields of requests that have no effect here.", "field")

	m.transfer = prometheus.NewHistogramVec(histogram("tandem_transfer_seconds", "Time from the end of prefill until all of a KV cache was confirmed, by pair of replicas; 0 if decode had it first.",
		[]float64{.0001, .0003, .001, .003, .01, .03, .1, .3, 1, 3, 10}), []string{"src", "dst"})
	m.moved = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_transfer_bytes_total", Help: "Bytes of KV that were copied, by pair of replicas. Pages that change owner are not copied."}, []string{"src", "dst"})
	m.failures = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_transfer_failures_total", Help: "Transfers that failed, by pair of replicas and reason."}, []string{"src", "dst", "reason"})
	reg(m.transfer, m.moved, m.failures)
	for _, e := range o.Edges {
		m.edges.bound(e[0] + " " + e[1])
		m.transfer.WithLabelValues(e[0], e[1])
		m.moved.WithLabelValues(e[0], e[1])
		for _, k := range []fault.Kind{fault.TransferTimeout, fault.DigestMismatch, fault.EpochChanged} {
			m.failures.WithLabelValues(e[0], e[1], k.String())
		}
	}

	m.firstToken = prometheus.NewHistogram(histogram("tandem_time_to_first_token_seconds", "Time from a request's arrival to its first token.",
		[]float64{.01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 60}))
	m.interToken = prometheus.NewHistogram(histogram("tandem_inter_token_seconds", "Time between two tokens of an answer.",
		[]float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10}))
	m.request = prometheus.NewHistogramVec(histogram("tandem_request_seconds", "Time from a request's arrival to its end, by how it ended.",
		[]float64{.05, .1, .3, 1, 3, 10, 30, 100, 300, 1000, 3600}), []string{"code"})
	m.completion = prometheus.NewGauge(prometheus.GaugeOpts{Name: "tandem_last_completion_timestamp_seconds", Help: "When the last request ended well, in seconds since 1970; 0 if none has."})
	m.http = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_http_answers_total", Help: "Answers of the endpoint, by route and status."}, []string{"route", "status"})
	reg(m.firstToken, m.interToken, m.request, m.completion, m.http)
	for _, code := range append(append([]string{"client_gone"}, goodCodes[0]), faults...) {
		m.request.WithLabelValues(code)
	}

	dirty := strconv.FormatBool(o.Build.Dirty)
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "tandem_build_info", Help: "What this binary was built from. Always 1.",
		ConstLabels: prometheus.Labels{"version": o.Build.Version, "revision": o.Build.Revision, "dirty": dirty, "config_digest": o.ConfigDigest}})
	info.Set(1)
	reg(info, newGauges(o), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if o.Behind != nil {
		reg(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_control_latency_seconds", Help: "The longest that an event waited for the control loop since the last scrape."},
			func() float64 { return o.Behind().Seconds() }))
	}
	if o.Dropped != nil {
		reg(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "tandem_log_dropped_total", Help: "Events that were lost because they could not be written in time."},
			func() float64 { return float64(o.Dropped()) }))
	}
	return m
}

// Handler answers GET /metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		EnableOpenMetrics: true, Timeout: 5 * time.Second, MaxRequestsInFlight: 4, ErrorHandling: promhttp.ContinueOnError,
	})
}

// Gatherer is the registry, for tests and for a support bundle.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// DeadlineExceeded counts a request that stayed too long in a state.
func (m *Metrics) DeadlineExceeded(state string) { m.deadline.add(state, 1) }

// GenerationEnded counts a generation that ended.
func (m *Metrics) GenerationEnded(reason string) { m.generations.add(reason, 1) }

// Transferred counts a KV cache that arrived; bytes is what was copied for it, 0
// if pages changed owner.
func (m *Metrics) Transferred(src, dst string, took time.Duration, bytes int64) {
	src, dst = m.edge(src, dst)
	m.transfer.WithLabelValues(src, dst).Observe(took.Seconds())
	m.moved.WithLabelValues(src, dst).Add(float64(max(bytes, 0)))
}

// TransferFailed counts a transfer that failed.
func (m *Metrics) TransferFailed(src, dst string, k fault.Kind) {
	src, dst = m.edge(src, dst)
	m.failures.WithLabelValues(src, dst, k.String()).Inc()
}

func (m *Metrics) edge(src, dst string) (string, string) {
	if m.edges.bound(src+" "+dst) == "other" {
		return "other", "other"
	}
	return src, dst
}

// VerifyFailed counts a KV cache that arrived damaged: "digest", "epoch", "range" or "layout".
func (m *Metrics) VerifyFailed(reason string) { m.verify.add(reason, 1) }

// Rejected counts a request that was refused at the door.
func (m *Metrics) Rejected(k fault.Kind) { m.rejected.add(k.String(), 1) }

// Fenced counts a message of another generation that was dropped.
func (m *Metrics) Fenced(kind string) { m.fenced.add(kind, 1) }

// Resumed counts requests that are run again in a new generation.
func (m *Metrics) Resumed(n int) { m.resumed.Add(float64(max(n, 0))) }

// PromptTokens counts tokens of prompts, by source.
func (m *Metrics) PromptTokens(source string, n int) { m.prompt.add(source, float64(max(n, 0))) }

// OutputTokens counts tokens that were delivered.
func (m *Metrics) OutputTokens(n int) { m.output.Add(float64(max(n, 0))) }

// generating are the routes whose answers are made by the model.
var generating = map[string]bool{
	"/v1/chat/completions": true, "/v1/completions": true, "/v1/responses": true, "/v1/messages": true,
}

// Answered, FirstToken, NextTokens and Ignored are what the endpoint measures.

// Answered counts an answer of any route; if the model made it, its time, and
// that the model completes answers.
func (m *Metrics) Answered(route string, status int, code string, took time.Duration) {
	m.http.WithLabelValues(m.routes.bound(route), strconv.Itoa(status)).Inc()
	if !generating[route] {
		return
	}
	m.request.WithLabelValues(m.codes.bound(code)).Observe(took.Seconds())
	if code == "ok" {
		m.completion.SetToCurrentTime()
	}
}

// FirstToken is the time from a request's arrival to its first token.
func (m *Metrics) FirstToken(took time.Duration) { m.firstToken.Observe(took.Seconds()) }

// NextTokens is the time between two outputs of a stream, and the tokens in the
// second. It counts as that many tokens, each after its share of the time.
func (m *Metrics) NextTokens(gap time.Duration, tokens int) {
	tokens = min(tokens, 256)
	for range tokens {
		m.interToken.Observe(gap.Seconds() / float64(tokens))
	}
}

// Ignored counts a field of a request that has no effect.
func (m *Metrics) Ignored(field string) { m.ignored.add(field, 1) }
