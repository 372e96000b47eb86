package control

import (
	"math/bits"
	"sync/atomic"
	"time"

	"tandem/daemon/core"
)

// lateness counts how long after it was told of an event the loop was done with it,
// in eight buckets for each power of two, so that 100 ms is told from 110. It has a
// size and no lock. The loop writes it, anybody reads it.
type lateness struct {
	buckets [8 * 40]atomic.Uint64 // up to 2^40 ns, 18 minutes
	most    atomic.Int64
}

// bucket of d: the position of its highest bit, and the three bits that follow.
func bucket(d time.Duration) int {
	n := uint64(max(d, 8))
	top := bits.Len64(n) - 1
	return min(8*(top-3)+int(n>>(top-3))&7, 8*40-1)
}

// upper is the least time beyond bucket i.
func upper(i int) time.Duration {
	return time.Duration((uint64(8+i%8) + 1) << (i / 8))
}

func (l *lateness) add(d time.Duration) {
	l.buckets[bucket(d)].Add(1)
	if int64(d) > l.most.Load() { // there is one writer
		l.most.Store(int64(d))
	}
}

// view is what it comes to. Percentiles are upper bounds.
func (l *lateness) view() core.LoopView {
	var counts [len(l.buckets)]uint64
	var v core.LoopView
	for i := range counts {
		counts[i] = l.buckets[i].Load()
		v.Events += counts[i]
	}
	most := time.Duration(l.most.Load())
	v.Max = most.Seconds()
	at := func(share float64) float64 {
		want, sum := share*float64(v.Events), uint64(0)
		for i, n := range counts {
			if sum += n; sum > 0 && float64(sum) >= want {
				return min(upper(i), most).Seconds()
			}
		}
		return 0
	}
	v.P50, v.P99, v.P999 = at(0.5), at(0.99), at(0.999)
	return v
}
