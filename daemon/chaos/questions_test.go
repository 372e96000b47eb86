package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tandem/daemon/core"
)

// tandem runs a command of the operator's against the appliance. Its exit code may be
// any.
func (a *appliance) tandem(args ...string) string {
	a.t.Helper()
	bin, err := binary()
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, bin, append(args, "--socket", a.sock)...).CombinedOutput()
	if err != nil && len(out) == 0 {
		a.t.Fatalf("tandem %v: %v", args, err)
	}
	return string(out)
}

// scrape is every series of /metrics, by its name and labels as they stand there.
func (a *appliance) scrape() map[string]float64 {
	a.t.Helper()
	r, err := a.http.Get(a.url("/metrics"))
	if err != nil {
		a.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	out := map[string]float64{}
	for l := range strings.Lines(string(b)) {
		l = strings.TrimSpace(l)
		i := strings.LastIndexByte(l, ' ')
		if i < 0 || l[0] == '#' {
			continue
		}
		v, err := strconv.ParseFloat(l[i+1:], 64)
		if err != nil {
			a.t.Fatalf("%q: %v", l, err)
		}
		out[l[:i]] = v
	}
	return out
}

// entry is one event in the log.
type entry map[string]any

func (e entry) text(field string) string { s, _ := e[field].(string); return s }

func (e entry) at() time.Time { t, _ := time.Parse(time.RFC3339Nano, e.text("time")); return t }

// told gives the log's events of a kind. The appliance must log as JSON.
func (a *appliance) told(kind string) []entry {
	var out []entry
	for l := range strings.Lines(a.log()) {
		var e entry
		if json.Unmarshal([]byte(l), &e) == nil && e.text("event") == kind {
			out = append(out, e)
		}
	}
	return out
}

// One answer of several stands still because its rank does not run. Each question that
// people asked during an incident has its answer in one command, one series or one
// event, while it happens and afterwards.
func TestOneMinuteQuestions(t *testing.T) {
	a := start(t, "log.format=json", `prefill.devices=["cpu:1"]`, `decode.devices=["cpu:0", "cpu:1"]`, "decode.tensor_parallel=1", "kv.transport=pull",
		`deadlines.token_stall="6s"`, `deadlines.progress="120s"`, `deadlines.quarantine="60s"`)
	begun, ended := make(chan struct{}, 1), make(chan error, 1)
	q := question{prompt: []int32{1, 2, 3}, tokens: 2000}
	q.on = func(pieces int, _ string) {
		if pieces == 3 {
			begun <- struct{}{}
		}
	}
	go func() {
		_, err := a.get(context.Background(), q)
		ended <- err
	}()
	<-begun
	var live []core.RequestView
	if err := a.ask("/requests", &live); err != nil || len(live) != 1 {
		t.Fatalf("%v, %v", live, err)
	}
	id := string(live[0].ID)
	where := a.tandem("requests", "show", id)
	m := regexp.MustCompile(`prefill0 → decode(\d)`).FindStringSubmatch(where)
	if m == nil {
		t.Fatalf("where does it run?\n%s", where)
	}
	rank := "decode/" + m[1] + ".0"
	pid := a.pid(rank)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGCONT)
	before := a.scrape()
	time.Sleep(1500 * time.Millisecond)
	if a.mustGet(questions[1]).text == "" { // on the other replica
		t.Error("no answer")
	}
	now := a.scrape()
	status, list, show := a.tandem("status"), a.tandem("requests"), a.tandem("requests", "show", id)
	expect := func(question, where, what string) {
		t.Helper()
		if !regexp.MustCompile(what).MatchString(where) {
			t.Errorf("%s: no %q in:\n%s", question, what, where)
		}
	}

	const stuck = "is anything stuck, where, how long?"
	oldest := `tandem_oldest_request_age_seconds{state="decoding"}`
	if now[oldest] < 1.4 || now[oldest] <= before[oldest] {
		t.Errorf("%s: %v then %v", stuck, before[oldest], now[oldest])
	}
	expect(stuck, status, `1 decoding, the oldest for [\d.]+s`)

	const which = "which request, which ranks?"
	dead := regexp.QuoteMeta(rank)
	expect(which, list, `(?m)^`+id+` +decoding .*for `+dead+` \(`+dead+` shows no sign of life for \d`)
	expect(which, show, `^request `+id+`: decoding for [\d.]+s, [\d.]+s left; waits for `+dead)

	const got = "did decode ever get it?"
	expect(got, show, `(?m) verifying +transfer verified +a1\.\d+: moving → arrived| decoding +arrived`)
	expect(got, show, `(?m)^in all .*transferring|^in all .*decoding`)

	const same = "are prefill and decode from the same start?"
	workers := 0
	for series := range now {
		if strings.HasPrefix(series, "tandem_worker_info{") {
			if workers++; !strings.Contains(series, `generation="1"`) {
				t.Errorf("%s: %s", same, series)
			}
		}
	}
	if workers != 3 || now["tandem_generation"] != 1 {
		t.Errorf("%s: %d workers, generation %v", same, workers, now["tandem_generation"])
	}

	const link = "is it one link or all?"
	for d := range 2 { // neither: the transfer was not what failed
		series := fmt.Sprintf(`tandem_transfer_failures_total{dst="decode%d",reason="kv_transfer_timeout",src="prefill0"}`, d)
		if v, ok := now[series]; !ok || v != 0 {
			t.Errorf("%s: %s = %v, %v", link, series, v, ok)
		}
	}

	const code = "is the code modified?"
	start := a.told("start")
	if len(start) == 0 {
		t.Fatal("no start event")
	}
	dirty, isBool := start[0]["dirty"].(bool)
	built := fmt.Sprintf(`config_digest="%s",dirty="%v"`, start[0].text("config_digest"), dirty)
	found := false
	for series := range now {
		found = found || strings.HasPrefix(series, "tandem_build_info{"+built)
	}
	if !isBool || !found {
		t.Errorf("%s: no tandem_build_info with %s", code, built)
	}
	expect(code, start[0].text("limits"), `(?m)^deadlines\.token_stall = "6s" \(--set; enforced in .+\)$`)

	const limit = "was the limit of the queue honoured?"
	sum := 0.0
	for series, v := range now {
		if strings.HasPrefix(series, "tandem_requests{") {
			sum += v
		}
	}
	if most := now[`tandem_admission{limit="max_requests"}`] + now[`tandem_admission{limit="max_queued"}`]; most != 96 || sum < 1 || sum > most {
		t.Errorf("%s: %v live, %v admitted at most", limit, sum, most)
	}

	const global = "is it everything, or one request?"
	if c := "tandem_last_completion_timestamp_seconds"; now[c] <= before[c] {
		t.Errorf("%s: no completion while one stands still: %v, %v", global, before[c], now[c])
	}
	if s := a.status(); !s.Ready {
		t.Errorf("%s: not ready: %s", global, s.Reason)
	}

	const idle = "why do devices idle?"
	for _, r := range a.status().Ranks {
		series := fmt.Sprintf(`tandem_worker_progress_age_seconds{rank="%d.%d",role="%s"}`, r.Replica, r.Rank, r.Role)
		if frozen := r.Ident().String() == rank; frozen != (now[series] > 1) {
			t.Errorf("%s: %s = %v", idle, series, now[series])
		}
	}
	expect(idle, status, `(?m)^decode +`+m[1]+`\.0 +\d+ +cpu:\d +\S.* [1-9][\d.]*s ago +[1-9][\d.]*s ago`)

	// The limit passes. What happened is in the log, and stays there.
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "token_stall") {
		t.Errorf("the client got %v", err)
	}
	events := a.told("request.stuck")
	if len(events) != 1 {
		t.Fatalf("request.stuck: %v", events)
	}
	e := events[0]
	for field, what := range map[string]string{"request": "^" + id + "$", "state": "^decoding$", "attempt": `^a1\.\d+$`, "slot": `^prefill0/\d+$`, "reason": "waits for " + dead,
		"ranks": `(?m)^` + dead + ` process ` + strconv.Itoa(pid) + ` on cpu:\d: .*alive [\d.]+s ago`, "history": `(?m)decoding: arrived$`, "timeline": `decoding\+`} {
		expect(which+" (event)", e.text(field), what)
	}
	if age, _ := e["age_ms"].(float64); age < 5900 {
		t.Errorf("%s: age_ms is %v", stuck, e["age_ms"])
	}
	if s := a.told("request.slow"); len(s) != 1 || s[0].text("request") != id {
		t.Errorf("%s: request.slow: %v", stuck, s)
	}
	a.within(5*time.Second, "stacks of the daemon and of a worker that runs", func() bool {
		stacks := 0
		for _, e := range a.told("worker.log") {
			if e.text("request") == id && strings.Contains(e.text("stacks"), "goroutine ") {
				stacks++
			}
		}
		ds := a.told("daemon.stacks")
		return stacks == 2 && len(ds) == 1 && strings.Contains(ds[0].text("stacks"), "goroutine ")
	})
	expect(stuck, a.tandem("requests", "show", id), `(?s)^request `+id+`: ended with token_stall after .*limit of decoding passed after \d+ tokens, ended with token_stall +waits for `+dead)

	// Did a restart help? No event of that kind after the next generation began.
	if err := a.post("/restart", "reason=the+question"); err != nil {
		t.Fatal(err)
	}
	a.within(10*time.Second, "the next generation", func() bool { s := a.status(); return s.Generation == 2 && s.Ready })
	a.mustGet(questions[1])
	begin := a.told("generation.begin")
	if len(begin) != 2 || begin[1].at().Before(e.at()) || !strings.Contains(begin[1].text("reason")+begin[1].text("msg"), "the question") {
		t.Errorf("did a restart help? generation.begin: %v", begin)
	}
	for _, e := range a.told("request.stuck") {
		if e.at().After(begin[len(begin)-1].at()) {
			t.Errorf("stuck again: %v", e)
		}
	}
	a.settled()
}
