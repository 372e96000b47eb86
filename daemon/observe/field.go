package observe

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
)

// Field is one named value of an event. Its name is in lower case; the journal
// shows it as TANDEM_ and the name in upper case. A time span is shown in
// milliseconds there, under a name that ends in _MS.
type Field = slog.Attr

// The fields that most events share, under the names users rely on.

// Request names the request an event is about.
func Request(id ident.Request) Field { return slog.String("request", string(id)) }

// Generation names the generation an event belongs to.
func Generation(g ident.Generation) Field { return slog.Uint64("generation", uint64(g)) }

// Attempt names the attempt at serving a request.
func Attempt(a ident.Attempt) Field { return slog.String("attempt", a.String()) }

// State is the state something is in, or was in.
func State(s fmt.Stringer) Field { return slog.String("state", s.String()) }

// Slot names the place of a request's pages: "prefill0/3".
func Slot(s string) Field { return slog.String("slot", s) }

// Rank names a worker: its role, and its replica and rank in it as "0.1".
func Rank(r ident.Rank) Field {
	return slog.Group("", slog.String("role", r.Role.String()), slog.String("rank", RankLabel(r)))
}

// RankLabel is how a rank is called beside its role: "replica.rank".
func RankLabel(r ident.Rank) string { return fmt.Sprintf("%d.%d", r.Index, r.Rank) }

// Device names what a rank computes on.
func Device(d string) Field { return slog.String("device", d) }

// Age is how long something has lasted.
func Age(d time.Duration) Field { return slog.Duration("age", d) }

// Reason says why, in a word or a sentence.
func Reason(s string) Field { return slog.String("reason", s) }

// Code is how something ended: "stop", "length", or a fault's code.
func Code(s string) Field { return slog.String("code", s) }

// Fault is why something failed: its kind as code and its text as reason.
func Fault(err error) Field {
	return slog.Group("", slog.String("code", fault.KindOf(err).String()), slog.String("reason", err.Error()))
}

// Other fields. The name is a constant of the caller's: lower-case letters,
// digits and underscores, beginning with a letter. Another one is our bug and panics.

// Str is a text. It may have many lines, as a stack has.
func Str(name, value string) Field { return slog.String(must(name), value) }

// Int is a number.
func Int[N int | int32 | int64 | uint32](name string, n N) Field {
	return slog.Int64(must(name), int64(n))
}

// Bytes is an amount of memory or data in bytes.
func Bytes(name string, n int64) Field { return slog.Int64(must(name)+"_bytes", n) }

// Bool is a fact.
func Bool(name string, b bool) Field { return slog.Bool(must(name), b) }

// Took is a time span.
func Took(name string, d time.Duration) Field { return slog.Duration(must(name), d) }

// At raises or lowers the level of one event. It is not shown as a field.
func At(l slog.Level) Field { return slog.Any(levelKey, l) }

const (
	eventKey = "event"
	levelKey = "\x00level"
)

func must(name string) string {
	if !validName(name) {
		panic("observe: " + name + " is no name for a field")
	}
	return name
}

func validName(name string) bool {
	if name == "" || len(name) > 48 || name[0] < 'a' || name[0] > 'z' {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_') })
}
