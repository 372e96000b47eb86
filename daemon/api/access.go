package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"tandem/daemon/fault"
)

// authorize checks the client's key, if keys are wanted. All keys are compared,
// by digest, so that the time taken says nothing about them.
func (x *exchange) authorize() error {
	if len(x.h.keys) == 0 {
		return nil
	}
	key := x.r.Header.Get("X-Api-Key")
	if scheme, value, ok := strings.Cut(x.r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		key = strings.TrimSpace(value)
	}
	if key == "" {
		return problemf(fault.Unauthorized, "", "no API key; send one as Authorization: Bearer KEY")
	}
	sum := sha256.Sum256([]byte(key))
	match := 0
	for i := range x.h.keys {
		match |= subtle.ConstantTimeCompare(sum[:], x.h.keys[i][:])
	}
	if match == 0 {
		return problemf(fault.Unauthorized, "", "the API key is not known here")
	}
	return nil
}

// browser answers pre-flights, adds the headers that let an allowed page read
// the answer, and refuses what a page of another origin sends: without that, any
// site that a user visits could put this machine to work, since a request that
// needs no pre-flight is sent before the browser asks. It reports whether the
// request is answered. Programs send no Origin and are not concerned.
func (x *exchange) browser(rt route, found bool) bool {
	origin := x.r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	h := x.w.Header()
	h.Add("Vary", "Origin")
	if x.allowed(origin) {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", "X-Request-Id, Tandem-Generation, Tandem-Request, Tandem-Max-Tokens, Retry-After")
		if x.r.Method != http.MethodOptions || x.r.Header.Get("Access-Control-Request-Method") == "" {
			return false
		}
		if found {
			h.Set("Access-Control-Allow-Methods", rt.allow())
		}
		// The SDKs send many headers of their own; none has power here.
		if want := x.r.Header.Get("Access-Control-Request-Headers"); want != "" {
			h.Set("Access-Control-Allow-Headers", want)
		}
		h.Set("Access-Control-Max-Age", "600")
		x.begin(http.StatusNoContent)
		return true
	}
	if x.r.Method != http.MethodPost || sameOrigin(origin, x.r.Host) {
		return false
	}
	x.fail(custom(http.StatusForbidden, "origin_not_allowed", "pages of %s may not ask; add it to server.cors_origins if they should", clipped(origin)))
	return true
}

func (x *exchange) allowed(origin string) bool {
	return slices.ContainsFunc(x.h.CORSOrigins, func(o string) bool {
		return o == "*" || strings.EqualFold(strings.TrimSuffix(o, "/"), origin)
	})
}

func sameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}
