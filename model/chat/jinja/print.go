package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// printed is v as {{ v }} shows it.
func (e *evaluator) printed(v Value) Text {
	if t, ok := v.(Text); ok {
		return t
	}
	if _, ok := v.(undefined); ok {
		return nil
	}
	return e.repr(nil, v, 0)
}

// repr appends v as Python's repr shows it.
func (e *evaluator) repr(to Text, v Value, depth int) Text {
	e.nested(depth)
	e.spend(1)
	lit := func(s string) {
		e.spend(len(s))
		to = append(to, []rune(s)...)
	}
	switch v := v.(type) {
	case nil:
		lit("None")
	case undefined:
		lit("Undefined")
	case bool:
		if v {
			lit("True")
		} else {
			lit("False")
		}
	case int64:
		lit(strconv.FormatInt(v, 10))
	case float64:
		lit(formatFloat(v))
	case Text:
		return e.quote(to, v)
	case *List:
		open, close := "[", "]"
		switch v.look {
		case asTuple:
			open, close = "(", ")"
			if len(v.Items) == 1 {
				close = ",)"
			}
		case asRange:
			n := int64(len(v.Items))
			if n == 0 {
				lit("range(0, 0)")
				return to
			}
			first := v.Items[0].(int64)
			step := int64(1)
			if n > 1 {
				step = v.Items[1].(int64) - first
			}
			lit(fmt.Sprintf("range(%d, %d", first, first+n*step))
			if step != 1 {
				lit(fmt.Sprintf(", %d", step))
			}
			lit(")")
			return to
		case asItems:
			open, close = "dict_items([", "])"
		case asKeys:
			open, close = "dict_keys([", "])"
		case asValues:
			open, close = "dict_values([", "])"
		}
		lit(open)
		for i, item := range v.Items {
			if i > 0 {
				lit(", ")
			}
			to = e.repr(to, item, depth+1)
		}
		lit(close)
	case *Dict:
		lit("{")
		for i, x := range v.entries {
			if i > 0 {
				lit(", ")
			}
			to = e.repr(to, x.key, depth+1)
			lit(": ")
			to = e.repr(to, x.value, depth+1)
		}
		lit("}")
	case *namespace:
		lit("<Namespace>")
	case *function:
		lit("<function " + v.name + ">")
	default:
		lit("<object>")
	}
	return to
}

// quote appends a string as Python's repr writes it.
func (e *evaluator) quote(to, t Text) Text {
	e.spend(len(t) + 2)
	q := '\''
	has := func(want rune) bool {
		for _, r := range t {
			if r&^foreign == want {
				return true
			}
		}
		return false
	}
	if has('\'') && !has('"') {
		q = '"'
	}
	to = append(to, q)
	for _, r := range t {
		mark := r & foreign
		escape := func(s string) {
			for _, c := range s {
				to = append(to, c|mark)
			}
		}
		switch r &^= foreign; {
		case r == q || r == '\\':
			to = append(to, '\\', r|mark)
		case r == '\n':
			escape(`\n`)
		case r == '\r':
			escape(`\r`)
		case r == '\t':
			escape(`\t`)
		case r < 0x20 || r == 0x7f || r > 0x7f && r <= 0xff && !unicode.IsPrint(r):
			escape(fmt.Sprintf(`\x%02x`, r))
		case r > 0xffff && !unicode.IsPrint(r):
			escape(fmt.Sprintf(`\U%08x`, r))
		case r > 0xff && !unicode.IsPrint(r):
			escape(fmt.Sprintf(`\u%04x`, r))
		default:
			to = append(to, r|mark)
		}
	}
	return append(to, q)
}

// formatFloat writes the shortest decimal that reads back the same, in the form
// that Python gives it.
func formatFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.ContainsRune(s, '.') {
		s += ".0"
	}
	return s
}
