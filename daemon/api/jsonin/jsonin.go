// Package jsonin reads JSON that clients send: one pass over the bytes, field
// by field, with errors that name the field and the byte. It owns syntax, types
// and limits of depth and numbers; what a field means is the caller's business.
//
// It is strict where encoding/json is lenient: text that is not UTF-8 is
// refused with its offset, because replacing bytes would answer a question that
// nobody asked. What is legal JSON but no text, an escaped surrogate without
// its other half, becomes U+FFFD and the text around it is kept. Of a key that
// comes twice the caller sees both, in order, so the last one wins. A byte order
// mark at the start is skipped.
package jsonin

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxDepth bounds how deep arrays and objects may nest. It is far above what
// tool schemas need and far below what would cost stack.
const MaxDepth = 256

// Error says what is wrong with a body. A syntax error has an empty Path.
type Error struct {
	Offset int    // the byte of the body where it was seen
	Path   string // the field, as "messages[2].content"; empty for the whole body
	Msg    string
}

func (e *Error) Error() string {
	if e.Path == "" {
		return e.Msg
	}
	return e.Path + ": " + e.Msg
}

// Kind is the type of a JSON value.
type Kind uint8

// The kinds. None is what stands where no value can begin.
const (
	None Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

// Decoder reads one body. Its methods read the next value and leave the
// position behind it; the first error is final. A Decoder belongs to one
// goroutine.
type Decoder struct {
	data []byte
	pos  int
	path []segment
}

// segment is one step of a path: a key, or an index where key is nil.
type segment struct {
	key   []byte // raw, between the quotes
	index int
}

// New prepares to read data, which is borrowed until the last call. It refuses
// bytes that are not UTF-8.
func New(data []byte) (*Decoder, error) {
	d := &Decoder{data: data}
	if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
		d.pos = 3
	}
	if !utf8.Valid(data) {
		off := 0
		for off < len(data) {
			r, n := utf8.DecodeRune(data[off:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			off += n
		}
		return nil, &Error{Offset: off, Msg: fmt.Sprintf("the body is not valid UTF-8 at byte %d", off)}
	}
	return d, nil
}

// Next is the kind of the next value. It reads no more than white space.
func (d *Decoder) Next() Kind {
	d.space()
	if d.pos >= len(d.data) {
		return None
	}
	switch c := d.data[d.pos]; {
	case c == '{':
		return Object
	case c == '[':
		return Array
	case c == '"':
		return String
	case c == 't' || c == 'f':
		return Bool
	case c == 'n':
		return Null
	case c == '-' || '0' <= c && c <= '9':
		return Number
	}
	return None
}

// Null reads null, if that is what comes next, and says whether it was.
func (d *Decoder) Null() (bool, error) {
	if d.Next() != Null {
		return false, nil
	}
	return true, d.literal("null")
}

// Bool reads true or false.
func (d *Decoder) Bool() (bool, error) {
	if d.Next() != Bool {
		return false, d.Want("true or false")
	}
	if d.data[d.pos] == 't' {
		return true, d.literal("true")
	}
	return false, d.literal("false")
}

// String reads a string. what says what is wanted if it is none.
func (d *Decoder) String(what string) (string, error) {
	if d.Next() != String {
		return "", d.Want(what)
	}
	raw, plain, err := d.rawString()
	if err != nil {
		return "", err
	}
	if plain {
		return string(raw), nil
	}
	return unescape(raw), nil
}

// Float reads a number.
func (d *Decoder) Float(what string) (float64, error) {
	if d.Next() != Number {
		return 0, d.Want(what)
	}
	start := d.pos
	raw, err := d.rawNumber()
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || math.IsInf(v, 0) {
		d.pos = start
		return 0, d.Want(what)
	}
	return v, nil
}

// Int reads a whole number, which may be written as 4, 4.0 or 4e0, of at most
// 64 bits; one above the largest int64 comes as its two's complement.
func (d *Decoder) Int(what string) (int64, error) {
	if d.Next() != Number {
		return 0, d.Want(what)
	}
	start := d.pos
	raw, err := d.rawNumber()
	if err != nil {
		return 0, err
	}
	if v, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return v, nil
	}
	if v, err := strconv.ParseUint(string(raw), 10, 64); err == nil {
		return int64(v), nil
	}
	// Floats hold whole numbers exactly up to 2^53; beyond that the client
	// cannot have meant this one.
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || v != math.Trunc(v) || math.Abs(v) > 1<<53 {
		d.pos = start
		return 0, d.Want(what)
	}
	return int64(v), nil
}

// Range reads a whole number from lo to hi.
func (d *Decoder) Range(what string, lo, hi int64) (int64, error) {
	if d.Next() != Number {
		return 0, d.Want(what)
	}
	start := d.pos
	v, err := d.Int(what)
	if err != nil {
		return 0, err
	}
	// A number above the largest int64 comes as a negative one.
	if v < lo || v > hi || v < 0 && d.data[start] != '-' {
		d.pos = start
		return 0, d.Want(what)
	}
	return v, nil
}

// Object reads an object and calls f for each key, with the position at its
// value; f must read exactly that value.
func (d *Decoder) Object(what string, f func(key string) error) error {
	if d.Next() != Object {
		return d.Want(what)
	}
	if len(d.path) >= MaxDepth {
		return d.tooDeep()
	}
	d.pos++
	d.path = append(d.path, segment{})
	for first := true; ; first = false {
		d.space()
		if d.peek() == '}' && first {
			break
		}
		if d.peek() != '"' {
			return d.syntax("an object key in double quotes")
		}
		raw, plain, err := d.rawString()
		if err != nil {
			return err
		}
		d.space()
		if d.peek() != ':' {
			return d.syntax("':' after an object key")
		}
		d.pos++
		d.path[len(d.path)-1].key = raw
		key := string(raw)
		if !plain {
			key = unescape(raw)
		}
		if err := f(key); err != nil {
			return err
		}
		d.space()
		if d.peek() == '}' {
			break
		}
		if d.peek() != ',' {
			return d.syntax("',' or '}' after an object's value")
		}
		d.pos++
	}
	d.pos++
	d.path = d.path[:len(d.path)-1]
	return nil
}

// Array reads an array and calls f for each element, which must read it.
func (d *Decoder) Array(what string, f func(i int) error) error {
	if d.Next() != Array {
		return d.Want(what)
	}
	if len(d.path) >= MaxDepth {
		return d.tooDeep()
	}
	d.pos++
	d.path = append(d.path, segment{})
	for i := 0; ; i++ {
		d.space()
		if d.peek() == ']' && i == 0 {
			break
		}
		d.path[len(d.path)-1].index = i
		if err := f(i); err != nil {
			return err
		}
		d.space()
		if d.peek() == ']' {
			break
		}
		if d.peek() != ',' {
			return d.syntax("',' or ']' after an array's element")
		}
		d.pos++
	}
	d.pos++
	d.path = d.path[:len(d.path)-1]
	return nil
}

// Skip reads a value of any kind, checks its syntax, and forgets it.
func (d *Decoder) Skip() error {
	var open [MaxDepth]byte // brackets that are to be closed
	n := 0
	for {
		// Here a value is wanted, or the end of an array or object just opened.
		d.space()
		switch c := d.peek(); {
		case c == '{' || c == '[':
			if len(d.path)+n >= MaxDepth {
				return d.tooDeep()
			}
			open[n] = c + 2 // ']' and '}' are two above '[' and '{'
			n++
			d.pos++
			d.space()
			if d.peek() == open[n-1] {
				break // empty: fall to the closing below
			}
			if c == '{' {
				if err := d.skipKey(); err != nil {
					return err
				}
			}
			continue
		case c == '"':
			if _, _, err := d.rawString(); err != nil {
				return err
			}
		case c == 't':
			if err := d.literal("true"); err != nil {
				return err
			}
		case c == 'f':
			if err := d.literal("false"); err != nil {
				return err
			}
		case c == 'n':
			if err := d.literal("null"); err != nil {
				return err
			}
		default:
			if _, err := d.rawNumber(); err != nil {
				return err
			}
		}
		// Here a value has ended, or an empty array or object is to be closed.
		for {
			if n == 0 {
				return nil
			}
			d.space()
			if d.peek() == open[n-1] {
				d.pos++
				n--
				continue
			}
			if d.peek() != ',' {
				return d.syntax(fmt.Sprintf("',' or %q", open[n-1]))
			}
			d.pos++
			if open[n-1] == '}' {
				if err := d.skipKey(); err != nil {
					return err
				}
			}
			break
		}
	}
}

func (d *Decoder) skipKey() error {
	d.space()
	if d.peek() != '"' {
		return d.syntax("an object key in double quotes")
	}
	if _, _, err := d.rawString(); err != nil {
		return err
	}
	d.space()
	if d.peek() != ':' {
		return d.syntax("':' after an object key")
	}
	d.pos++
	return nil
}

// End checks that nothing but white space is left.
func (d *Decoder) End() error {
	d.space()
	if d.pos < len(d.data) {
		return d.syntax("the end of the body")
	}
	return nil
}

// Want is the error that the next value is not what is wanted. If there is no
// value at all it is a syntax error.
func (d *Decoder) Want(what string) error {
	d.space()
	start := d.pos
	var got string
	switch k := d.Next(); k {
	case None:
		return d.syntax("a value")
	case Array:
		got = "an array"
	case Object:
		got = "an object"
	default:
		if err := d.Skip(); err != nil {
			return err
		}
		got = clip(d.data[start:d.pos])
		d.pos = start
	}
	return &Error{Offset: start, Path: d.Path(), Msg: fmt.Sprintf("want %s, got %s", what, got)}
}

// Errorf is an error about the field whose value was just read.
func (d *Decoder) Errorf(format string, args ...any) error {
	return &Error{Offset: d.pos, Path: d.Path(), Msg: fmt.Sprintf(format, args...)}
}

// Path names the field that is being read, as "messages[2].content".
func (d *Decoder) Path() string {
	var b []byte
	for _, s := range d.path {
		if s.key == nil {
			b = append(b, '[')
			b = strconv.AppendInt(b, int64(s.index), 10)
			b = append(b, ']')
			continue
		}
		if len(b) > 0 {
			b = append(b, '.')
		}
		b = append(b, clip([]byte(unescape(s.key)))...)
	}
	return string(b)
}

// clip shortens what a client sent to what fits an error message.
func clip(b []byte) string {
	const limit = 48
	if len(b) <= limit {
		return string(b)
	}
	n := limit
	for n > 0 && !utf8.RuneStart(b[n]) {
		n--
	}
	return string(b[:n]) + "…"
}

func (d *Decoder) peek() byte {
	if d.pos < len(d.data) {
		return d.data[d.pos]
	}
	return 0
}

func (d *Decoder) space() {
	for d.pos < len(d.data) {
		switch d.data[d.pos] {
		case ' ', '\t', '\n', '\r':
			d.pos++
		default:
			return
		}
	}
}

func (d *Decoder) syntax(want string) error {
	got := "the end"
	if d.pos < len(d.data) {
		r, _ := utf8.DecodeRune(d.data[d.pos:])
		got = strconv.QuoteRune(r)
	}
	return &Error{Offset: d.pos, Msg: fmt.Sprintf("invalid JSON at byte %d: want %s, got %s", d.pos, want, got)}
}

func (d *Decoder) tooDeep() error {
	return &Error{Offset: d.pos, Msg: fmt.Sprintf("invalid JSON at byte %d: nested deeper than %d levels", d.pos, MaxDepth)}
}

func (d *Decoder) literal(s string) error {
	if !bytes.HasPrefix(d.data[d.pos:], []byte(s)) {
		return d.syntax(s)
	}
	d.pos += len(s)
	return nil
}

// rawString reads a string and gives what is between its quotes. plain says
// that there are no escapes in it.
func (d *Decoder) rawString() (raw []byte, plain bool, err error) {
	d.pos++
	start := d.pos
	plain = true
	for d.pos < len(d.data) {
		switch c := d.data[d.pos]; {
		case c == '"':
			raw = d.data[start:d.pos:d.pos]
			d.pos++
			return raw, plain, nil
		case c < ' ':
			return nil, false, d.syntax("an escape instead of a control character")
		case c == '\\':
			plain = false
			d.pos++
			switch d.peek() {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				d.pos++
			case 'u':
				d.pos++
				for range 4 {
					if !isHex(d.peek()) {
						return nil, false, d.syntax("four hexadecimal digits after \\u")
					}
					d.pos++
				}
			default:
				return nil, false, d.syntax("an escape that JSON knows")
			}
		default:
			d.pos++
		}
	}
	return nil, false, d.syntax("the end of a string")
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// rawNumber reads a number by JSON's grammar.
func (d *Decoder) rawNumber() ([]byte, error) {
	start := d.pos
	if d.peek() == '-' {
		d.pos++
	}
	switch c := d.peek(); {
	case c == '0':
		d.pos++
	case '1' <= c && c <= '9':
		d.digits()
	default:
		return nil, d.syntax("a value")
	}
	if d.peek() == '.' {
		d.pos++
		if !d.digits() {
			return nil, d.syntax("a digit")
		}
	}
	if c := d.peek(); c == 'e' || c == 'E' {
		d.pos++
		if c := d.peek(); c == '+' || c == '-' {
			d.pos++
		}
		if !d.digits() {
			return nil, d.syntax("a digit")
		}
	}
	return d.data[start:d.pos], nil
}

func (d *Decoder) digits() bool {
	start := d.pos
	for c := d.peek(); '0' <= c && c <= '9'; c = d.peek() {
		d.pos++
	}
	return d.pos > start
}

// unescape resolves the escapes of a string that rawString accepted.
func unescape(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw)
	}
	b := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		n := bytes.IndexByte(raw[i:], '\\')
		if n < 0 {
			b = append(b, raw[i:]...)
			break
		}
		b = append(b, raw[i:i+n]...)
		i += n
		c := raw[i+1]
		i += 2
		switch c {
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			r := hex4(raw[i:])
			i += 4
			if utf16.IsSurrogate(r) {
				pair := rune(utf8.RuneError)
				if i+6 <= len(raw) && raw[i] == '\\' && raw[i+1] == 'u' {
					pair = utf16.DecodeRune(r, hex4(raw[i+2:]))
				}
				if pair != utf8.RuneError {
					i += 6
				}
				r = pair
			}
			b = utf8.AppendRune(b, r)
		default: // '"', '\\', '/'
			b = append(b, c)
		}
	}
	return string(b)
}

func hex4(b []byte) rune {
	v, _ := strconv.ParseUint(string(b[:4]), 16, 32)
	return rune(v)
}
