package observe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// journalForm writes an event in the journal's native protocol: lines of
// FIELD=value, or for a value with line breaks FIELD, a line break, its length
// in eight bytes little-endian, the value, a line break. The protocol is
// described at https://systemd.io/JOURNAL_NATIVE_PROTOCOL/.
type journalForm struct{}

const fieldPrefix = "TANDEM_"

func (journalForm) format(r slog.Record, fields []pair) []byte {
	b := make([]byte, 0, 512)
	b = appendField(b, "MESSAGE", plain(r.Message))
	b = appendField(b, "PRIORITY", strconv.Itoa(priority(r.Level)))
	b = appendField(b, "SYSLOG_IDENTIFIER", "tandem")
	if !r.Time.IsZero() {
		b = appendField(b, fieldPrefix+"TIME", r.Time.UTC().Format("2006-01-02T15:04:05.000000Z"))
	}
	if f, ok := source(r.PC); ok {
		b = appendField(b, "CODE_FILE", f.File)
		b = appendField(b, "CODE_LINE", strconv.Itoa(f.Line))
		b = appendField(b, "CODE_FUNC", f.Function)
	}
	for _, p := range fields {
		name := journalName(p.key)
		if p.value.Kind() == slog.KindDuration {
			name += "_MS"
		}
		value := valueText(p.value)
		b = appendField(b, name, value)
		if p.key == eventKey {
			if id := byName[value].MessageID(); id != "" {
				b = appendField(b, "MESSAGE_ID", id)
			}
		}
	}
	return b
}

// priority is a level in syslog's numbers.
func priority(l slog.Level) int {
	switch {
	case l >= slog.LevelError:
		return 3
	case l >= slog.LevelWarn:
		return 4
	case l >= slog.LevelInfo:
		return 6
	}
	return 7
}

// journalName is a field's name as the journal takes it: upper-case letters,
// digits and underscores, not too long. The journal drops any other field
// without a word, so what does not fit is replaced.
func journalName(key string) string {
	up := func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_':
			return r
		}
		return '_'
	}
	name := fieldPrefix + strings.Map(up, key)
	return name[:min(len(name), 60)] // 64, less a "_MS"
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	if strings.IndexByte(value, '\n') < 0 {
		b = append(b, '=')
	} else {
		b = append(b, '\n')
		b = binary.LittleEndian.AppendUint64(b, uint64(len(value)))
	}
	b = append(b, value...)
	return append(b, '\n')
}

// journalSocket is where the journal listens.
const journalSocket = "/run/systemd/journal/socket"

// journalSink sends events to the journal's socket. It is not connected to it,
// so that it goes on working when the journal is restarted.
type journalSink struct {
	conn     *net.UnixConn
	to       *net.UnixAddr
	once     sync.Once
	gone     chan struct{} // closed by stop
	failing  bool          // the last event was given up; only the writer uses it
	patience time.Duration // how long to try one event while the journal is away
}

func newJournalSink(path string) (*journalSink, error) {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("a socket for the journal: %w", err)
	}
	return &journalSink{conn: conn, gone: make(chan struct{}), to: &net.UnixAddr{Name: path, Net: "unixgram"}, patience: 5 * time.Second}, nil
}

// write sends one event. While nobody listens, as during a restart of the
// journal, it tries again for a while; once it gave an event up it tries each
// further one only once, until one arrives.
func (s *journalSink) write(b []byte) error {
	end := time.Now().Add(s.patience)
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		err := s.send(b, end)
		if err == nil {
			s.failing = false
			return nil
		}
		if s.stopped() || s.failing || !again(err) || time.Now().After(end) {
			s.failing = true
			return err
		}
		select {
		case <-s.gone:
		case <-time.After(pause):
		}
	}
}

// again reports errors that pass when the journal is back.
func again(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EAGAIN)
}

func (s *journalSink) send(b []byte, end time.Time) error {
	if s.stopped() {
		return net.ErrClosed
	}
	if err := s.conn.SetWriteDeadline(end); err != nil {
		return err
	}
	_, _, err := s.conn.WriteMsgUnix(b, nil, s.to)
	if errors.Is(err, syscall.EMSGSIZE) || errors.Is(err, syscall.ENOBUFS) {
		return s.sendLarge(b)
	}
	return err
}

// sendLarge passes an event that does not fit a datagram as a sealed memory file.
func (s *journalSink) sendLarge(b []byte) error {
	fd, err := unix.MemfdCreate("tandem-event", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memory file for an event: %w", err)
	}
	f := os.NewFile(uintptr(fd), "tandem-event")
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return err
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("sealing an event: %w", err)
	}
	_, _, err = s.conn.WriteMsgUnix(nil, unix.UnixRights(int(f.Fd())), s.to)
	return err
}

// stop ends a write that waits.
func (s *journalSink) stop() {
	s.once.Do(func() {
		close(s.gone)
		s.conn.Close()
	})
}

func (s *journalSink) stopped() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}
