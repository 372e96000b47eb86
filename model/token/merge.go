package token

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
)

// merge is what becomes of a pair of tokens, and how early.
type merge struct {
	rank uint32
	id   int32
}

const noMerge = ^uint32(0)

// pairTable maps pairs of tokens to merges: open addressing with linear probing,
// at most half full. Key 0 marks an empty place; keys are one more than the pair.
type pairTable struct {
	keys   []uint64
	merges []merge
	shift  uint
}

func (p *pairTable) init(n int) {
	bits := uint(4)
	for 1<<bits < 2*n {
		bits++
	}
	p.shift = 64 - bits
	p.keys = make([]uint64, 1<<bits)
	p.merges = make([]merge, 1<<bits)
}

func (p *pairTable) place(key uint64) int {
	return int(key * 0x9e3779b97f4a7c15 >> p.shift)
}

func pairKey(l, r int32) uint64 { return uint64(uint32(l))<<32 | uint64(uint32(r)) + 1 }

// add enters a merge. Of equal pairs the first, which has the better rank, stays.
func (p *pairTable) add(l, r int32, m merge) {
	key := pairKey(l, r)
	i := p.place(key)
	for p.keys[i] != 0 {
		if p.keys[i] == key {
			return
		}
		i = (i + 1) & (len(p.keys) - 1)
	}
	p.keys[i], p.merges[i] = key, m
}

// find gives the merge of l and r; its rank is noMerge if there is none. A
// missing byte, -1, merges with nothing.
func (p *pairTable) find(l, r int32) merge {
	if l < 0 || r < 0 {
		return merge{rank: noMerge}
	}
	key := pairKey(l, r)
	for i := p.place(key); ; i = (i + 1) & (len(p.keys) - 1) {
		switch p.keys[i] {
		case key:
			return p.merges[i]
		case 0:
			return merge{rank: noMerge}
		}
	}
}

// Words up to shortWord bytes are merged by looking for the best pair again and
// again, which is quadratic but quick; longer ones with a heap.
const shortWord = 48

// word appends the tokens of one word.
func (t *Tokenizer) word(dst []int32, w string) []int32 {
	if len(w) == 1 {
		if id := t.bytes[w[0]]; id >= 0 {
			dst = append(dst, id)
		}
		return dst
	}
	if len(w) > shortWord {
		if t.whole {
			if id, ok := t.words[w]; ok {
				return append(dst, id)
			}
		}
		return t.mergeLong(dst, w)
	}
	slot := t.cache.slot(w)
	if e := slot.Load(); e != nil && e.word == w {
		return append(dst, e.ids...)
	}
	n := len(dst)
	if id, ok := t.words[w]; ok {
		dst = append(dst, id)
	} else {
		dst = t.mergeShort(dst, w)
	}
	slot.Store(&cachedWord{word: strings.Clone(w), ids: append([]int32(nil), dst[n:]...)})
	return dst
}

func (t *Tokenizer) mergeShort(dst []int32, w string) []int32 {
	var ids [shortWord]int32
	var next [shortWord]merge // merge of ids[i] and ids[i+1]
	n := len(w)
	for i := range n {
		ids[i] = t.bytes[w[i]]
		if i > 0 {
			next[i-1] = t.pairs.find(ids[i-1], ids[i])
		}
	}
	for n > 1 {
		best, rank := -1, noMerge
		for i := range n - 1 {
			if next[i].rank < rank {
				best, rank = i, next[i].rank
			}
		}
		if best < 0 {
			break
		}
		ids[best] = next[best].id
		copy(ids[best+1:n-1], ids[best+2:n])
		copy(next[best:n-2], next[best+1:n-1])
		n--
		if best > 0 {
			next[best-1] = t.pairs.find(ids[best-1], ids[best])
		}
		if best+1 < n {
			next[best] = t.pairs.find(ids[best], ids[best+1])
		}
	}
	for _, id := range ids[:n] {
		if id >= 0 {
			dst = append(dst, id)
		}
	}
	return dst
}

// candidate is a pair that may be merged: ids as they were when it was found.
type candidate struct {
	key         uint64 // rank, then place of the left part
	left, right int32
}

// mergeLong merges with a heap of candidates, O(n log n), and takes about
// 30 bytes of memory for each byte of the word while it runs.
func (t *Tokenizer) mergeLong(dst []int32, w string) []int32 {
	n := len(w)
	ids := make([]int32, n)
	prev := make([]int32, n)
	next := make([]int32, n)
	for i := range n {
		ids[i] = t.bytes[w[i]]
		prev[i], next[i] = int32(i-1), int32(i+1)
	}
	heap := make([]candidate, 0, n)
	consider := func(l, r int32) {
		if l < 0 || int(r) >= n {
			return
		}
		if m := t.pairs.find(ids[l], ids[r]); m.rank != noMerge {
			heap = push(heap, candidate{uint64(m.rank)<<32 | uint64(l), ids[l], ids[r]})
		}
	}
	for i := range int32(n) {
		consider(i, i+1)
	}
	const gone = -2
	for len(heap) > 0 {
		var c candidate
		c, heap = pop(heap)
		l := int32(uint32(c.key))
		r := next[l]
		// Either part may have been merged with another since.
		if ids[l] != c.left || int(r) >= n || ids[r] != c.right {
			continue
		}
		ids[l] = t.pairs.find(c.left, c.right).id
		ids[r] = gone
		next[l] = next[r]
		if int(next[l]) < n {
			prev[next[l]] = l
		}
		consider(prev[l], l)
		consider(l, next[l])
	}
	for _, id := range ids {
		if id >= 0 {
			dst = append(dst, id)
		}
	}
	return dst
}

func push(h []candidate, c candidate) []candidate {
	h = append(h, c)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up].key <= c.key {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = c
	return h
}

func pop(h []candidate) (candidate, []candidate) {
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	i := 0
	for {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if down+1 < len(h) && h[down+1].key < h[down].key {
			down++
		}
		if last.key <= h[down].key {
			break
		}
		h[i] = h[down]
		i = down
	}
	if len(h) > 0 {
		h[i] = last
	}
	return top, h
}

// wordCache remembers the tokens of words: a table in which a word has one
// place and the last to come stays. At worst it holds cachePlaces words of
// shortWord bytes with as many tokens, about 9 MB.
type wordCache struct {
	seed   maphash.Seed
	places []atomic.Pointer[cachedWord]
}

type cachedWord struct {
	word string
	ids  []int32
}

const cachePlaces = 1 << 15

func (c *wordCache) init() {
	c.seed = maphash.MakeSeed()
	c.places = make([]atomic.Pointer[cachedWord], cachePlaces)
}

func (c *wordCache) slot(w string) *atomic.Pointer[cachedWord] {
	return &c.places[maphash.String(c.seed, w)%cachePlaces]
}
