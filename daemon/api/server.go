package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Server serves a handler on listeners and stops without losing answers.
type Server struct {
	http *http.Server

	mu   sync.Mutex
	live int           // handlers that run, guarded by mu
	idle chan struct{} // closed when live reaches 0 after stopping, guarded by mu
}

// Limits on connections. A connection without a request lives longer than
// clients keep theirs (up to 90 s), so that it is they who close it and no
// request meets a closed one. There is no limit on the time of an answer: each
// write has its own.
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 3 * time.Minute
	maxHeaderBytes = 64 << 10
	// cutGrace is how long a handler has to notice that its connection was cut.
	cutGrace = 5 * time.Second
)

// NewServer makes a server of h. What goes wrong on connections is logged.
func NewServer(h http.Handler, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{}
	s.http = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.enter()
			defer s.leave()
			h.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	return s
}

func (s *Server) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live++
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live--
	if s.live == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// Serve serves on all listeners, which it takes over, until Shutdown; then it
// returns nil at once. If one of them fails, it closes the others and returns
// that error; running answers go on until Shutdown.
func (s *Server) Serve(listeners ...net.Listener) error {
	if len(listeners) == 0 {
		return errors.New("serving: no listener")
	}
	errs := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() {
			err := s.http.Serve(l)
			if err != nil && !errors.Is(err, http.ErrServerClosed) {
				err = fmt.Errorf("serving on %s: %w", l.Addr(), err)
			} else {
				err = nil
			}
			errs <- err
		}()
	}
	var first error
	for range listeners {
		if err := <-errs; err != nil && first == nil {
			first = err
			for _, l := range listeners {
				l.Close() // their Serve returns and is counted here
			}
		}
	}
	return first
}

// Shutdown closes the listeners, tells clients to close their connections, and
// waits for running answers until ctx ends. Then it cuts those that are left and
// returns ctx's error. When it returns, no handler runs any more, unless one
// ignored for seconds that its connection is gone; the error says so.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		s.http.Close() // ends the contexts of the requests
	}
	s.mu.Lock()
	left := s.live
	idle := make(chan struct{})
	if left > 0 {
		s.idle = idle
	} else {
		close(idle)
	}
	s.mu.Unlock()
	grace := time.NewTimer(cutGrace)
	defer grace.Stop()
	select {
	case <-idle:
		return err
	case <-grace.C:
		return errors.Join(err, fmt.Errorf("shutting down: %d requests ran on after their connections were cut", left))
	}
}
