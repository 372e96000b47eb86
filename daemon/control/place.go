package control

import (
	"fmt"
	"slices"

	"tandem/daemon/ident"
	"tandem/daemon/request"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
	"tandem/gpu/pagepool"
)

const supUp = supervise.Up

// requeue puts a request back among those that wait, in the order of arrival: it
// goes before all that came after it.
func (l *Loop) requeue(r *live) {
	i, _ := slices.BinarySearchFunc(l.queue, r, func(a, b *live) int { return int(int64(a.arrival) - int64(b.arrival)) })
	l.queue = slices.Insert(l.queue, i, r)
}

func (l *Loop) dequeue(r *live) {
	l.queue = slices.DeleteFunc(l.queue, func(q *live) bool { return q == r })
}

// running is how many requests hold a place beyond the queue.
func (l *Loop) running() int {
	n := len(l.requests)
	for _, r := range l.queue {
		if !r.hidden {
			n--
		}
	}
	return n
}

// place starts attempts for those that wait, oldest first, while there is room.
// The oldest is not passed over: what it lacks comes back in bounded time.
func (l *Loop) place() {
	if l.sup.State != supUp || l.gen == nil {
		return
	}
	l.feed()
	for len(l.queue) > 0 {
		r := l.queue[0]
		if !r.hidden && !l.o.Admit.Start(l.running()) {
			return
		}
		a := l.reserve(r)
		if a == nil {
			return
		}
		l.queue = l.queue[1:]
		l.attempts[a.id.Seq] = a
		r.attempt = a
		r.resumed = len(r.tokens) > 0
		r.rec.Attempts++
		l.step(r, request.Event{Kind: request.Placed}, fmt.Sprintf("%s: prefill %d → decode %d", a.id, a.src.Index, a.dst.Index))
		l.move(a, transfer.Event{Kind: transfer.Start})
	}
}

// reserve takes all that an attempt needs, or nothing.
func (l *Loop) reserve(r *live) *attempt {
	p := &l.o.Plan
	total := len(r.spec.Prompt) + len(r.tokens)
	most := len(r.spec.Prompt) + r.spec.MaxTokens
	tokens := total - 1 // decode computes the last one itself: its logits are the first answer
	pages := p.Layout.Pages(tokens)
	want := p.Layout.Pages(min(total+l.o.Headroom, most))

	var dst *replica
	for _, d := range l.replicas[ident.Decode-1] {
		if d.pool.Free() >= want && d.work < l.o.MaxBatch && (dst == nil || d.work < dst.work) {
			dst = d
		}
	}
	if dst == nil {
		return nil
	}
	var src *replica
	slot := -1
	for _, s := range l.replicas[ident.Prefill-1] {
		if s.pool != nil && s.pool.Free() < pages || src != nil && s.work >= src.work {
			continue
		}
		if i := slices.Index(l.slots[s.Index], false); i >= 0 {
			src, slot = s, i
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
	l.slots[src.Index][slot] = true
	l.attemptSeq++
	return &attempt{
		id: ident.Attempt{Generation: l.number, Seq: l.attemptSeq}, request: r,
		t:   transfer.New(p.Transport, len(src.ranks), len(dst.ranks), pages == 0),
		src: src, dst: dst, slot: slot, target: target, source: source, pages: pages, tokens: tokens,
		computed: make([]int, len(src.ranks)), landed: make([]int, len(dst.ranks)), room: want * p.Layout.PageTokens, began: l.now,
	}
}

// ahead is how many tokens before a sequence's pages are full it is given another:
// enough that decode never waits for one, however fast it is.
const ahead = 32

// grow gives a decoding sequence another page before it needs one.
func (l *Loop) grow(r *live) {
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
	ps, ok := a.target.Grow(1)
	if !ok {
		a.starving = length >= a.room
		return
	}
	a.starving = false
	a.room += l.o.Plan.Layout.PageTokens
	l.leader(a.dst, &wire.Grow{Attempt: a.id.Seq, Pages: ps})
}

// feed finds pages for sequences that cannot go on without: first free ones, then
// those of the request that came last, which starts again when there is room.
// Nothing is lost by that but time: it goes on where it was.
func (l *Loop) feed() {
	var hungry *live
	for _, a := range l.attempts {
		if !a.starving || a.request == nil {
			continue
		}
		l.grow(a.request)
		if a.starving && (hungry == nil || a.request.arrival < hungry.arrival) {
			hungry = a.request
		}
	}
	if hungry == nil {
		return
	}
	var last *live
	for _, a := range l.attempts {
		if a.dst != hungry.attempt.dst {
			continue
		}
		if a.request == nil {
			return // pages of this one are on their way back
		}
		if last == nil || a.request.arrival > last.arrival {
			last = a.request
		}
	}
	l.step(last, request.Event{Kind: request.Retracted}, "its KV pages are needed by an older request")
}
