package admit

import (
	"testing"
	"time"
)

func TestLimitIsTheLimit(t *testing.T) {
	l := Limits{Running: 4, Queued: 3}
	live := 0
	for l.Admit(live) {
		live++
	}
	if live != 7 {
		t.Errorf("%d places", live)
	}
	running := 0
	for l.Start(running) {
		running++
	}
	if running != 4 {
		t.Errorf("%d running", running)
	}
}

func TestRetryAfterFollowsTheBacklog(t *testing.T) {
	for _, c := range []struct {
		waiting, ended int
		want           time.Duration
	}{
		{0, 0, 5 * time.Second},
		{0, 30, time.Second},       // two a second: soon
		{29, 30, 30 * time.Second}, // thirty before us at one a second
		{1000, 1, 60 * time.Second},
		{0, 1000, time.Second},
	} {
		if got := RetryAfter(c.waiting, c.ended, 30*time.Second, 5*time.Second); got != c.want {
			t.Errorf("RetryAfter(%d waiting, %d ended) = %v, want %v", c.waiting, c.ended, got, c.want)
		}
	}
}
