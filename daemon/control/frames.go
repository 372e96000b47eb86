package control

import (
	"fmt"
	"slices"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
)

// report takes in what a rank did. What comes from another generation changes
// nothing but a counter.
func (l *Loop) report(r supervise.Report) {
	if r.Generation != l.number {
		l.o.Meter.Fenced("report")
		return
	}
	switch {
	case r.Line != nil:
		l.o.Log.Event(observe.WorkerLog, fmt.Sprintf("%s: %s", l.ranks[r.Rank], *r.Line), l.rankFields(r.Rank)...)
	case r.Exit != nil:
		l.exit(r.Rank, *r.Exit)
	case r.Lost != nil:
		if err := *r.Lost; err != nil {
			l.condemn("protocol", fmt.Sprintf("%s: %v", l.ranks[r.Rank], err), &r.Rank, observe.WorkerProtocol)
		}
		// A closed socket is followed by the exit, which says more.
	case r.Frame != nil:
		if r.Frame.Generation != l.number {
			l.o.Meter.Fenced(fmt.Sprintf("%T", r.Frame.Message))
			l.o.Log.Event(observe.FenceDrop, fmt.Sprintf("%s: a %T of generation %d in generation %d", l.ranks[r.Rank], r.Frame.Message, r.Frame.Generation, l.number), l.rankFields(r.Rank)...)
			return
		}
		l.frame(r.Rank, r.Frame.Message)
	}
}

func (l *Loop) rankFields(rank int) []observe.Field {
	return []observe.Field{observe.Generation(l.number), observe.Rank(l.ranks[rank])}
}

func (l *Loop) frame(rank int, m wire.Message) {
	id := l.ranks[rank]
	lie := func(format string, args ...any) {
		l.condemn("protocol", fmt.Sprintf("%s: %T: %s", id, m, fmt.Sprintf(format, args...)), &rank, observe.WorkerProtocol)
	}
	// Messages about an attempt: the attempt must be known, and the rank one of its
	// own. An attempt that is closed is a late message's; that is no lie.
	find := func(seq uint64, role ident.Role) *attempt {
		if l.sup.State != supUp {
			// The generation is ending: its requests have left it, and its pages wait
			// until all of it is reaped. What was said meanwhile changes nothing.
			l.ignored[fmt.Sprintf("%T while ending", m)]++
			return nil
		}
		if id.Role != role {
			lie("not for a %s rank to say", id.Role)
			return nil
		}
		a := l.attempts[seq]
		if a == nil {
			if seq == 0 || seq > l.attemptSeq {
				lie("attempt %d was never begun", seq)
			} else {
				l.ignored[fmt.Sprintf("late %T", m)]++
			}
			return nil
		}
		side := a.src
		if role == ident.Decode {
			side = a.dst
		}
		if side.Index != id.Index {
			lie("attempt %s is not this replica's", a.id)
			return nil
		}
		return a
	}

	switch m := m.(type) {
	case *wire.Hello:
		if pid := l.gen; pid != nil && rank < len(l.gen.Ranks) && int(m.PID) != l.gen.Ranks[rank].PID {
			lie("process %d says it is %d", l.gen.Ranks[rank].PID, m.PID)
		}
	case *wire.Ready:
		l.ready(rank, m.Backend)
	case *wire.Reserved:
		if a := find(m.Attempt, ident.Decode); a != nil {
			l.move(a, transfer.Event{Kind: transfer.Reserved, Rank: id.Rank})
		}
	case *wire.Sealed:
		if a := find(m.Attempt, ident.Prefill); a != nil {
			l.sealed(a, id.Rank, m, lie)
		}
	case *wire.Landed:
		if a := find(m.Attempt, ident.Decode); a != nil {
			l.landed(a, id.Rank, m, lie)
		}
	case *wire.Verified:
		if a := find(m.Attempt, ident.Decode); a != nil {
			l.move(a, transfer.Event{Kind: transfer.Verified, Rank: id.Rank})
		}
	case *wire.Step:
		if id.Rank != 0 {
			lie("only rank 0 says that")
			return
		}
		for _, r := range m.Results {
			if a := find(r.Attempt, ident.Decode); a != nil {
				l.token(a, r, lie)
			}
			if l.sup.State != supUp {
				return
			}
		}
	case *wire.Quiet:
		kind, role := transfer.SourceQuiet, ident.Prefill
		if id.Role == ident.Decode {
			kind, role = transfer.TargetQuiet, ident.Decode
		}
		if a := find(m.Attempt, role); a != nil {
			l.move(a, transfer.Event{Kind: kind, Rank: id.Rank})
		}
	case *wire.Failed:
		if a := find(m.Attempt, id.Role); a != nil {
			l.failed(a, rank, m)
		}
	case *wire.Fatal:
		if l.first == nil {
			l.first = &death{rank: rank, text: m.Text}
		}
	case *wire.Dumped:
		l.o.Log.Event(observe.WorkerLog, fmt.Sprintf("%s: stacks", id), append(l.rankFields(rank), observe.Str("stacks", m.Text))...)
	default:
		lie("not for a rank to say")
	}
}

func (l *Loop) sealed(a *attempt, rank int, m *wire.Sealed, lie func(string, ...any)) {
	if int(m.Tokens) > a.tokens || int(m.Pages) > a.pages || m.Done && (int(m.Tokens) != a.tokens || int(m.Pages) != a.pages) {
		lie("%d tokens in %d pages, of %d in %d", m.Tokens, m.Pages, a.tokens, a.pages)
		return
	}
	if a.computed != nil {
		before := a.done()
		a.computed[rank] = max(a.computed[rank], int(m.Tokens))
		after := a.done()
		a.src.work -= after - before
		if after > before && a.request != nil {
			l.step(a.request, request.Event{Kind: request.Progress}, "")
		}
	}
	if !m.Done {
		return
	}
	l.move(a, transfer.Event{Kind: transfer.SourceDone, Rank: rank})
	if a.t.Sealed == a.t.Source && a.request != nil {
		l.step(a.request, request.Event{Kind: request.Prefilled}, "")
	}
}

func (l *Loop) landed(a *attempt, rank int, m *wire.Landed, lie func(string, ...any)) {
	if int(m.Pages) > a.pages {
		lie("%d pages of %d", m.Pages, a.pages)
		return
	}
	if int(m.Pages) <= a.landed[rank] {
		l.ignored["late landed"]++
		return
	}
	a.landed[rank] = int(m.Pages)
	if a.request == nil {
		return
	}
	l.step(a.request, request.Event{Kind: request.Moved}, "")
	if slices.Min(a.landed) == a.pages && a.request != nil {
		l.step(a.request, request.Event{Kind: request.Landed}, "")
	}
}

func (l *Loop) token(a *attempt, res wire.Result, lie func(string, ...any)) {
	finish := request.Finish(res.Finish)
	switch {
	case a.t.State < transfer.Arrived:
		lie("a token of %s before its pages were confirmed", a.id)
		return
	case finish > request.FinishLength:
		lie("finish %d", res.Finish)
		return
	}
	r := a.request
	if r == nil || r.m.State != request.Decoding {
		l.ignored["late token"]++
		return
	}
	if finish != request.FinishStop {
		r.tokens = append(r.tokens, res.Token)
		r.stream.push(res.Token)
		l.clockToken(r)
		if len(r.tokens) >= r.spec.MaxTokens && finish == 0 {
			lie("%s goes on after its last token", a.id)
			return
		}
	}
	l.step(r, request.Event{Kind: request.Token, Finish: finish}, "")
	l.grow(r)
}

// clockToken measures a delivered token.
func (l *Loop) clockToken(r *live) {
	if r.hidden {
		return
	}
	l.o.Meter.OutputTokens(1)
	l.completed = l.now
	if len(r.tokens) == 1 {
		r.rec.FirstToken = float64(l.now-r.began) / 1e9
	}
}

func (l *Loop) failed(a *attempt, rank int, m *wire.Failed) {
	text := fmt.Sprintf("%s: %s", l.ranks[rank], m.Text)
	switch m.Kind {
	case fault.DigestMismatch, fault.EpochChanged:
		word := map[fault.Kind]string{fault.DigestMismatch: "digest", fault.EpochChanged: "epoch"}[m.Kind]
		l.o.Meter.VerifyFailed(word)
		l.o.Meter.TransferFailed(a.src.label(), a.dst.label(), m.Kind)
		l.o.Log.Event(observe.VerifyFailed, fmt.Sprintf("attempt %s: %s", a.id, text), append(l.rankFields(rank), observe.Attempt(a.id), observe.Code(m.Kind.String()), observe.Reason(m.Text))...)
	}
	if a.request != nil {
		l.step(a.request, request.Event{Kind: request.Failed, Fault: m.Kind}, text)
	}
}
