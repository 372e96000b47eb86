package sample

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// ErrNoLogit says that no token could be chosen, because no logit is finite: the
// network computed nonsense.
var ErrNoLogit = errors.New("no logit is finite")

// MaxVocab is the largest vocabulary for which weights cannot overflow.
const MaxVocab = 1 << 18

// Sampler chooses tokens with one set of Params. It holds only buffers, which
// grow to about 40 bytes for each token of the vocabulary, and belongs to one
// goroutine; the sequences of a batch may share one through Reset.
type Sampler struct {
	p Params

	logits  []float64 // after bias and penalties
	weights []uint64
	kept    []candidate
	cut     cutter
}

// New prepares a sampler. Params must have passed Check.
func New(p Params) *Sampler { return &Sampler{p: p} }

// Reset gives the sampler other Params; it keeps its buffers.
func (s *Sampler) Reset(p Params) { s.p = p }

// Greedy is the token with the largest finite logit, the lowest of equals, or -1
// if none is finite.
func Greedy(logits []float32) int32 {
	best, at := float32(math.Inf(-1)), -1
	for i, l := range logits {
		if l > best && l <= math.MaxFloat32 {
			best, at = l, i
		}
	}
	return int32(at)
}

// Next chooses the token at position from its logits, which it does not change.
// The history holds the tokens before; it may be nil if Params.NeedsHistory says
// no. A bias or a token of the history outside the vocabulary is ignored.
func (s *Sampler) Next(logits []float32, h *History, position int) (int32, error) {
	if len(logits) > MaxVocab {
		return -1, fmt.Errorf("sample: %d logits, at most %d are supported", len(logits), MaxVocab)
	}
	if s.p.NeedsHistory() && h == nil {
		panic("sample: penalties without a history")
	}
	if s.p.Temperature == 0 {
		best := int32(-1)
		if len(s.p.Bias) == 0 && !s.p.NeedsHistory() {
			best = Greedy(logits)
		} else {
			best, _ = s.adjust(logits, h)
		}
		if best < 0 {
			return -1, ErrNoLogit
		}
		return best, nil
	}
	best, most := s.adjust(logits, h)
	if best < 0 {
		return -1, ErrNoLogit
	}
	return s.draw(most, Random(s.p.Seed, position)), nil
}

// adjust fills s.logits, applies bias and penalties, and gives the best token
// with its logit. Logits that are not finite become -Inf.
func (s *Sampler) adjust(logits []float32, h *History) (best int32, most float64) {
	n := len(logits)
	if cap(s.logits) < n {
		s.logits = make([]float64, n)
		s.weights = make([]uint64, n)
	}
	l := s.logits[:n]
	s.logits, s.weights = l, s.weights[:n]
	if len(s.p.Bias) == 0 && !s.p.NeedsHistory() {
		// The same as below, in one pass.
		top := float32(math.Inf(-1))
		best = -1
		for i, x := range logits {
			if !(x <= math.MaxFloat32) { // NaN too
				x = float32(math.Inf(-1))
			} else if x > top {
				best, top = int32(i), x
			}
			l[i] = float64(x)
		}
		return best, float64(top)
	}
	for i, x := range logits {
		l[i] = float64(x)
	}
	for _, b := range s.p.Bias {
		if b.Token >= 0 && int(b.Token) < n {
			l[b.Token] += float64(b.Value)
		}
	}
	if s.p.NeedsHistory() {
		repeats := s.p.repeats()
		for _, o := range h.seen {
			if o.token < 0 || int(o.token) >= n {
				continue
			}
			x := l[o.token]
			if repeats {
				if x > 0 {
					x /= s.p.Repetition
				} else {
					x *= s.p.Repetition
				}
			}
			if o.produced > 0 {
				x -= s.p.Presence + float64(float64(o.produced)*s.p.Frequency)
			}
			l[o.token] = x
		}
	}
	best, most = -1, math.Inf(-1)
	for i, x := range l {
		if !(x <= math.MaxFloat64) { // NaN too
			l[i] = math.Inf(-1)
		} else if x > most {
			best, most = int32(i), x
		}
	}
	return best, most
}

// draw chooses among s.logits by the random number u.
func (s *Sampler) draw(most float64, u uint64) int32 {
	l, w, scale := s.logits, s.weights, stretch(s.p.Temperature)
	k := s.p.TopK
	if k > 0 && k < len(l) && k <= fewK {
		return s.drawFew(most, scale, u)
	}
	if k > 0 && k < len(l) {
		// What is not kept weighs nothing from here on. The best token stays.
		end := s.cut.kth(l, k)
		for i, x := range l {
			if !end.admits(x) {
				l[i] = math.Inf(-1)
			}
		}
	}
	if !s.p.topP() && s.p.MinP == 0 {
		r, _ := bits.Mul64(u, weigh(w, l, most, scale))
		for i, q := range w {
			if r < q {
				return int32(i)
			}
			r -= q
		}
		panic("sample: weights do not add up") // r < their sum
	}
	kept := s.kept[:0]
	if s.p.topP() {
		total := s.cut.weighGroups(w, l, most, scale)
		kept = s.cut.topP(kept, w, l, share(s.p.TopP, total))
	} else {
		weigh(w, l, most, scale)
		for i, q := range w {
			if q >= s.least() {
				kept = append(kept, candidate{weight: q, id: int32(i)})
			}
		}
	}
	s.kept = kept
	return pick(s.atLeast(kept), u)
}

// Up to fewK tokens are found with a heap and sorted.
const fewK = 512

// drawFew is draw if TopK is small.
func (s *Sampler) drawFew(most, stretch float64, u uint64) int32 {
	s.kept = best(s.kept, s.logits, s.p.TopK)
	kept := s.kept
	var total uint64
	for i := range kept {
		if y := float64((kept[i].logit - most) * stretch); y >= lightest {
			kept[i].weight, _ = weight(y)
			total += kept[i].weight
		}
	}
	if s.p.topP() {
		target := share(s.p.TopP, total)
		n := 0
		for sum := uint64(0); sum < target; n++ {
			sum += kept[n].weight
		}
		kept = kept[:n]
	}
	kept = s.atLeast(kept)
	slices.SortFunc(kept, byID)
	return pick(kept, u)
}

// least is the weight that MinP asks for.
func (s *Sampler) least() uint64 { return uint64(math.Ceil(s.p.MinP * (1 << weightBits))) }

// atLeast drops what weighs less than MinP asks for.
func (s *Sampler) atLeast(kept []candidate) []candidate {
	if s.p.MinP == 0 {
		return kept
	}
	least := s.least()
	return slices.DeleteFunc(kept, func(c candidate) bool { return c.weight < least })
}

// pick chooses among candidates, whose ids ascend.
func pick(kept []candidate, u uint64) int32 {
	var total uint64
	for i := range kept {
		total += kept[i].weight
	}
	r, _ := bits.Mul64(u, total)
	for i := range kept {
		if r < kept[i].weight {
			return kept[i].id
		}
		r -= kept[i].weight
	}
	panic("sample: weights do not add up") // r < their sum
}

// share is ⌈p·total⌉, exactly, for 0 < p < 1.
func share(p float64, total uint64) uint64 {
	frac, exp := math.Frexp(p) // p = frac·2^exp, ½ ≤ frac < 1, exp ≤ 0
	hi, lo := bits.Mul64(uint64(frac*(1<<53)), total)
	shift := uint(53 - exp)
	if shift >= 128 {
		return 1
	}
	var q, rest uint64
	if shift >= 64 {
		q, rest = hi>>(shift-64), lo|hi<<(128-shift)
		if shift == 64 {
			q, rest = hi, lo
		}
	} else {
		q, rest = hi<<(64-shift)|lo>>shift, lo<<(64-shift)
	}
	if rest != 0 {
		q++
	}
	return max(q, 1)
}
