package api

import (
	"context"
	"time"

	"tandem/daemon/ident"
	"tandem/daemon/request"
)

// Engine is what the dialects need of the rest of the daemon.
type Engine interface {
	// Submit admits a request or refuses it now with a *fault.Error (QueueFull,
	// NotReady, Draining). An admitted request has a Stream, and the stream ends.
	Submit(request.Spec) (Stream, error)
	// Ready reports nil, or a *fault.Error saying why requests would not complete.
	Ready() error
	// Generation is the live generation, 0 before the first.
	Generation() ident.Generation
	// RetryAfter is how long a refused client should wait, from the backlog.
	RetryAfter() time.Duration
}

// Stream is the answer to one request. It belongs to the goroutine that serves
// the client.
type Stream interface {
	// Next waits for output. After an output that has ended, it is not called again.
	// When ctx ends first it returns ctx's error, and the request goes on.
	Next(ctx context.Context) (request.Output, error)
	// Stop ends the request as finished: the text met a stop string. Tokens that
	// were already on their way are dropped.
	Stop()
	// Cancel ends the request because nobody wants the rest.
	Cancel(reason string)
	// Close says that the last byte went to the client, or never will. It must be
	// called once, in the end, on every stream; the request holds its place until then.
	Close()
	// Flushed says that the client took bytes: it re-arms the limit on slow clients.
	Flushed()
}
