package token

import (
	"strconv"
	"unicode/utf8"
)

// A vocabulary file spells a token's bytes as printable runes: bytes that are
// printable in Latin-1 stand for themselves, the others are numbered from U+0100
// on, in order.

var spelled, unspelled = func() (out [256]rune, back map[rune]byte) {
	back = make(map[rune]byte, 256)
	next := rune(0x100)
	for b := range out {
		r := rune(b)
		if b < 0x21 || b > 0x7e && b < 0xa1 || b == 0xad {
			r = next
			next++
		}
		out[b] = r
		back[r] = byte(b)
	}
	return out, back
}()

// appendSpelled appends the bytes that text spells. A rune that spells no byte
// stands for itself.
func appendSpelled(dst []byte, text string) []byte {
	for _, r := range text {
		if b, ok := unspelled[r]; ok {
			dst = append(dst, b)
		} else {
			dst = utf8.AppendRune(dst, r)
		}
	}
	return dst
}

// byteToken reads a text of the form <0x0A>.
func byteToken(text string) (byte, bool) {
	if len(text) != 6 || text[:3] != "<0x" || text[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(text[3:5], 16, 8)
	return byte(b), err == nil
}
