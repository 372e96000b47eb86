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
		{[]int{4000, 4000}, 512, []int{256, 256}},
		{[]int{5, 5, 5}, 2, []int{1, 1, 0}},
		{[]int{100, 1, 100}, 7, []int{3, 1, 3}},
	} {
		if got := Prefill(c.left, c.budget); !slices.Equal(got, c.want) {
			t.Errorf("Prefill(%v, %d) = %v, want %v", c.left, c.budget, got, c.want)
		}
	}
}

// A step is never too big, never empty while there is work, never gives more than
// is needed, and gives no prompt less than its fair share.
func TestPrefillBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		left := rapid.SliceOfN(rapid.IntRange(0, 1000), 0, 40).Draw(t, "left")
		budget := rapid.IntRange(1, 600).Draw(t, "budget")
		give, sum, need := Prefill(left, budget), 0, 0
		for i, n := range give {
			if n < 0 || n > left[i] {
				t.Fatalf("%d of %d", n, left[i])
			}
			if fair := budget / len(left); n < min(fair, left[i]) {
				t.Fatalf("prompt %d got %d, its share is %d", i, n, fair)
			}
			sum, need = sum+n, need+left[i]
		}
		if sum != min(budget, need) {
			t.Fatalf("%d tokens of %d needed with a budget of %d", sum, need, budget)
		}
	})
}
