package batch

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestPrefillShares(t *testing.T) {
	for _, c := range []struct {
		left   []int
		budget int
		want   []int
	}{
		{nil, 512, []int{}},
		{[]int{4000}, 512, []int{512}},
		{[]int{4000, 20}, 512, []int{492, 20}},
		{[]int{4000, 4000}, 512, []int{448, 64}},
		{[]int{80, 80, 80, 80}, 64, []int{52, 4, 4, 4}},
		{[]int{5, 5, 5}, 2, []int{2, 0, 0}},
		{[]int{100, 1, 100}, 7, []int{6, 1, 0}},
	} {
		if got := Prefill(c.left, c.budget, 0); !slices.Equal(got, c.want) {
			t.Errorf("Prefill(%v, %d, 0) = %v, want %v", c.left, c.budget, got, c.want)
		}
	}
}

// A step is never too big, never empty while there is work, never gives more than
// is needed, and gives no prompt less than an even share of a quarter.
func TestPrefillBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		left := rapid.SliceOfN(rapid.IntRange(0, 1000), 0, 40).Draw(t, "left")
		budget := rapid.IntRange(1, 600).Draw(t, "budget")
		give, sum, need := Prefill(left, budget, rapid.IntRange(0, 1000).Draw(t, "turn")), 0, 0
		for i, n := range give {
			if n < 0 || n > left[i] {
				t.Fatalf("%d of %d", n, left[i])
			}
			if even := budget / 4 / len(left); n < min(even, left[i]) {
				t.Fatalf("prompt %d got %d, its share is %d", i, n, even)
			}
			sum, need = sum+n, need+left[i]
		}
		if sum != min(budget, need) {
			t.Fatalf("%d tokens of %d needed with a budget of %d", sum, need, budget)
		}
	})
}

// Generations that end again and again do not keep the oldest from its end: it moves on
// by a quarter of each step, whatever there is beside it.
func TestPrefillOldestIsNotPassedOver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		left := rapid.SliceOfN(rapid.IntRange(1, 1000), 1, 40).Draw(t, "left")
		budget := rapid.IntRange(4, 600).Draw(t, "budget")
		if give := Prefill(left, budget, rapid.IntRange(0, 1000).Draw(t, "turn")); give[0] < min(left[0], budget/4) {
			t.Fatalf("the oldest of %v gets %d of %d", left, give[0], budget)
		}
	})
}

// However many prompts there are and however long they are, each moves on within
// few steps; and the first is done long before the last.
func TestPrefillNoneStandsStill(t *testing.T) {
	// 64 prompts get a token each in four steps.
	left, still := make([]int, 64), make([]int, 64)
	for i := range left {
		left[i] = 1000 + i%7*500
	}
	first, last := 0, 0
	for step := 1; slices.Max(left) > 0; step++ {
		for i, n := range Prefill(left, BusyChunk, step) {
			if left[i] == 0 {
				continue
			}
			if still[i]++; n > 0 {
				still[i] = 0
			}
			if still[i] > 8 {
				t.Fatalf("prompt %d stands still for %d steps, with %v left", i, still[i], left)
			}
			if left[i] -= n; left[i] == 0 && first == 0 {
				first = step
			}
		}
		last = step
	}
	if first > last/20 {
		t.Errorf("the first of 64 is done after %d of %d steps", first, last)
	}
}
