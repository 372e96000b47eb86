package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Server serves a handler on listeners and stops without losing answers.
type Server struct {
	// MaxConns is how many connections there may be; one beyond is told so. Zero: as
	// many as come. It is set before Serve.
	MaxConns int

	http *http.Server
	log  *slog.Logger

	mu        sync.Mutex            // guards what follows
	open      int                   // connections
	moaned    time.Time             // when it was last logged that there are too many
	stopping  bool                  // Shutdown has begun
	listeners []net.Listener        // all that Serve was given
	coming    map[net.Conn]struct{} // connections from which a request may be on its way
	live      int                   // handlers that run
	changed   chan struct{}         // holds one token after a change of coming or live
}

// Limits on connections. A connection without a request lives longer than
// clients keep theirs (up to 90 s), so that it is they who close it and no
// request meets a closed one. There is no limit on the time of an answer: each
// write has its own.
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 3 * time.Minute
	maxHeaderBytes = 64 << 10
	// comingGrace is how long Shutdown waits for the request of a connection that
	// was accepted before.
	comingGrace = 500 * time.Millisecond
	// cutGrace is how long a handler has to notice that its connection was cut.
	cutGrace = 5 * time.Second
)

type connKey struct{}

// NewServer makes a server of h. What goes wrong on connections is logged.
func NewServer(h http.Handler, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{log: log, coming: map[net.Conn]struct{}{}, changed: make(chan struct{}, 1)}
	s.http = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.enter(r.Context().Value(connKey{}).(net.Conn))
			defer s.leave()
			h.ServeHTTP(w, r)
		}),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ConnState:         s.state,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	return s
}

// state hears of connections from net/http. One is active from the header of a
// request to the end of its answer; its handler takes it out of coming.
func (s *Server) state(c net.Conn, st http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch st {
	case http.StateNew:
		s.open++
	case http.StateClosed, http.StateHijacked:
		s.open--
	}
	if st == http.StateNew || st == http.StateActive {
		s.coming[c] = struct{}{}
	} else {
		delete(s.coming, c)
	}
	s.tell()
}

func (s *Server) enter(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.coming, c)
	s.live++
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live--
	s.tell()
}

// tell wakes Shutdown. It expects the lock, so that what woke it is there to see.
func (s *Server) tell() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Serve serves on all listeners, which it takes over, until Shutdown; then it
// returns nil at once. If one of them fails, it closes the others and returns
// that error; running answers go on until Shutdown.
func (s *Server) Serve(listeners ...net.Listener) error {
	if len(listeners) == 0 {
		return errors.New("serving: no listener")
	}
	listeners = slices.Clone(listeners)
	for i, l := range listeners {
		listeners[i] = &guarded{Listener: l, server: s}
	}
	s.mu.Lock()
	s.listeners = append(s.listeners, listeners...)
	stopping := s.stopping
	s.mu.Unlock()
	if stopping {
		closeAll(listeners)
		return nil
	}
	errs := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() {
			if err := s.http.Serve(l); err != nil {
				err = fmt.Errorf("serving on %s: %w", l.Addr(), err)
				errs <- err
				return
			}
			errs <- nil
		}()
	}
	var first error
	for range listeners {
		err := <-errs
		s.mu.Lock()
		stopping := s.stopping
		s.mu.Unlock()
		if err != nil && first == nil && !stopping {
			first = err
			closeAll(listeners) // their Serve returns and is counted here
		}
	}
	return first
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		l.Close()
	}
}

// Shutdown closes the listeners, tells clients to close their connections, and
// waits for running answers until ctx ends. Then it cuts those that are left and
// returns ctx's error. A request that was on its way is served as well: net/http
// alone would close its connection without a word. When Shutdown returns, no
// handler runs any more, unless one ignored for seconds that its connection is
// gone; the error says so.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	closeAll(s.listeners)
	s.mu.Unlock()
	s.http.SetKeepAlivesEnabled(false) // and closes idle connections

	err := s.settle(ctx, comingGrace)
	if err == nil {
		err = s.http.Shutdown(ctx)
	}
	if err == nil {
		return nil
	}
	s.http.Close() // ends the contexts of the requests
	grace, cancel := context.WithTimeout(context.Background(), cutGrace)
	defer cancel()
	if s.settle(grace, 0) != nil {
		err = errors.Join(err, errors.New("shutting down: requests ran on after their connections were cut"))
	}
	return err
}

// settle waits until no handler runs and, at most for patience, no request is on
// its way. It returns ctx's error if that ends first.
func (s *Server) settle(ctx context.Context, patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	patient := patience > 0
	for {
		s.mu.Lock()
		settled := s.live == 0 && (!patient || len(s.coming) == 0)
		s.mu.Unlock()
		if settled {
			return nil
		}
		select {
		case <-s.changed:
		case <-timer.C:
			patient = false
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
