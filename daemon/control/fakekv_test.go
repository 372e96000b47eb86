package control

import (
	"slices"

	"tandem/gpu/pagepool"
)

// The KV memory of the fake workers. What a token leaves in the cache depends on all
// that lay there before it, as in a network, and the next token depends on all of it:
// a stale, lost or misplaced page changes the rest of the answer.

const vocabulary = 1 << 24

func fold(acc, x uint64) uint64 {
	acc = (acc ^ x) * 0x9E3779B97F4A7C15
	return acc ^ acc>>29
}

// cellOf is what unit u keeps of a token, acc being all that came before.
func cellOf(acc uint64, u, pos int, token int32) uint64 {
	return fold(fold(acc, uint64(u+1)), uint64(pos)<<32|uint64(uint32(token)))
}

// tokenOf is the token that follows n tokens, acc being what they left.
func tokenOf(acc uint64, n int) int32 { return int32(fold(acc, uint64(n)) % vocabulary) }

// undisturbed is the answer of n tokens to a prompt, computed with no worker at all.
func undisturbed(prompt []int32, n, units int) []int32 {
	all := slices.Clone(prompt)
	acc, pos := uint64(0), 0
	for len(all) < len(prompt)+n {
		for ; pos < len(all); pos++ {
			was := acc
			for u := range units {
				acc = fold(acc, cellOf(was, u, pos, all[pos]))
			}
		}
		all = append(all, tokenOf(acc, pos))
	}
	return all[len(prompt):]
}

// fakePage is one unit's page: its header word and its contents.
type fakePage struct {
	epoch  uint32
	sealed bool
	cells  []uint64
}

func (p *fakePage) is(pg pagepool.Page) bool { return p.sealed && p.epoch == pg.Epoch }

// arena is the pages of one side: by unit, then by index.
type arena [][]fakePage

func newArena(units, pages, pageTokens int) arena {
	a := make(arena, units)
	slab := make([]uint64, units*pages*pageTokens)
	for u := range a {
		a[u] = make([]fakePage, pages)
		for i := range a[u] {
			a[u][i].cells, slab = slab[:pageTokens:pageTokens], slab[pageTokens:]
		}
	}
	return a
}

// read folds what n tokens left in the pages of a sequence.
func (a arena) read(pages []uint32, n, pageTokens int) (acc uint64) {
	for pos := range n {
		for u := range a {
			acc = fold(acc, a[u][pages[pos/pageTokens]].cells[pos%pageTokens])
		}
	}
	return acc
}

// write adds one token to a sequence, and to acc.
func (a arena) write(pages []uint32, pos, pageTokens int, token int32, acc uint64) uint64 {
	was := acc
	for u := range a {
		c := cellOf(was, u, pos, token)
		a[u][pages[pos/pageTokens]].cells[pos%pageTokens] = c
		acc = fold(acc, c)
	}
	return acc
}

// column is what one unit of an attempt has published on its replica's board.
type column struct {
	attempt uint64
	digests []uint64
}

func digestOf(attempt uint64, u, ordinal int, cells []uint64) uint64 {
	acc := fold(fold(fold(0, attempt), uint64(u)), uint64(ordinal))
	for _, c := range cells {
		acc = fold(acc, c)
	}
	return acc
}
