package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tandem/daemon/ident"
)

// Store is the state folder: the generation counter, and the lock that keeps a
// second daemon out. The counter is on disk before any process of that generation
// exists.
type Store struct {
	dir  string
	lock *os.File
	last ident.Generation
	live atomic.Uint64
}

const (
	counterFile = "generation"
	lockFile    = "daemon.lock"
)

// ErrInUse says that another daemon has the state folder.
var ErrInUse = errors.New("is in use")

// OpenStore makes the folder if need be and takes its lock.
func OpenStore(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("state folder: %w (set server.state_dir to a folder that can be written)", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, fmt.Errorf("state folder %s: %w (set server.state_dir to a folder that can be written)", dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		who := holder(f)
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("state folder %s %w by another tandem serve, process %s: stop it, or give this one its own server.state_dir",
				dir, ErrInUse, who)
		}
		return nil, fmt.Errorf("state folder %s: lock: %w", dir, err)
	}
	s := &Store{dir: dir, lock: f}
	if err := s.open(f); err != nil {
		f.Close()
		if errors.Is(err, unix.ENOSPC) {
			return nil, fmt.Errorf("state folder %s: %w: make room on that disk, or set server.state_dir to a folder elsewhere", dir, err)
		}
		return nil, fmt.Errorf("state folder %s: %w", dir, err)
	}
	return s, nil
}

// holder reads whose lock it is. The holder writes its number just after it took
// the lock, so an empty file is looked at again for a moment.
func holder(f *os.File) string {
	b := make([]byte, 64)
	for range 50 {
		n, _ := f.ReadAt(b, 0)
		if pid := strings.TrimSpace(string(b[:n])); pid != "" {
			return pid
		}
		time.Sleep(10 * time.Millisecond)
	}
	return "of unknown number"
}

func (s *Store) open(lock *os.File) error {
	if err := lock.Truncate(0); err != nil {
		return err
	}
	if _, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(s.dir, counterFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || n >= 1<<63 {
		return fmt.Errorf("%s holds %.40q, not a generation: if no tandem runs on this machine, remove it", counterFile, b)
	}
	s.last = ident.Generation(n)
	return nil
}

// Dir is the folder.
func (s *Store) Dir() string { return s.dir }

// Last is the generation that the folder recorded when it was opened, or was
// given since.
func (s *Store) Last() ident.Generation { return s.last }

// Live is the generation of which processes may exist now, for reading from any
// goroutine.
func (s *Store) Live() uint64 { return s.live.Load() }

// Record puts g on disk, so that it survives a power cut. Until it returns nil no
// process of g may be started.
func (s *Store) Record(g ident.Generation) error {
	path := filepath.Join(s.dir, counterFile)
	f, err := os.CreateTemp(s.dir, counterFile+".")
	if err != nil {
		return fmt.Errorf("generation counter: %w", err)
	}
	defer os.Remove(f.Name())
	if _, err = fmt.Fprintln(f, g); err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = syncDir(s.dir)
	}
	if err != nil {
		return fmt.Errorf("generation counter %s: %w", path, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Close gives the folder up.
func (s *Store) Close() error { return s.lock.Close() }
