// Package jsonout writes JSON strings by appending to a buffer, without
// reflection or allocation, for frames that are sent for every token. Bodies
// that are sent once use encoding/json.
package jsonout

import "unicode/utf8"

const hex = "0123456789abcdef"

// escaped says for each byte below utf8.RuneSelf whether a string must not hold it as it is.
var escaped = func() (t [utf8.RuneSelf]bool) {
	for c := range t {
		t[c] = c < ' ' || c == '"' || c == '\\' || c == 0x7f
	}
	return t
}()

// AppendString appends s as a JSON string with its quotes. Bytes that are not
// UTF-8 become U+FFFD, so the result is always valid.
func AppendString[T string | []byte](b []byte, s T) []byte {
	b = append(b, '"')
	b = AppendInner(b, s)
	return append(b, '"')
}

// AppendInner appends s as AppendString does, but without the quotes. Line and
// paragraph separators are escaped, because JavaScript and some readers of
// lines take them for line ends.
func AppendInner[T string | []byte](b []byte, s T) []byte {
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if !escaped[c] {
				i++
				continue
			}
			b = append(b, s[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, '\\', 'n')
			case '\r':
				b = append(b, '\\', 'r')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
			i++
			start = i
			continue
		}
		r, n := decodeRune(s, i)
		switch {
		case r == utf8.RuneError && n == 1:
			b = append(b, s[start:i]...)
			b = append(b, "\ufffd"...)
			i++
			start = i
		case r == '\u2028' || r == '\u2029':
			b = append(b, s[start:i]...)
			b = append(b, '\\', 'u', '2', '0', '2', hex[r&15])
			i += n
			start = i
		default:
			i += n
		}
	}
	return append(b, s[start:]...)
}

func decodeRune[T string | []byte](s T, i int) (rune, int) {
	var buf [utf8.UTFMax]byte
	n := copy(buf[:], s[i:min(i+utf8.UTFMax, len(s))])
	return utf8.DecodeRune(buf[:n])
}
