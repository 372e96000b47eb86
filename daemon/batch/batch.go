// Package batch decides what a worker computes next: how many tokens of which
// prompt go into a prefill step. It is pure.
//
// Whatever it decides, the answers are the same; only the time they take differs.
package batch

// BusyChunk is the number of tokens of a prefill step while decode wants the same
// cores. A running stream then waits for that many tokens at most, a few tens of
// milliseconds on two cores, at the cost of a few per cent of prefill's speed.
const BusyChunk = 64

// Prefill shares a budget of tokens among prompts. left is what each still needs,
// oldest first. Each gets an equal share, and what a prompt does not need goes to
// the others, oldest first; so a long prompt cannot keep a short one waiting, and
// a step is full while there is work for it. The result has one number a prompt.
func Prefill(left []int, budget int) []int {
	give := make([]int, len(left))
	for budget > 0 {
		open := 0
		for i, l := range left {
			if give[i] < l {
				open++
			}
		}
		if open == 0 {
			break
		}
		share := max(budget/open, 1)
		for i, l := range left {
			n := min(share, l-give[i], budget)
			give[i] += n
			budget -= n
		}
	}
	return give
}
