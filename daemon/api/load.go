package api

import (
	"net/http"
	"sync/atomic"
)

// load bounds the bytes of all bodies that are being read, decoded or turned into
// tokens: everything of a request before it is admitted. What comes of a body on the
// way, strings and tokens, is some four times its size.
type load struct {
	most int64
	held atomic.Int64
}

func (l *load) take(n int64) bool {
	if l.held.Add(n) > l.most {
		l.held.Add(-n)
		return false
	}
	return true
}

// take sets bytes aside for the body, or says that there are none.
func (x *exchange) take(n int64) error {
	if !x.h.load.take(n) {
		x.w.Header().Set("Connection", "close") // rather than read what there is no room for
		p := custom(http.StatusServiceUnavailable, "overloaded", "too many large requests arrive at the same time")
		p.retry, p.after = "true", true
		return p
	}
	x.held += n
	return nil
}

// release gives back what was set aside for the body, once nothing of it is needed.
func (x *exchange) release() {
	x.h.load.held.Add(-x.held)
	x.held = 0
}
