// Package batch decides what a worker computes next: how many tokens of which
// prompt go into a prefill step. It is pure.
//
// Whatever it decides, the answers are the same; only the time they take differs.
package batch

import "slices"

// BusyChunk is the number of tokens of a prefill step while decode wants the same
// cores, or several prompts wait. A running stream then waits for that many tokens at
// most, a few tens of milliseconds on two cores, at the cost of a few per cent of
// prefill's speed; and the first of many prompts does not wait for a step of all.
const BusyChunk = 64

// Prefill shares a budget of tokens among prompts. left is what each still needs,
// oldest first; the result has one number for each, and a step is full while there
// is work for it. turn counts the steps.
//
// A quarter is dealt out evenly, in turns if it does not reach for all, so that none
// stands still. A quarter is the oldest's, so that its end comes in bounded time however
// often everything begins anew. The rest goes to those with least left, one after
// another: were all computed evenly, all would be done only when the last is, and the
// streams that a new generation resumes would go on together at the end instead of one
// by one from the beginning.
func Prefill(left []int, budget, turn int) []int {
	give := make([]int, len(left))
	var open []int
	for i, l := range left {
		if l > 0 {
			open = append(open, i)
		}
	}
	quarter := max(budget/4, 1)
	even := quarter
	share := max(even/max(len(open), 1), 1)
	start := turn * quarter
	for k := range open {
		i := open[(start+k)%len(open)]
		n := min(share, left[i], even)
		give[i] += n
		even, budget = even-n, budget-n
	}
	if len(open) > 0 {
		n := min(left[open[0]]-give[open[0]], quarter, budget)
		give[open[0]] += n
		budget -= n
	}
	slices.SortStableFunc(open, func(a, b int) int { return left[a] - left[b] })
	for _, i := range open {
		n := min(left[i]-give[i], budget)
		give[i] += n
		budget -= n
	}
	return give
}
