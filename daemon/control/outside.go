package control

import (
	"bytes"
	"runtime/pprof"

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

// Stuck asks every process for its stacks, this one too. Thousands of streams have
// the same few stacks: they are gathered with their number, which neither stops the
// process for long nor fills the event. The core sees to it that this is not asked for
// again and again.
func (o outside) Stuck(id ident.Request, state request.State) {
	o.dump()
	go func() {
		var b bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&b, 1) // a buffer takes everything
		b.Truncate(min(b.Len(), maxDump))
		o.o.Log.Event(observe.DaemonStacks, "stacks of the daemon: request "+string(id)+" was "+state.String()+" for longer than it may",
			observe.Request(id), observe.State(state), observe.Str("stacks", b.String()))
	}()
}

// Notify leaves a line for the goroutine that passes lines on, in place of one that
// it did not come to. Nobody else sends, so there is room.
func (o outside) Notify(status string, ready bool) {
	select {
	case <-o.news:
	default:
	}
	o.news <- news{status, ready}
}
