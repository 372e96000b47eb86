package core

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"tandem/daemon/ident"
	"tandem/daemon/request"
)

// Record is one request's story. It is kept for a while after the request ended.
type Record struct {
	ID         ident.Request    `json:"id"`
	Session    string           `json:"session,omitempty"`
	Arrived    time.Time        `json:"arrived"`
	Prompt     int              `json:"prompt_tokens"`
	MaxTokens  int              `json:"max_tokens"`
	Output     int              `json:"output_tokens"`
	Attempts   int              `json:"attempts"`
	Src        string           `json:"prefill,omitempty"` // the replicas of the last attempt
	Dst        string           `json:"decode,omitempty"`
	Moved      int64            `json:"moved_bytes"` // of KV that were copied, in all attempts
	Spent      []Span           `json:"states"`      // how long each state lasted in all, in order of the first time
	FirstToken float64          `json:"time_to_first_token_seconds,omitempty"`
	Outcome    string           `json:"outcome,omitempty"`
	Generation ident.Generation `json:"generation,omitempty"`
	Seconds    float64          `json:"seconds"` // from admission to the end of the answer, or until now
	Events     []Note           `json:"events"`
	Dropped    int              `json:"events_dropped,omitempty"`
	Now        *RequestView     `json:"now,omitempty"` // while it is live
}

// Note is one line of the story.
type Note struct {
	At    float64 `json:"at_seconds"` // since admission
	Event string  `json:"event"`
	State string  `json:"state"`
	Text  string  `json:"text,omitempty"`
}

// Span is how long something lasted.
type Span struct {
	State   string  `json:"state"`
	Seconds float64 `json:"seconds"`
}

// spend adds to the time that a state took.
func (r *Record) spend(s request.State, d request.Instant) {
	for i := range r.Spent {
		if r.Spent[i].State == s.String() {
			r.Spent[i].Seconds += float64(d) / 1e9
			return
		}
	}
	r.Spent = append(r.Spent, Span{s.String(), float64(d) / 1e9})
}

// Bounds on a story: the first and the last lines are kept, and of each so much. A
// story is then 72 KiB at most, and the thousand that are kept 70 MiB; those of
// requests that met with nothing take two KiB each.
const (
	maxNotes    = 200
	maxNoteText = 256
	maxRecords  = 1000
)

func (r *Record) note(at request.Instant, event string, s request.State, text string) {
	if len(r.Events) >= maxNotes {
		copy(r.Events[maxNotes/2:], r.Events[maxNotes/2+1:])
		r.Events = r.Events[:maxNotes-1]
		r.Dropped++
	}
	r.Events = append(r.Events, Note{At: float64(at) / 1e9, Event: event, State: s.String(), Text: cut(text, maxNoteText)})
}

// cut is at most n bytes of a text, as a text of its own.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.Clone(s[:n]) + "…"
}

func (r *Record) finish(outcome string, output int, g ident.Generation, took request.Instant) {
	r.Outcome, r.Output, r.Generation, r.Seconds = outcome, output, g, float64(took)/1e9
}

// Timeline is how long each state lasted, in order: "queued+2ms prefilling+310ms". The
// state that it is in is not among them.
func (r *Record) Timeline() string {
	var b strings.Builder
	state, since := "", 0.0
	flush := func(now float64) {
		if state != "" {
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			fmt.Fprintf(&b, "%s+%s", state, time.Duration((now-since)*1e9).Round(100*time.Microsecond))
		}
	}
	for _, n := range r.Events {
		if n.State != state {
			flush(n.At)
			state, since = n.State, n.At
		}
	}
	return b.String()
}

// History is the whole story, a line each: for the journal.
func (r *Record) History() string {
	var b strings.Builder
	for i, n := range r.Events {
		if i == maxNotes/2 && r.Dropped > 0 {
			fmt.Fprintf(&b, "… %d more\n", r.Dropped)
		}
		fmt.Fprintf(&b, "%9.3fs %s: %s", n.At, n.State, n.Event)
		if n.Text != "" {
			b.WriteString(": " + n.Text)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (r *Record) clone() Record {
	c := *r
	c.Events = append([]Note(nil), r.Events...)
	c.Spent = append([]Span(nil), r.Spent...)
	return c
}

// records keeps the stories of requests that ended lately.
type records struct {
	max  int
	list []*Record // oldest first
}

func newRecords(max int) *records { return &records{max: max} }

func (rs *records) add(r *Record) {
	if rs.list = append(rs.list, r); len(rs.list) > rs.max {
		rs.list = rs.list[1:]
	}
}

func (rs *records) find(id ident.Request) *Record {
	for i := len(rs.list) - 1; i >= 0; i-- {
		if rs.list[i].ID == id {
			return rs.list[i]
		}
	}
	return nil
}
