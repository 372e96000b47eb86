package core

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
)

// stale reports whether something comes from another generation than the live one.
// It is counted, and changes nothing. The first of a kind is told in each generation.
func (c *Core) stale(g ident.Generation, rank int, kind string) bool {
	if g == c.number {
		return false
	}
	c.out.Fenced(kind)
	if !c.fenced[kind] {
		c.fenced[kind] = true
		text := fmt.Sprintf("%s of generation %d in generation %d", kind, g, c.number)
		c.out.Event(observe.FenceDrop, fmt.Sprintf("%s: dropped a %s", c.ranks[rank], text), append(c.rankFields(rank), observe.Str("kind", kind), observe.Int("stale_generation", int64(g)), observe.Reason(text))...)
	}
	return true
}

// word is a message's name: "sealed".
func word(m wire.Message) string {
	return strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", m), "*wire."))
}

// Frame takes in what a rank said over the socket of generation from, in a frame
// that carries generation g.
func (c *Core) Frame(now request.Instant, from, g ident.Generation, rank int, m wire.Message) {
	c.at(now, func() {
		if c.stale(from, rank, word(m)) || c.stale(g, rank, word(m)) {
			return
		}
		if rank < len(c.health) {
			c.health[rank].said, c.health[rank].heard = m, c.now
		}
		c.frame(rank, m)
	})
}

// Broken takes in that a rank's socket gave something that is no frame.
func (c *Core) Broken(now request.Instant, g ident.Generation, rank int, err error) {
	c.at(now, func() {
		if !c.stale(g, rank, "broken socket") {
			c.condemn("protocol", fmt.Sprintf("%s: %v", c.ranks[rank], err), &rank, observe.WorkerProtocol)
		}
	})
}

func (c *Core) rankFields(rank int) []observe.Field {
	return []observe.Field{observe.Generation(c.number), observe.Rank(c.ranks[rank])}
}

func (c *Core) frame(rank int, m wire.Message) {
	id := c.ranks[rank]
	lie := func(format string, args ...any) {
		c.condemn("protocol", fmt.Sprintf("%s: %T: %s", id, m, fmt.Sprintf(format, args...)), &rank, observe.WorkerProtocol)
	}
	// Messages about an attempt: the attempt must be known, and the rank one of its
	// own. An attempt that is closed is a late message's; that is no lie.
	find := func(seq uint64, role ident.Role) *attempt {
		if c.sup.State != supervise.Up {
			// The generation is ending: its requests have left it, and its pages wait
			// until all of it is reaped. What was said meanwhile changes nothing.
			c.ignored[fmt.Sprintf("%T while ending", m)]++
			return nil
		}
		if id.Role != role {
			lie("not for a %s rank to say", id.Role)
			return nil
		}
		a := c.attempts[seq]
		if a == nil {
			if seq == 0 || seq > c.seq {
				lie("attempt %d was never begun", seq)
			} else {
				c.ignored[fmt.Sprintf("late %T", m)]++
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
		if rank < len(c.procs) && int(m.PID) != c.procs[rank].PID {
			lie("process %d says it is %d", c.procs[rank].PID, m.PID)
		}
	case *wire.Ready:
		c.ready(rank, m.Backend)
	case *wire.Reserved:
		if a := find(m.Attempt, ident.Decode); a != nil {
			c.move(a, transfer.Event{Kind: transfer.Reserved, Rank: id.Rank})
		}
	case *wire.Sealed:
		if a := find(m.Attempt, ident.Prefill); a != nil {
			c.sealed(a, id.Rank, m, lie)
		}
	case *wire.Landed:
		if a := find(m.Attempt, ident.Decode); a != nil {
			c.landed(a, id.Rank, m, lie)
		}
	case *wire.Verified:
		if a := find(m.Attempt, ident.Decode); a != nil {
			c.move(a, transfer.Event{Kind: transfer.Verified, Rank: id.Rank})
		}
	case *wire.Step:
		if id.Role != ident.Decode || id.Rank != 0 {
			lie("only the leader of a decode replica says that")
			return
		}
		if c.sup.State != supervise.Up {
			c.ignored["*wire.Step while ending"]++
			return
		}
		c.steps(c.replicas[ident.Decode-1][id.Index], m, find, lie)
	case *wire.Quiet:
		kind, role := transfer.SourceQuiet, ident.Prefill
		if id.Role == ident.Decode {
			kind, role = transfer.TargetQuiet, ident.Decode
		}
		if a := find(m.Attempt, role); a != nil {
			c.move(a, transfer.Event{Kind: kind, Rank: id.Rank})
		}
	case *wire.Failed:
		if a := find(m.Attempt, id.Role); a != nil {
			c.failed(a, rank, m)
		}
	case *wire.Fatal:
		if c.first == nil {
			c.first = &death{rank: rank, text: m.Text}
		}
	case *wire.Dumped:
		fields := append(c.rankFields(rank), observe.Str("stacks", m.Text))
		if c.evidence != 0 && c.now < c.evidence.Add(evidenceEvery) {
			fields = append(fields, observe.Request(c.evidenceFor))
		}
		c.out.Event(observe.WorkerLog, fmt.Sprintf("%s: stacks", id), fields...)
	default:
		lie("not for a rank to say")
	}
}

func (c *Core) sealed(a *attempt, rank int, m *wire.Sealed, lie func(string, ...any)) {
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
			c.step(a.request, request.Event{Kind: request.Progress}, "")
		}
	}
	if !m.Done {
		return
	}
	c.move(a, transfer.Event{Kind: transfer.SourceDone, Rank: rank})
	if a.t.Sealed == a.t.Source && a.sealed == 0 {
		a.sealed = c.now
	}
	if a.t.Sealed == a.t.Source && a.request != nil {
		c.step(a.request, request.Event{Kind: request.Prefilled}, "")
	}
}

func (c *Core) landed(a *attempt, rank int, m *wire.Landed, lie func(string, ...any)) {
	if int(m.Pages) > a.pages {
		lie("%d pages of %d", m.Pages, a.pages)
		return
	}
	if int(m.Pages) <= a.landed[rank] {
		c.ignored["late landed"]++
		return
	}
	a.landed[rank] = int(m.Pages)
	if a.request == nil {
		return
	}
	c.step(a.request, request.Event{Kind: request.Moved}, "")
	if slices.Min(a.landed) == a.pages && a.request != nil {
		c.step(a.request, request.Event{Kind: request.Landed}, "")
	}
}

func (c *Core) token(a *attempt, res wire.Result, lie func(string, ...any)) {
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
		c.ignored["late token"]++
		return
	}
	if finish != request.FinishStop {
		r.tokens = append(r.tokens, res.Token)
		if !r.hidden {
			c.out.Token(r.ticket, res.Token)
		}
		c.clockToken(r)
		if len(r.tokens) >= r.spec.MaxTokens && finish == 0 {
			lie("%s goes on after its last token", a.id)
			return
		}
	}
	c.step(r, request.Event{Kind: request.Token, Finish: finish}, "")
	c.grow(r)
}

// maxHeld bounds the steps that are kept because an earlier one has not come.
const maxHeld = 32

// steps takes in a step, and those that waited for it. A step that is missing would
// be a token missing from answers: what comes after it waits, and if it does not come
// the generation ends and its requests go on from what was delivered.
func (c *Core) steps(d *replica, m *wire.Step, find func(uint64, ident.Role) *attempt, lie func(string, ...any)) {
	at, twice := slices.BinarySearchFunc(d.held, m, func(a, b *wire.Step) int { return cmp.Compare(a.Seq, b.Seq) })
	switch {
	case twice || m.Seq <= d.step:
		c.ignored["step again"]++
		return
	case len(d.held) == maxHeld:
		lie("step %d has not come, and %d later ones have", d.step+1, maxHeld)
		return
	}
	d.held = slices.Insert(d.held, at, m)
	for len(d.held) > 0 && d.held[0].Seq == d.step+1 {
		m := d.held[0]
		d.held = slices.Delete(d.held, 0, 1)
		d.step++
		for _, r := range m.Results {
			if a := find(r.Attempt, ident.Decode); a != nil {
				c.token(a, r, lie)
			}
		}
	}
	if len(d.held) == 0 {
		d.gap = 0
	} else if d.gap == 0 {
		d.gap = c.now
	}
}

// clockToken measures a delivered token.
func (c *Core) clockToken(r *live) {
	if r.hidden {
		return
	}
	c.out.OutputTokens(1)
	c.served()
	if len(r.tokens) == 1 {
		r.rec.FirstToken = float64(c.now-r.began) / 1e9
	}
}

func (c *Core) failed(a *attempt, rank int, m *wire.Failed) {
	text := fmt.Sprintf("%s: %s", c.ranks[rank], m.Text)
	switch m.Kind {
	case fault.DigestMismatch, fault.EpochChanged:
		word := map[fault.Kind]string{fault.DigestMismatch: "digest", fault.EpochChanged: "epoch"}[m.Kind]
		c.out.VerifyFailed(word)
		c.out.Event(observe.VerifyFailed, fmt.Sprintf("attempt %s: %s", a.id, text), append(a.fields(), observe.Rank(c.ranks[rank]), observe.Code(m.Kind.String()), observe.Reason(m.Text))...)
	}
	if a.request == nil {
		c.ignored["late failure"]++
		return
	}
	switch m.Kind {
	case fault.DigestMismatch, fault.EpochChanged, fault.TransferTimeout:
		c.strike(a, m.Kind)
	}
	c.step(a.request, request.Event{Kind: request.Failed, Fault: m.Kind}, text)
}
