package catalog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// lock takes the exclusive lock of a file that it makes, waiting for whoever has
// it, and returns the function that gives it back and removes the file. The lock
// ends with the process, however that ends.
func lock(ctx context.Context, path string, progress func(Progress)) (unlock func(), err error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, err
		}
		for failures := 0; ; {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
			if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
				break
			}
			if failures++; failures == 2 { // by now the other has written its number
				progress(Progress{Phase: "waiting", Note: "another fetch of this model is running" + holder(f)})
			}
			select {
			case <-ctx.Done():
				f.Close()
				return nil, ctx.Err()
			case <-time.After(100 * time.Millisecond):
			}
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// Whoever had it removed the file: then this is the lock of a file that
		// nobody else will find.
		if mine, err := f.Stat(); err == nil {
			if now, err := os.Stat(path); err == nil && os.SameFile(mine, now) {
				_ = f.Truncate(0)
				_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
				return func() {
					os.Remove(path)
					f.Close()
				}, nil
			}
		}
		f.Close()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// holder names the process that wrote its number into the lock's file.
func holder(f *os.File) string {
	b := make([]byte, 20)
	n, _ := f.ReadAt(b, 0)
	if pid := strings.TrimSpace(string(b[:n])); pid != "" {
		return " (process " + pid + ")"
	}
	return ""
}
