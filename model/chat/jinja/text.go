package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text is a string of which each character knows whether a request brought it
// in. Nothing but Runs can tell the two apart.
type Text []rune

// foreign marks a rune that a request brought in.
const foreign rune = 1 << 30

// Own is text of the server or the template. What is not valid UTF-8 becomes U+FFFD.
func Own(s string) Text { return Text([]rune(s)) }

// Foreign is text that a request brought in.
func Foreign(s string) Text {
	t := Text([]rune(s))
	for i := range t {
		t[i] |= foreign
	}
	return t
}

// String is the text without its marks.
func (t Text) String() string {
	var b strings.Builder
	n := 0
	for _, r := range t {
		n += utf8.RuneLen(r &^ foreign)
	}
	b.Grow(n)
	for _, r := range t {
		b.WriteRune(r &^ foreign)
	}
	return b.String()
}

// Runs calls f with the text in parts, as long as possible, each either all
// foreign or not.
func (t Text) Runs(f func(part string, isForeign bool)) {
	for len(t) > 0 {
		n, mark := 1, t[0]&foreign
		for n < len(t) && t[n]&foreign == mark {
			n++
		}
		f(t[:n].String(), mark != 0)
		t = t[n:]
	}
}

func (t Text) equal(u Text) bool {
	if len(t) != len(u) {
		return false
	}
	for i, r := range t {
		if (r^u[i])&^foreign != 0 {
			return false
		}
	}
	return true
}

func (t Text) compare(u Text) int {
	for i := 0; i < len(t) && i < len(u); i++ {
		if d := int(t[i]&^foreign) - int(u[i]&^foreign); d != 0 {
			return d
		}
	}
	return len(t) - len(u)
}

// find gives the places at which sub stands, left to right and not overlapping,
// at most limit of them if that is not negative. Sub is not empty.
func (t Text) find(sub Text, limit int) []int {
	if len(sub) > len(t) || limit == 0 {
		return nil
	}
	hay, needle := t.String(), sub.String()
	var at []int
	runes := 0
	for limit < 0 || len(at) < limit {
		i := strings.Index(hay, needle)
		if i < 0 {
			break
		}
		runes += utf8.RuneCountInString(hay[:i])
		at = append(at, runes)
		runes += len(sub)
		hay = hay[i+len(needle):]
	}
	return at
}

func (t Text) hasPrefix(p Text) bool { return len(t) >= len(p) && t[:len(p)].equal(p) }
func (t Text) hasSuffix(p Text) bool { return len(t) >= len(p) && t[len(t)-len(p):].equal(p) }

// isSpace is Python's idea of white space.
func isSpace(r rune) bool {
	r &^= foreign
	return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f
}

// strip drops leading or trailing characters of the set; nil stands for space.
func (t Text) strip(set Text, left, right bool) Text {
	in := isSpace
	if set != nil {
		m := make(map[rune]bool, len(set))
		for _, r := range set {
			m[r&^foreign] = true
		}
		in = func(r rune) bool { return m[r&^foreign] }
	}
	for left && len(t) > 0 && in(t[0]) {
		t = t[1:]
	}
	for right && len(t) > 0 && in(t[len(t)-1]) {
		t = t[:len(t)-1]
	}
	return t
}

// mapped applies f to each character and keeps its mark.
func (t Text) mapped(f func(i int, r rune) rune) Text {
	out := make(Text, len(t))
	for i, r := range t {
		out[i] = f(i, r&^foreign) | r&foreign
	}
	return out
}

func (t Text) upper() Text { return t.mapped(func(_ int, r rune) rune { return unicode.ToUpper(r) }) }
func (t Text) lower() Text { return t.mapped(func(_ int, r rune) rune { return unicode.ToLower(r) }) }

func (t Text) capitalize() Text {
	return t.mapped(func(i int, r rune) rune {
		if i == 0 {
			return unicode.ToUpper(r)
		}
		return unicode.ToLower(r)
	})
}

// title puts the first letter after each character for which apart holds in upper
// case, and the others in lower case.
func (t Text) title(apart func(rune) bool) Text {
	first := true
	return t.mapped(func(_ int, r rune) rune {
		if apart(r) {
			first = true
			return r
		}
		if first {
			first = false
			return unicode.ToUpper(r)
		}
		return unicode.ToLower(r)
	})
}
