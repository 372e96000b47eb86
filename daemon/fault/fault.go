// Package fault holds errors whose kind survives a process boundary. The kind
// is what code decides on and what a client, a log line and a metric name;
// nobody reads error text to decide.
package fault

import (
	"errors"
	"fmt"
)

// Kind says what went wrong, in the terms in which somebody can act on it.
// Its text is the code that clients and metrics see; it never changes meaning.
type Kind uint8

// Kinds. The comment says who can do what about it.
const (
	Internal        Kind = iota // our bug; the journal has more
	Invalid                     // the client's request is wrong
	ContextLength               // the prompt does not fit the window; the client must shorten it
	UnknownModel                // the client named a model that is not served
	QueueFull                   // try again after Retry-After
	NotReady                    // the appliance cannot serve now; try again
	Draining                    // the appliance is stopping
	QueueTimeout                // waited too long for room
	ReserveTimeout              // decode did not grant its pages in time
	PrefillStall                // prefill stopped making progress
	HandoffStall                // prefill was done, decode did not begin to take the KV cache
	TransferTimeout             // the KV cache did not arrive in time
	VerifyTimeout               // the KV cache arrived but was not confirmed in time
	DigestMismatch              // the KV cache that arrived is not the one that was sent
	EpochChanged                // a page was reused while it was read
	KVExhausted                 // the KV cache has no room for another token of this request
	FirstToken                  // decode did not produce a first token in time
	TokenStall                  // decode stopped producing tokens
	RequestDeadline             // the whole request took longer than is allowed
	ClientStalled               // the client took no byte for too long
	Generation                  // too many generation changes while serving this request
	WorkerLost                  // a worker died or was given up
	Protocol                    // a worker said what it must not
	Cancelled                   // the client left, or an operator said so
	Numerics                    // the model produced no valid number
	Unauthorized                // a missing or wrong API key
	NotFound                    // no such thing
)

var codes = [...]string{
	Internal: "internal_error", Invalid: "invalid_request", ContextLength: "context_length_exceeded", UnknownModel: "model_not_found",
	QueueFull: "queue_full", NotReady: "not_ready", Draining: "draining", QueueTimeout: "queue_timeout", ReserveTimeout: "reserve_timeout",
	PrefillStall: "prefill_stall", HandoffStall: "handoff_stall", TransferTimeout: "kv_transfer_timeout", VerifyTimeout: "kv_verify_timeout",
	DigestMismatch: "kv_digest_mismatch", EpochChanged: "kv_epoch_changed", KVExhausted: "kv_exhausted", FirstToken: "first_token_timeout",
	TokenStall: "token_stall", RequestDeadline: "request_timeout", ClientStalled: "client_stalled", Generation: "generation_changed",
	WorkerLost: "worker_lost", Protocol: "protocol_error", Cancelled: "cancelled", Numerics: "numerics", Unauthorized: "invalid_api_key", NotFound: "not_found",
}

// String is the kind's code.
func (k Kind) String() string {
	if int(k) < len(codes) {
		return codes[k]
	}
	return fmt.Sprintf("kind_%d", uint8(k))
}

// Kinds lists every kind, for tables and metrics.
func Kinds() []Kind {
	ks := make([]Kind, len(codes))
	for i := range ks {
		ks[i] = Kind(i)
	}
	return ks
}

// Error says what was tried, on what, and what may be done about it.
type Error struct {
	Op      string // "transfer.pull"; may be empty
	Subject string // what it was tried on; may be empty
	Kind    Kind
	Param   string // the request field that is wrong, for Invalid
	Err     error  // why; may be nil
}

// New makes an error of a kind from a message for people.
func New(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Err: fmt.Errorf(format, args...)}
}

func (e *Error) Error() string {
	s := ""
	for _, p := range []string{e.Op, e.Subject} {
		if p != "" {
			if s != "" {
				s += " "
			}
			s += p
		}
	}
	if s != "" {
		s += ": "
	}
	if e.Err == nil {
		return s + e.Kind.String()
	}
	return s + e.Err.Error()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf is the kind of the first Error in err's chain, Internal if there is none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}
