package catalog

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Meter shows progress to people: one line that is written over on a terminal,
// a line every five seconds elsewhere. Call Done when the fetch has ended.
type Meter struct {
	w        io.Writer
	terminal bool
	width    int
	now      func() time.Time

	begun   time.Time
	phase   string
	base    int64     // bytes there when the phase began
	shown   time.Time // last line
	note    string
	pending bool // a line without its end stands on the terminal
}

// NewMeter shows progress on f.
func NewMeter(f *os.File) *Meter {
	m := &Meter{w: f, now: time.Now, width: 80}
	if ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
		m.terminal = true
		if ws.Col > 20 {
			m.width = int(ws.Col)
		}
	}
	return m
}

// Update is a Progress function for Options.
func (m *Meter) Update(p Progress) {
	now := m.now()
	if p.Phase != m.phase {
		m.end()
		m.phase, m.begun, m.base, m.note = p.Phase, now, p.Done, ""
		m.shown = time.Time{}
	}
	if p.Note != "" {
		if p.Note != m.note {
			m.note = p.Note
			m.end()
			fmt.Fprintf(m.w, "%s: %s\n", p.Phase, p.Note)
		}
		return
	}
	whole := p.Total > 0 && p.Done >= p.Total
	if m.terminal {
		if now.Sub(m.shown) < 100*time.Millisecond && !whole {
			return
		}
		m.shown = now
		line := m.line(p, now)
		if r := []rune(line); len(r) > m.width-1 {
			line = string(r[:m.width-1])
		}
		fmt.Fprintf(m.w, "\r%s\x1b[K", line)
		m.pending = true
		return
	}
	if now.Sub(m.shown) >= 5*time.Second || whole {
		m.shown = now
		fmt.Fprintln(m.w, m.line(p, now))
	}
}

// line is "fetching  41 %  38.5 of 93.8 MiB  12.1 MiB/s  5 s left".
func (m *Meter) line(p Progress, now time.Time) string {
	const mib = 1 << 20
	var b strings.Builder
	b.WriteString(p.Phase)
	if p.Total > 0 {
		fmt.Fprintf(&b, " %3d %%  %.1f of %.1f MiB", min(p.Done*100/p.Total, 100), float64(p.Done)/mib, float64(p.Total)/mib)
	} else {
		fmt.Fprintf(&b, "  %.1f MiB", float64(p.Done)/mib)
	}
	if took := now.Sub(m.begun).Seconds(); took >= 1 && p.Done > m.base {
		rate := float64(p.Done-m.base) / took
		fmt.Fprintf(&b, "  %.1f MiB/s", rate/mib)
		if left := float64(p.Total-p.Done) / rate; p.Total > p.Done && left < 360000 {
			fmt.Fprintf(&b, "  %s left", time.Duration(left*float64(time.Second)).Round(time.Second))
		}
	}
	return b.String()
}

// Done ends the line that stands on the terminal.
func (m *Meter) Done() { m.end() }

func (m *Meter) end() {
	if m.pending {
		fmt.Fprintln(m.w)
		m.pending = false
	}
}
