package api

import (
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"tandem/daemon/fault"
)

// leastBody is what a body is given to begin with.
const leastBody = 64 << 10

// readBody reads the request's body within the limits of size and time. Memory
// grows with what has come, not with what was announced.
func (x *exchange) readBody() ([]byte, error) {
	o := &x.h.Options
	if e := x.r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return nil, custom(http.StatusUnsupportedMediaType, "unsupported_encoding", "Content-Encoding %q is not supported; send the body as it is", clipped(e))
	}
	tooLarge := custom(http.StatusRequestEntityTooLarge, "body_too_large", "the body is larger than %d bytes", o.MaxBody)
	if x.r.ContentLength > o.MaxBody {
		x.w.Header().Set("Connection", "close") // rather than read what is not wanted
		return nil, tooLarge
	}
	in := http.MaxBytesReader(x.w, x.r.Body, o.MaxBody)
	end := time.Now().Add(o.BodyTotal)
	size := min(max(x.r.ContentLength, 512)+1, leastBody)
	if err := x.take(size); err != nil {
		return nil, err
	}
	buf := make([]byte, 0, size)
	for {
		limit := time.Now().Add(o.BodyStall)
		if limit.After(end) {
			limit = end
		}
		x.expectBody(limit)
		n, err := in.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			// From here on only the client's leaving is read.
			x.expectBody(time.Time{})
			return buf, nil
		}
		if err != nil {
			return nil, bodyError(err, tooLarge)
		}
		if len(buf) == cap(buf) {
			more := min(int64(cap(buf)), o.MaxBody+1-int64(cap(buf)))
			if err := x.take(more); err != nil {
				return nil, err
			}
			buf = slices.Grow(buf, int(more))
		}
	}
}

// expectBody sets the time by which the client must send more; zero: none.
func (x *exchange) expectBody(by time.Time) {
	_ = x.rc.SetReadDeadline(by) // fails only where there is no connection, in tests
}

func bodyError(err error, tooLarge *problem) error {
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &big):
		return tooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return custom(http.StatusRequestTimeout, "body_timeout", "the body did not arrive in time")
	}
	return &fault.Error{Kind: fault.Invalid, Op: "reading the body", Err: err}
}
