// Package api is the endpoint that clients talk to: HTTP and JSON in, tokens to
// the Engine, text out. It owns dialects, limits on clients and the mapping from
// kinds of fault to status codes; who may enter and what becomes of a request
// is the engine's business.
//
// A request goes through three steps, so that a dialect is two thin
// translations. Decoding turns a body into an ask, with every field checked.
// Preparing turns an ask into a request.Spec: the model's name, the prompt's
// tokens, the window. Answering hands the engine's output as text to the
// dialect's frames, which only append bytes.
//
// Choices that clients can see:
//   - A body is parsed as JSON whatever its Content-Type says. It must be UTF-8;
//     see package jsonin.
//   - Unknown fields are ignored and counted. Known fields of the wrong type, and
//     fields that would change the answer but are not supported, are errors.
//   - tools: [] is the same as no tools.
//   - Several text parts of one message are joined by line ends.
//   - completion_tokens counts what the model produced until the end of the
//     answer, the token that completed a stop string included.
//   - A missing max_tokens means the model's default, not the whole window; one
//     that does not fit is lowered and Tandem-Max-Tokens says to what.
package api

import (
	"log/slog"
	"net/http"
	"time"

	"tandem/model/sample"
)

// Model is what clients may know about the model and what limits it sets.
type Model struct {
	Name    string
	Aliases []string
	Created time.Time // zero: now
	Context int       // positions of prompt and answer together
	// DefaultOutput is the limit on an answer for which the client set none. Zero:
	// a quarter of the window, since an answer that runs away takes a place until
	// it ends, and many clients set no limit.
	DefaultOutput int
	// MaxOutput is the limit that a client cannot exceed. Zero: the window.
	MaxOutput int
	// Sampling holds for what a client leaves unset. Nil: temperature 1 and no more.
	Sampling *sample.Params
}

// Options says how to build the endpoint. Engine, Text and Model are needed;
// a zero in another field means the default that stands beside it.
type Options struct {
	Engine Engine
	Text   Text
	Model  Model

	MaxBody     int64    // bytes of a body; 32 MiB
	MaxBodies   int64    // bytes of all bodies together, of requests not yet admitted; 8 × MaxBody
	CORSOrigins []string // browsers' pages that may ask, or "*"; none
	APIKeys     []string // if any, a client must show one

	Keepalive   time.Duration // a stream is never silent for longer; 15 s
	ClientStall time.Duration // how long a client may take no byte; 30 s
	BodyStall   time.Duration // how long a client may send no byte of a body; 5 s
	BodyTotal   time.Duration // how long a body may take altogether; 60 s

	Log      *slog.Logger // discarded
	Recorder Recorder     // none
	Metrics  http.Handler // answers GET /metrics; not found
	Ready    func() error // answers GET /ready; Engine.Ready
}

func (o Options) withDefaults() Options {
	if o.Engine == nil || o.Text == nil || o.Model.Name == "" || o.Model.Context < 2 {
		panic("api: Options needs an Engine, a Text and a Model with a name and a window")
	}
	if o.Model.Created.IsZero() {
		o.Model.Created = time.Now()
	}
	if o.Model.MaxOutput <= 0 || o.Model.MaxOutput > o.Model.Context {
		o.Model.MaxOutput = o.Model.Context
	}
	if o.Model.DefaultOutput <= 0 {
		o.Model.DefaultOutput = max(o.Model.Context/4, 1)
	}
	o.Model.DefaultOutput = min(o.Model.DefaultOutput, o.Model.MaxOutput)
	if o.Model.Sampling == nil {
		o.Model.Sampling = &sample.Params{Temperature: 1}
	}
	if o.MaxBody <= 0 {
		o.MaxBody = 32 << 20
	}
	if o.MaxBodies <= 0 {
		o.MaxBodies = 8 * o.MaxBody
	}
	o.MaxBodies = max(o.MaxBodies, o.MaxBody+o.MaxBody/2+leastBody) // a buffer grows beyond what it holds
	for _, d := range []struct {
		p *time.Duration
		v time.Duration
	}{{&o.Keepalive, 15 * time.Second}, {&o.ClientStall, 30 * time.Second}, {&o.BodyStall, 5 * time.Second}, {&o.BodyTotal, time.Minute}} {
		if *d.p <= 0 {
			*d.p = d.v
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Recorder == nil {
		o.Recorder = noRecorder{}
	}
	if o.Ready == nil {
		o.Ready = o.Engine.Ready
	}
	return o
}
