package observe

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// gauges computes everything that a snapshot tells, at each scrape.
type gauges struct {
	o MetricsOptions

	requests, oldest, generation, worker, progress *prometheus.Desc
	pages, drift, admission, quarantine, age       *prometheus.Desc
}

func newGauges(o MetricsOptions) *gauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &gauges{
		o:          o,
		requests:   desc("tandem_requests", "Live requests, by state. Their sum is what was admitted and has not ended.", "state"),
		oldest:     desc("tandem_oldest_request_age_seconds", "How long the request that is longest in a state has been in it; 0 if none is.", "state"),
		generation: desc("tandem_generation", "The live generation; 0 before the first."),
		worker:     desc("tandem_worker_info", "The ranks of the live generation. Always 1.", "role", "rank", "pid", "generation", "device"),
		progress:   desc("tandem_worker_progress_age_seconds", "How long ago a rank last made progress or had nothing to do.", "role", "rank"),
		pages:      desc("tandem_kv_pages", "Pages of a KV pool, by state.", "pool", "state"),
		drift:      desc("tandem_kv_conservation_error", "How far the ledger of a KV pool is from adding up; 0 unless there is a bug.", "pool"),
		admission:  desc("tandem_admission", "The limits that admission enforces, as they are in force.", "limit"),
		quarantine: desc("tandem_quarantine_age_seconds", "How long the oldest page in quarantine has been there; 0 if none is.", nil...),
		age:        desc("tandem_snapshot_age_seconds", "How old the state is that the gauges are computed from. It grows if the control loop hangs."),
	}
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.requests, g.oldest, g.generation, g.worker, g.progress, g.pages, g.drift, g.admission, g.quarantine, g.age} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	s, now := g.o.Snapshot(), g.o.now()
	put := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	put(g.generation, float64(s.Generation))
	put(g.age, age(now, s.Taken))
	put(g.quarantine, age(now, s.Quarantined))
	for _, state := range names(g.o.RequestStates, s.Requests) {
		put(g.requests, float64(s.Requests[state]), state)
		put(g.oldest, age(now, s.Oldest[state]), state)
	}
	for _, limit := range names(g.o.Limits, s.Admission) {
		put(g.admission, s.Admission[limit], limit)
	}
	seen := map[string]bool{}
	for _, p := range s.Pools {
		if seen[p.Name] {
			continue // a name twice would make the whole scrape fail
		}
		seen[p.Name] = true
		put(g.drift, float64(p.Drift), p.Name)
		for _, state := range names(g.o.PageStates, p.Pages) {
			put(g.pages, float64(p.Pages[state]), p.Name, state)
		}
	}
	for _, w := range s.Workers {
		role, rank := w.Rank.Role.String(), RankLabel(w.Rank)
		if seen[role+" "+rank] {
			continue
		}
		seen[role+" "+rank] = true
		put(g.worker, 1, role, rank, strconv.Itoa(w.PID), w.Generation.String(), w.Device)
		put(g.progress, age(now, w.Progress), role, rank)
	}
}

// age is how long ago t was; 0 for no time at all.
func age(now, t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(now.Sub(t).Seconds(), 0)
}

// names is the known names and those that a map has besides.
func names[V any](known []string, m map[string]V) []string {
	out := known[:len(known):len(known)]
	for k := range m {
		found := false
		for _, n := range known {
			found = found || n == k
		}
		if !found {
			out = append(out, k)
		}
	}
	return out
}
