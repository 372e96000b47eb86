package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"tandem/daemon/observe"
	"tandem/gpu/pagepool"
)

// notify tells systemd how we are. READY is said once requests complete; time for
// starting is asked for as long as there is progress.
func (s *server) notify(status string, ready bool) {
	msg := "STATUS=" + oneLine(status)
	if ready {
		msg += "\n" + sd.SdNotifyReady
		s.told.Do(func() {
			s.log.Event(observe.Ready, fmt.Sprintf("ready: talk to it with `tandem chat`, or at %s/v1/chat/completions", s.url()), observe.Str("address", s.url()))
		})
	} else {
		msg += "\nEXTEND_TIMEOUT_USEC=" + strconv.FormatInt((30*time.Second).Microseconds(), 10)
	}
	_, _ = sd.SdNotify(false, msg)
}

func (s *server) url() string {
	a := s.api[0].Addr()
	if a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return "http://" + a.String()
}

// watchdog feeds systemd's watchdog while the control loop answers. That is the whole
// condition, on purpose. A restart of the daemon cures faults of the daemon: a loop
// that hangs, of which nothing else would tell. It does not cure what /ready tells:
// workers that fail are replaced by the loop itself, generation by generation, and
// ending the daemon over them would only cost the queued requests their places and
// the weights their memory. So an appliance that is not ready keeps being fed.
func (s *server) watchdog(ctx context.Context) error {
	every, err := sd.SdWatchdogEnabled(false)
	if err != nil || every == 0 {
		return nil
	}
	t := time.NewTicker(every / 3)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if _, err := s.loop.View(every / 4); err != nil {
			s.log.Event(observe.WatchdogFailed, "the watchdog is not fed: "+err.Error(), observe.Reason(err.Error()))
			continue
		}
		_, _ = sd.SdNotify(false, sd.SdNotifyWatchdog)
	}
}

// snapshot is what /metrics shows of the control loop. A loop that does not answer
// at once leaves the last picture, whose ages go on growing.
func (s *server) snapshot() observe.Snapshot {
	v, err := s.loop.View(200 * time.Millisecond)
	s.snapMu.Lock()
	defer s.snapMu.Unlock()
	if err != nil {
		return s.snap
	}
	out := observe.Snapshot{Taken: v.At, Generation: v.Generation, Requests: map[string]int{}, Oldest: map[string]time.Time{},
		Admission: map[string]float64{"max_requests": float64(v.MaxRunning), "max_queued": float64(v.MaxQueued)}}
	ago := func(seconds float64) time.Time { return v.At.Add(-time.Duration(seconds * 1e9)) }
	for _, st := range v.States {
		out.Requests[st.State] = st.Count
		if st.Count > 0 {
			out.Oldest[st.State] = ago(st.Oldest)
		}
	}
	for _, p := range v.Pools {
		out.Pools = append(out.Pools, observe.PoolInfo{Name: p.Name, Pages: p.States, Drift: p.Drift})
	}
	for _, r := range v.Ranks {
		out.Workers = append(out.Workers, observe.WorkerInfo{Rank: r.Ident(), PID: r.PID, Generation: v.Generation, Device: r.Device, Progress: ago(r.ProgressAge)})
	}
	if v.QuarantineAge > 0 {
		out.Quarantined = ago(v.QuarantineAge)
	}
	s.snap = out
	return out
}

func pageStates() []string { return pagepool.StateNames() }

// edges are the pairs of replicas between which KV moves.
func (s *server) edges() [][2]string {
	var out [][2]string
	for i := range s.plan.Prefill.Replicas() {
		for j := range s.plan.Decode.Replicas() {
			out = append(out, [2]string{"prefill" + strconv.Itoa(i), "decode" + strconv.Itoa(j)})
		}
	}
	return out
}
