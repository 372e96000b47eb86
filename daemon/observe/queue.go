package observe

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// queueLen and queueBytes bound the events that wait to be written. An event is some
// hundred bytes; one with stacks may be a few hundred kilobytes, and if nobody takes
// them away, many such would come together.
const (
	queueLen   = 4096
	queueBytes = 32 << 20
)

// stopLimit is how long a blocked write may take to notice that it should end.
const stopLimit = 200 * time.Millisecond

// A sink writes finished events. write may block; stop makes later writes
// return at once, and a blocked one if that can be done. It may be called again.
type sink interface {
	write(b []byte) error
	stop()
}

// queue carries finished events to one goroutine that writes them. A quarter of
// it is kept for warnings and errors, so that a flood of small talk does not push
// out what matters.
type queue struct {
	dropped atomic.Uint64
	bytes   atomic.Int64 // of the events that wait
	out     sink
	ended   chan struct{} // closed when the writer has ended
	lost    func(n uint64) []byte

	mu     sync.RWMutex // held for reading while sending on ch
	closed bool
	ch     chan []byte
}

// newQueue starts the writer. lost makes the event that tells of n lost ones.
func newQueue(out sink, length int, lost func(n uint64) []byte) *queue {
	q := &queue{out: out, ended: make(chan struct{}), lost: lost, ch: make(chan []byte, length)}
	go q.run()
	return q
}

// put hands an event to the writer, or drops it. It keeps b.
func (q *queue) put(level slog.Level, b []byte) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		q.dropped.Add(1)
		return
	}
	n, most := int64(len(b)), int64(queueBytes)
	if level < slog.LevelWarn {
		most -= most / 4
	}
	if q.bytes.Add(n) <= most && (level >= slog.LevelWarn || len(q.ch) < cap(q.ch)-cap(q.ch)/4) {
		select {
		case q.ch <- b:
			return
		default:
		}
	}
	q.bytes.Add(-n)
	q.dropped.Add(1)
}

func (q *queue) run() {
	defer close(q.ended)
	var told uint64
	var at time.Time
	tellLoss := func() {
		if n := q.dropped.Load(); n > told {
			at = time.Now()
			if q.out.write(q.lost(n-told)) == nil {
				told = n
			}
		}
	}
	for b := range q.ch {
		q.bytes.Add(-int64(len(b)))
		if q.out.write(b) != nil {
			q.dropped.Add(1)
			continue
		}
		if len(q.ch) == 0 || time.Since(at) > time.Second {
			tellLoss()
		}
	}
	tellLoss()
}

// close lets the writer finish, for at most limit, and reports whether all that
// waited was written.
func (q *queue) close(limit time.Duration) bool {
	before := q.dropped.Load()
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.ch)
	}
	q.mu.Unlock()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-q.ended:
		q.out.stop()
	case <-t.C:
		q.out.stop()
		t.Reset(stopLimit)
		select {
		case <-q.ended:
		case <-t.C:
			// The writer hangs in a pipe that nobody reads. It is left behind: who
			// closes the log is about to end the process.
		}
		return false
	}
	return q.dropped.Load() == before
}
