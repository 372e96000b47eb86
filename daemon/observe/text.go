package observe

import (
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// textForm is for people at a terminal or in a file: one line an event, the
// message first, then its fields. What the message has said already is not said
// again, and a field of many lines other than stacks is left to the journal.
//
//	2026-11-29 15:04:05.123 warn  worker decode 0.1 ended  reason="signal: killed" event=worker.exit
type textForm struct {
	colour bool
}

const (
	textTime     = "2006-01-02 15:04:05.000"
	maxTextValue = 4 << 10 // of one field on a line
)

func (f textForm) format(r slog.Record, fields []pair) []byte {
	b := make([]byte, 0, 160)
	if !r.Time.IsZero() {
		b = r.Time.AppendFormat(b, textTime)
		b = append(b, ' ')
	}
	name, colour := levelText(r.Level)
	if f.colour {
		b = append(b, colour...)
	}
	b = append(b, name...)
	if f.colour {
		b = append(b, "\x1b[0m"...)
	}
	b = append(b, ' ')
	b = append(b, plain(r.Message)...)
	sep, event := "  ", ""
	add := func(key, value string) {
		b = append(b, sep...)
		sep = " "
		if f.colour {
			b = append(b, "\x1b[2m"...)
		}
		b = append(b, plain(key)...)
		b = append(b, '=')
		if f.colour {
			b = append(b, "\x1b[0m"...)
		}
		b = append(b, quoteText(value)...)
	}
	for _, p := range fields {
		switch {
		case p.key == eventKey:
			event = p.value.String()
		case p.value.Kind() == slog.KindDuration:
			add(p.key, shortDuration(p.value.Duration()))
		default:
			if v := valueText(p.value); tells(p.key, v, r.Message) {
				add(p.key, v)
			}
		}
	}
	if event != "" {
		add(eventKey, event)
	}
	return append(b, '\n')
}

// tells reports whether a field says something beyond the message.
func tells(key, value, message string) bool {
	if key == "reason" && strings.Contains(message, value) {
		return false
	}
	return key == "stacks" || !strings.Contains(value, "\n")
}

// levelText is a level in five columns, and its colour.
func levelText(l slog.Level) (name, colour string) {
	switch {
	case l >= slog.LevelError:
		return "error", "\x1b[31m"
	case l >= slog.LevelWarn:
		return "warn ", "\x1b[33m"
	case l >= slog.LevelInfo:
		return "info ", "\x1b[32m"
	}
	return "debug", "\x1b[2m"
}

// quoteText quotes what would not be one word.
func quoteText(s string) string {
	if len(s) > maxTextValue {
		s = strings.ToValidUTF8(s[:maxTextValue], "") + "… (" + strconv.Itoa(len(s)-maxTextValue) + " more bytes)"
	}
	odd := func(r rune) bool { return r <= ' ' || r == '"' || r == '=' || r == '\\' || !unicode.IsPrint(r) }
	if s == "" || strings.ContainsFunc(s, odd) {
		return strconv.Quote(s)
	}
	return s
}

// shortDuration keeps three or four digits.
func shortDuration(d time.Duration) string {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit || d <= -unit {
			return d.Round(unit / 1000).String()
		}
	}
	return d.String()
}
