package observe

import (
	"context"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// handler is the slog.Handler of both of our own forms: it flattens an event
// into named values and hands the finished bytes on.
type handler struct {
	form   form
	level  slog.Leveler
	put    func(slog.Level, []byte)
	prefix string // of open groups, "a.b."
	bound  []pair // from WithAttrs
}

// pair is a field with the names of its groups: "a.b.key".
type pair struct {
	key   string
	value slog.Value // resolved, no group
}

// form writes an event.
type form interface {
	format(r slog.Record, fields []pair) []byte
}

// Bounds on what one event may carry. Stacks of many goroutines are the longest
// value there is; a longer one is cut, and says so.
const (
	maxFields     = 64
	maxValueBytes = 256 << 10
)

func (h *handler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

func (h *handler) Handle(_ context.Context, r slog.Record) error {
	fields := make([]pair, 0, len(h.bound)+r.NumAttrs()+2)
	fields = append(fields, h.bound...)
	r.Attrs(func(a slog.Attr) bool {
		fields = flatten(fields, h.prefix, a)
		return len(fields) < maxFields
	})
	h.put(r.Level, h.form.format(r, fields))
	return nil
}

func (h *handler) WithAttrs(as []slog.Attr) slog.Handler {
	g := *h
	g.bound = append([]pair(nil), h.bound...)
	for _, a := range as {
		g.bound = flatten(g.bound, h.prefix, a)
	}
	return &g
}

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	g := *h
	g.prefix += name + "."
	return &g
}

func flatten(out []pair, prefix string, a slog.Attr) []pair {
	v := a.Value.Resolve()
	if a.Key == levelKey || a.Key == "" && v.Kind() != slog.KindGroup {
		return out
	}
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, sub := range v.Group() {
			out = flatten(out, prefix, sub)
		}
		return out
	}
	return append(out, pair{prefix + a.Key, v})
}

// valueText is a value for machines: time spans in milliseconds, times in RFC 3339.
func valueText(v slog.Value) string {
	switch v.Kind() {
	case slog.KindDuration:
		return strconv.FormatFloat(float64(v.Duration())/1e6, 'f', -1, 64)
	case slog.KindTime:
		return v.Time().Format(time.RFC3339Nano)
	}
	s := v.String()
	if len(s) > maxValueBytes {
		cut := maxValueBytes
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "… (" + strconv.Itoa(len(s)-cut) + " more bytes)"
	}
	return s
}

// plain makes a message safe to show on one line: control characters, line
// separators and marks of direction become their escapes, so that nothing a
// client sent can forge a line or steer a terminal.
func plain(s string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	if !strings.ContainsFunc(s, odd) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if odd(r) {
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// source is where an event was told: file, line and function.
func source(pc uintptr) (runtime.Frame, bool) {
	if pc == 0 {
		return runtime.Frame{}, false
	}
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return f, f.File != ""
}
