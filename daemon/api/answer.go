package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/request"
)

// generate answers one ask: it submits it, and hands what comes to the dialect.
func (x *exchange) generate(a *ask, speak func(who identity) dialect) {
	for f := range a.ignored {
		x.h.Recorder.Ignored(f)
	}
	if a.session == "" {
		a.session = sessionOf(x.r.Header)
	}
	p, err := x.h.prepare(a)
	if err != nil {
		x.fail(err)
		return
	}
	id := x.h.ids.take(x.id)
	defer x.h.ids.drop(id)
	if string(id) != x.id {
		// The client's name for the request is taken; this is the operator's.
		x.w.Header().Set("Tandem-Request", string(id))
	}
	p.spec.ID, p.spec.Arrived = id, x.arrived
	if p.lowered {
		x.w.Header().Set("Tandem-Max-Tokens", strconv.Itoa(p.spec.MaxTokens))
	}

	stream, err := x.h.Engine.Submit(p.spec)
	if err != nil {
		x.fail(err)
		return
	}
	x.release()
	y := &answer{
		exchange: x,
		stream:   stream,
		reader:   x.h.Text.Reader(a.stops),
		dialect:  speak(identity{id: id, model: p.model, created: x.arrived.Unix()}),
		usage:    usage{prompt: len(p.spec.Prompt)},
	}
	defer y.close()
	if a.stream {
		y.streamed()
	} else {
		y.whole()
	}
}

// answer is an admitted request on its way to the client.
type answer struct {
	*exchange
	stream  Stream
	reader  Reader
	dialect dialect
	usage   usage
	over    bool      // the stream has ended, or was told to
	last    time.Time // of the last tokens; zero before the first
}

// close releases the request. One whose end was not seen is cancelled first: the
// handler leaves it because of a panic.
func (y *answer) close() {
	y.cancel("the endpoint failed")
	y.stream.Close()
}

// cancel ends the request because nobody wants the rest, unless it is over.
func (y *answer) cancel(reason string) {
	if !y.over {
		y.over = true
		y.stream.Cancel(reason)
	}
}

// lost ends an answer whose client left or took nothing.
func (y *answer) lost(err error) {
	switch kind := fault.KindOf(err); kind {
	case fault.ClientStalled:
		y.cancel(err.Error())
		y.code = kind.String()
	default:
		y.cancel(errGone.Error())
		y.code = "client_gone"
	}
	y.status = statusGone
	panic(http.ErrAbortHandler) // so that a proxy does not take it for a good end
}

// next waits for output until ctx ends. It appends the text that has become
// certain to b and, with the last output, gives the way it ended: a reason to
// finish or an error. If the client left, or ctx ended, it returns that error.
func (y *answer) next(ctx context.Context, b []byte) (text []byte, out request.Output, err error) {
	out, err = y.stream.Next(ctx)
	if err != nil {
		return b, out, err
	}
	y.over = out.Ended()
	y.count(len(out.Tokens))
	for _, t := range out.Tokens {
		var stopped bool
		y.usage.completion++
		if b, stopped = y.reader.Append(b, t); stopped {
			if !y.over {
				y.over = true
				y.stream.Stop()
			}
			return b, request.Output{Finish: request.FinishStop}, nil
		}
	}
	if out.Ended() {
		b = y.reader.Flush(b)
	}
	return b, out, nil
}

func (y *answer) count(tokens int) {
	if tokens == 0 {
		return
	}
	now := time.Now()
	if y.last.IsZero() {
		y.h.Recorder.FirstToken(now.Sub(y.arrived))
	} else {
		y.h.Recorder.NextTokens(now.Sub(y.last), tokens)
	}
	y.last = now
}

// whole collects the answer and sends it at once.
func (y *answer) whole() {
	var text []byte
	for {
		var out request.Output
		var err error
		text, out, err = y.next(y.r.Context(), text)
		switch {
		case err != nil && y.r.Context().Err() != nil:
			y.lost(&fault.Error{Kind: fault.Cancelled, Err: errGone})
		case err != nil:
			y.cancel("the endpoint failed")
			y.fail(err)
			return
		case out.Err != nil:
			if out.Err.Kind == fault.ClientStalled {
				y.lost(out.Err)
			}
			y.fail(out.Err)
			return
		case out.Ended():
			body := y.dialect.whole(make([]byte, 0, len(text)+512), text, out.Finish, y.usage)
			if err := y.json(http.StatusOK, body); err != nil {
				y.lost(err)
			}
			y.stream.Flushed()
			return
		}
	}
}

// streamed sends the answer as it comes: one write for each output, and a
// comment whenever nothing was sent for Keepalive.
func (y *answer) streamed() {
	h := y.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	y.begin(http.StatusOK)
	if err := y.write(nil); err != nil { // the header goes out now
		y.lost(err)
	}

	sent := time.Now()
	quiet := newAlarm(y.r.Context(), y.h.Keepalive)
	defer func() { quiet.stop() }()
	var text, frame []byte
	started := false
	for {
		var out request.Output
		var err error
		text, out, err = y.next(quiet.ctx, text[:0])
		frame = frame[:0]
		switch {
		case err == nil:
		case y.r.Context().Err() != nil:
			y.lost(&fault.Error{Kind: fault.Cancelled, Err: errGone})
		case quiet.rang(err):
			// The alarm is not moved for every token: it may ring too early.
			left := y.h.Keepalive - time.Since(sent)
			if left <= 0 {
				frame = y.dialect.quiet(frame)
				left = y.h.Keepalive
			}
			quiet.stop()
			quiet = newAlarm(y.r.Context(), left)
		default:
			y.cancel("the endpoint failed")
			out.Err = &fault.Error{Op: "api", Kind: fault.Internal, Err: err}
		}
		if !started && (len(text) > 0 || out.Finish != 0) {
			started = true
			frame = y.dialect.start(frame)
		}
		if len(text) > 0 {
			frame = y.dialect.text(frame, text)
		}
		switch {
		case out.Err != nil:
			if out.Err.Kind == fault.ClientStalled {
				y.lost(out.Err)
			}
			p := problemOf(out.Err)
			y.code = p.code
			if p.after {
				p = p.waiting(retrySeconds(y.h.Engine.RetryAfter()))
			}
			y.h.Log.Warn("stream failed", "request", y.id, "code", p.code, "error", p.message)
			frame = y.dialect.fail(frame, p)
		case out.Finish != 0:
			frame = y.dialect.end(frame, out.Finish, y.usage)
		}
		if len(frame) > 0 {
			if err := y.write(frame); err != nil {
				y.lost(err)
			}
			sent = time.Now()
			y.stream.Flushed()
		}
		if out.Ended() {
			return
		}
	}
}

// alarm is a context that ends with its parent or after a time. It is its own
// type only to know which of the two it was.
type alarm struct {
	ctx  context.Context
	stop context.CancelFunc
}

func newAlarm(parent context.Context, d time.Duration) alarm {
	ctx, stop := context.WithTimeout(parent, d)
	return alarm{ctx, stop}
}

func (a alarm) rang(err error) bool {
	return a.ctx.Err() != nil && errors.Is(err, a.ctx.Err())
}
