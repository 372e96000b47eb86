package core

import (
	"time"

	"tandem/daemon/ident"
	"tandem/daemon/request"
	"tandem/daemon/transfer"
	"tandem/gpu/pagepool"
)

// View is the state of the appliance, computed from the tables that decisions are
// made on.
type View struct {
	At             time.Time        `json:"at"`
	PID            int              `json:"pid"`
	UptimeSeconds  float64          `json:"uptime_seconds"`
	Ready          bool             `json:"ready"`
	Condition      string           `json:"condition"`        // "ready", or what keeps requests from completing
	Reason         string           `json:"reason,omitempty"` // the same in words
	ReadySince     time.Time        `json:"changed_at"`
	Generation     ident.Generation `json:"generation"`
	State          string           `json:"state"` // of the supervisor
	GenerationAge  float64          `json:"generation_age_seconds"`
	LastEnd        string           `json:"last_end_reason,omitempty"`
	LastEndText    string           `json:"last_end,omitempty"`
	Ended          int              `json:"generations_ended"`
	Ranks          []RankView       `json:"ranks"`
	Pools          []PoolView       `json:"pools"`
	States         []StateView      `json:"requests_by_state"`
	Running        int              `json:"running"`
	Queued         int              `json:"queued"`
	MaxRunning     int              `json:"max_requests"`
	MaxQueued      int              `json:"max_queued"`
	QuarantineAge  float64          `json:"quarantine_age_seconds"`
	LastCompletion time.Time        `json:"last_completion"` // when anything last went all the way, a canary too
	LastServed     time.Time        `json:"last_served"`     // when a client's request last brought a token or ended well
	Transport      string           `json:"transport"`
	Loop           LoopView         `json:"loop"` // filled in by the loop
}

// LoopView is how long after it was told of an event the control loop was done with
// it, over all events of the daemon's life.
type LoopView struct {
	Events uint64  `json:"events"`
	P50    float64 `json:"p50_seconds"`
	P99    float64 `json:"p99_seconds"`
	P999   float64 `json:"p999_seconds"`
	Max    float64 `json:"max_seconds"`
}

// RankView is one worker.
type RankView struct {
	Role        ident.Role `json:"role"`
	Replica     int        `json:"replica"`
	Rank        int        `json:"rank"`
	PID         int        `json:"pid"`
	Device      string     `json:"device"`
	State       string     `json:"state"`
	Started     time.Time  `json:"started"`
	ProgressAge float64    `json:"progress_age_seconds"` // since it moved, or had nothing to do and was seen alive
	PulseAge    float64    `json:"pulse_age_seconds"`    // since it was seen alive
	Said        string     `json:"said,omitempty"`       // the last message that it sent
	SaidAge     float64    `json:"said_age_seconds,omitempty"`
	Backend     string     `json:"backend,omitempty"`
	Plans       uint64     `json:"plans"`
}

// Ident is the rank's name.
func (r *RankView) Ident() ident.Rank {
	return ident.Rank{Replica: ident.Replica{Role: r.Role, Index: r.Replica}, Rank: r.Rank}
}

// PoolView is one ledger.
type PoolView struct {
	Name   string         `json:"name"`
	Total  int            `json:"total"`
	States map[string]int `json:"states"`
	Drift  int            `json:"conservation_error"`
}

// StateView is one state that requests can be in.
type StateView struct {
	State  string  `json:"state"`
	Count  int     `json:"count"`
	Oldest float64 `json:"oldest_age_seconds"`
}

// RequestView is one live request.
type RequestView struct {
	ID         ident.Request `json:"id"`
	Session    string        `json:"session,omitempty"`
	State      string        `json:"state"`
	AgeInState float64       `json:"age_in_state_seconds"`
	Age        float64       `json:"age_seconds"`
	Deadline   float64       `json:"deadline_left_seconds"`
	Prompt     int           `json:"prompt_tokens"`
	Output     int           `json:"output_tokens"`
	MaxTokens  int           `json:"max_tokens"`
	Attempts   int           `json:"attempts"`
	Attempt    string        `json:"attempt,omitempty"`
	Transfer   string        `json:"transfer,omitempty"`
	Waits      string        `json:"waits,omitempty"` // for whom or what, in words
	Prefill    int           `json:"prefill_replica"`
	Decode     int           `json:"decode_replica"`
}

// View gives a picture of now.
func (c *Core) View(now request.Instant) View {
	c.now = now
	v := View{At: c.wall(c.now), UptimeSeconds: float64(c.now) / 1e9, Ready: c.readiness.unready == nil, Condition: c.readiness.condition, ReadySince: c.wall(c.readiness.changed),
		Generation: c.number, State: c.sup.State.String(), LastEnd: c.sup.Reason, LastEndText: c.lastWhy, Ended: c.sup.Ended,
		Queued: len(c.queue), MaxRunning: c.o.Admit.Running, MaxQueued: c.o.Admit.Queued, Transport: c.o.Transport.String()}
	if err := c.readiness.unready; err != nil {
		v.Reason = err.Error()
	}
	if t := c.readiness.served; t != 0 {
		v.LastServed = c.wall(t)
	}
	if t := max(c.readiness.served, c.readiness.passed); t != 0 {
		v.LastCompletion = c.wall(t)
	}
	v.Running = c.running()
	if c.canary != nil {
		for _, r := range c.queue {
			if r.hidden {
				v.Queued--
			}
		}
	}
	if len(c.procs) > 0 {
		v.GenerationAge = float64(c.now-c.begun) / 1e9
	}
	for i, p := range c.procs {
		h, r := &c.health[i], c.ranks[i]
		state := h.last.Doing
		switch {
		case h.gone:
			state = "gone"
		case !h.ready:
			state = "starting"
		}
		rv := RankView{Role: r.Role, Replica: r.Index, Rank: r.Rank, PID: p.PID, Device: p.Device, State: state, Started: p.Started,
			ProgressAge: float64(c.now-min(h.stepped, h.pulsed)) / 1e9, PulseAge: float64(c.now-h.pulsed) / 1e9, Backend: h.backend, Plans: h.last.Plans}
		if h.said != nil {
			rv.Said, rv.SaidAge = word(h.said), float64(c.now-h.heard)/1e9
		}
		v.Ranks = append(v.Ranks, rv)
	}
	for _, list := range c.replicas {
		for _, r := range list {
			if r.pool == nil {
				continue
			}
			p := PoolView{Name: r.pool.Name(), Total: r.pool.Total(), States: map[string]int{}, Drift: r.pool.Drift()}
			for s, name := range pagepool.StateNames() {
				p.States[name] = r.pool.Count(pagepool.State(s))
			}
			v.Pools = append(v.Pools, p)
		}
	}
	oldest, count := map[request.State]request.Instant{}, map[request.State]int{}
	for _, r := range c.requests {
		count[r.m.State]++
		if t, ok := oldest[r.m.State]; !ok || r.m.Entered < t {
			oldest[r.m.State] = r.m.Entered
		}
	}
	for _, s := range request.LiveStates() {
		sv := StateView{State: s.String(), Count: count[s]}
		if t, ok := oldest[s]; ok {
			sv.Oldest = float64(c.now-t) / 1e9
		}
		v.States = append(v.States, sv)
	}
	for _, a := range c.attempts {
		if a.t.State == transfer.Draining {
			v.QuarantineAge = max(v.QuarantineAge, float64(c.now-a.idle)/1e9)
		}
	}
	return v
}

// Requests lists the live requests, oldest first.
func (c *Core) Requests(now request.Instant) []RequestView {
	c.now = now
	out := []RequestView{}
	for _, r := range c.inOrder() {
		if !r.hidden {
			out = append(out, c.requestView(r))
		}
	}
	return out
}

func (c *Core) requestView(r *live) RequestView {
	v := RequestView{Waits: c.waitsFor(r), ID: r.spec.ID, Session: r.spec.Session, State: r.m.State.String(), AgeInState: float64(c.now-r.m.Entered) / 1e9, Age: float64(c.now-r.began) / 1e9,
		Deadline: float64(r.m.Due(&c.o.Request)-c.now) / 1e9, Prompt: len(r.spec.Prompt), Output: len(r.tokens), MaxTokens: r.spec.MaxTokens, Attempts: r.m.Tries, Prefill: -1, Decode: -1}
	if a := r.attempt; a != nil {
		v.Attempt, v.Transfer, v.Prefill, v.Decode = a.id.String(), a.t.State.String(), a.src.Index, a.dst.Index
	}
	return v
}

// Story is one request's record, also after it ended; nil if it is not known.
func (c *Core) Story(id ident.Request) *Record {
	if t, ok := c.names[id]; ok {
		r := c.requests[t]
		s := r.rec.clone()
		s.Output = len(r.tokens)
		if s.Outcome == "" {
			s.Seconds = float64(c.now-r.began) / 1e9
		}
		v := c.requestView(r)
		s.Now = &v
		s.spend(r.m.State, c.now-r.m.Entered)
		return &s
	}
	if r := c.ended.find(id); r != nil {
		s := r.clone()
		return &s
	}
	return nil
}
