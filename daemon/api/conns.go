package api

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// sendBuffer is what the kernel may hold of an answer that its client does not read.
// Linux sets aside twice that. Left alone it would be up to four mebibytes a client.
const sendBuffer = 64 << 10

// crowded is the answer to a connection beyond the limit. It needs no handler and does
// not wait for the request.
var crowded = func() []byte {
	body := problemJSON(custom(503, "too_many_connections", "there are as many connections as this server takes; try again in 1s"))
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\nRetry-After: 1\r\nConnection: close\r\n\r\n%s", len(body), body)
}()

func problemJSON(p *problem) []byte { return append(p.body(), '\n') }

// guarded is a listener that bounds the connections of its server, and what the
// kernel keeps for each. It may be closed twice: net/http and this package both do.
type guarded struct {
	net.Listener
	server *Server
	once   sync.Once
	err    error
}

func (l *guarded) Close() error {
	l.once.Do(func() { l.err = l.Listener.Close() })
	return l.err
}

// Accept gives the next connection that there is room for. One beyond is told so and
// closed: a client that waited in the kernel would never learn why.
func (l *guarded) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.server.room() {
			if b, ok := c.(interface{ SetWriteBuffer(int) error }); ok {
				_ = b.SetWriteBuffer(sendBuffer) // with another size it works as well
			}
			return c, nil
		}
		_ = c.SetDeadline(time.Now().Add(time.Second)) // an empty buffer takes this at once
		_, _ = c.Write(crowded)
		c.Close()
	}
}

// room reports whether the server takes another connection. Those that it has are
// counted by state, before the next is accepted.
func (s *Server) room() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.MaxConns == 0 || s.open < s.MaxConns {
		return true
	}
	if now := time.Now(); now.Sub(s.moaned) > 10*time.Second {
		s.moaned = now
		s.log.Warn("connections are refused: there are as many as there may be", "limit", s.MaxConns)
	}
	return false
}
