package sample

import (
	"cmp"
	"math"
	"slices"
)

// candidate is a token that may be chosen.
type candidate struct {
	logit  float64
	weight uint64
	id     int32
}

// compare orders candidates from the best to the worst: by logit, the lower id of
// equals first.
func (a candidate) compare(b candidate) int {
	switch {
	case a.logit > b.logit:
		return -1
	case a.logit < b.logit:
		return 1
	}
	return cmp.Compare(a.id, b.id)
}

func byID(a, b candidate) int { return cmp.Compare(a.id, b.id) }

// best gives the k best of logits, the best first; 0 < k ≤ len(logits). It uses
// buf, and a heap with the worst at its root.
func best(buf []candidate, logits []float64, k int) []candidate {
	h := buf[:0]
	for i, x := range logits[:k] {
		h = append(h, candidate{logit: x, id: int32(i)})
	}
	down := func(i int) {
		top := h[i]
		for {
			j := 2*i + 1
			if j >= len(h) {
				break
			}
			if j+1 < len(h) && h[j+1].compare(h[j]) > 0 {
				j++
			}
			if h[j].compare(top) < 0 {
				break
			}
			h[i] = h[j]
			i = j
		}
		h[i] = top
	}
	for i := k/2 - 1; i >= 0; i-- {
		down(i)
	}
	worst := h[0].logit
	for i, x := range logits[k:] {
		// Ids ascend, so one that equals the worst is worse.
		if x > worst {
			h[0] = candidate{logit: x, id: int32(k + i)}
			down(0)
			worst = h[0].logit
		}
	}
	slices.SortFunc(h, candidate.compare)
	return h
}

// limit is where a set of the best tokens ends: they are those with a larger
// logit, and of those with this one the first equal, in order of their ids.
type limit struct {
	logit float64
	equal int
}

// admits reports whether the next token, in order of ids, belongs to the set.
func (l *limit) admits(logit float64) bool {
	if logit == l.logit {
		l.equal--
		return l.equal >= 0
	}
	return logit > l.logit
}

// cutter finds limits in large sets without sorting them. It holds only buffers.
type cutter struct {
	some   []candidate
	groups []uint16 // of each token, see weigh
	sums   [1 << digit]uint64
}

// digit is the number of bits of a key that are looked at in one pass.
const digit = 11

// key maps a logit, or -Inf, to an integer so that larger ones have larger keys.
// Zeros of either sign are equal.
func key(x float64) uint64 {
	if x == 0 {
		return 1 << 63
	}
	b := math.Float64bits(x)
	if b>>63 != 0 {
		return ^b
	}
	return b | 1<<63
}

// reach looks among candidates for the best whose weights come to target: it
// adds them up by the leading digit of their keys, finds the digit in which the
// target is reached, and goes on with the next digit of those that have it. The
// sum of all must be at least target, which is positive. It uses up some.
func (c *cutter) reach(some []candidate, target uint64) limit {
	for shift := 64; shift > 0 && len(some) > 1; {
		width := min(digit, shift)
		shift -= width
		mask := uint64(1)<<width - 1
		clear(c.sums[:])
		for i := range some {
			c.sums[key(some[i].logit)>>shift&mask] += some[i].weight
		}
		g := mask
		for c.sums[g] < target {
			target -= c.sums[g]
			g--
		}
		kept := some[:0]
		for _, s := range some {
			if key(s.logit)>>shift&mask == g {
				kept = append(kept, s)
			}
		}
		some = kept
	}
	// All that are left have one logit, so one weight.
	w := some[0].weight
	return limit{logit: some[0].logit, equal: int((target + w - 1) / w)}
}

// kth is the limit of the k best; 0 < k ≤ len(logits).
func (c *cutter) kth(logits []float64, k int) limit {
	c.some = c.some[:0]
	for i, x := range logits {
		c.some = append(c.some, candidate{logit: x, weight: 1, id: int32(i)})
	}
	return c.reach(c.some, uint64(k))
}

// weigh fills w with the weights of logits, the largest of which is most, and
// gives their sum.
func weigh(w []uint64, logits []float64, most, stretch float64) (total uint64) {
	w = w[:len(logits)]
	for i, x := range logits {
		var q uint64
		if y := float64((x - most) * stretch); y >= lightest {
			q, _ = weight(y)
			total += q
		}
		w[i] = q
	}
	return total
}

// Sixteen steps of the exponent make a group; lost is the group of what weighs 0.
const (
	groupSteps = 16
	lost       = -lightest/groupSteps + 1
)

// weighGroups is weigh, and also adds up weights by groups of similar logits: a
// larger group has smaller logits.
func (c *cutter) weighGroups(w []uint64, logits []float64, most, stretch float64) (total uint64) {
	clear(c.sums[:])
	if cap(c.groups) < len(logits) {
		c.groups = make([]uint16, len(logits))
	}
	w, c.groups = w[:len(logits)], c.groups[:len(logits)]
	groups := c.groups
	for i, x := range logits {
		y := float64((x - most) * stretch)
		if !(y >= lightest) {
			w[i], groups[i] = 0, lost
			continue
		}
		q, k := weight(y)
		g := uint64(-k) / groupSteps % (1 << digit)
		c.sums[g] += q
		total += q
		w[i], groups[i] = q, uint16(g)
	}
	return total
}

// topP appends to out the best tokens whose weights come to target, ids
// ascending. Weights and groups must come from weighGroups, and their sum be at
// least target, which is positive.
func (c *cutter) topP(out []candidate, w []uint64, logits []float64, target uint64) []candidate {
	edge := uint16(0)
	for c.sums[edge] < target {
		target -= c.sums[edge]
		edge++
	}
	first := len(out)
	c.some = c.some[:0]
	for i, g := range c.groups {
		if g > edge {
			continue
		}
		t := candidate{logit: logits[i], weight: w[i], id: int32(i)}
		out = append(out, t)
		if g == edge {
			c.some = append(c.some, t)
		}
	}
	// Of the group at the edge a part stays.
	end := c.reach(c.some, target)
	kept := out[:first]
	for _, t := range out[first:] {
		if c.groups[t.id] < edge || end.admits(t.logit) {
			kept = append(kept, t)
		}
	}
	return kept
}
