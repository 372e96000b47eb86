package control

import (
	"runtime"

	"tandem/daemon/core"
	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/wire"
)

// outside performs what the core decides. It is called in the loop's goroutine.
type outside struct {
	*Loop
	core.Meter
}

func (o outside) Send(rank int, m wire.Message) error { return o.gen.Send(rank, m) }

func (o outside) Spawn(g ident.Generation) { o.work.Go(func() { o.launch(g) }) }

func (o outside) Kill() { o.gen.Kill() }

func (o outside) Reaped() error {
	o.o.Store.live.Store(0)
	gen := o.gen
	o.Loop.gen, o.Loop.vitals = nil, o.vitals[:0]
	if gen == nil {
		return nil
	}
	return gen.Close()
}

// stream is where a request's output goes, nil if nobody listens any more.
func (o outside) stream(t core.Ticket) *Stream {
	if s := o.streams[t]; s != nil {
		return s
	}
	return o.entering
}

func (o outside) Token(t core.Ticket, token int32) {
	if s := o.stream(t); s != nil {
		s.push(token)
	}
}

func (o outside) End(t core.Ticket, f request.Finish, err *fault.Error) {
	if s := o.stream(t); s != nil {
		s.end(f, err)
	}
}

func (o outside) Forget(t core.Ticket) { delete(o.streams, t) }

func (o outside) Event(k observe.Kind, text string, fields ...observe.Field) {
	o.o.Log.Event(k, text, fields...)
}

func (o outside) Wants(k observe.Kind) bool { return o.o.Log.Enabled(k) }

// maxDump bounds the daemon's own stacks in an event.
const maxDump = 256 << 10

// Stuck asks every process for its stacks, this one too.
func (o outside) Stuck(state request.State) {
	o.dump()
	stacks := make([]byte, maxDump)
	stacks = stacks[:runtime.Stack(stacks, true)]
	o.o.Log.Event(observe.DaemonStacks, "stacks of the daemon: a request was "+state.String()+" for longer than it may", observe.Str("stacks", string(stacks)))
}

func (o outside) Notify(status string, ready bool) { o.o.Notify(status, ready) }
