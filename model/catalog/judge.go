package catalog

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// decision is what to do about the head of an answer.
type decision struct {
	err    error         // do not take it; permanent, or try again
	wait   time.Duration // before trying again
	whole  bool          // what is there already is all of it
	anew   bool          // what is there is of another file: ask again, for all
	from   int64         // the body begins at this byte
	total  int64         // bytes of the whole file; 0 if it does not say
	framed bool          // the end of the body can be told from a cut
}

// judge decides about an answer to a request for everything from off on. Only
// the head is looked at.
func judge(r *http.Response, off int64, meta partial) decision {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" && r.StatusCode/100 == 2 {
		return decision{err: permanent{fmt.Errorf("the server sends the file in the encoding %q, which nobody asked for", clip(enc))}}
	}
	framed := r.ContentLength >= 0 || len(r.TransferEncoding) > 0 || r.ProtoMajor >= 2
	switch r.StatusCode {
	case http.StatusOK:
		return decision{total: max(r.ContentLength, 0), framed: framed}
	case http.StatusPartialContent:
		from, to, total, ok := contentRange(r.Header.Get("Content-Range"))
		switch {
		case off == 0:
			return decision{err: permanent{errors.New("the server sent a part of the file though all of it was asked for")}}
		case !ok || from != off || (meta.Total > 0 && total > 0 && total != meta.Total):
			return decision{anew: true}
		case r.ContentLength >= 0 && r.ContentLength != to-from+1:
			return decision{anew: true}
		case changed(r.Header, meta.Validator):
			return decision{anew: true}
		}
		return decision{from: from, total: max(total, meta.Total), framed: framed}
	case http.StatusRequestedRangeNotSatisfiable:
		if _, _, total, ok := contentRange(r.Header.Get("Content-Range")); ok && total == off && (meta.Total == 0 || meta.Total == off) {
			return decision{whole: true}
		}
		if off == 0 {
			return decision{err: permanent{errors.New("the server has no such part of the file")}}
		}
		return decision{anew: true}
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return decision{err: fmt.Errorf("the server says %s", status(r)), wait: retryAfter(r.Header.Get("Retry-After"))}
	}
	return decision{err: permanent{fmt.Errorf("the server says %s", status(r))}}
}

func status(r *http.Response) string {
	if t := http.StatusText(r.StatusCode); t != "" {
		return fmt.Sprintf("%d %s", r.StatusCode, t)
	}
	return strconv.Itoa(r.StatusCode)
}

// contentRange reads "bytes 5-9/100", "bytes 5-9/*" (total 0) and "bytes */100".
func contentRange(s string) (from, to, total int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes ")
	if !ok {
		return 0, 0, 0, false
	}
	span, all, ok := strings.Cut(s, "/")
	if !ok {
		return 0, 0, 0, false
	}
	if all != "*" {
		if total, ok = number(all); !ok {
			return 0, 0, 0, false
		}
	}
	if span == "*" {
		return 0, 0, total, all != "*"
	}
	a, b, _ := strings.Cut(span, "-")
	from, ok1 := number(a)
	to, ok2 := number(b)
	if !ok1 || !ok2 || to < from || (total > 0 && to >= total) {
		return 0, 0, 0, false
	}
	return from, to, total, true
}

func number(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 62)
	return int64(n), err == nil
}

// validator is what names this very content of the file: a strong ETag, else
// the date of its last change.
func validator(h http.Header) string {
	if e := h.Get("ETag"); strings.HasPrefix(e, `"`) && len(e) <= 512 {
		return e
	}
	if lm := h.Get("Last-Modified"); lm != "" {
		if _, err := http.ParseTime(lm); err == nil {
			return lm
		}
	}
	return ""
}

// changed reports that an answer names another content than the validator that
// an earlier one gave.
func changed(h http.Header, validator string) bool {
	now := h.Get("Last-Modified")
	if strings.HasPrefix(validator, `"`) {
		now = h.Get("ETag")
	}
	return now != "" && now != validator
}

func retryAfter(s string) time.Duration {
	if n, ok := number(s); ok {
		return time.Duration(min(n, 60)) * time.Second
	}
	return 0
}
