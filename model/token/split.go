package token

import (
	"slices"
	"strings"
)

// A splitter gives the end of the word that begins at s[i], i < len(s). It looks
// at nothing before i.
type splitter func(s string, i int) int

// splitters are the known pre-tokenizers, each a hand-written scanner for the
// regular expression of its name. With
//
//	contraction = 's|'t|'re|'ve|'m|'ll|'d
//	rest        =  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// they are
//
//	gpt-2      contraction| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//	smollm     \p{N} first, then gpt-2's on each of the pieces between
//	llama-bpe  (?i:contraction)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|rest
//	qwen2      (?i:contraction)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|rest
//
// where (?i:'s) also matches 'ſ, as it does in the engines for which these were
// written. The scanners go forward only, so each is linear.
//
// whole is set where a word that is itself a token is taken without merging.
var splitters = map[string]struct {
	next  splitter
	whole bool
}{
	"gpt-2":     {next: gpt2},
	"smollm":    {next: smollm},
	"llama-bpe": {next: func(s string, i int) int { return modern(s, i, 3) }, whole: true},
	"qwen2":     {next: func(s string, i int) int { return modern(s, i, 1) }},
}

// PreTokenizers lists the names that Vocab.Pre may have.
func PreTokenizers() []string {
	names := make([]string, 0, len(splitters))
	for name := range splitters {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// contraction gives the end of a contraction that begins at the apostrophe s[i],
// or i.
func contraction(s string, i int, fold bool) int {
	rest := s[i+1:]
	if rest == "" {
		return i
	}
	lower := func(b byte) byte {
		if fold && 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
		return b
	}
	a := lower(rest[0])
	switch a {
	case 's', 't', 'm', 'd':
		return i + 2
	}
	if fold && strings.HasPrefix(rest, "ſ") {
		return i + 1 + len("ſ")
	}
	if len(rest) > 1 {
		switch b := lower(rest[1]); {
		case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
			return i + 3
		}
	}
	return i
}

// spaces gives the end of \s+(?!\S)|\s+ for the run of white space s[i:end]: all
// of it at the end of the text, else all but its last rune, if that leaves any.
func spaces(s string, i, end int, atEnd bool) int {
	if atEnd {
		return end
	}
	last := end - 1
	for last > i && s[last]&0xc0 == 0x80 {
		last--
	}
	if last > i {
		return last
	}
	return end
}

func gpt2(s string, i int) int {
	c, size := at(s, i)
	switch c {
	case letter, number:
		return skip(s, i+size, c)
	case other:
		if s[i] == '\'' {
			if end := contraction(s, i, false); end > i {
				return end
			}
		}
		return skip(s, i+size, other)
	}
	if s[i] == ' ' && i+1 < len(s) {
		if c, size := at(s, i+1); c != white {
			return skip(s, i+1+size, c)
		}
	}
	end := skip(s, i+size, white)
	return spaces(s, i, end, end == len(s))
}

func smollm(s string, i int) int {
	c, size := at(s, i)
	switch c {
	case number:
		return i + size
	case letter:
		return skip(s, i+size, letter)
	case other:
		if s[i] == '\'' {
			if end := contraction(s, i, false); end > i {
				return end
			}
		}
		return skip(s, i+size, other)
	}
	if s[i] == ' ' && i+1 < len(s) {
		if c, size := at(s, i+1); c == letter || c == other {
			return skip(s, i+1+size, c)
		}
	}
	end := skip(s, i+size, white)
	if end == len(s) {
		return end
	}
	// A numeral is a piece of its own, so that what precedes it ends a piece too.
	next, _ := at(s, end)
	return spaces(s, i, end, next == number)
}

func isLine(b byte) bool { return b == '\n' || b == '\r' }

func modern(s string, i, digits int) int {
	c, size := at(s, i)
	if s[i] == '\'' {
		if end := contraction(s, i, true); end > i {
			return end
		}
	}
	switch c {
	case letter:
		return skip(s, i+size, letter)
	case number:
		end := i + size
		for n := 1; n < digits && end < len(s); n++ {
			c, size := at(s, end)
			if c != number {
				break
			}
			end += size
		}
		return end
	}
	// One rune that is no letter, number or line end may stand before letters.
	next := other
	nextSize := 0
	if i+size < len(s) {
		next, nextSize = at(s, i+size)
		if next == letter && !isLine(s[i]) {
			return skip(s, i+size+nextSize, letter)
		}
	}
	if c == other || s[i] == ' ' && nextSize > 0 && next == other {
		end := skip(s, i+size, other)
		for end < len(s) && isLine(s[end]) {
			end++
		}
		return end
	}
	// White space: up to its last line end if it has one.
	end, line := i, -1
	for end < len(s) {
		c, size := at(s, end)
		if c != white {
			break
		}
		if isLine(s[end]) {
			line = end + 1
		}
		end += size
	}
	if line > 0 {
		return line
	}
	return spaces(s, i, end, end == len(s))
}
