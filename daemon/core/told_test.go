package core

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/wire"
)

// needs are the fields that an event must have: those that its text in the journal's
// catalogue shows, and those that events of its family share.
var needs = func() map[observe.Kind][]string {
	shown := map[string][]string{} // by identifier
	for _, block := range strings.Split(observe.Catalog(), "\n-- ")[1:] {
		id, text, _ := strings.Cut(block, "\n")
		for _, m := range regexp.MustCompile(`@TANDEM_([A-Z_]+)@`).FindAllStringSubmatch(text, -1) {
			shown[id] = append(shown[id], strings.ToLower(m[1]))
		}
	}
	families := map[string]string{
		"request.": "request", "request.state": "state age reason from", "request.slow": "state attempt age reason limit slot", "request.stuck": "state age reason history timeline tries",
		"request.done":   "code timeline tries age prompt_tokens output_tokens moved_bytes",
		"admission.":     "request limit value reason",
		"abort.":         "request attempt generation slot age reason",
		"slot.":          "request attempt generation slot reason",
		"transfer.":      "request attempt generation slot age reason role rank",
		"rank.":          "request attempt generation slot age reason role rank",
		"worker.":        "generation role rank reason",
		"generation.":    "generation reason",
		"generation.end": "age reap code",
		"edge.":          "generation reason src dst failures",
		"verify.":        "request attempt generation role rank reason code",
		"fence.":         "generation role rank kind reason",
		"health.":        "generation state from code age lasted reason",
		"canary.":        "generation reason",
	}

	out := map[observe.Kind][]string{}
	for _, k := range observe.Kinds() {
		out[k] = shown[k.MessageID()]
		if k == observe.WorkerLog || k == observe.GenerationReady {
			continue
		}
		for prefix, fields := range families {
			if strings.HasPrefix(k.String(), prefix) {
				out[k] = append(out[k], strings.Fields(fields)...)
			}
		}
	}
	return out
}()

// names are the names of fields, those in groups too.
func fieldNames(fields []observe.Field) []string {
	var out []string
	for _, f := range fields {
		if f.Value.Kind() == slog.KindGroup {
			out = append(out, fieldNames(f.Value.Group())...)
			continue
		}
		out = append(out, f.Key)
	}
	return out
}

func (w *world) Event(k observe.Kind, text string, fields ...observe.Field) {
	have := fieldNames(fields)
	for _, n := range needs[k] {
		if !slices.Contains(have, n) && !(k == observe.RequestStuck && n == "attempt") {
			w.fail("event %s without the field %s: %s", k, n, text)
		}
	}
	slices.Sort(have)
	if u := slices.Compact(slices.Clone(have)); len(u) != len(have) {
		w.fail("event %s has a field twice: %v", k, have)
	}
}

func (w *world) GenerationEnded(reason string) {
	if !slices.Contains(Reasons, reason) {
		w.fail("a generation ended with %q, which is not among Reasons", reason)
	}
}

// told is one event.
type told struct {
	kind   observe.Kind
	text   string
	fields map[string]string
}

func (e told) String() string { return fmt.Sprintf("%s: %s %v", e.kind, e.text, e.fields) }

// stage is a Core whose ranks do what a test says, instant by instant.
type stage struct {
	t *testing.T
	*world
	events []told
	stuck  int
	ended  []string
	auto   bool              // canaries pass at once
	sent   []string          // messages, as "decode/0.0 quiesce 3"
	deaf   int               // rank that does not read; -1: none
	ends   map[Ticket]string // outcomes that clients got
	tokens map[Ticket]int
	took   []time.Duration // that transfers took
}

func (s *stage) Event(k observe.Kind, text string, fields ...observe.Field) {
	s.world.Event(k, text, fields...)
	e := told{k, text, map[string]string{}}
	var add func([]observe.Field)
	add = func(fs []observe.Field) {
		for _, f := range fs {
			if f.Value.Kind() == slog.KindGroup {
				add(f.Value.Group())
				continue
			}
			e.fields[f.Key] = f.Value.String()
		}
	}
	add(fields)
	s.events = append(s.events, e)
}

func (s *stage) Wants(observe.Kind) bool            { return true }
func (s *stage) Stuck(ident.Request, request.State) { s.stuck++ }
func (s *stage) GenerationEnded(reason string) {
	s.world.GenerationEnded(reason)
	s.ended = append(s.ended, reason)
}
func (s *stage) Forget(Ticket) {}

func (s *stage) Send(rank int, m wire.Message) error {
	if rank == s.deaf {
		return errors.New("its queue is full")
	}
	seq := uint64(0)
	switch m := m.(type) {
	case *wire.Expect:
		seq = m.Attempt
	case *wire.Prefill:
		seq = m.Attempt
	case *wire.Join:
		seq = m.Attempt
	case *wire.Quiesce:
		seq = m.Attempt
	}
	s.sent = append(s.sent, fmt.Sprintf("%s %s %d", s.c.ranks[rank], word(m), seq))
	return nil
}

func (s *stage) Transferred(_, _ string, took time.Duration, _ int64) { s.took = append(s.took, took) }

func (s *stage) Token(t Ticket, _ int32) { s.tokens[t]++ }

func (s *stage) End(t Ticket, f request.Finish, err *fault.Error) {
	if s.ends[t] != "" {
		s.t.Errorf("request %d ends twice: %s", t, s.ends[t])
	}
	if s.ends[t] = f.String(); err != nil {
		s.ends[t] = err.Kind.String()
	}
}

// newStage has 1 prefill and 2 decode ranks, all ready, and a canary to send.
func newStage(t *testing.T, change ...func(*Options)) *stage {
	t.Helper()
	cfg := &config{transport: 1, p: 1, d: 2, idle: -1, pages: 16, slots: 4, attempts: 2}
	s := &stage{t: t, world: &world{cfg: cfg}, deaf: -1, ends: map[Ticket]string{}, tokens: map[Ticket]int{}}
	o := cfg.options()
	o.Canary = []int32{1, 2}
	for _, f := range change {
		f(o)
	}
	s.c = New(o, s, 6)
	s.c.Start(1)
	s.up()
	return s
}

// up lets the generation that is being launched come up.
func (s *stage) up() {
	s.t.Helper()
	procs := make([]Proc, len(s.c.ranks))
	for i := range procs {
		procs[i] = Proc{PID: 100*int(s.c.number) + i, Device: "cpu:0"}
	}
	s.procs = make([]proc, len(procs))
	for i := range s.procs {
		s.procs[i].alive = true
	}
	s.launch = false
	s.c.Launched(s.c.now, s.c.number, procs, "", nil)
	for i := range procs {
		s.say(i, &wire.Ready{Backend: "test"})
	}
}

// reap ends every process of a generation that is ending.
func (s *stage) reap() {
	g := s.c.number
	for i := range s.procs {
		s.procs[i].alive, s.procs[i].gone = false, true
	}
	for i := range s.procs {
		s.c.Exited(s.c.now, g, i, Exit{Text: "signal: killed", Killed: true})
	}
}

func (s *stage) say(rank int, m wire.Message) { s.c.Frame(s.c.now, s.c.number, s.c.number, rank, m) }

// pass lets time pass, ranks being well.
func (s *stage) pass(d time.Duration) {
	for end := s.c.now.Add(d); s.c.now < end; {
		now := min(s.c.now.Add(100*time.Millisecond), end)
		vs := make([]Vital, len(s.c.procs))
		for i := range vs {
			vs[i].Pulse = uint64(now)
		}
		s.c.Watch(now, vs)
		if s.auto && s.c.canary != nil {
			s.passCanary()
		}
	}
}

// submit admits a request for n tokens and gives its attempt.
func (s *stage) submit(id string, n int) (Ticket, *attempt) {
	s.t.Helper()
	t, err := s.c.Submit(s.c.now, request.Spec{ID: ident.Request(id), Prompt: []int32{1, 2, 3}, MaxTokens: n})
	if err != nil {
		s.t.Fatal(err)
	}
	return t, s.c.requests[t].attempt
}

// How far an attempt is taken.
const (
	toReserved = iota
	toSealed
	toVerified
)

func (s *stage) take(a *attempt, how int) {
	s.t.Helper()
	if a == nil {
		s.t.Fatal("the request has no attempt")
	}
	for _, r := range a.dst.ranks {
		s.say(r, &wire.Reserved{Attempt: a.id.Seq})
	}
	if how >= toSealed {
		for _, r := range a.src.ranks {
			s.say(r, &wire.Sealed{Attempt: a.id.Seq, Tokens: uint32(a.tokens), Pages: uint32(a.pages), Done: true})
		}
	}
	if how >= toVerified {
		for _, r := range a.dst.ranks {
			s.say(r, &wire.Landed{Attempt: a.id.Seq, Pages: uint32(a.pages)})
			s.say(r, &wire.Verified{Attempt: a.id.Seq})
		}
	}
}

// token has decode bring an attempt's token, the last one if finish is set.
func (s *stage) token(a *attempt, finish request.Finish) {
	s.say(a.dst.ranks[0], &wire.Step{Seq: a.dst.step + 1, Results: []wire.Result{{Attempt: a.id.Seq, Token: 7, Finish: uint8(finish)}}})
	if finish != 0 {
		s.quiet(a)
	}
}

func (s *stage) quiet(a *attempt) {
	for _, r := range slices.Concat(a.src.ranks, a.dst.ranks) {
		s.say(r, &wire.Quiet{Attempt: a.id.Seq})
	}
}

// serve takes a request of one token all the way, its client too.
func (s *stage) serve(id string) {
	s.t.Helper()
	t, a := s.submit(id, 1)
	s.take(a, toVerified)
	s.token(a, request.FinishLength)
	s.c.Tell(s.c.now, t, request.Event{Kind: request.Closed}, "")
}

// passCanary takes the canary that is under way all the way; failCanary has it fail.
func (s *stage) passCanary() {
	s.t.Helper()
	a := s.theCanary()
	s.take(a, toVerified)
	s.token(a, request.FinishLength)
}

func (s *stage) failCanary() {
	s.t.Helper()
	a := s.theCanary()
	s.take(a, toSealed)
	s.say(1, &wire.Failed{Attempt: a.id.Seq, Kind: fault.Numerics, Text: "no number"})
	s.quiet(a)
}

func (s *stage) theCanary() *attempt {
	s.t.Helper()
	for range 300 {
		if s.c.canary != nil && s.c.canary.attempt != nil {
			return s.c.canary.attempt
		}
		s.pass(100 * time.Millisecond)
	}
	s.t.Fatal("no canary within 30 s")
	return nil
}

// find gives the events of a kind.
func (s *stage) find(k observe.Kind) []told {
	var out []told
	for _, e := range s.events {
		if e.kind == k {
			out = append(out, e)
		}
	}
	return out
}

func (s *stage) ready(want string) {
	s.t.Helper()
	if got := s.c.readiness.condition; got != want {
		s.t.Errorf("at %s: %s (%v), want %s", time.Duration(s.c.now), got, s.c.Ready(), want)
	}
	if s.bad != "" {
		s.t.Error(s.bad)
	}
}

// What a request's end tells: where the time went, and a transfer's time is what came
// after prefill was done.
func TestWhereTheTimeWent(t *testing.T) {
	s := served(t)
	s.took = nil
	tk, a := s.submit("r", 2)
	s.pass(time.Second)
	s.take(a, toReserved)
	s.pass(2 * time.Second)
	s.say(0, &wire.Sealed{Attempt: a.id.Seq, Tokens: uint32(a.tokens), Pages: uint32(a.pages), Done: true})
	s.pass(500 * time.Millisecond)
	for _, r := range a.dst.ranks {
		s.say(r, &wire.Landed{Attempt: a.id.Seq, Pages: uint32(a.pages)})
		s.say(r, &wire.Verified{Attempt: a.id.Seq})
	}
	s.pass(4 * time.Second)
	s.token(a, 0)
	s.pass(3 * time.Second)
	s.token(a, request.FinishLength)
	if len(s.took) != 1 || s.took[0] != 500*time.Millisecond {
		t.Errorf("the transfer took %v", s.took)
	}
	done := s.find(observe.RequestDone)
	f := done[len(done)-1].fields
	for name, want := range map[string]string{"reserving": "1s", "prefilling": "2s", "handoff": "500ms", "decoding": "7s", "age": "10.5s", "first_token": "7.5s", "tries": "1", "output_tokens": "2",
		"src": "prefill0", "dst": "decode0", "attempt": a.id.String(), "code": "length", "timeline": "queued+0s reserving+1s prefilling+2s handoff+500ms transferring+0s verifying+0s decoding+7s"} {
		if f[name] != want {
			t.Errorf("%s is %q, want %q", name, f[name], want)
		}
	}
	if len(s.find(observe.RequestSlow)) != 1 { // reserving took a second of two
		t.Errorf("request.slow: %v", s.find(observe.RequestSlow))
	}
	s.leave(tk)
	s.full()
	r := s.c.Story("r")
	if r == nil || r.Outcome != "length" || r.Seconds != 10.5 || r.Now != nil || len(r.Spent) < 5 {
		t.Errorf("%+v", r)
	}
}
