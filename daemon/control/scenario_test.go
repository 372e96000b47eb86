package control

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
)

var (
	simSeeds = flag.Int("sim.seeds", 4000, "scenarios that TestScenarios plays; under the race detector a twentieth of them")
	simFirst = flag.Uint64("sim.first", 1, "the first seed of TestScenarios")
	simTrace = flag.String("sim.trace", "", "a file for all that is said in the first scenario, a line each, and for the events that are told")
)

// play makes a world from a plan, lets populate add to it, and plays it in a bubble.
// It returns a fingerprint of all that the daemon was told, when, and of all answers.
func play(t *testing.T, p *plan, populate func(w *world)) (w *world, trace uint64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(t, p)
		populate(w)
		w.play()
		if t.Failed() {
			t.Logf("seed %d: %s", p.seed, p)
		}
	})
	return w, w.trace.Sum64()
}

// judgeHarmless looks at a world in which nothing happened that anybody may notice.
func judgeHarmless(w *world) {
	if n := len(w.gens); n != 1 {
		w.fail("there were %d generations, for nothing: %v", n, w.said(26))
	}
	for _, c := range w.clients {
		if !c.complete() && !c.left {
			w.fail("request %s: an error for nothing: %v %v", c.spec.ID, c.refused, c.out.Err)
		}
	}
}

// TestScenarios plays scenarios that follow from their seeds. One that fails is played
// again by -sim.first=SEED -sim.seeds=1, exactly as it was.
func TestScenarios(t *testing.T) {
	n := *simSeeds
	if raceDetector {
		n = (n + 19) / 20
	}
	shards := runtime.GOMAXPROCS(0)
	for shard := range shards {
		t.Run(fmt.Sprint(shard), func(t *testing.T) {
			t.Parallel()
			for i := shard; i < n; i += shards {
				seed := *simFirst + uint64(i)
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
					p := scenario(seed)
					if p.harmless {
						p.judge = judgeHarmless
					}
					play(t, p, func(w *world) {
						if i == 0 && *simTrace != "" {
							f, err := os.Create(*simTrace)
							if err != nil {
								t.Fatal(err)
							}
							t.Cleanup(func() { f.Close() })
							w.script = f
						}
						w.populate()
					})
				})
			}
		})
	}
}

// A seed is worth something only if it leads to the same events each time.
func TestSeedReplaysExactly(t *testing.T) {
	for seed := uint64(1); seed <= 60; seed++ {
		_, a := play(t, scenario(seed), (*world).populate)
		_, b := play(t, scenario(seed), (*world).populate)
		if a != b {
			t.Errorf("seed %d: played twice, the daemon was told different things", seed)
		}
	}
}
