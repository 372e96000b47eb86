package api

import (
	"net/http"
	"strconv"

	"tandem/daemon/fault"
)

type modelObject struct {
	ID              string   `json:"id"`
	Object          string   `json:"object"`
	Created         int64    `json:"created"`
	OwnedBy         string   `json:"owned_by"`
	MaxModelLen     int      `json:"max_model_len"`
	MaxOutputTokens int      `json:"max_output_tokens"`
	Aliases         []string `json:"aliases"`
}

func (h *handler) modelObject() modelObject {
	m := &h.Model
	return modelObject{
		ID: m.Name, Object: "model", Created: m.Created.Unix(), OwnedBy: "tandem",
		MaxModelLen: m.Context, MaxOutputTokens: m.MaxOutput, Aliases: append([]string{}, m.Aliases...),
	}
}

// listModels serves GET /v1/models.
func (x *exchange) listModels() {
	x.reply(http.StatusOK, struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{"list", []modelObject{x.h.modelObject()}})
}

// showModel serves GET /v1/models/{name}; a name may contain slashes.
func (x *exchange) showModel() {
	name := x.r.URL.Path[len(modelPath):]
	if !x.h.serves(name) {
		x.fail(unknownModel(name, x.h.Model.Name))
		return
	}
	x.reply(http.StatusOK, x.h.modelObject())
}

// health serves GET /health: the process lives and answers.
func (x *exchange) health() {
	x.reply(http.StatusOK, struct {
		Status     string `json:"status"`
		Generation uint64 `json:"generation"`
	}{"ok", uint64(x.h.Engine.Generation())})
}

// ready serves GET /ready: requests complete end to end, or why they would not.
func (x *exchange) ready() {
	err := x.h.Ready()
	if err == nil {
		x.reply(http.StatusOK, struct {
			Status     string `json:"status"`
			Generation uint64 `json:"generation"`
			Model      string `json:"model"`
		}{"ready", uint64(x.h.Engine.Generation()), x.h.Model.Name})
		return
	}
	// Whatever the reason is called, here it means: not now.
	p := problemOf(err)
	x.code = p.code
	seconds := retrySeconds(x.h.Engine.RetryAfter())
	x.w.Header().Set("Retry-After", strconv.Itoa(seconds))
	if p.code == fault.Internal.String() {
		p.code = fault.NotReady.String()
	}
	p.typ = typeServer
	x.reply(http.StatusServiceUnavailable, struct {
		Status     string      `json:"status"`
		Generation uint64      `json:"generation"`
		Reason     string      `json:"reason"`
		Error      errorObject `json:"error"`
	}{"not_ready", uint64(x.h.Engine.Generation()), p.message, p.waiting(seconds).object()})
}

// hello serves GET /, which some clients ask to see whether anybody is there.
func (x *exchange) hello() {
	x.end(x.send(http.StatusOK, "text/plain; charset=utf-8", []byte("tandem serves "+x.h.Model.Name+": POST /v1/chat/completions, GET /v1/models\n")))
}

// metrics serves GET /metrics.
func (x *exchange) metrics() { x.h.Metrics.ServeHTTP(x.w, x.r) }

// reply answers with a value as JSON.
func (x *exchange) reply(status int, v any) { x.end(x.json(status, mustJSON(v))) }

// end notes that the client did not take the answer.
func (x *exchange) end(err error) {
	if err != nil {
		x.status, x.code = statusGone, "client_gone"
	}
}
