package worker

import (
	"fmt"
	"os"
	"sync"
	"time"

	"tandem/daemon/ident"
	"tandem/daemon/wire"
)

// maxUnsent bounds what waits for a daemon that does not read. A daemon that lets
// this much pile up is stuck, and the systemd watchdog's business; the rank exits
// rather than grow.
const maxUnsent = 64 << 20

// post sends messages to the daemon, in order, from any goroutine. send never
// waits for the daemon.
type post struct {
	conn *os.File
	gen  ident.Generation

	mu      sync.Mutex // guards what follows
	unsent  []byte
	writing bool
	idle    sync.Cond
}

func newPost(conn *os.File, gen ident.Generation) *post {
	p := &post{conn: conn, gen: gen}
	p.idle.L = &p.mu
	return p
}

func (p *post) send(m wire.Message) {
	if !faultAtSay(p, m) {
		p.put(m)
	}
}

func (p *post) put(m wire.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	if p.unsent, err = wire.Append(p.unsent, p.gen, m); err != nil {
		panic(err) // a message of ours that is too big
	}
	p.wakeLocked()
}

func (p *post) wakeLocked() {
	if len(p.unsent) > maxUnsent {
		fmt.Fprintln(os.Stderr, "worker: the daemon does not read; exiting")
		os.Exit(1)
	}
	if !p.writing {
		p.writing = true
		go p.write()
	}
}

func (p *post) write() {
	p.mu.Lock()
	for len(p.unsent) > 0 {
		b := p.unsent
		p.unsent = nil
		p.mu.Unlock()
		_, err := p.conn.Write(b)
		p.mu.Lock()
		if err != nil {
			p.unsent = nil // the reader will notice that the daemon is gone
		}
	}
	p.writing = false
	p.idle.Broadcast()
	p.mu.Unlock()
}

// flush waits until everything is written, for so long.
func (p *post) flush(limit time.Duration) {
	t := time.AfterFunc(limit, func() { p.idle.Broadcast() })
	defer t.Stop()
	end := time.Now().Add(limit)
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.writing && time.Now().Before(end) {
		p.idle.Wait()
	}
}

// mailbox is a queue of orders for one goroutine. It is bounded by what the
// daemon sends, which is bounded by admission.
type mailbox struct {
	mu   sync.Mutex // guards mail
	mail []wire.Message
	ring chan struct{} // one token: there is mail
}

func newMailbox() *mailbox { return &mailbox{ring: make(chan struct{}, 1)} }

func (b *mailbox) put(m wire.Message) {
	b.mu.Lock()
	b.mail = append(b.mail, m)
	b.mu.Unlock()
	select {
	case b.ring <- struct{}{}:
	default:
	}
}

// take empties the box.
func (b *mailbox) take() []wire.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.mail
	b.mail = nil
	return m
}
