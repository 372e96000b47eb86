package jinja

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

func isUpper(r rune) bool { return unicode.IsUpper(r) }
func isLower(r rune) bool { return unicode.IsLower(r) }

// cycler is what the global cycler makes.
type cycler struct {
	items []Value
	i     int
}

func (c *cycler) attr(name string) Value {
	switch name {
	case "current":
		return c.items[c.i]
	case "next":
		return &function{name: "next", call: func(*evaluator, []Value, []named) Value {
			v := c.items[c.i]
			c.i = (c.i + 1) % len(c.items)
			return v
		}}
	case "reset":
		return &function{name: "reset", call: func(*evaluator, []Value, []named) Value {
			c.i = 0
			return nil
		}}
	}
	return undefined{"cycler has no attribute '" + name + "'"}
}

// builtins are the global names.
var builtins = map[string]Value{}

// Reserved reports whether a name is the language's own.
func Reserved(name string) bool {
	_, ok := builtins[name]
	return ok || name == "loop" || name == "caller" || name == "varargs" || name == "kwargs"
}

func init() {
	global := func(name string, f func(e *evaluator, args []Value, by []named) Value) {
		builtins[name] = &function{name: name, call: f}
	}
	global("raise_exception", func(e *evaluator, args []Value, by []named) Value {
		message := "the template refuses this conversation"
		if len(args) > 0 {
			message = e.printed(args[0]).String()
		}
		panic(&RaisedError{message})
	})
	global("namespace", func(e *evaluator, args []Value, by []named) Value {
		ns := &namespace{vars: map[string]Value{}}
		for _, a := range args {
			d, ok := a.(*Dict)
			if !ok {
				fail("namespace needs a dictionary, not '%s'", kind(a))
			}
			e.spend(charge * d.Len())
			for _, x := range d.entries {
				ns.vars[e.printed(x.key).String()] = x.value
			}
		}
		for _, a := range by {
			ns.vars[a.name] = a.value
		}
		return ns
	})
	global("dict", func(e *evaluator, args []Value, by []named) Value {
		d := NewDict()
		for _, a := range args {
			from, ok := a.(*Dict)
			if !ok {
				fail("dict needs a dictionary, not '%s'", kind(a))
			}
			e.spend(charge * from.Len())
			for _, x := range from.entries {
				d.set(x.key, x.value)
			}
		}
		for _, a := range by {
			d.Set(Own(a.name), a.value)
		}
		return d
	})
	global("range", func(e *evaluator, args []Value, by []named) Value {
		var n [3]int64
		for i, a := range args {
			_, v, isInt, _ := number(a)
			if i > 2 || !isInt {
				fail("range needs one to three integers")
			}
			n[i] = v
		}
		from, to, step := int64(0), n[0], int64(1)
		switch len(args) {
		case 0:
			fail("range needs one to three integers")
		case 3:
			step = n[2]
			fallthrough
		case 2:
			from, to = n[0], n[1]
		}
		if step == 0 {
			fail("range: the step must not be 0")
		}
		l := &List{look: asRange}
		for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
			e.spend(charge)
			l.Items = append(l.Items, i)
			if i+step > i != (step > 0) {
				break // beyond all integers
			}
		}
		return l
	})
	global("joiner", func(e *evaluator, args []Value, by []named) Value {
		sep := Value(Own(", "))
		if len(args) > 0 {
			sep = args[0]
		}
		used := false
		return &function{name: "joiner", call: func(*evaluator, []Value, []named) Value {
			if !used {
				used = true
				return Text{}
			}
			return sep
		}}
	})
	global("cycler", func(e *evaluator, args []Value, by []named) Value {
		if len(args) == 0 {
			fail("cycler needs at least one item")
		}
		return &cycler{items: args}
	})
	global("strftime_now", func(e *evaluator, args []Value, by []named) Value {
		if len(args) != 1 {
			fail("strftime_now needs a format")
		}
		return Own(strftime(e.now, e.printed(args[0]).String()))
	})
}

// strftime writes a time by the directives of C that templates use.
func strftime(t time.Time, format string) string {
	layouts := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05",
		'B': "January", 'b': "Jan", 'A': "Monday", 'a': "Mon", 'p': "PM", 'Z': "MST", 'z': "-0700",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		switch c := format[i]; {
		case c == '%':
			b.WriteByte('%')
		case c == '-' && i+1 < len(format) && layouts[format[i+1]] != "":
			i++
			b.WriteString(strings.TrimLeft(t.Format(layouts[format[i]]), "0"))
		case c == 'j':
			fmt.Fprintf(&b, "%03d", t.YearDay())
		case layouts[c] != "":
			b.WriteString(t.Format(layouts[c]))
		default:
			b.WriteByte('%')
			b.WriteByte(c)
		}
	}
	return b.String()
}
