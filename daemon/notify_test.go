package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"tandem/daemon/control"
)

// The watchdog is fed by a loop that answers, although nothing is ready, and not by one
// that does not.
func TestWatchdogIsFedByALoopThatAnswers(t *testing.T) {
	dir, err := os.MkdirTemp("", "tandem-notify-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "notify")
	sock, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", strconv.Itoa(int((300 * time.Millisecond).Microseconds())))
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	fed := func(wait time.Duration) bool {
		buf := make([]byte, 4096)
		_ = sock.SetReadDeadline(time.Now().Add(wait))
		for {
			n, err := sock.Read(buf)
			if err != nil {
				return false
			}
			if strings.Contains(string(buf[:n]), "WATCHDOG=1") {
				return true
			}
		}
	}
	store, err := control.OpenStore(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ctx, stop := context.WithCancel(t.Context())
	s := &server{}
	s.loop = control.New(control.Options{Store: store, Notify: func(string, bool) {}, Prepare: func(ctx context.Context, _ func(string)) error {
		<-ctx.Done()
		return ctx.Err()
	}})
	ended := make(chan error, 1)
	go func() { ended <- s.watchdog(ctx) }()
	if fed(time.Second) {
		t.Error("fed by a loop that does not run")
	}
	loop, endLoop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.loop.Run(loop) }()
	if !fed(10 * time.Second) {
		t.Error("not fed by a loop that answers, because it is not ready")
	}
	if err := s.loop.Ready(); err == nil {
		t.Error("ready without workers")
	}
	endLoop()
	<-done
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
