package generation

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tandem/daemon/spawn"
)

// TestMain is also the process that packs nothing.
func TestMain(m *testing.M) {
	if os.Args[0] == "tandem" {
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// A process that packs nothing, as one that reads from a dead disk, is given up, and
// one that nobody wants any more is not waited for.
func TestPackingThatStandsStillIsGivenUp(t *testing.T) {
	sp := spawn.NewSpawner()
	pack := func(ctx context.Context, stall time.Duration) error {
		_, err := Pack(ctx, sp, "model.gguf", 512, 4096, make([]byte, 32), nil, stall, func(int64, int64) {})
		return err
	}
	if err := pack(t.Context(), 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "nothing was packed for 50ms") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := pack(ctx, time.Hour); err != context.DeadlineExceeded {
		t.Errorf("%v", err)
	}
}
