package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// What a file may be at most. The parser recurses on brackets and dots and
// keeps a table of every key, so its input is bounded before it sees it.
const (
	maxFileBytes = 1 << 20
	maxDepth     = 16  // brackets and braces open at once
	maxDots      = 64  // dots outside strings on one line
	maxPlaces    = 128 // keys whose place is looked up; each costs a pass over the file
)

// readFile reads a config file of bounded size. A folder, pipe or device is
// refused before it is opened, as reading one may never end; the null device
// is an empty file.
func readFile(path string) (string, error) {
	return readBounded(path, maxFileBytes)
}

func readBounded(path string, limit int64) (string, error) {
	if path == os.DevNull {
		return "", nil
	}
	info, err := os.Stat(path)
	if err == nil {
		switch {
		case info.IsDir():
			return "", errors.New("is a folder, not a file")
		case !info.Mode().IsRegular():
			return "", errors.New("is not a regular file")
		case info.Size() > limit:
			return "", fmt.Errorf("has %d bytes; at most %d are allowed", info.Size(), limit)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	if int64(len(b)) > limit {
		return "", fmt.Errorf("has more than %d bytes", limit)
	}
	return string(b), nil
}

// document is a parsed TOML file that can say where each of its values stands.
type document struct {
	text string
	md   toml.MetaData
	root map[string]toml.Primitive
}

// parseDocument parses text. What is wrong with it has a place.
func parseDocument(text string) (doc *document, problem *Problem) {
	text = strings.TrimPrefix(text, "\ufeff")
	if !utf8.ValidString(text) {
		line := 1
		for rest := text; len(rest) > 0; {
			r, n := utf8.DecodeRuneInString(rest)
			if r == utf8.RuneError && n == 1 {
				break
			}
			if r == '\n' {
				line++
			}
			rest = rest[n:]
		}
		return nil, &Problem{Line: line, Col: 1, Message: "this is not text in UTF-8"}
	}
	if p := checkShape(text); p != nil {
		return nil, p
	}
	doc = &document{text: text}
	defer func() {
		// The parser is another's code on a stranger's bytes.
		if r := recover(); r != nil {
			doc, problem = nil, &Problem{Message: fmt.Sprintf("the TOML parser failed: %v", r)}
		}
	}()
	md, err := toml.Decode(text, &doc.root)
	if err != nil {
		p := Problem{Message: err.Error()}
		var pe toml.ParseError
		if errors.As(err, &pe) {
			p.Message = pe.Message
			p.Line, p.Col, _ = doc.at(pe.Position.Start)
		}
		return nil, &p
	}
	doc.md = md
	return doc, nil
}

// checkShape bounds the nesting of a document. It reads strings and comments as
// TOML does and trusts nothing else about it.
func checkShape(text string) *Problem {
	depth, dots, line, start := 0, 0, 1, 0
	skip := func(i int, end string, escapes bool) int {
		for i < len(text) && !strings.HasPrefix(text[i:], end) {
			if escapes && text[i] == '\\' {
				i++
			}
			if i < len(text) && text[i] == '\n' {
				if len(end) < 3 {
					return i - 1 // unterminated: the parser says so
				}
				line++
				start, dots = i+1, 0
			}
			i++
		}
		return i + len(end) - 1
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\n':
			line++
			start, dots = i+1, 0
		case '#':
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case '"', '\'':
			if triple := strings.Repeat(string(c), 3); strings.HasPrefix(text[i:], triple) {
				i = skip(i+3, triple, c == '"')
			} else {
				i = skip(i+1, string(c), c == '"')
			}
		case '[', '{':
			depth++
		case ']', '}':
			depth = max(depth-1, 0)
		case '.':
			dots++
		}
		if depth > maxDepth || dots > maxDots {
			return &Problem{Line: line, Col: min(i, len(text)) - start + 1, Message: "this is nested too deeply"}
		}
	}
	return nil
}

// errHere makes the decoder tell the place of a value.
var errHere = errors.New("here")

type locator struct{}

func (*locator) UnmarshalTOML(any) error { return errHere }

// place is the position of a value, of a table's header, or of the first value
// in a table that no header names.
func (d *document) place(v toml.Primitive) toml.Position {
	var pe toml.ParseError
	if err := d.md.PrimitiveDecode(v, &locator{}); errors.As(err, &pe) && pe.Position.Line > 0 {
		return pe.Position
	}
	table, _ := d.table(v)
	var best toml.Position
	n := 0
	for _, child := range table {
		if p := d.place(child); p.Line > 0 && (best.Line == 0 || p.Start < best.Start) {
			best = p
		}
		if n++; n >= maxDepth {
			break
		}
	}
	return best
}

// table reads v as a table.
func (d *document) table(v toml.Primitive) (map[string]toml.Primitive, bool) {
	var raw any
	if err := d.md.PrimitiveDecode(v, &raw); err != nil {
		return nil, false
	}
	if _, ok := raw.(map[string]any); !ok {
		return nil, false
	}
	m := map[string]toml.Primitive{}
	err := d.md.PrimitiveDecode(v, &m)
	return m, err == nil
}

// value reads v as whatever it is.
func (d *document) value(v toml.Primitive) any {
	var raw any
	_ = d.md.PrimitiveDecode(v, &raw) // into any, nothing can fail
	return raw
}

// at is the line of an offset, the column in it, both from 1, the latter in
// characters, and the line's text.
func (d *document) at(offset int) (line, col int, text string) {
	offset = min(max(offset, 0), len(d.text))
	start := strings.LastIndexByte(d.text[:offset], '\n') + 1
	end := strings.IndexByte(d.text[offset:], '\n')
	if end < 0 {
		end = len(d.text) - offset
	}
	return strings.Count(d.text[:start], "\n") + 1, utf8.RuneCountInString(d.text[start:offset]) + 1, d.text[start : offset+end]
}

// valuePlace is the line and column at which a value begins: its first quote or
// bracket, where the parser names what comes after it.
func (d *document) valuePlace(p toml.Position) (line, col int) {
	line, col, text := d.at(p.Start)
	if before := []rune(text)[:col-1]; len(before) > 0 && strings.ContainsRune("\"'[", before[len(before)-1]) {
		col--
	}
	return line, col
}

// keyPlace is the line and column at which the name of a key or table stands
// whose value is at p.
func (d *document) keyPlace(name string, p toml.Position) (line, col int) {
	line, col, text := d.at(p.Start)
	i := strings.LastIndex(string([]rune(text)[:col-1]), name)
	if i < 0 {
		i = strings.Index(text, name)
	}
	if i < 0 {
		return line, col
	}
	return line, utf8.RuneCountInString(text[:i]) + 1
}

// parseValue reads one TOML value, as --set gives it.
func parseValue(text string) (any, error) {
	if len(text) > 64<<10 {
		return nil, errors.New("the value is too long")
	}
	doc, problem := parseDocument("v = " + text)
	if problem != nil {
		return nil, errors.New(problem.Message)
	}
	v, ok := doc.root["v"]
	if !ok || len(doc.root) != 1 {
		return nil, errors.New("not one value")
	}
	return doc.value(v), nil
}
