package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

var (
	soak  = flag.Duration("soak", 0, "how long TestF40_Soak runs; 0: it does not")
	kills = flag.Int("kills", 0, "how many kills TestKillStorm does; 0: it does not run")
	every = flag.Duration("every", 4*time.Second, "how long TestKillStorm waits between two kills, give or take a half")
)

// stories are prompts whose answers take long enough to be disturbed.
func stories(n, tokens int) (qs []question) {
	for i := range n {
		q := question{user: fmt.Sprintf("Tell a story about the number %d.", i), tokens: tokens}
		if i%3 == 2 {
			q.temperature, q.topP, q.seed = 0.8, 0.9, i
		}
		qs = append(qs, q)
	}
	return qs
}

// stormy are the settings with which generations may be replaced for hours.
var stormy = []string{"limits.max_requests=30", "limits.max_queued=64", "restart.budget=1000000", "limits.max_attempts=1000", "log.level=info"}

// TestKillStorm kills a rank at random, N times, under thirty streams. No client sees
// an error or another text; how long streams paused is printed.
func TestKillStorm(t *testing.T) {
	if *kills == 0 {
		t.Skip("make chaos-kills runs it")
	}
	a := startFaulty(t, stormy...)
	rnd := rand.New(rand.NewPCG(chooseSeed(t), 1))
	qs := stories(10, 80)
	var answers []string
	for _, q := range qs {
		answers = append(answers, a.mustGet(q).text)
	}
	a.settled()
	before := a.holds()

	type stream struct {
		begun  time.Time
		pieces []time.Time
	}
	var mu sync.Mutex // guards what follows
	var streams []stream
	wrong := 0
	var errs []string

	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Add(1)
		mine := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				k := mine.IntN(len(qs))
				q, s := qs[k], stream{begun: time.Now()}
				q.on = func(int, string) { s.pieces = append(s.pieces, time.Now()) }
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
				got, err := a.get(ctx, q)
				cancel()
				mu.Lock()
				streams = append(streams, s)
				switch {
				case err != nil:
					errs = append(errs, err.Error())
				case got.text != answers[k]:
					wrong++
				}
				mu.Unlock()
			}
		}()
	}
	var at []time.Time
	for range *kills {
		time.Sleep(*every/2 + time.Duration(rnd.Int64N(int64(*every))))
		rs := a.status().Ranks
		if len(rs) == 0 {
			continue // between two generations
		}
		if syscall.Kill(rs[rnd.IntN(len(rs))].PID, syscall.SIGKILL) == nil {
			at = append(at, time.Now())
		}
	}
	a.waitReady()
	close(stop)
	wg.Wait()
	a.settled()
	a.leaksNothing(before)

	// A stream's pause is what passes from the kill to the end of the gap that it fell in.
	var pauses, firsts []time.Duration
	for _, k := range at {
		first := time.Duration(0)
		for _, s := range streams {
			var longest, pause time.Duration
			for i := 1; i < len(s.pieces); i++ {
				if p, n := s.pieces[i-1], s.pieces[i]; n.After(k) && p.Before(k.Add(100*time.Millisecond)) && n.Sub(p) > longest {
					longest, pause = n.Sub(p), n.Sub(k)
				}
			}
			if longest > 0 {
				pauses = append(pauses, pause)
				if first == 0 || pause < first {
					first = pause
				}
			}
		}
		if first > 0 {
			firsts = append(firsts, first)
		}
	}
	slices.Sort(pauses)
	slices.Sort(firsts)
	if len(pauses) == 0 {
		t.Fatal("no stream was ever disturbed")
	}
	pc := func(d []time.Duration, p int) time.Duration {
		return d[min(len(d)-1, len(d)*p/100)].Round(time.Millisecond)
	}
	t.Logf("%d kills, %d answers, %d errors, %d wrong texts, generation %d", len(at), len(streams), len(errs), wrong, a.gen())
	t.Logf("pauses of streams that ran (kill to next token): %d, p50 %s, p90 %s, p99 %s, worst %s", len(pauses), pc(pauses, 50), pc(pauses, 90), pc(pauses, 99), pc(pauses, 100))
	t.Logf("the first stream to go on, of each kill: p50 %s, worst %s", pc(firsts, 50), pc(firsts, 100))
	if wrong > 0 || len(errs) > 0 {
		t.Errorf("%d wrong texts, %d errors: %.300q", wrong, len(errs), errs)
	}
}

// TestF40_Soak runs thirty clients for as long as -soak says, with random faults of
// all kinds. Any wrong text, unexplained error, leak or hang fails it.
func TestF40_Soak(t *testing.T) {
	if *soak == 0 {
		t.Skip("make soak DURATION=30m runs it")
	}
	a := startFaulty(t, append(stormy, `kv.transport="pull"`, `deadlines.reserve="2s"`, `deadlines.handoff="5s"`, `deadlines.transfer="10s"`, `deadlines.verify="3s"`,
		`deadlines.first_token="8s"`, `deadlines.token_stall="8s"`, `deadlines.prefill_stall="8s"`, `deadlines.queue="1m"`)...)
	rnd := rand.New(rand.NewPCG(chooseSeed(t), 40))
	qs := append(stories(12, 60), questions...)
	var answers []string
	for _, q := range qs {
		answers = append(answers, a.mustGet(q).text)
	}
	a.settled()
	before := a.holds()

	var good, left, explained, faults atomic.Int64
	var excuse atomic.Int64 // until when errors of requests are explained, in Unix ns
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Add(1)
		mine := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				k := mine.IntN(len(qs))
				q := qs[k]
				ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
				leaves := mine.IntN(8) == 0
				switch {
				case leaves:
					time.AfterFunc(time.Duration(mine.IntN(6000))*time.Millisecond, cancel)
				case mine.IntN(10) == 0: // reads slowly
					q.on = func(int, string) { time.Sleep(200 * time.Millisecond) }
				}
				got, err := a.get(ctx, q)
				hung := errors.Is(ctx.Err(), context.DeadlineExceeded)
				cancel()
				switch {
				case err == nil && got.text == answers[k]:
					good.Add(1)
				case err == nil:
					t.Errorf("question %d was answered\n%q\ninstead of\n%q", k, got.text, answers[k])
				case !strings.HasPrefix(answers[k], got.text):
					t.Errorf("question %d began with\n%q\ninstead of\n%q, and then %v", k, got.text, answers[k], err)
				case leaves && errors.Is(err, context.Canceled):
					left.Add(1)
				case hung:
					t.Errorf("request %s hung: %v", got.id, err)
				case isNamed(err) && time.Now().UnixNano() < excuse.Load():
					explained.Add(1)
				default:
					t.Errorf("request %s: %v", got.id, err)
				}
			}
		}()
	}

	t0 := time.Now()
	minute, sample := t0.Add(time.Minute), t0
	var xs, ys []float64 // seconds, bytes
	line := func() {
		h := a.holds()
		t.Logf("%5.0f min: %d answers, %d left, %d failed with an explanation, %d faults, generation %d, %.1f MiB, %d goroutines, %d descriptors",
			time.Since(t0).Minutes(), good.Load(), left.Load(), explained.Load(), faults.Load()+int64(len(a.injected())), a.gen(), float64(a.rss())/(1<<20), h.goroutines, h.fds)
	}
	for time.Since(t0) < *soak && !t.Failed() {
		time.Sleep(time.Duration(500+rnd.IntN(4000)) * time.Millisecond)
		if now := time.Now(); now.After(sample) {
			sample = now.Add(5 * time.Second)
			if now.Sub(t0) > *soak/5 { // warm
				xs, ys = append(xs, now.Sub(t0).Seconds()), append(ys, float64(a.rss()))
			}
		}
		if time.Now().After(minute) {
			minute = minute.Add(time.Minute)
			line()
		}
		rs := a.status().Ranks
		switch what := rnd.IntN(12); {
		case what < 3 && len(rs) > 0:
			faults.Add(1)
			_ = syscall.Kill(one(rnd, rs).PID, syscall.SIGKILL)
		case what == 3 && len(rs) > 0:
			faults.Add(1)
			_ = syscall.Kill(one(rnd, rs).PID, syscall.SIGSTOP)
		case what == 4:
			faults.Add(1)
			_ = a.post("/restart", "reason=soak")
		case what < 9:
			// Messages and bytes go wrong for a while. What that does to requests may take
			// until the longest limit to show.
			rules := [][]string{{"at=say p=0.01 do=drop", "at=hear p=0.01 do=drop"}, {"at=say p=0.1 do=twice", "at=say p=0.1 do=swap-order"}, {"at=take p=0.01 do=corrupt"},
				{"at=say p=0.05 ms=300 do=late"}, {"at=plan p=0.003 do=die"}, {"at=say p=0.001 do=garbage"}}
			excuse.Store(time.Now().Add(time.Hour).UnixNano())
			a.inject(one(rnd, rules)...)
			time.Sleep(time.Duration(500+rnd.IntN(3000)) * time.Millisecond)
			a.calm()
			excuse.Store(time.Now().Add(30 * time.Second).UnixNano())
		}
	}
	a.calm()
	a.waitReady()
	close(stop)
	wg.Wait()
	a.settled()
	line()
	a.leaksNothing(before)
	slope := slopeOf(xs, ys) * 3600 / (1 << 20)
	t.Logf("RSS slope %.2f MiB/h over %d samples in %s", slope, len(xs), time.Duration(*soak*4/5).Round(time.Second))
	// A leak of a request is a leak of thousands in an hour. Shorter runs say little.
	if *soak >= 20*time.Minute && slope > 60 {
		t.Errorf("memory grows by %.1f MiB/h", slope)
	}
	if good.Load() == 0 || faults.Load() == 0 {
		t.Error("nothing happened")
	}
}

// slopeOf is the slope of the line that fits best.
func slopeOf(xs, ys []float64) float64 {
	n, sx, sy, sxx, sxy := float64(len(xs)), 0.0, 0.0, 0.0, 0.0
	for i := range xs {
		sx, sy, sxx, sxy = sx+xs[i], sy+ys[i], sxx+xs[i]*xs[i], sxy+xs[i]*ys[i]
	}
	if d := n*sxx - sx*sx; d != 0 {
		return (n*sxy - sx*sy) / d
	}
	return 0
}
