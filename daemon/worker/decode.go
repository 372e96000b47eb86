package worker

import (
	"fmt"
	"slices"

	"tandem/daemon/fault"
	"tandem/daemon/request"
	"tandem/daemon/wire"
	"tandem/kernels"
	"tandem/model/sample"
)

// decoder is what the leader of a decode replica knows: the running batch.
type decoder struct {
	*rank
	vocab  int
	seqs   []*sequence // in the order in which they are served
	retire []uint64    // ended by themselves, to be retired by the next plan
	gone   tombs
	steps  uint64

	sampler *sample.Sampler // of whichever sequence is at hand
}

type sequence struct {
	attempt uint64
	tokens  []int32 // the cache holds all but the last
	left    int     // tokens still to produce
	stop    []int32
	params  sample.Params
	history *sample.History // nil if the parameters need none
	pages   []uint32
}

func newDecoder(r *rank, vocab int) *decoder {
	return &decoder{rank: r, vocab: vocab, sampler: sample.New(sample.Params{})}
}

func (d *decoder) demand() int { return len(d.seqs) }

func (d *decoder) find(attempt uint64) int {
	return slices.IndexFunc(d.seqs, func(s *sequence) bool { return s.attempt == attempt })
}

func (d *decoder) order(m wire.Message) error {
	switch m := m.(type) {
	case *wire.Join:
		if d.gone.has(m.Attempt) {
			return nil // given up before it came, or it has ended
		}
		n := len(m.Tokens)
		if n == 0 || n > d.setup.Context || m.MaxTokens == 0 || int(m.Prompt) > n || len(m.Pages) > d.setup.MaxPages || d.find(m.Attempt) >= 0 {
			return fmt.Errorf("join of attempt %d: %d tokens of which %d are the prompt, %d pages, %d to come", m.Attempt, n, m.Prompt, len(m.Pages), m.MaxTokens)
		}
		for _, t := range m.Tokens {
			if t < 0 || int(t) >= d.vocab {
				return fmt.Errorf("join of attempt %d: token %d of a vocabulary of %d", m.Attempt, t, d.vocab)
			}
		}
		if err := inPool(m.Pages, d.setup.KV.Pages); err != nil {
			return fmt.Errorf("join of attempt %d: %w", m.Attempt, err)
		}
		if err := m.Params.Check(); err != nil {
			return fmt.Errorf("join of attempt %d: %w", m.Attempt, err)
		}
		s := &sequence{attempt: m.Attempt, tokens: m.Tokens, left: int(m.MaxTokens), stop: m.Stop, params: m.Params}
		if m.Params.NeedsHistory() {
			s.history = sample.NewHistory(m.Tokens[:m.Prompt])
			for _, t := range m.Tokens[m.Prompt:] {
				s.history.Accept(t)
			}
		}
		for _, pg := range m.Pages {
			s.pages = append(s.pages, pg.Index)
		}
		d.seqs = append(d.seqs, s)
	case *wire.Grow:
		k := d.find(m.Attempt)
		if k < 0 {
			return nil // it ended meanwhile
		}
		if err := inPool(m.Pages, d.setup.KV.Pages); err != nil {
			return fmt.Errorf("grow of attempt %d: %w", m.Attempt, err)
		}
		s := d.seqs[k]
		switch {
		case int(m.At) < len(s.pages):
			return nil // they are there
		case int(m.At) > len(s.pages):
			return fmt.Errorf("grow of attempt %d after %d pages, it has %d", m.Attempt, m.At, len(s.pages))
		}
		if len(s.pages)+len(m.Pages) > d.setup.MaxPages {
			return fmt.Errorf("grow of attempt %d to %d pages, at most %d", m.Attempt, len(s.pages)+len(m.Pages), d.setup.MaxPages)
		}
		for _, pg := range m.Pages {
			s.pages = append(s.pages, pg.Index)
		}
	case *wire.Quiesce:
		d.gone.add(m.Attempt)
		d.seqs = slices.DeleteFunc(d.seqs, func(s *sequence) bool { return s.attempt == m.Attempt })
	default:
		return fmt.Errorf("%T is not for a decode rank", m)
	}
	return nil
}

// next makes a step of one token for each sequence that has room in its pages. A
// sequence without room waits for Grow; the daemon knows.
func (d *decoder) next(bool) *plan {
	out := &plan{retire: d.retire}
	d.retire = nil
	for _, s := range d.seqs {
		n := len(s.tokens)
		need := d.layout.Pages(n)
		if need > len(s.pages) {
			continue
		}
		if len(out.spans) == d.setup.MaxOut {
			break
		}
		out.spans = append(out.spans, span{attempt: s.attempt, pos: n - 1, tokens: s.tokens[n-1:], pages: s.pages[:need], out: true})
	}
	if len(out.spans) == 0 && len(out.retire) == 0 {
		return nil
	}
	return out
}

// done chooses each sequence's next token.
func (d *decoder) done(p *plan, logits kernels.Logits) error {
	if len(p.spans) == 0 {
		return nil
	}
	d.steps++
	step := &wire.Step{Seq: d.steps}
	for i := range p.spans {
		k := d.find(p.spans[i].attempt)
		if k < 0 {
			return fmt.Errorf("attempt %d was forgotten while it ran", p.spans[i].attempt)
		}
		s := d.seqs[k]
		token, err := d.choose(s, logits, i)
		if err != nil {
			d.post.send(&wire.Failed{Attempt: s.attempt, Kind: fault.Numerics, Text: err.Error()})
			d.end(k)
			continue
		}
		r := wire.Result{Attempt: s.attempt, Token: token}
		s.left--
		switch {
		case slices.Contains(s.stop, token):
			r.Finish = uint8(request.FinishStop)
		case s.left == 0 || len(s.tokens)+1 > d.setup.Context:
			r.Finish = uint8(request.FinishLength)
		}
		step.Results = append(step.Results, r)
		if r.Finish != 0 {
			d.end(k)
			continue
		}
		s.tokens = append(s.tokens, token)
		if s.history != nil {
			s.history.Accept(token)
		}
	}
	d.post.send(step)
	if len(d.seqs) > d.setup.MaxOut { // those that had to wait are first next time
		d.seqs = append(slices.Clone(d.seqs[d.setup.MaxOut:]), d.seqs[:d.setup.MaxOut]...)
	}
	return nil
}

// choose is the next token of a sequence: a function of its logits, parameters,
// history and position, and of nothing else.
func (d *decoder) choose(s *sequence, logits kernels.Logits, i int) (int32, error) {
	if s.params.Temperature == 0 && s.history == nil && len(s.params.Bias) == 0 {
		if best := logits.Best(i); best >= 0 {
			return best, nil
		}
		return -1, sample.ErrNoLogit
	}
	d.sampler.Reset(s.params)
	return d.sampler.Next(logits.Row(i), s.history, len(s.tokens))
}

func (d *decoder) end(k int) {
	d.gone.add(d.seqs[k].attempt) // its pages are another's soon
	d.retire = append(d.retire, d.seqs[k].attempt)
	d.seqs = slices.Delete(d.seqs, k, k+1)
}
