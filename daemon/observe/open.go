package observe

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"golang.org/x/sys/unix"
)

// Options say where events go.
type Options struct {
	Level  string   // "debug", "info", "warn" or "error"; info
	Format string   // "auto", "journal", "text" or "json"; auto: the journal if stderr is it, else text
	Stderr *os.File // os.Stderr

	socket string // of the journal, in tests
}

// Open makes the way out that the options name. Close it in the end.
func Open(o Options) (*Log, error) {
	var level slog.Level
	switch o.Level {
	case "debug":
		level = slog.LevelDebug
	case "", "info":
	case "warn":
		level = slog.LevelWarn
	case "error":
		level = slog.LevelError
	default:
		return nil, fmt.Errorf("log.level: %q is not known", o.Level)
	}
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	if o.socket == "" {
		o.socket = journalSocket
	}
	format := o.Format
	if format == "" || format == "auto" {
		format = "text"
		if is, err := journal.StderrIsJournalStream(); err == nil && is {
			format = "journal"
		}
	}
	var (
		q   *queue
		out sink = &writerSink{w: o.Stderr}
		f   form
	)
	put := func(l slog.Level, b []byte) { q.put(l, b) }
	switch format {
	case "journal":
		s, err := newJournalSink(o.socket)
		if err != nil {
			return nil, err
		}
		out, f = s, journalForm{}
	case "text":
		f = textForm{colour: isTerminal(o.Stderr) && os.Getenv("NO_COLOR") == ""}
	case "json":
		f = jsonForm{}
	default:
		return nil, fmt.Errorf("log.format: %q is not known", o.Format)
	}
	q = newQueue(out, queueLen, func(n uint64) []byte {
		r := lossRecord(n)
		var fields []pair
		r.Attrs(func(a slog.Attr) bool { fields = flatten(fields, "", a); return true })
		return f.format(r, fields)
	})
	return &Log{h: &handler{form: f, level: level, put: put}, q: q}, nil
}

// lossRecord tells that n events were lost.
func lossRecord(n uint64) slog.Record {
	r := slog.NewRecord(time.Now(), LogDropped.Level(), fmt.Sprintf("%d events were lost: they came faster than they could be written", n), 0)
	r.AddAttrs(slog.String(eventKey, LogDropped.String()), slog.Uint64("lost", n))
	return r
}

// writerSink writes lines to a file. A pipe that nobody reads blocks a write
// for as long as it likes; stop can only keep later ones from beginning.
type writerSink struct {
	w       io.Writer
	stopped atomic.Bool
}

func (s *writerSink) write(b []byte) error {
	if s.stopped.Load() {
		return os.ErrClosed
	}
	_, err := s.w.Write(b)
	return err
}

func (s *writerSink) stop() { s.stopped.Store(true) }

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
