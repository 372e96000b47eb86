package config

import "strings"

// nearest is the candidate that a misspelt word most likely meant, "" if none
// is near: at most two letters changed, or the word begins one candidate only.
func nearest(word string, candidates []string) string {
	if len(word) > 64 {
		return ""
	}
	best, bestAt := "", 3
	for _, c := range candidates {
		limit := 2
		if len(c) <= 4 {
			limit = 1
		}
		if d := distance(strings.ToLower(word), c); d <= limit && d < bestAt {
			best, bestAt = c, d
		}
	}
	if best != "" || len(word) < 3 {
		return best
	}
	for _, c := range candidates {
		if strings.HasPrefix(c, strings.ToLower(word)) {
			if best != "" {
				return ""
			}
			best = c
		}
	}
	return best
}

// distance is the number of letters to insert, delete, replace or swap with
// their neighbour to make b of a.
func distance(a, b string) int {
	older, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], older[j-2]+1)
			}
		}
		older, prev, cur = prev, cur, older
	}
	return prev[len(b)]
}
