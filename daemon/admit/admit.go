// Package admit decides who may enter and who must wait. It is pure.
//
// There is one count: requests that hold a place, in whatever state, from
// admission until the last byte is sent. What is decided on is what is reported,
// so a limit of 32 never holds 34.
package admit

import (
	"math"
	"time"
)

// Limits bound the places.
type Limits struct {
	Running int // places beyond the queue
	Queued  int // places in the queue
}

// Total is the number of places.
func (l Limits) Total() int { return l.Running + l.Queued }

// Admit reports whether another request may enter while live requests hold places.
func (l Limits) Admit(live int) bool { return live < l.Total() }

// Start reports whether another request may leave the queue while running requests
// hold places beyond it.
func (l Limits) Start(running int) bool { return running < l.Running }

// RetryAfter is how long a client that was refused should wait: until a place is
// likely to be free, from the places that ended lately. ended requests in the last
// window say how fast places turn over; with none, it is fallback. The result is
// whole seconds, 1 to 60.
func RetryAfter(waiting, ended int, window, fallback time.Duration) time.Duration {
	d := fallback
	if ended > 0 {
		d = time.Duration(float64(window) / float64(ended) * float64(waiting+1))
	}
	s := math.Ceil(d.Seconds())
	return time.Duration(min(max(s, 1), 60)) * time.Second
}
