package core

import (
	"cmp"
	"fmt"
	"slices"

	"tandem/daemon/ident"
	"tandem/daemon/request"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
	"tandem/gpu/pagepool"
)

// requeue puts a request back among those that wait, in the order of arrival: it
// goes before all that came after it.
func (c *Core) requeue(r *live) {
	i, _ := slices.BinarySearchFunc(c.queue, r, arrival)
	c.queue = slices.Insert(c.queue, i, r)
}

func (c *Core) dequeue(r *live) {
	if i, found := slices.BinarySearchFunc(c.queue, r, arrival); found {
		c.queue = slices.Delete(c.queue, i, i+1)
	}
}

// running is how many requests hold a place beyond the queue.
func (c *Core) running() int { return c.placed }

// place starts attempts for those that wait, oldest first, while there is room.
// The oldest is not passed over: what it lacks comes back in bounded time.
func (c *Core) place() {
	if c.sup.State != supervise.Up {
		return
	}
	c.feed()
	if c.faltering() {
		return
	}
	for {
		r := c.next()
		if r == nil {
			return
		}
		a := c.reserve(r)
		if a == nil {
			return
		}
		c.dequeue(r)
		c.attempts[a.id.Seq] = a
		r.attempt, r.last = a, a.id
		r.rec.Src, r.rec.Dst = a.src.label(), a.dst.label()
		r.resumed = len(r.tokens) > 0
		r.rec.Attempts++
		c.step(r, request.Event{Kind: request.Placed}, fmt.Sprintf("%s: prefill %d → decode %d", a.id, a.src.Index, a.dst.Index))
		c.move(a, transfer.Event{Kind: transfer.Start})
	}
}

// faltering reports whether a rank shows no sign of life, if not yet for so long that
// the generation is ended for it. What is placed now would wait for that rank in vain,
// and use an attempt up; soon the rank is back or the next generation is there.
func (c *Core) faltering() bool {
	for i := range c.procs {
		if c.now > c.health[i].pulsed.Add(c.o.Progress/4) && c.health[i].pulsed != 0 {
			return true
		}
	}
	return false
}

// next is the request to be placed next, nil if none may be now.
//
// A request whose last attempt is due may be one that ends generations, or one that
// stood beside such a one. To tell which, it is run while no other request waits for
// its first token: what ends that generation too has convicted itself.
func (c *Core) next() *live {
	switch {
	case len(c.queue) == 0:
		return nil
	case c.canary != nil && c.canary.m.State == request.Queued:
		return c.canary
	case !c.o.Admit.Start(c.running()):
		return nil
	}
	r := c.queue[0]
	if c.suspects == 0 {
		return r
	}
	for _, a := range c.attempts {
		if o := a.request; o != nil && o.m.Fresh && !o.hidden && (c.suspect(r) || c.suspect(o)) {
			return nil
		}
	}
	return r
}

// reserve takes all that an attempt needs, or nothing.
func (c *Core) reserve(r *live) *attempt {
	total := len(r.spec.Prompt) + len(r.tokens)
	most := len(r.spec.Prompt) + r.spec.MaxTokens
	tokens := total - 1 // decode computes the last one itself: its logits are the first answer
	pages := c.o.Layout.Pages(tokens)
	want := c.o.Layout.Pages(min(total+c.o.Headroom, most))

	// What was promised counts, though it has not begun: else all of a burst would go to
	// the same replica.
	var dst *replica
	for _, d := range c.replicas[ident.Decode-1] {
		if d.pool.Free() >= want && d.work < c.o.MaxBatch && (dst == nil || d.bound < dst.bound) {
			dst = d
		}
	}
	if dst == nil {
		return nil
	}
	var src *replica
	slot, held := -1, 0
	for _, s := range c.replicas[ident.Prefill-1] {
		if s.pool != nil && s.pool.Free() < pages {
			continue
		}
		i, n := slices.Index(c.slots[s.Index], false), 0
		for _, taken := range c.slots[s.Index] {
			if taken {
				n++
			}
		}
		if i >= 0 && (src == nil || cmp.Or(cmp.Compare(s.work, src.work), cmp.Compare(n, held)) < 0) {
			src, slot, held = s, i, n
		}
	}
	if src == nil {
		return nil
	}
	target, _ := dst.pool.Reserve(want)
	var source *pagepool.Lease
	if src.pool != nil {
		source, _ = src.pool.Reserve(pages)
	}
	c.slots[src.Index][slot] = true
	dst.bound++
	c.seq++
	return &attempt{
		id: ident.Attempt{Generation: c.number, Seq: c.seq}, request: r, owner: r.spec.ID,
		t:   transfer.New(c.o.Transport, len(src.ranks), len(dst.ranks), pages == 0),
		src: src, dst: dst, slot: slot, target: target, source: source, pages: pages, tokens: tokens,
		computed: make([]int, len(src.ranks)), landed: make([]int, len(dst.ranks)), bound: true, room: want * c.o.Layout.PageTokens, began: c.now,
	}
}

// ahead is how many tokens before a sequence's pages are full it is given another:
// enough that decode never waits for one, however fast it is.
const ahead = 32

// grow gives a decoding sequence another page before it needs one.
func (c *Core) grow(r *live) {
	a := r.attempt
	if a == nil || !a.joined {
		return
	}
	length := len(r.spec.Prompt) + len(r.tokens)
	most := len(r.spec.Prompt) + r.spec.MaxTokens
	if length+ahead < a.room || a.room >= most {
		a.starving = false
		return
	}
	has := len(a.target.Pages())
	ps, ok := a.target.Grow(1)
	if !ok {
		a.starving = length >= a.room
		c.hungry = c.hungry || a.starving
		return
	}
	a.starving = false
	a.room += c.o.Layout.PageTokens
	c.leader(a.dst, &wire.Grow{Attempt: a.id.Seq, At: uint32(has), Pages: ps})
}

// feed finds pages for sequences that cannot go on without: first free ones, then
// those of the request that came last, which starts again when there is room.
// Nothing is lost by that but time: it goes on where it was.
func (c *Core) feed() {
	if !c.hungry {
		return
	}
	var starving []*live
	for _, a := range c.attempts {
		if a.starving && a.request != nil {
			starving = append(starving, a.request)
		}
	}
	slices.SortFunc(starving, arrival)
	var hungry *live
	for _, r := range starving {
		c.grow(r)
		if hungry == nil && r.attempt.starving {
			hungry = r
		}
	}
	if c.hungry = hungry != nil; !c.hungry {
		return
	}
	var last *live
	for _, a := range c.attempts {
		if a.dst != hungry.attempt.dst {
			continue
		}
		if a.request == nil {
			return // pages of this one are on their way back
		}
		if last == nil || a.request.ticket > last.ticket {
			last = a.request
		}
	}
	c.step(last, request.Event{Kind: request.Retracted}, "its KV pages are needed by an older request")
}
