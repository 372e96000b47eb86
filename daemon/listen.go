package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"

	"tandem/daemon/admin"
	"tandem/daemon/observe"
)

// listen opens the endpoint and the admin socket, or takes over those that systemd
// passed: "api" and "admin" by name.
func (s *server) listen() error {
	given, err := activation.ListenersWithNames()
	if err != nil {
		return fmt.Errorf("sockets from systemd: %w", err)
	}
	for name, ls := range given {
		for _, l := range ls {
			if l == nil {
				continue
			}
			s.later(l.Close)
			switch {
			case name == "admin" || strings.HasPrefix(name, "tandem-admin"):
				s.admin = l
			default:
				s.api = append(s.api, l)
			}
		}
	}
	if len(s.api) > 0 {
		if want := s.cfg.Server.Listen; s.api[0].Addr().String() != strings.TrimPrefix(want, "unix:") {
			s.log.Event(observe.ConfigWarning, fmt.Sprintf("listening where the socket unit says, %s, not on server.listen, %s", s.api[0].Addr(), want))
		}
	} else {
		l, err := listenAt(s.cfg.Server.Listen)
		if err != nil {
			return err
		}
		s.later(l.Close)
		s.api = []net.Listener{l}
	}
	if s.admin == nil {
		path := s.cfg.AdminSockets(os.Getenv)[0]
		if s.admin, err = admin.Listen(path); err != nil {
			return err
		}
		s.later(s.admin.Close)
	}
	return nil
}

func listenAt(address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		l, err := net.Listen("unix", path)
		if errors.Is(err, syscall.EADDRINUSE) {
			if c, e := net.Dial("unix", path); e == nil {
				c.Close()
				return nil, fmt.Errorf("server.listen: %s is in use by another process: stop it, or choose another path", path)
			}
			if e := os.Remove(path); e == nil { // a dead daemon's
				l, err = net.Listen("unix", path)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("server.listen: %w", err)
		}
		return l, nil
	}
	l, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		_, port, _ := net.SplitHostPort(address)
		return nil, fmt.Errorf("server.listen: %s is in use: `ss -ltnp 'sport = :%s'` shows by whom; stop it, or set server.listen to another port", address, port)
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("server.listen: no permission for %s: choose a port above 1023, or let systemd open it (tandem.socket)", address)
	case err != nil:
		return nil, fmt.Errorf("server.listen: %w", err)
	}
	return l, nil
}
