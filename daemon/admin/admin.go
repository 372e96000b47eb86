// Package admin is the operator's unix socket: HTTP with JSON, for `tandem status`
// and its like and for curl. Who asks is known from the kernel: everyone on the
// machine may look, and root and the daemon's own user may change things. It keeps
// no state; the control loop answers.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tandem/daemon/control"
	"tandem/daemon/core"
	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
)

// Loop is what the socket needs of the control loop.
type Loop interface {
	View(limit time.Duration) (core.View, error)
	Requests(limit time.Duration) ([]core.RequestView, error)
	Story(id ident.Request, limit time.Duration) (*core.Record, error)
	Restart(reason string) error
	Cancel(id ident.Request) error
	DumpWorkers() error
}

// Options say what to serve.
type Options struct {
	Loop   Loop
	Drain  func()            // begin to stop
	Config func() any        // the effective configuration, for GET /config
	Build  observe.BuildInfo // for GET /status
	Log    *observe.Log
}

// Status is the answer to GET /status.
type Status struct {
	Build observe.BuildInfo `json:"build"`
	core.View
}

// Bounds on those who ask: everybody on the machine may.
const (
	maxPeers  = 32              // connections; one beyond is closed
	answerAll = 2 * time.Minute // for an answer, the time in which its reader takes it included
)

// few is a listener of few connections at a time.
type few struct {
	net.Listener
	places chan struct{}
}

func (l *few) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.places <- struct{}{}:
			return &place{Conn: c, places: l.places}, nil
		default:
			c.Close()
		}
	}
}

// place is a connection that holds one of the places.
type place struct {
	net.Conn
	places chan struct{}
	once   sync.Once
}

func (p *place) Close() error {
	p.once.Do(func() { <-p.places })
	return p.Conn.Close()
}

// answerIn bounds how long a question waits for the control loop.
const answerIn = 2 * time.Second

// Listen makes the socket at path and its folder. A socket that a dead daemon left
// is replaced; one that answers is an error.
func Listen(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("admin socket: %w (set admin.socket to a path in a folder that can be written)", err)
	}
	if _, err := os.Lstat(path); err == nil {
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, fmt.Errorf("admin socket %s is in use by another daemon: stop it, or set admin.socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("admin socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w (set admin.socket to a path in a folder that can be written)", err)
	}
	// Who may do what is decided by who asks, not by the file's mode.
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	return l, nil
}

type peerKey struct{}

// Serve serves the socket until ctx ends.
func Serve(ctx context.Context, l net.Listener, o Options) error {
	s := &http.Server{
		Handler:           o.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      answerAll, // also of a profile
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          nil,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, peer(c))
		},
	}
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if s.Shutdown(end) != nil {
			s.Close()
		}
	})
	defer stop()
	if err := s.Serve(&few{Listener: l, places: make(chan struct{}, maxPeers)}); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// peer is the user at the other end, or -1 if the kernel does not say.
func peer(c net.Conn) int {
	if p, ok := c.(*place); ok {
		c = p.Conn
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return -1
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return -1
	}
	uid := -1
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = int(cred.Uid)
		}
	})
	return uid
}

func (o *Options) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		v, err := o.Loop.View(answerIn)
		reply(w, Status{Build: o.Build, View: v}, err)
	})
	mux.HandleFunc("GET /requests", func(w http.ResponseWriter, r *http.Request) {
		v, err := o.Loop.Requests(answerIn)
		reply(w, v, err)
	})
	mux.HandleFunc("GET /requests/{id}", func(w http.ResponseWriter, r *http.Request) {
		v, err := o.Loop.Story(ident.Request(r.PathValue("id")), answerIn)
		if err == nil && v == nil {
			err = fault.New(fault.NotFound, "request %q is not known; the daemon keeps the last thousand", r.PathValue("id"))
		}
		reply(w, v, err)
	})
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, r *http.Request) { reply(w, o.Config(), nil) })
	mux.Handle("POST /requests/{id}/cancel", o.change(func(r *http.Request) error { return o.Loop.Cancel(ident.Request(r.PathValue("id"))) }))
	mux.Handle("POST /restart", o.change(func(r *http.Request) error {
		reason := r.FormValue("reason")
		if len(reason) > 200 {
			return fault.New(fault.Invalid, "a reason of %d bytes, at most 200", len(reason))
		}
		return o.Loop.Restart(reason)
	}))
	mux.Handle("POST /drain", o.change(func(r *http.Request) error { o.Drain(); return nil }))
	mux.Handle("POST /debug/workers", o.change(func(r *http.Request) error { return o.Loop.DumpWorkers() }))
	mux.HandleFunc("GET /debug/stacks", func(w http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 4<<20)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write(buf[:runtime.Stack(buf, true)])
	})
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// change is a handler of something that only root and our own user may do.
func (o *Options) change(do func(*http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uid, _ := r.Context().Value(peerKey{}).(int)
		if uid != 0 && uid != os.Geteuid() {
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": fmt.Sprintf("user %d may look but not change anything; be root or user %d", uid, os.Geteuid())})
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
		err := do(r)
		reply(w, map[string]bool{"done": err == nil}, err)
	})
}

func reply(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		status := http.StatusConflict
		switch {
		case errors.Is(err, control.ErrNoAnswer):
			status = http.StatusServiceUnavailable
		case fault.KindOf(err) == fault.NotFound:
			status = http.StatusNotFound
		case fault.KindOf(err) == fault.Invalid:
			status = http.StatusBadRequest
		}
		w.WriteHeader(status)
		v = map[string]string{"error": err.Error()}
	}
	_ = json.NewEncoder(w).Encode(v)
}
