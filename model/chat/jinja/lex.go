package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// tokenKind is a kind of token of a template's source.
type tokenKind uint8

const (
	tEnd    tokenKind = iota
	tData             // text outside tags
	tPrint            // {{
	tEndOut           // }}
	tBlock            // {%
	tEndTag           // %}
	tName
	tString
	tInt
	tFloat
	tOp
)

type lexeme struct {
	kind tokenKind
	text string // of a string: its value
	num  float64
	int  int64
	line int
}

type lexer struct {
	src    string
	at     int
	line   int
	out    []lexeme
	starts bool // the last thing ended with a line end, or nothing was yet
}

func syntax(line int, format string, args ...any) {
	panic(&SyntaxError{Line: line, Message: fmt.Sprintf(format, args...)})
}

// lex cuts a template into tokens. Line ends are normalised and one at the very
// end is dropped. A tag of the kind {%…%} or {#…#} that stands alone on its line
// takes the space before it and the line end after it along; a minus sign at the
// edge of any tag takes all white space there, a plus sign none.
func lex(source string) []lexeme {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{src: source, line: 1, starts: true}
	for l.at < len(l.src) {
		l.root()
	}
	l.add(lexeme{kind: tEnd})
	return l.out
}

func (l *lexer) add(t lexeme) {
	t.line = l.line
	l.out = append(l.out, t)
}

// skip goes on by n bytes and counts lines.
func (l *lexer) skip(n int) {
	l.line += strings.Count(l.src[l.at:l.at+n], "\n")
	l.at += n
}

// space skips white space.
func (l *lexer) space() {
	rest := strings.TrimLeftFunc(l.src[l.at:], isSpace)
	l.skip(len(l.src) - l.at - len(rest))
}

func (l *lexer) sign() byte {
	if l.at < len(l.src) && (l.src[l.at] == '-' || l.src[l.at] == '+') {
		l.at++
		return l.src[l.at-1]
	}
	return 0
}

// root reads text up to a tag, and the tag.
func (l *lexer) root() {
	rest := l.src[l.at:]
	open := 0
	for {
		i := strings.IndexByte(rest[open:], '{')
		if i < 0 || open+i+1 >= len(rest) {
			l.add(lexeme{kind: tData, text: rest})
			l.at = len(l.src)
			return
		}
		open += i
		if c := rest[open+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		open++
	}
	text := rest[:open]
	kind := rest[open+1]
	starts := l.starts
	line := l.line
	l.skip(open + 2)
	switch sign := l.sign(); {
	case sign == '-':
		text = strings.TrimRightFunc(text, isSpace)
	case sign == 0 && kind != '{':
		line := strings.LastIndexByte(text, '\n') + 1
		if (line > 0 || starts) && strings.TrimLeftFunc(text[line:], isSpace) == "" {
			text = text[:line]
		}
	}
	if text != "" {
		at := l.line
		l.line = line
		l.add(lexeme{kind: tData, text: text})
		l.line = at
	}
	switch kind {
	case '#':
		end := strings.Index(l.src[l.at:], "#}")
		if end < 0 {
			syntax(l.line, "a comment is not closed")
		}
		sign := byte(0)
		if end > 0 {
			sign = l.src[l.at+end-1]
		}
		l.skip(end + 2)
		l.after(sign, true)
	case '%':
		if l.raw() {
			return
		}
		l.add(lexeme{kind: tBlock})
		l.inside("%}", tEndTag)
	default:
		l.add(lexeme{kind: tPrint})
		l.inside("}}", tEndOut)
	}
}

// after handles the white space after a tag.
func (l *lexer) after(sign byte, block bool) {
	l.starts = false
	switch {
	case sign == '-':
		before := l.at
		l.space()
		l.starts = l.at > before && l.src[l.at-1] == '\n'
	case sign == 0 || sign != '+':
		if block && l.at < len(l.src) && l.src[l.at] == '\n' {
			l.skip(1)
			l.starts = true
		}
	}
}

// raw reads a whole raw block if one begins here, after {%.
func (l *lexer) raw() bool {
	rest := strings.TrimLeftFunc(l.src[l.at:], isSpace)
	name, ok := strings.CutPrefix(rest, "raw")
	if !ok {
		return false
	}
	name = strings.TrimLeftFunc(name, isSpace)
	sign := byte(0)
	if name != "" && (name[0] == '-' || name[0] == '+') {
		sign, name = name[0], name[1:]
	}
	if !strings.HasPrefix(name, "%}") {
		return false
	}
	line := l.line
	l.skip(len(l.src) - l.at - len(name) + 2)
	l.after(sign, true)
	begin := l.at
	for {
		i := strings.Index(l.src[l.at:], "{%")
		if i < 0 {
			syntax(line, "raw is not closed by endraw")
		}
		l.skip(i)
		end := l.at
		l.at += 2
		open := l.sign()
		l.space()
		if !strings.HasPrefix(l.src[l.at:], "endraw") {
			continue
		}
		l.at += len("endraw")
		l.space()
		close := l.sign()
		if !strings.HasPrefix(l.src[l.at:], "%}") {
			continue
		}
		l.at += 2
		text := l.src[begin:end]
		if open == '-' {
			text = strings.TrimRightFunc(text, isSpace)
		} else if open == 0 {
			line := strings.LastIndexByte(text, '\n') + 1
			if line > 0 && strings.TrimLeftFunc(text[line:], isSpace) == "" {
				text = text[:line]
			}
		}
		if text != "" {
			l.add(lexeme{kind: tData, text: text})
		}
		l.after(close, true)
		return true
	}
}

var operators = []string{"==", "!=", ">=", "<=", "//", "**", "+", "-", "*", "/", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";"}

// inside reads the expression tokens of a tag up to its end.
func (l *lexer) inside(end string, kind tokenKind) {
	start := l.line
	var open []byte // brackets
	for {
		l.space()
		if l.at >= len(l.src) {
			syntax(start, "a tag is not closed by %s", end)
		}
		rest := l.src[l.at:]
		if len(open) == 0 {
			sign := byte(0)
			tail := rest
			if rest[0] == '-' || rest[0] == '+' && kind == tEndTag {
				sign, tail = rest[0], rest[1:]
			}
			if strings.HasPrefix(tail, end) {
				l.add(lexeme{kind: kind})
				l.at += len(rest) - len(tail) + len(end)
				l.after(sign, kind == tEndTag)
				return
			}
		}
		c := rest[0]
		switch {
		case c == '\'' || c == '"':
			l.stringLiteral(c)
			continue
		case c >= '0' && c <= '9':
			l.number()
			continue
		}
		if r, _ := utf8.DecodeRuneInString(rest); r == '_' || unicode.IsLetter(r) {
			n := strings.IndexFunc(rest, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
			if n < 0 {
				n = len(rest)
			}
			l.add(lexeme{kind: tName, text: rest[:n]})
			l.at += n
			continue
		}
		op := ""
		for _, o := range operators {
			if strings.HasPrefix(rest, o) {
				op = o
				break
			}
		}
		switch op {
		case "":
			r, _ := utf8.DecodeRuneInString(rest)
			syntax(l.line, "unexpected character %q", r)
		case "(", "[", "{":
			open = append(open, map[string]byte{"(": ')', "[": ']', "{": '}'}[op])
			if len(open) > maxNesting {
				syntax(l.line, "brackets are nested more than %d deep", maxNesting)
			}
		case ")", "]", "}":
			if len(open) == 0 || open[len(open)-1] != op[0] {
				syntax(l.line, "unexpected %q", op)
			}
			open = open[:len(open)-1]
		}
		l.add(lexeme{kind: tOp, text: op})
		l.at += len(op)
	}
}

func (l *lexer) stringLiteral(quote byte) {
	line := l.line
	var b strings.Builder
	i := l.at + 1
	for {
		if i >= len(l.src) {
			syntax(line, "a string is not closed")
		}
		c := l.src[i]
		if c == quote {
			break
		}
		if c != '\\' {
			b.WriteByte(c)
			i++
			continue
		}
		i++
		if i >= len(l.src) {
			syntax(line, "a string is not closed")
		}
		n := 1
		switch c := l.src[i]; c {
		case '\n':
		case '\\', '\'', '"':
			b.WriteByte(c)
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case 'r':
			b.WriteByte('\r')
		case 'a', 'b', 'f', 'v':
			b.WriteByte(map[byte]byte{'a': 7, 'b': 8, 'f': 12, 'v': 11}[c])
		case 'x', 'u', 'U':
			digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if i+1+digits > len(l.src) {
				syntax(line, "a string is not closed")
			}
			r, err := strconv.ParseUint(l.src[i+1:i+1+digits], 16, 32)
			if err != nil || r > unicode.MaxRune {
				syntax(line, "\\%c is not followed by %d hexadecimal digits", c, digits)
			}
			b.WriteRune(rune(r))
			n += digits
		case '0', '1', '2', '3', '4', '5', '6', '7':
			for n < 3 && i+n < len(l.src) && l.src[i+n] >= '0' && l.src[i+n] <= '7' {
				n++
			}
			r, _ := strconv.ParseUint(l.src[i:i+n], 8, 32)
			b.WriteRune(rune(r))
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
		i += n
	}
	l.add(lexeme{kind: tString, text: b.String()})
	l.skip(i + 1 - l.at)
}

func (l *lexer) number() {
	rest := l.src[l.at:]
	digits := func(i int) int {
		for i < len(rest) && (rest[i] >= '0' && rest[i] <= '9' || rest[i] == '_') {
			i++
		}
		return i
	}
	n, float := digits(0), false
	if n == 1 && rest[0] == '0' && len(rest) > 1 && strings.IndexByte("xXoObB", rest[1]) >= 0 {
		for n = 2; n < len(rest) && (rest[n] == '_' || strings.IndexByte("0123456789abcdefABCDEF", rest[n]) >= 0); n++ {
		}
	} else {
		if n+1 < len(rest) && rest[n] == '.' && rest[n+1] >= '0' && rest[n+1] <= '9' {
			n, float = digits(n+1), true
		}
		if n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
			m := n + 1
			if m < len(rest) && (rest[m] == '+' || rest[m] == '-') {
				m++
			}
			if end := digits(m); end > m {
				n, float = end, true
			}
		}
	}
	text := strings.ReplaceAll(rest[:n], "_", "")
	t := lexeme{kind: tInt, text: text}
	var err error
	if float {
		t.kind = tFloat
		t.num, err = strconv.ParseFloat(text, 64)
	} else {
		base := 10
		if len(text) > 1 && text[0] == '0' && text[1] > '9' {
			base = 0
		}
		t.int, err = strconv.ParseInt(text, base, 64)
	}
	if err != nil {
		syntax(l.line, "number %.40s is not supported", text)
	}
	l.add(t)
	l.at += n
}
