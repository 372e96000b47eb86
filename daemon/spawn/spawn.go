// Package spawn starts this binary again as a worker and carries frames to and
// from it. It owns the process and the socket; what is said over it and when the
// process must die is decided elsewhere.
//
// A worker is bound to the daemon three ways: its end of the socket closes when
// the daemon dies; the kernel kills it when the thread that started it ends
// (which is why all are started from one thread that lives as long as the
// daemon); and it is alone in a process group, so that what it might start dies
// with it.
package spawn

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tandem/daemon/ident"
	"tandem/daemon/wire"
)

// ControlFD is the worker's end of the socket. Other descriptors follow it.
const ControlFD = 3

// Limits on what waits to be sent to one worker. A worker that lets this much
// pile up is not reading, and is given up.
const (
	maxQueuedFrames = 4096
	maxQueuedBytes  = 64 << 20
)

// Spawner starts processes from one thread. Make one with NewSpawner and keep it.
type Spawner struct{ do chan func() }

// NewSpawner starts the thread. It is never stopped: workers die when it ends.
func NewSpawner() *Spawner {
	s := &Spawner{do: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range s.do {
			f()
		}
	}()
	return s
}

// Options say what to start.
type Options struct {
	Rank       ident.Rank
	Generation ident.Generation
	Binary     string     // default: this one
	Args       []string   // default: worker ROLE/REPLICA.RANK
	Files      []*os.File // descriptors ControlFD+1, +2, …; they remain the caller's
	Env        []string   // additions

	// Frame is called for each frame, Lost once when the socket breaks (err nil: the
	// worker closed it), Exit once when the process is reaped, Line for each line it
	// writes on stderr. They are called from goroutines of the process and may block.
	Frame func(wire.Frame)
	Lost  func(error)
	Exit  func(Status)
	Line  func(string)
}

// Status is how a process ended.
type Status struct {
	Text string // "exit status 2", "signal: killed"
	Code int    // -1 if a signal ended it
	Sig  syscall.Signal
	Last string // its last line on stderr
}

// Process is one running worker.
type Process struct {
	PID     int
	Started time.Time

	gen  ident.Generation
	conn *os.File

	mu     sync.Mutex // guards what follows
	queue  [][]byte
	queued int
	closed bool
	wakeup chan struct{} // one token: there is something to send, or closed

	done chan struct{}
}

// Start starts a worker.
func (s *Spawner) Start(o Options) (*Process, error) {
	if o.Binary == "" {
		// The file we run, also after an upgrade has replaced it.
		o.Binary = "/proc/self/exe"
	}
	if o.Args == nil {
		o.Args = []string{"worker", o.Rank.String()}
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("start %s: socket pair: %w", o.Rank, err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	defer theirs.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("start %s: pipe: %w", o.Rank, err)
	}
	cmd := exec.Command(o.Binary, o.Args...)
	cmd.Args[0] = "tandem"
	cmd.ExtraFiles = append([]*os.File{theirs}, o.Files...)
	cmd.Stderr = errW
	cmd.Env = append(cleanEnv(os.Environ()), o.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	s.do <- func() { started <- cmd.Start() }
	err = <-started
	errW.Close()
	if err != nil {
		ours.Close()
		errR.Close()
		return nil, fmt.Errorf("start %s: %w", o.Rank, err)
	}
	p := &Process{PID: cmd.Process.Pid, Started: time.Now(), gen: o.Generation, conn: ours, wakeup: make(chan struct{}, 1), done: make(chan struct{})}
	lastLine := make(chan string, 1)
	go readLines(errR, o.Line, lastLine)
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.read(o)
	}()
	go p.write()
	go func() {
		err := cmd.Wait()
		st := Status{Code: cmd.ProcessState.ExitCode(), Text: cmd.ProcessState.String()}
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			st.Sig = ws.Signal()
		}
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			st.Text = err.Error()
		}
		select {
		case st.Last = <-lastLine:
		case <-time.After(time.Second): // a descendant keeps the pipe open; the group is killed below
		}
		_ = syscall.Kill(-p.PID, syscall.SIGKILL)
		// What it said last is still in the socket: closing our end would lose it.
		select {
		case <-read:
		case <-time.After(time.Second):
		}
		p.close()
		close(p.done)
		o.Exit(st)
	}()
	return p, nil
}

// cleanEnv drops what is addressed to the daemon alone.
func cleanEnv(env []string) []string {
	keep := make([]string, 0, len(env))
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "CREDENTIALS_DIRECTORY":
			continue
		}
		keep = append(keep, kv)
	}
	return keep
}

func (p *Process) read(o Options) {
	d := wire.NewReplies(p.conn)
	for {
		f, err := d.Next()
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
				err = nil
			}
			o.Lost(err)
			return
		}
		o.Frame(f)
	}
}

// ErrBehind says that the worker does not read what it is sent.
var ErrBehind = errors.New("the worker does not read its socket")

// Send queues a message. It never blocks. It fails when the worker is far behind,
// or gone.
func (p *Process) Send(m wire.Message) error {
	b, err := wire.Append(nil, p.gen, m)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return os.ErrClosed
	}
	if len(p.queue) >= maxQueuedFrames || p.queued+len(b) > maxQueuedBytes {
		return ErrBehind
	}
	p.queue = append(p.queue, b)
	p.queued += len(b)
	select {
	case p.wakeup <- struct{}{}:
	default:
	}
	return nil
}

func (p *Process) write() {
	for range p.wakeup {
		for {
			p.mu.Lock()
			if p.closed {
				p.mu.Unlock()
				return
			}
			out := p.queue
			p.queue = nil
			p.mu.Unlock()
			if len(out) == 0 {
				break
			}
			for _, b := range out {
				if _, err := p.conn.Write(b); err != nil {
					return // the reader or the exit reports it
				}
				p.mu.Lock()
				p.queued -= len(b)
				p.mu.Unlock()
			}
		}
	}
}

func (p *Process) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed = true
		p.conn.Close()
		close(p.wakeup)
	}
}

// Kill kills the process and its group. It is reaped by its own goroutine.
func (p *Process) Kill() {
	select {
	case <-p.done:
		return // the number may be another's by now
	default:
		_ = syscall.Kill(-p.PID, syscall.SIGKILL)
	}
}

// Done is closed when the process is reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// readLines gives each line on, cut to a sane length, and at the end the last.
func readLines(r io.ReadCloser, line func(string), last chan<- string) {
	defer r.Close()
	b := bufio.NewReaderSize(r, 4096)
	tail := ""
	for {
		s, err := b.ReadSlice('\n')
		if len(s) > 0 {
			text := strings.TrimRight(string(s), "\n")
			if text != "" {
				tail = text
				line(text)
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			last <- tail
			return
		}
	}
}
