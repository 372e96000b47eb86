package observe

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonForm is for machines that read stderr: one object a line, with time,
// level, msg, event and the fields. Names of groups are joined by dots; time
// spans are in milliseconds under a name that ends in _ms.
type jsonForm struct{}

func (jsonForm) format(r slog.Record, fields []pair) []byte {
	b := append(make([]byte, 0, 256), '{')
	add := func(key string) {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = appendJSON(b, key)
		b = append(b, ':')
	}
	if !r.Time.IsZero() {
		add(slog.TimeKey)
		b = append(b, '"')
		b = r.Time.AppendFormat(b, time.RFC3339Nano)
		b = append(b, '"')
	}
	add(slog.LevelKey)
	switch {
	case r.Level >= slog.LevelError:
		b = append(b, `"error"`...)
	case r.Level >= slog.LevelWarn:
		b = append(b, `"warn"`...)
	case r.Level >= slog.LevelInfo:
		b = append(b, `"info"`...)
	default:
		b = append(b, `"debug"`...)
	}
	add(slog.MessageKey)
	b = appendJSON(b, plain(r.Message))
	for _, p := range fields {
		v := p.value
		switch v.Kind() {
		case slog.KindInt64:
			add(p.key)
			b = strconv.AppendInt(b, v.Int64(), 10)
		case slog.KindUint64:
			add(p.key)
			b = strconv.AppendUint(b, v.Uint64(), 10)
		case slog.KindBool:
			add(p.key)
			b = strconv.AppendBool(b, v.Bool())
		case slog.KindDuration:
			add(p.key + "_ms")
			b = append(b, valueText(v)...)
		default:
			add(p.key)
			b = appendJSON(b, valueText(v))
		}
	}
	return append(b, '}', '\n')
}

// appendJSON writes a JSON string in which everything that is not printable is
// escaped; what is not UTF-8 becomes U+FFFD.
func appendJSON(b []byte, s string) []byte {
	q, _ := json.Marshal(s) // a string cannot fail
	for _, r := range string(q) {
		switch {
		case unicode.IsPrint(r):
			b = utf8.AppendRune(b, r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, hi, lo)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return b
}
