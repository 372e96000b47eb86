package token

import (
	"unicode"
	"unicode/utf8"
)

// class is what a pre-tokenizer wants to know of a rune.
type class uint8

const (
	other  class = iota // neither of the following; also what is not valid UTF-8
	letter              // \p{L}
	number              // \p{N}
	white               // the property White_Space: \s
)

// classes holds the class of every code point, 256 to a page. Pages without any
// letter, number or space are one and the same, so that the table is small.
var classes = func() *[(unicode.MaxRune + 1) >> 8]*[256]class {
	var pages [(unicode.MaxRune + 1) >> 8]*[256]class
	empty := new([256]class)
	for i := range pages {
		pages[i] = empty
	}
	set := func(r rune, c class) {
		p := &pages[r>>8]
		if *p == empty {
			*p = new([256]class)
		}
		(*p)[r&0xff] = c
	}
	fill := func(t *unicode.RangeTable, c class) {
		for _, g := range t.R16 {
			for r := rune(g.Lo); r <= rune(g.Hi); r += rune(g.Stride) {
				set(r, c)
			}
		}
		for _, g := range t.R32 {
			for r := rune(g.Lo); r <= rune(g.Hi); r += rune(g.Stride) {
				set(r, c)
			}
		}
	}
	fill(unicode.L, letter)
	fill(unicode.N, number)
	fill(unicode.White_Space, white)
	return &pages
}()

var ascii = *classes[0]

// at classifies the rune that begins at s[i] and gives its size.
func at(s string, i int) (c class, size int) {
	if b := s[i]; b < utf8.RuneSelf {
		return ascii[b], 1
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	return classes[r>>8][r&0xff], size
}

// skip gives the end of the run of runes of class c that begins at s[i].
func skip(s string, i int, c class) int {
	for i < len(s) {
		got, size := at(s, i)
		if got != c {
			break
		}
		i += size
	}
	return i
}
