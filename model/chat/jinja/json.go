package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode/utf16"
)

// MaxJSONDepth limits lists within lists of what FromJSON takes.
const MaxJSONDepth = 64

// FromJSON reads a JSON value. Objects keep the order of their keys; all strings,
// keys too, are foreign text.
func FromJSON(data []byte) (Value, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := fromJSON(d, 0)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return v, nil
}

func fromJSON(d *json.Decoder, depth int) (Value, error) {
	if depth > MaxJSONDepth {
		return nil, fmt.Errorf("JSON is nested more than %d deep", MaxJSONDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case bool:
		return t, nil
	case string:
		return Foreign(t), nil
	case json.Number:
		if i, err := strconv.ParseInt(string(t), 10, 64); err == nil {
			return i, nil
		}
		f, err := strconv.ParseFloat(string(t), 64)
		if err != nil {
			return nil, fmt.Errorf("number %.40s is out of range", t)
		}
		return f, nil
	case json.Delim:
		if t == '[' {
			l := &List{}
			for d.More() {
				v, err := fromJSON(d, depth+1)
				if err != nil {
					return nil, err
				}
				l.Items = append(l.Items, v)
			}
			_, err := d.Token()
			return l, err
		}
		o := NewDict()
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := fromJSON(d, depth+1)
			if err != nil {
				return nil, err
			}
			o.Set(Foreign(k.(string)), v)
		}
		_, err := d.Token()
		return o, err
	}
	return nil, nil
}

// jsonStyle is how tojson writes.
type jsonStyle struct {
	indent     Text // nil: all on one line
	item, key  Text // separators
	sort, wide bool // sort keys; escape what is not ASCII
}

func (e *evaluator) toJSON(to Text, v Value, style jsonStyle, depth int) Text {
	e.nested(depth)
	e.spend(1)
	lit := func(s string) {
		e.spend(len(s))
		to = append(to, []rune(s)...)
	}
	line := func(depth int) {
		if style.indent == nil {
			return
		}
		lit("\n")
		for range depth {
			e.spend(len(style.indent))
			to = append(to, style.indent...)
		}
	}
	switch v := v.(type) {
	case nil:
		lit("null")
	case bool:
		lit(strconv.FormatBool(v))
	case int64:
		lit(strconv.FormatInt(v, 10))
	case float64:
		switch {
		case math.IsNaN(v):
			lit("NaN")
		case math.IsInf(v, 1):
			lit("Infinity")
		case math.IsInf(v, -1):
			lit("-Infinity")
		default:
			lit(formatFloat(v))
		}
	case Text:
		return e.jsonString(to, v, style.wide)
	case *List:
		if len(v.Items) == 0 {
			lit("[]")
			return to
		}
		lit("[")
		for i, item := range v.Items {
			if i > 0 {
				to = append(to, style.item...)
			}
			line(depth + 1)
			to = e.toJSON(to, item, style, depth+1)
		}
		line(depth)
		lit("]")
	case *Dict:
		entries := v.entries
		if len(entries) == 0 {
			lit("{}")
			return to
		}
		if style.sort {
			entries = e.sorted(entries)
		}
		lit("{")
		for i, x := range entries {
			if i > 0 {
				to = append(to, style.item...)
			}
			line(depth + 1)
			key, ok := x.key.(Text)
			if !ok {
				key = e.toJSON(nil, x.key, style, depth+1)
			}
			to = e.jsonString(to, key, style.wide)
			to = append(to, style.key...)
			to = e.toJSON(to, x.value, style, depth+1)
		}
		line(depth)
		lit("}")
	default:
		needDefined(v)
		fail("Object of type %s is not JSON serializable", kind(v))
	}
	return to
}

func (e *evaluator) jsonString(to, t Text, wide bool) Text {
	e.spend(len(t) + 2)
	to = append(to, '"')
	for _, r := range t {
		mark := r & foreign
		escape := func(s string) {
			for _, c := range s {
				to = append(to, c|mark)
			}
		}
		switch r &^= foreign; {
		case r == '"' || r == '\\':
			to = append(to, '\\'|mark, r|mark)
		case r == '\n':
			escape(`\n`)
		case r == '\r':
			escape(`\r`)
		case r == '\t':
			escape(`\t`)
		case r == '\b':
			escape(`\b`)
		case r == '\f':
			escape(`\f`)
		case r < 0x20:
			escape(fmt.Sprintf(`\u%04x`, r))
		case wide && r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			escape(fmt.Sprintf(`\u%04x\u%04x`, hi, lo))
		case wide && r > 0x7f:
			escape(fmt.Sprintf(`\u%04x`, r))
		default:
			to = append(to, r|mark)
		}
	}
	return append(to, '"')
}
