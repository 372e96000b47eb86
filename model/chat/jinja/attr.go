package jinja

import "unicode"

// loop is what a loop's body knows as loop.
type loop struct {
	node  *forNode
	scope *scope
	items []Value
	i     int
	depth int
	last  []Value // arguments of the last call of changed
}

func (l *loop) attr(name string) (Value, bool) {
	n := int64(len(l.items))
	i := int64(l.i)
	switch name {
	case "index":
		return i + 1, true
	case "index0":
		return i, true
	case "revindex":
		return n - i, true
	case "revindex0":
		return n - i - 1, true
	case "first":
		return i == 0, true
	case "last":
		return i == n-1, true
	case "length":
		return n, true
	case "depth":
		return int64(l.depth + 1), true
	case "depth0":
		return int64(l.depth), true
	case "previtem":
		if i == 0 {
			return undefined{"there is no previous item"}, true
		}
		return l.items[i-1], true
	case "nextitem":
		if i == n-1 {
			return undefined{"there is no next item"}, true
		}
		return l.items[i+1], true
	case "cycle":
		return &function{name: "cycle", call: func(e *evaluator, args []Value, _ []named) Value {
			if len(args) == 0 {
				fail("no items for cycling given")
			}
			return args[l.i%len(args)]
		}}, true
	case "changed":
		return &function{name: "changed", call: func(e *evaluator, args []Value, _ []named) Value {
			if l.last != nil && e.equal(&List{Items: args}, &List{Items: l.last}) {
				return false
			}
			l.last = append([]Value{}, args...)
			return true
		}}, true
	}
	return nil, false
}

// again is loop(…) in a recursive loop.
func (l *loop) again(e *evaluator, args []Value) Value {
	if !l.node.recursive {
		fail("the loop is not marked as recursive")
	}
	if len(args) != 1 {
		fail("loop() takes one argument")
	}
	defer e.enter()()
	out := e.out
	e.out = nil
	l.node.loop(e, l.scope, args[0], l.depth+1)
	got := e.out
	e.out = out
	return got
}

// attr is v.name.
func (e *evaluator) attr(v Value, name string) Value {
	switch v := v.(type) {
	case undefined:
		fail("%s", v.why)
	case *Dict:
		if f, ok := dictMethods[name]; ok {
			return e.method("dict."+name, func(e *evaluator, a *arguments) Value { return f(e, v, a) })
		}
		if got, ok := v.get(Own(name)); ok {
			return got
		}
		return undefined{"dictionary has no key '" + name + "'"}
	case Text:
		if f, ok := textMethods[name]; ok {
			return e.method("str."+name, func(e *evaluator, a *arguments) Value { return f(e, v, a) })
		}
	case *List:
		if f, ok := listMethods[name]; ok {
			return e.method("list."+name, func(e *evaluator, a *arguments) Value { return f(e, v, a) })
		}
	case *namespace:
		if got, ok := v.vars[name]; ok {
			return got
		}
	case *loop:
		if got, ok := v.attr(name); ok {
			return got
		}
	case *cycler:
		return v.attr(name)
	}
	return undefined{"'" + kind(v) + "' object has no attribute '" + name + "'"}
}

func (e *evaluator) method(name string, f func(e *evaluator, a *arguments) Value) Value {
	return &function{name: name, call: func(e *evaluator, args []Value, by []named) Value {
		a := &arguments{e: e, name: name, args: args, named: by}
		v := f(e, a)
		a.done()
		return v
	}}
}

// arguments hands a function its arguments one by one.
type arguments struct {
	e     *evaluator
	name  string
	args  []Value
	named []named
}

// next takes the next argument, which may also be given by this name.
func (a *arguments) next(name string) (Value, bool) {
	if len(a.args) > 0 {
		v := a.args[0]
		a.args = a.args[1:]
		return v, true
	}
	for i, n := range a.named {
		if n.name == name {
			a.named = append(append([]named(nil), a.named[:i]...), a.named[i+1:]...)
			return n.value, true
		}
	}
	return nil, false
}

func (a *arguments) need(name string) Value {
	v, ok := a.next(name)
	if !ok {
		fail("%s needs an argument '%s'", a.name, name)
	}
	return v
}

func (a *arguments) text(name string) Text {
	v := a.need(name)
	t, ok := v.(Text)
	if !ok {
		needDefined(v)
		fail("%s needs a string, not '%s'", a.name, kind(v))
	}
	return t
}

// textOr is nil if there is no such argument or it is none.
func (a *arguments) textOr(name string) Text {
	v, ok := a.next(name)
	if !ok || v == nil {
		return nil
	}
	t, ok := v.(Text)
	if !ok {
		needDefined(v)
		fail("%s needs a string, not '%s'", a.name, kind(v))
	}
	if t == nil {
		t = Text{}
	}
	return t
}

func (a *arguments) intOr(name string, absent int64) int64 {
	v, ok := a.next(name)
	if !ok {
		return absent
	}
	_, i, isInt, _ := number(v)
	if !isInt {
		needDefined(v)
		fail("%s needs an integer, not '%s'", a.name, kind(v))
	}
	return i
}

func (a *arguments) boolOr(name string, absent bool) bool {
	v, ok := a.next(name)
	if !ok {
		return absent
	}
	return truth(v)
}

func (a *arguments) done() {
	if len(a.args) > 0 {
		fail("%s got too many arguments", a.name)
	}
	if len(a.named) > 0 {
		fail("%s takes no argument '%s'", a.name, a.named[0].name)
	}
}

var dictMethods = map[string]func(*evaluator, *Dict, *arguments) Value{
	"items": func(e *evaluator, d *Dict, a *arguments) Value {
		e.spend(4 * charge * d.Len())
		l := &List{look: asItems}
		for _, x := range d.entries {
			l.Items = append(l.Items, &List{Items: []Value{x.key, x.value}, look: asTuple})
		}
		return l
	},
	"keys": func(e *evaluator, d *Dict, a *arguments) Value {
		return &List{Items: e.iterate(d), look: asKeys}
	},
	"values": func(e *evaluator, d *Dict, a *arguments) Value {
		e.spend(charge * d.Len())
		l := &List{look: asValues}
		for _, x := range d.entries {
			l.Items = append(l.Items, x.value)
		}
		return l
	},
	"get": func(e *evaluator, d *Dict, a *arguments) Value {
		key := a.need("key")
		absent, _ := a.next("default")
		if t, ok := key.(Text); ok {
			e.spend(len(t))
		}
		if v, ok := d.get(key); ok {
			return v
		}
		return absent
	},
	"copy": func(e *evaluator, d *Dict, a *arguments) Value { return d },
}

func init() {
	for _, name := range []string{"update", "pop", "clear", "setdefault", "popitem"} {
		dictMethods[name] = func(*evaluator, *Dict, *arguments) Value {
			fail("dict.%s is not allowed: templates cannot change values", name)
			return nil
		}
	}
	for _, name := range []string{"append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear"} {
		listMethods[name] = func(*evaluator, *List, *arguments) Value {
			fail("list.%s is not allowed: templates cannot change values", name)
			return nil
		}
	}
}

var listMethods = map[string]func(*evaluator, *List, *arguments) Value{
	"index": func(e *evaluator, l *List, a *arguments) Value {
		v := a.need("value")
		for i, item := range l.Items {
			if e.equal(item, v) {
				return int64(i)
			}
		}
		fail("value is not in list")
		return nil
	},
	"count": func(e *evaluator, l *List, a *arguments) Value {
		v, n := a.need("value"), int64(0)
		for _, item := range l.Items {
			if e.equal(item, v) {
				n++
			}
		}
		return n
	},
}

func textList(parts []Text) *List {
	l := &List{Items: make([]Value, len(parts))}
	for i, p := range parts {
		l.Items[i] = p
	}
	return l
}

func (e *evaluator) stripped(t Text, a *arguments, left, right bool) Text {
	e.spend(len(t))
	return t.strip(a.textOr("chars"), left, right)
}

// affix is startswith or endswith, which take one text or a tuple of them.
func affix(has func(t, p Text) bool) func(*evaluator, Text, *arguments) Value {
	return func(e *evaluator, t Text, a *arguments) Value {
		v := a.need("prefix")
		if l, ok := v.(*List); ok {
			for _, item := range l.Items {
				p, ok := item.(Text)
				e.spend(1 + len(p))
				if ok && has(t, p) {
					return true
				}
			}
			return false
		}
		p, ok := v.(Text)
		if !ok {
			needDefined(v)
			fail("%s needs a string, not '%s'", a.name, kind(v))
		}
		e.spend(len(p))
		return has(t, p)
	}
}

// allOf is a method that asks whether there is a character and all satisfy f.
func allOf(f func(r rune) bool) func(*evaluator, Text, *arguments) Value {
	return func(e *evaluator, t Text, a *arguments) Value {
		e.spend(len(t))
		for _, r := range t {
			if !f(r &^ foreign) {
				return false
			}
		}
		return len(t) > 0
	}
}

// cased is isupper or islower.
func cased(is, other func(r rune) bool) func(*evaluator, Text, *arguments) Value {
	return func(e *evaluator, t Text, a *arguments) Value {
		e.spend(len(t))
		found := false
		for _, r := range t {
			if other(r &^ foreign) {
				return false
			}
			found = found || is(r&^foreign)
		}
		return found
	}
}

var textMethods = map[string]func(*evaluator, Text, *arguments) Value{
	"strip":  func(e *evaluator, t Text, a *arguments) Value { return e.stripped(t, a, true, true) },
	"lstrip": func(e *evaluator, t Text, a *arguments) Value { return e.stripped(t, a, true, false) },
	"rstrip": func(e *evaluator, t Text, a *arguments) Value { return e.stripped(t, a, false, true) },
	"split": func(e *evaluator, t Text, a *arguments) Value {
		sep := a.textOr("sep")
		return e.split(t, sep, a.intOr("maxsplit", -1))
	},
	"rsplit": func(e *evaluator, t Text, a *arguments) Value {
		sep, limit := a.text("sep"), a.intOr("maxsplit", -1)
		if len(sep) == 0 {
			fail("empty separator")
		}
		e.spend(3 * len(t))
		at := t.find(sep, -1)
		if limit >= 0 && int64(len(at)) > limit {
			at = at[int64(len(at))-limit:]
		}
		return e.cutAt(t, at, len(sep))
	},
	"splitlines": func(e *evaluator, t Text, a *arguments) Value {
		e.spend(len(t))
		var parts []Text
		for start := 0; start < len(t); {
			end := start
			for end < len(t) && t[end]&^foreign != '\n' && t[end]&^foreign != '\r' {
				end++
			}
			parts = append(parts, t[start:end:end])
			e.spend(charge)
			if end+1 < len(t) && t[end]&^foreign == '\r' && t[end+1]&^foreign == '\n' {
				end++
			}
			start = end + 1
		}
		return textList(parts)
	},
	"startswith": affix(Text.hasPrefix),
	"endswith":   affix(Text.hasSuffix),
	"removeprefix": func(e *evaluator, t Text, a *arguments) Value {
		if p := a.text("prefix"); t.hasPrefix(p) {
			return t[len(p):]
		}
		return t
	},
	"removesuffix": func(e *evaluator, t Text, a *arguments) Value {
		if p := a.text("suffix"); t.hasSuffix(p) {
			n := len(t) - len(p)
			return t[:n:n]
		}
		return t
	},
	"upper":      func(e *evaluator, t Text, a *arguments) Value { e.spend(len(t)); return t.upper() },
	"lower":      func(e *evaluator, t Text, a *arguments) Value { e.spend(len(t)); return t.lower() },
	"capitalize": func(e *evaluator, t Text, a *arguments) Value { e.spend(len(t)); return t.capitalize() },
	"title": func(e *evaluator, t Text, a *arguments) Value {
		e.spend(len(t))
		return t.title(func(r rune) bool { return !unicode.IsLetter(r) })
	},
	"replace": func(e *evaluator, t Text, a *arguments) Value {
		return e.replace(t, a.text("old"), a.text("new"), a.intOr("count", -1))
	},
	"find": func(e *evaluator, t Text, a *arguments) Value {
		return e.firstAt(t, a.text("sub"), false)
	},
	"rfind": func(e *evaluator, t Text, a *arguments) Value {
		return e.firstAt(t, a.text("sub"), true)
	},
	"index": func(e *evaluator, t Text, a *arguments) Value {
		i := e.firstAt(t, a.text("sub"), false)
		if i < 0 {
			fail("substring not found")
		}
		return i
	},
	"count": func(e *evaluator, t Text, a *arguments) Value {
		sub := a.text("sub")
		e.spend(2 * len(t))
		if len(sub) == 0 {
			return int64(len(t) + 1)
		}
		return int64(len(t.find(sub, -1)))
	},
	"join": func(e *evaluator, t Text, a *arguments) Value {
		var parts []Text
		for _, v := range e.iterate(a.need("iterable")) {
			p, ok := v.(Text)
			if !ok {
				fail("str.join needs strings, not '%s'", kind(v))
			}
			parts = append(parts, p)
		}
		return e.join(parts, t)
	},
	"format": func(e *evaluator, t Text, a *arguments) Value {
		v := e.braces(t, a.args)
		a.args = nil
		return v
	},
	"isdigit": allOf(unicode.IsDigit),
	"isalpha": allOf(unicode.IsLetter),
	"isalnum": allOf(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
	"isspace": allOf(isSpace),
	"isupper": cased(unicode.IsUpper, unicode.IsLower),
	"islower": cased(unicode.IsLower, unicode.IsUpper),
}

// braces is Python's str.format, for {} and {0} alone.
func (e *evaluator) braces(t Text, args []Value) Text {
	var out Text
	auto := 0
	for i := 0; i < len(t); i++ {
		c := t[i] &^ foreign
		double := i+1 < len(t) && t[i+1]&^foreign == c
		switch {
		case (c == '{' || c == '}') && double:
			i++
			out = append(out, t[i])
			e.spend(1)
			continue
		case c == '}':
			fail("single '}' in format string")
		case c != '{':
			out = append(out, t[i])
			e.spend(1)
			continue
		}
		n, digits := 0, 0
		for i++; i < len(t) && t[i]&^foreign >= '0' && t[i]&^foreign <= '9' && digits < 6; i++ {
			n = 10*n + int(t[i]&^foreign-'0')
			digits++
		}
		if i >= len(t) || t[i]&^foreign != '}' {
			fail("only {} and {0} are supported in format strings")
		}
		if digits == 0 {
			n = auto
			auto++
		}
		if n >= len(args) {
			fail("not enough arguments for format string")
		}
		part := e.printed(args[n])
		e.spend(len(part))
		out = append(out, part...)
	}
	return out
}

// split is str.split; a nil separator stands for white space.
func (e *evaluator) split(t, sep Text, limit int64) Value {
	e.spend(3 * len(t))
	if sep != nil {
		if len(sep) == 0 {
			fail("empty separator")
		}
		return e.cutAt(t, t.find(sep, int(max(min(limit, 1<<30), -1))), len(sep))
	}
	var parts []Text
	t = t.strip(nil, true, false)
	for len(t) > 0 {
		e.spend(charge)
		if limit >= 0 && int64(len(parts)) == limit {
			parts = append(parts, t.strip(nil, false, true))
			break
		}
		end := 0
		for end < len(t) && !isSpace(t[end]) {
			end++
		}
		parts = append(parts, t[:end:end])
		t = t[end:].strip(nil, true, false)
	}
	return textList(parts)
}

// cutAt gives the parts of t between separators of n characters at these places.
func (e *evaluator) cutAt(t Text, at []int, n int) Value {
	e.spend(charge * (len(at) + 1))
	var parts []Text
	start := 0
	for _, i := range at {
		parts = append(parts, t[start:i:i])
		start = i + n
	}
	return textList(append(parts, t[start:]))
}

func (e *evaluator) firstAt(t, sub Text, last bool) int64 {
	e.spend(2 * len(t))
	if len(sub) == 0 {
		if last {
			return int64(len(t))
		}
		return 0
	}
	if last {
		// Places of find do not overlap: look for the last by going on from each.
		found := int64(-1)
		for i := 0; i+len(sub) <= len(t); i++ {
			e.spend(len(sub))
			if t[i : i+len(sub)].equal(sub) {
				found = int64(i)
			}
		}
		return found
	}
	if at := t.find(sub, 1); len(at) > 0 {
		return int64(at[0])
	}
	return -1
}

func (e *evaluator) replace(t, old, new Text, limit int64) Text {
	e.spend(3*len(t) + len(old))
	var at []int
	if len(old) == 0 {
		// Between all characters, as Python does.
		for i := 0; i <= len(t) && (limit < 0 || int64(i) < limit); i++ {
			at = append(at, i)
		}
	} else {
		at = t.find(old, int(max(min(limit, 1<<30), -1)))
	}
	e.times(len(new), int64(len(at)))
	var out Text
	start := 0
	for _, i := range at {
		out = append(append(out, t[start:i]...), new...)
		start = i + len(old)
	}
	return append(out, t[start:]...)
}

func (e *evaluator) join(parts []Text, sep Text) Text {
	e.times(len(sep), int64(len(parts)))
	var out Text
	for i, p := range parts {
		if i > 0 {
			out = append(out, sep...)
		}
		e.spend(len(p))
		out = append(out, p...)
	}
	return out
}
