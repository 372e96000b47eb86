package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"tandem/daemon/api/jsonin"
	"tandem/daemon/fault"
)

// statusGone is what a request counts as whose client left or that an operator
// ended: no standard status says so, and hardly anybody reads it.
const statusGone = 499

// problem is a request's bad end as a client sees it.
type problem struct {
	status  int
	typ     string
	code    string
	param   string // the field that is wrong; may be empty
	message string
	// retry says whether the same request may succeed later: "true" or "false"
	// goes out as X-Should-Retry, which some clients heed, "" says nothing.
	retry string
	// after asks for a Retry-After header.
	after bool
}

func (p *problem) Error() string { return p.message }

const (
	typeInvalid = "invalid_request_error"
	typeAuth    = "authentication_error"
	typeRate    = "rate_limit_error"
	typeServer  = "server_error"
)

// statuses says how each kind of fault looks over HTTP.
var statuses = map[fault.Kind]problem{
	fault.Internal:        {status: 500, typ: typeServer},
	fault.Invalid:         {status: 400, typ: typeInvalid, retry: "false"},
	fault.ContextLength:   {status: 400, typ: typeInvalid, retry: "false"},
	fault.UnknownModel:    {status: 404, typ: typeInvalid, retry: "false"},
	fault.QueueFull:       {status: 429, typ: typeRate, retry: "true", after: true},
	fault.NotReady:        {status: 503, typ: typeServer, retry: "true", after: true},
	fault.Draining:        {status: 503, typ: typeServer, retry: "true", after: true},
	fault.QueueTimeout:    {status: 504, typ: typeServer},
	fault.ReserveTimeout:  {status: 504, typ: typeServer},
	fault.PrefillStall:    {status: 504, typ: typeServer},
	fault.HandoffStall:    {status: 504, typ: typeServer},
	fault.TransferTimeout: {status: 504, typ: typeServer},
	fault.VerifyTimeout:   {status: 504, typ: typeServer},
	fault.DigestMismatch:  {status: 502, typ: typeServer},
	fault.EpochChanged:    {status: 502, typ: typeServer},
	fault.KVExhausted:     {status: 503, typ: typeServer, retry: "true", after: true},
	fault.FirstToken:      {status: 504, typ: typeServer},
	fault.TokenStall:      {status: 504, typ: typeServer},
	// A request that took the longest time allowed would take it again.
	fault.RequestDeadline: {status: 504, typ: typeServer, retry: "false"},
	fault.ClientStalled:   {status: 408, typ: typeInvalid, retry: "false"},
	fault.Generation:      {status: 502, typ: typeServer},
	fault.WorkerLost:      {status: 502, typ: typeServer},
	fault.Protocol:        {status: 502, typ: typeServer},
	fault.Cancelled:       {status: statusGone, typ: typeInvalid, retry: "false"},
	// The same prompt would meet the same numbers.
	fault.Numerics:     {status: 500, typ: typeServer, retry: "false"},
	fault.Unauthorized: {status: 401, typ: typeAuth, retry: "false"},
	fault.NotFound:     {status: 404, typ: typeInvalid, retry: "false"},
}

// problemOf says how an error looks to a client. An error that is neither ours
// nor of a kind is internal.
func problemOf(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	var j *jsonin.Error
	if errors.As(err, &j) {
		return invalid(j.Path, "%s", j.Error())
	}
	kind := fault.KindOf(err)
	q, known := statuses[kind]
	if !known {
		q = statuses[fault.Internal]
	}
	q.code = kind.String()
	q.message = err.Error()
	var f *fault.Error
	if errors.As(err, &f) {
		q.param = f.Param
	}
	return &q
}

// problemf makes a problem of a kind.
func problemf(kind fault.Kind, param, format string, args ...any) *problem {
	p := problemOf(&fault.Error{Kind: kind, Param: param, Err: fmt.Errorf(format, args...)})
	return p
}

// invalid says that a field is wrong; format names it.
func invalid(param, format string, args ...any) *problem {
	return problemf(fault.Invalid, param, format, args...)
}

// unsupported says that a field asks for what this server does not do.
func unsupported(param, format string, args ...any) *problem {
	p := invalid(param, format, args...)
	p.code = "unsupported_parameter"
	return p
}

// custom is a problem that HTTP knows and the engine does not.
func custom(status int, code, format string, args ...any) *problem {
	typ := typeInvalid
	if status >= 500 {
		typ = typeServer
	}
	return &problem{status: status, typ: typ, code: code, message: fmt.Sprintf(format, args...), retry: "false"}
}

// tooLong says that a prompt does not fit. Its wording is what clients look for
// to shorten their history: phrases of the three families of servers they know.
func tooLong(param string, tokens, window int) *problem {
	return problemf(fault.ContextLength, param,
		"prompt is too long: %d tokens > %d maximum. This model's maximum context length is %d tokens, prompt and answer together; "+
			"the request exceeds the available context size, try to shorten it",
		tokens, window, window)
}

// retrySeconds is the value of Retry-After: whole seconds, from 1 to 60, because
// some clients heed no longer wait.
func retrySeconds(d time.Duration) int {
	return int(min(max((d+time.Second-1)/time.Second, 1), 60))
}

// waiting says in the text how long to wait, because some clients read only that.
func (p *problem) waiting(seconds int) *problem {
	q := *p
	q.message = fmt.Sprintf("%s; try again in %ds", strings.TrimRight(p.message, ".;"), seconds)
	return &q
}

type errorObject struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

func (p *problem) object() errorObject {
	o := errorObject{Message: p.message, Type: p.typ, Code: p.code}
	if o.Message == "" {
		o.Message = http.StatusText(p.status)
	}
	if p.param != "" {
		o.Param = &p.param
	}
	return o
}

// body is the error as the OpenAI dialects have it.
func (p *problem) body() []byte {
	b, err := json.Marshal(struct {
		Error errorObject `json:"error"`
	}{p.object()})
	if err != nil {
		panic(err) // strings always marshal
	}
	return b
}
