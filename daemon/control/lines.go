package control

import (
	"fmt"
	"time"
)

// A worker's lines go to the log at so many a second, after so many at once. What is
// beyond is counted, and told with the next line that goes through.
const (
	linesAtOnce   = 200
	linesASecond  = 20
	maxUnheard    = 64 // frames of one rank that may wait for the loop
	tellDropEvery = 10 * time.Second
)

// gate bounds the lines of one worker. It belongs to the goroutine that reads them.
type gate struct {
	left    float64
	last    time.Time
	dropped int
	told    time.Time
}

func newGate(now time.Time) gate { return gate{left: linesAtOnce, last: now} }

// pass reports whether a line goes through, and says in said what was left out
// before, if that is due.
func (g *gate) pass(now time.Time) (ok bool, said string) {
	g.left = min(g.left+now.Sub(g.last).Seconds()*linesASecond, linesAtOnce)
	g.last = now
	if g.left < 1 {
		g.dropped++
		return false, ""
	}
	g.left--
	if g.dropped > 0 && now.Sub(g.told) >= tellDropEvery {
		said = fmt.Sprintf("%d lines were left out: it writes more than %d a second", g.dropped, linesASecond)
		g.dropped, g.told = 0, now
	}
	return true, said
}
