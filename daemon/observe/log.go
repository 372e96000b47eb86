package observe

import (
	"context"
	"log/slog"
	"runtime"
	"time"
)

// Log is where events are told. A nil Log tells nobody. Its methods may be
// called from any goroutine and never wait.
type Log struct {
	h slog.Handler
	q *queue // nil if events are handed over directly
}

// New is a Log that hands every event to h at once.
func New(h slog.Handler) *Log { return &Log{h: h} }

// Event tells that k happened: msg is for people, fields for machines.
func (l *Log) Event(k Kind, msg string, fields ...Field) {
	if l == nil {
		return
	}
	level := k.Level()
	for _, f := range fields {
		if f.Key == levelKey {
			level = f.Value.Any().(slog.Level)
		}
	}
	ctx := context.Background()
	if !l.h.Enabled(ctx, level) {
		return
	}
	var pc [1]uintptr
	runtime.Callers(2, pc[:])
	r := slog.NewRecord(time.Now(), level, msg, pc[0])
	r.AddAttrs(slog.String(eventKey, k.String()))
	for _, f := range fields {
		if f.Key != levelKey {
			r.AddAttrs(f)
		}
	}
	_ = l.h.Handle(ctx, r) // it counts what it cannot tell
}

// Enabled reports whether events of this kind are told, for those that are dear to make.
func (l *Log) Enabled(k Kind) bool {
	return l != nil && l.h.Enabled(context.Background(), k.Level())
}

// With is a Log that adds fields to every event.
func (l *Log) With(fields ...Field) *Log {
	if l == nil {
		return nil
	}
	return &Log{h: l.h.WithAttrs(fields), q: l.q}
}

// Slog is the same way out for code that knows only log/slog.
func (l *Log) Slog() *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(l.h)
}

// Dropped is the number of events that were lost so far.
func (l *Log) Dropped() uint64 {
	if l == nil || l.q == nil {
		return 0
	}
	return l.q.dropped.Load()
}

// Close tells what is queued and ends, within limit. It reports whether
// all of that was told. Events after it are dropped.
func (l *Log) Close(limit time.Duration) bool {
	if l == nil || l.q == nil {
		return true
	}
	return l.q.close(limit)
}
