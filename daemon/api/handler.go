package api

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// handler is the endpoint. All its fields but ids and load are set once.
type handler struct {
	Options
	keys      [][sha256.Size]byte
	routes    map[string]route
	wantToken string // what a token id must be, for errors
	ids       ids
	load      load
}

// route is one path. get and post are nil where the method is not allowed.
type route struct {
	get, post func(*exchange)
	open      bool // needs no key
}

// modelPath is the only path with a variable end.
const modelPath = "/v1/models/"

// New builds the endpoint. It panics if Options lacks what has no default.
func New(o Options) http.Handler {
	h := &handler{Options: o.withDefaults()}
	h.load.most = h.MaxBodies
	h.wantToken = fmt.Sprintf("a token id from 0 to %d", h.Text.Vocab()-1)
	for _, k := range h.APIKeys {
		h.keys = append(h.keys, sha256.Sum256([]byte(k)))
	}
	h.routes = map[string]route{
		"/v1/chat/completions": {post: (*exchange).chatCompletions},
		"/v1/completions":      {post: (*exchange).completions},
		"/v1/models":           {get: (*exchange).listModels},
		modelPath:              {get: (*exchange).showModel},
		"/tokenize":            {post: (*exchange).tokenize},
		"/detokenize":          {post: (*exchange).detokenize},
		"/health":              {get: (*exchange).health, open: true},
		"/ready":               {get: (*exchange).ready, open: true},
		"/":                    {get: (*exchange).hello, open: true},
	}
	if h.Metrics != nil {
		h.routes["/metrics"] = route{get: (*exchange).metrics, open: true}
	}
	return h
}

// ServeHTTP serves one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{h: h, w: w, r: r, rc: http.NewResponseController(w), arrived: time.Now(), route: "other", code: "ok"}
	x.arm()
	if r.ContentLength != 0 {
		// Also for a body that nobody reads: net/http reads it after the answer.
		x.expectBody(x.arrived.Add(h.BodyStall))
	}
	if x.id = header(r.Header, "X-Request-Id"); x.id == "" {
		x.id = newID()
	}
	w.Header().Set("X-Request-Id", x.id)
	x.stampGeneration()
	defer x.finish()
	x.dispatch()
}

// finish records the exchange, and makes an answer of a panic if there is still
// time for one.
func (x *exchange) finish() {
	v := recover()
	x.release()
	if v != nil && v != http.ErrAbortHandler {
		x.h.Log.Error("panic in the endpoint", "request", x.id, "route", x.route, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
		x.code = "internal_error"
		if !x.begun {
			func() {
				defer func() { v = recover() }()
				x.fail(custom(http.StatusInternalServerError, "internal_error", "the endpoint failed; its journal says why, under request %s", x.id))
			}()
		} else {
			v = http.ErrAbortHandler
		}
	}
	if x.route != "/metrics" {
		x.h.Recorder.Answered(x.route, x.status, x.code, time.Since(x.arrived))
	}
	if v != nil {
		panic(v) // net/http closes the connection
	}
}

// dispatch finds who answers. A browser's pre-flight comes first, because it
// carries no key.
func (x *exchange) dispatch() {
	path := x.r.URL.Path
	if strings.HasPrefix(path, modelPath) {
		path = modelPath
	}
	route, found := x.h.routes[path]
	if found {
		x.route = path
	}
	if x.browser(route, found) {
		return
	}
	if !found {
		hint := ""
		if _, ok := x.h.routes["/v1"+path]; ok {
			hint = "; did you mean /v1" + path + "?"
		}
		x.fail(custom(http.StatusNotFound, "not_found", "no such path: %s %s%s", clipped(x.r.Method), clipped(x.r.URL.Path), hint))
		return
	}
	allow := route.allow()
	var serve func(*exchange)
	switch x.r.Method {
	case http.MethodGet, http.MethodHead:
		serve = route.get
	case http.MethodPost:
		serve = route.post
	case http.MethodOptions:
		x.w.Header().Set("Allow", allow)
		x.begin(http.StatusNoContent)
		return
	}
	if serve == nil {
		x.w.Header().Set("Allow", allow)
		x.fail(custom(http.StatusMethodNotAllowed, "method_not_allowed", "%s does not take %s; want %s", x.route, clipped(x.r.Method), allow))
		return
	}
	if !route.open {
		if err := x.authorize(); err != nil {
			x.fail(err)
			return
		}
	}
	serve(x)
}

func (r route) allow() string {
	var ms []string
	if r.get != nil {
		ms = append(ms, http.MethodGet, http.MethodHead)
	}
	if r.post != nil {
		ms = append(ms, http.MethodPost)
	}
	return strings.Join(slices.Concat(ms, []string{http.MethodOptions}), ", ")
}

// chatCompletions serves POST /v1/chat/completions.
func (x *exchange) chatCompletions() {
	a, err := read(x, x.h.decodeChat)
	if err != nil {
		x.fail(err)
		return
	}
	x.generate(a, func(who identity) dialect { return newChat(who, a.stream, a.stream && a.includeUsage) })
}

// completions serves POST /v1/completions.
func (x *exchange) completions() {
	a, err := read(x, x.h.decodeCompletion)
	if err != nil {
		x.fail(err)
		return
	}
	x.generate(a, func(who identity) dialect { return newCompletion(who, a.stream && a.includeUsage) })
}

// read reads the body and decodes it.
func read[T any](x *exchange, decode func([]byte) (T, error)) (T, error) {
	body, err := x.readBody()
	if err != nil {
		var none T
		return none, err
	}
	return decode(body)
}
