package api

import (
	"errors"
	"net/http"
	"os"
	"strconv"
	"time"

	"tandem/daemon/fault"
)

// exchange is one request and its answer. It belongs to the goroutine that
// serves it.
type exchange struct {
	h       *handler
	w       http.ResponseWriter
	r       *http.Request
	rc      *http.ResponseController
	arrived time.Time
	id      string // X-Request-Id
	route   string // for the metric
	held    int64  // bytes set aside for the body

	armed  time.Time // when the write deadline was last set; zero: never
	begun  bool      // the status went out
	status int
	code   string // how it ended, for the metric
}

var errGone = errors.New("client gone")

// begin sends the header. What it says of the generation is from this moment.
func (x *exchange) begin(status int) {
	x.begun, x.status = true, status
	x.stampGeneration()
	x.w.WriteHeader(status)
}

func (x *exchange) stampGeneration() {
	x.w.Header().Set("Tandem-Generation", x.h.Engine.Generation().String())
}

// send answers with a whole body. Its error is a *fault.Error, as write's is.
func (x *exchange) send(status int, contentType string, body []byte) error {
	h := x.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.begin(status)
	// In pieces, so that a client that takes some of a long body gets its time anew.
	const piece = 64 << 10
	for len(body) > piece {
		if err := x.write(body[:piece]); err != nil {
			return err
		}
		body = body[piece:]
	}
	return x.write(body)
}

func (x *exchange) json(status int, body []byte) error {
	return x.send(status, "application/json", body)
}

// fail answers with an error object, or, if an answer has begun, cuts it off:
// there is no other honest end.
func (x *exchange) fail(err error) {
	p := problemOf(err)
	x.code = p.code
	if x.begun {
		panic(http.ErrAbortHandler)
	}
	h := x.w.Header()
	if p.after {
		n := retrySeconds(x.h.Engine.RetryAfter())
		h.Set("Retry-After", strconv.Itoa(n))
		p = p.waiting(n)
	}
	if p.retry != "" {
		h.Set("X-Should-Retry", p.retry)
	}
	if p.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if p.status >= 500 && !p.after {
		x.h.Log.Warn("request failed", "request", x.id, "route", x.route, "status", p.status, "code", p.code, "error", p.message)
	}
	// If the client has gone as well, nobody is left to tell.
	_ = x.json(p.status, append(p.body(), '\n'))
}

// write sends bytes and waits until the kernel took them, at most ClientStall.
// The error is ClientStalled if it did not, else Cancelled: the client left.
func (x *exchange) write(b []byte) error {
	x.arm()
	_, err := x.w.Write(b)
	if err == nil {
		err = x.rc.Flush()
	}
	switch {
	case err == nil || errors.Is(err, http.ErrNotSupported):
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fault.New(fault.ClientStalled, "the client took no byte for %v", x.h.ClientStall)
	}
	return &fault.Error{Kind: fault.Cancelled, Err: errGone}
}

// arm gives the client ClientStall from now to take what is written next. The
// deadline is a timer in the runtime and every token is a write, so it is moved
// only when an eighth of its time is gone: a client has at least seven eighths.
func (x *exchange) arm() {
	now := time.Now()
	if !x.armed.IsZero() && now.Sub(x.armed) < x.h.ClientStall/8 {
		return
	}
	x.armed = now
	// Fails only where there is no connection, in tests.
	_ = x.rc.SetWriteDeadline(now.Add(x.h.ClientStall))
}
