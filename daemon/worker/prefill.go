package worker

import (
	"fmt"
	"slices"

	"tandem/daemon/batch"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
	"tandem/gpu/pagepool"
	"tandem/kernels"
)

// maxPrefillSpans bounds the prompts that share one prefill step.
const maxPrefillSpans = 64

// prefiller is what the leader of a prefill replica knows: prompts to compute.
type prefiller struct {
	*rank
	jobs []*job // oldest first
	turn int    // steps planned
	gone tombs
}

type job struct {
	attempt uint64
	slot    uint32
	tokens  []int32
	done    int
	src     []uint32
	epochs  []uint32
	dst     []pagepool.Page
}

func newPrefiller(r *rank) *prefiller { return &prefiller{rank: r} }

func (p *prefiller) demand() int { return 0 }

func (p *prefiller) order(m wire.Message) error {
	switch m := m.(type) {
	case *wire.Prefill:
		if p.gone.has(m.Attempt) {
			return nil // given up before it came, or done
		}
		if slices.ContainsFunc(p.jobs, func(j *job) bool { return j.attempt == m.Attempt }) {
			return fmt.Errorf("prefill of attempt %d, again", m.Attempt)
		}
		want := p.layout.Pages(len(m.Tokens))
		if len(m.Tokens) == 0 || len(m.Src) != want || int(m.Slot) >= p.setup.Slots || want > p.setup.MaxPages {
			return fmt.Errorf("prefill of attempt %d: %d tokens, %d pages, slot %d", m.Attempt, len(m.Tokens), len(m.Src), m.Slot)
		}
		if err := inPool(m.Src, p.setup.KV.Pages); err != nil {
			return fmt.Errorf("prefill of attempt %d: %w", m.Attempt, err)
		}
		j := &job{attempt: m.Attempt, slot: m.Slot, tokens: m.Tokens}
		for _, pg := range m.Src {
			j.src, j.epochs = append(j.src, pg.Index), append(j.epochs, pg.Epoch)
		}
		if p.setup.Transport == transfer.Push {
			if len(m.Dst) != want {
				return fmt.Errorf("prefill of attempt %d: %d pages to push to, want %d", m.Attempt, len(m.Dst), want)
			}
			if err := inPool(m.Dst, p.setup.Peer.Pages); err != nil {
				return fmt.Errorf("prefill of attempt %d: %w", m.Attempt, err)
			}
			j.dst = m.Dst
		}
		p.jobs = append(p.jobs, j)
	case *wire.Quiesce:
		p.gone.add(m.Attempt)
		p.jobs = slices.DeleteFunc(p.jobs, func(j *job) bool { return j.attempt == m.Attempt })
	default:
		return fmt.Errorf("%T is not for a prefill rank", m)
	}
	return nil
}

func inPool(pages []pagepool.Page, total int) error {
	for _, pg := range pages {
		if int64(pg.Index) >= int64(total) {
			return fmt.Errorf("page %d of a pool of %d", pg.Index, total)
		}
	}
	return nil
}

func (p *prefiller) next(busy bool) *plan {
	if len(p.jobs) == 0 {
		return nil
	}
	budget := min(p.setup.Chunk, p.setup.MaxRows)
	if busy || len(p.jobs) > 1 { // with several prompts, the first should not wait for a step of all
		budget = min(budget, batch.BusyChunk)
	}
	n := min(len(p.jobs), maxPrefillSpans)
	left := make([]int, n)
	for i, j := range p.jobs[:n] {
		left[i] = len(j.tokens) - j.done
	}
	out := new(plan)
	p.turn++
	for i, give := range batch.Prefill(left, budget, p.turn) {
		if give == 0 {
			continue
		}
		j := p.jobs[i]
		end := j.done + give
		pages := p.layout.Pages(end)
		s := span{attempt: j.attempt, pos: j.done, tokens: j.tokens[j.done:end], pages: j.src[:pages], epochs: j.epochs[:pages],
			slot: j.slot, sealing: true, last: end == len(j.tokens)}
		if j.dst != nil {
			s.target = j.dst[:pages]
		}
		out.spans = append(out.spans, s)
	}
	return out
}

func (p *prefiller) done(pl *plan, _ kernels.Logits) error {
	for i := range pl.spans {
		s := &pl.spans[i]
		k := slices.IndexFunc(p.jobs, func(j *job) bool { return j.attempt == s.attempt })
		if k < 0 {
			return fmt.Errorf("prefill of attempt %d was forgotten while it ran", s.attempt)
		}
		if p.jobs[k].done = s.pos + len(s.tokens); s.last {
			p.gone.add(s.attempt) // its pages are another's soon
			p.jobs = slices.Delete(p.jobs, k, k+1)
		}
	}
	return nil
}

// tombs remembers attempts that were given up or are over, so that an order for one
// that arrives late, or again, is refused. Attempts are never used again, and orders are not late
// by thousands of attempts.
type tombs struct {
	set   map[uint64]bool
	order []uint64
}

const maxTombs = 4096

func (t *tombs) has(a uint64) bool { return t.set[a] }

func (t *tombs) add(a uint64) {
	if t.set == nil {
		t.set = map[uint64]bool{}
	}
	if t.set[a] {
		return
	}
	t.set[a] = true
	if t.order = append(t.order, a); len(t.order) > maxTombs {
		delete(t.set, t.order[0])
		t.order = t.order[1:]
	}
}
