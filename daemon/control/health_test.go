package control

import (
	"context"
	"testing"
	"time"

	"tandem/daemon/core"
	"tandem/daemon/fault"
)

// A loop that does nothing holds up nobody: whether the process lives is answered at
// once, and whether it is ready within a second, with no.
func TestProbesDoNotWaitForALoopThatHangs(t *testing.T) {
	store, err := OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l := New(Options{Store: store})
	for i := 0; ; i++ { // until no event fits any more, the questions come all the same
		if l.Generation() != 0 {
			t.Error("a generation before the first")
		}
		if err := l.Ready(); fault.KindOf(err) != fault.NotReady {
			t.Errorf("ready: %v", err)
		}
		if _, err := l.View(10 * time.Millisecond); err == nil {
			t.Error("a picture of a loop that does not run")
		}
		if i == 1 {
			return
		}
		for len(l.events) < cap(l.events) {
			l.post(func() {})
		}
	}
}

// What has not been prepared is not ready, and says how far it is; the loop answers all
// the while.
func TestLoopAnswersWhileItLoads(t *testing.T) {
	store, err := OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ctx, stop := context.WithCancel(t.Context())
	l := New(Options{Store: store, Notify: func(string, bool) {}, Prepare: func(ctx context.Context, progress func(string)) error {
		progress("loading weights, 1 of 2 MiB")
		<-ctx.Done()
		return ctx.Err()
	}})
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	var v core.View
	for v.At.IsZero() {
		if v, err = l.View(10 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if v.Ready || v.Condition != "starting" && v.Condition != "loading" {
		t.Errorf("%v %s: %s", v.Ready, v.Condition, v.Reason)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
