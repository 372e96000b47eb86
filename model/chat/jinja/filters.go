package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

type filter func(e *evaluator, v Value, a *arguments) Value

// filters are those that chat templates use, by name.
var filters map[string]filter

func init() {
	filters = map[string]filter{
		"abs":        filterAbs,
		"attr":       func(e *evaluator, v Value, a *arguments) Value { return e.attr(v, a.text("name").String()) },
		"batch":      filterBatch,
		"capitalize": onText(func(e *evaluator, t Text) Value { return t.capitalize() }),
		"count":      filterLength,
		"d":          filterDefault,
		"default":    filterDefault,
		"dictsort":   filterDictsort,
		"e":          onText(escapeHTML),
		"escape":     onText(escapeHTML),
		"first":      func(e *evaluator, v Value, a *arguments) Value { return e.end(v, false) },
		"float":      filterFloat,
		"format": func(e *evaluator, v Value, a *arguments) Value {
			t := e.format(e.printed(v), a.args)
			a.args = nil
			return t
		},
		"fromjson":   filterFromJSON,
		"from_json":  filterFromJSON,
		"groupby":    filterGroupby,
		"indent":     filterIndent,
		"int":        filterInt,
		"items":      filterItems,
		"join":       filterJoin,
		"last":       func(e *evaluator, v Value, a *arguments) Value { return e.end(v, true) },
		"length":     filterLength,
		"list":       func(e *evaluator, v Value, a *arguments) Value { return &List{Items: e.iterate(v)} },
		"lower":      onText(func(e *evaluator, t Text) Value { return t.lower() }),
		"map":        filterMap,
		"max":        func(e *evaluator, v Value, a *arguments) Value { return e.extreme(v, a, 1) },
		"min":        func(e *evaluator, v Value, a *arguments) Value { return e.extreme(v, a, -1) },
		"reject":     func(e *evaluator, v Value, a *arguments) Value { return e.choose(v, a, false, false) },
		"rejectattr": func(e *evaluator, v Value, a *arguments) Value { return e.choose(v, a, true, false) },
		"replace":    filterReplace,
		"reverse":    filterReverse,
		"round":      filterRound,
		"safe":       onText(func(e *evaluator, t Text) Value { return t }),
		"select":     func(e *evaluator, v Value, a *arguments) Value { return e.choose(v, a, false, true) },
		"selectattr": func(e *evaluator, v Value, a *arguments) Value { return e.choose(v, a, true, true) },
		"sort":       filterSort,
		"string":     onText(func(e *evaluator, t Text) Value { return t }),
		"sum":        filterSum,
		"title":      onText(func(e *evaluator, t Text) Value { return t.title(apartForTitle) }),
		"tojson":     filterToJSON,
		"trim": func(e *evaluator, v Value, a *arguments) Value {
			return e.stripped(e.printed(v), a, true, true)
		},
		"unique":    filterUnique,
		"upper":     onText(func(e *evaluator, t Text) Value { return t.upper() }),
		"wordcount": filterWordcount,
	}
}

// onText is a filter that takes what its value prints as, and nothing else.
func onText(f func(e *evaluator, t Text) Value) filter {
	return func(e *evaluator, v Value, a *arguments) Value {
		t := e.printed(v)
		e.spend(len(t))
		return f(e, t)
	}
}

// apartForTitle is what stands between the words of the filter title.
func apartForTitle(r rune) bool { return isSpace(r) || strings.ContainsRune("-({[<", r) }

func escapeHTML(e *evaluator, t Text) Value {
	e.spend(5 * len(t))
	var out Text
	for _, r := range t {
		s := ""
		switch r &^ foreign {
		case '&':
			s = "&amp;"
		case '<':
			s = "&lt;"
		case '>':
			s = "&gt;"
		case '"':
			s = "&#34;"
		case '\'':
			s = "&#39;"
		default:
			out = append(out, r)
			continue
		}
		for _, c := range s {
			out = append(out, c|r&foreign)
		}
	}
	return out
}

func filterAbs(e *evaluator, v Value, a *arguments) Value {
	f, i, isInt, ok := number(v)
	switch {
	case !ok:
		needDefined(v)
		fail("abs needs a number, not '%s'", kind(v))
	case isInt && i < 0:
		return integers("-", 0, i)
	case isInt:
		return i
	}
	return math.Abs(f)
}

func filterBatch(e *evaluator, v Value, a *arguments) Value {
	items, n := e.iterate(v), a.intOr("linecount", 0)
	fill, filled := a.next("fill_with")
	if n < 1 {
		fail("batch needs a positive number")
	}
	out := &List{}
	for len(items) > 0 {
		e.spend(charge)
		k := int(min(n, int64(len(items))))
		part := &List{Items: items[:k:k]}
		if filled && fill != nil {
			e.spend(e.times(1, n))
			part.Items = slices.Clone(part.Items)
			for int64(len(part.Items)) < n {
				part.Items = append(part.Items, fill)
			}
		}
		out.Items = append(out.Items, part)
		items = items[k:]
	}
	return out
}

func filterLength(e *evaluator, v Value, a *arguments) Value {
	switch v := v.(type) {
	case undefined:
		return int64(0)
	case Text:
		return int64(len(v))
	case *List:
		return int64(len(v.Items))
	case *Dict:
		return int64(v.Len())
	}
	fail("object of type '%s' has no length", kind(v))
	return nil
}

func filterDefault(e *evaluator, v Value, a *arguments) Value {
	absent, ok := a.next("default_value")
	if !ok {
		absent = Text{}
	}
	falsy := a.boolOr("boolean", false)
	if _, is := v.(undefined); is || falsy && !truth(v) {
		return absent
	}
	return v
}

// sorted gives entries in the order of their keys.
func (e *evaluator) sorted(entries []entry) []entry {
	out := slices.Clone(entries)
	e.spend(charge * len(out))
	slices.SortStableFunc(out, func(a, b entry) int { return e.compare(a.key, b.key, "<") })
	return out
}

// folded is how sort, unique and their like see a value: without case, unless asked.
func (e *evaluator) folded(v Value, sensitive bool) Value {
	if t, ok := v.(Text); ok && !sensitive {
		e.spend(len(t))
		return t.lower()
	}
	return v
}

func filterDictsort(e *evaluator, v Value, a *arguments) Value {
	d, ok := v.(*Dict)
	if !ok {
		needDefined(v)
		fail("dictsort needs a dictionary, not '%s'", kind(v))
	}
	sensitive, by, reverse := a.boolOr("case_sensitive", false), a.textOr("by"), a.boolOr("reverse", false)
	entries := slices.Clone(d.entries)
	e.spend(4 * charge * len(entries))
	slices.SortStableFunc(entries, func(x, y entry) int {
		p, q := x.key, y.key
		if by.String() == "value" {
			p, q = x.value, y.value
		}
		c := e.compare(e.folded(p, sensitive), e.folded(q, sensitive), "<")
		if reverse {
			c = -c
		}
		return c
	})
	out := &List{}
	for _, x := range entries {
		out.Items = append(out.Items, &List{Items: []Value{x.key, x.value}, look: asTuple})
	}
	return out
}

// end is the first or last of v.
func (e *evaluator) end(v Value, last bool) Value {
	items := e.iterate(v)
	if len(items) == 0 {
		return undefined{"the sequence is empty"}
	}
	if last {
		return items[len(items)-1]
	}
	return items[0]
}

func filterFloat(e *evaluator, v Value, a *arguments) Value {
	absent, ok := a.next("default")
	if !ok {
		absent = 0.0
	}
	if f, _, _, ok := number(v); ok {
		return f
	}
	if t, ok := v.(Text); ok && len(t) < 1000 {
		if f, err := strconv.ParseFloat(t.strip(nil, true, true).String(), 64); err == nil {
			return f
		}
	}
	return absent
}

func filterInt(e *evaluator, v Value, a *arguments) Value {
	absent, ok := a.next("default")
	if !ok {
		absent = int64(0)
	}
	base := a.intOr("base", 10)
	f, i, isInt, ok := number(v)
	switch {
	case isInt:
		return i
	case ok:
		if math.IsNaN(f) || math.Abs(f) >= 1<<63 {
			return absent
		}
		return toInt(f)
	}
	t, ok := v.(Text)
	if !ok || len(t) > 1000 || base < 0 || base > 36 || base == 1 {
		return absent
	}
	s := t.strip(nil, true, true).String()
	if i, err := strconv.ParseInt(s, int(base), 64); err == nil {
		return i
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<63 {
		return int64(f)
	}
	return absent
}

func filterFromJSON(e *evaluator, v Value, a *arguments) Value {
	t := e.printed(v)
	e.spend(charge * len(t))
	out, err := FromJSON([]byte(t.String()))
	if err != nil {
		fail("fromjson: %v", err)
	}
	return out
}

// attribute is v's attribute by a path with dots.
func (e *evaluator) attribute(v Value, path Value) Value {
	t, ok := path.(Text)
	if !ok {
		return e.item(v, path)
	}
	e.spend(len(t))
	for _, name := range strings.Split(t.String(), ".") {
		e.spend(1)
		if i, err := strconv.ParseInt(name, 10, 64); err == nil {
			v = e.item(v, i)
		} else {
			v = e.item(v, Own(name))
		}
	}
	return v
}

func filterGroupby(e *evaluator, v Value, a *arguments) Value {
	path := a.need("attribute")
	absent, hasAbsent := a.next("default")
	sensitive := a.boolOr("case_sensitive", false)
	type member struct{ key, item Value }
	var all []member
	for _, item := range e.iterate(v) {
		key := e.attribute(item, path)
		if _, missing := key.(undefined); missing && hasAbsent {
			key = absent
		}
		all = append(all, member{key, item})
	}
	slices.SortStableFunc(all, func(x, y member) int {
		return e.compare(e.folded(x.key, sensitive), e.folded(y.key, sensitive), "<")
	})
	out := &List{}
	for i := 0; i < len(all); {
		group := &List{}
		j := i
		for ; j < len(all) && e.equal(e.folded(all[i].key, sensitive), e.folded(all[j].key, sensitive)); j++ {
			group.Items = append(group.Items, all[j].item)
		}
		out.Items = append(out.Items, &List{Items: []Value{all[i].key, group}, look: asTuple})
		i = j
	}
	return out
}

func filterIndent(e *evaluator, v Value, a *arguments) Value {
	t := e.printed(v)
	width, given := a.next("width")
	first, blank := a.boolOr("first", false), a.boolOr("blank", false)
	pad := Text{' ', ' ', ' ', ' '}
	if given {
		switch w := width.(type) {
		case Text:
			pad = w
		case int64:
			pad = make(Text, e.times(1, w))
			for i := range pad {
				pad[i] = ' '
			}
		default:
			fail("indent needs a number or a string, not '%s'", kind(width))
		}
	}
	e.spend(len(t))
	var out Text
	for n := 0; ; n++ {
		end := 0
		for end < len(t) && t[end]&^foreign != '\n' {
			end++
		}
		if (n > 0 || first) && (end > 0 || blank) {
			e.spend(len(pad))
			out = append(out, pad...)
		}
		if end == len(t) {
			return append(out, t...)
		}
		out = append(out, t[:end+1]...)
		t = t[end+1:]
	}
}

func filterItems(e *evaluator, v Value, a *arguments) Value {
	switch v := v.(type) {
	case undefined:
		return &List{}
	case *Dict:
		return dictMethods["items"](e, v, a)
	}
	fail("Can only get item pairs from a mapping.")
	return nil
}

func filterJoin(e *evaluator, v Value, a *arguments) Value {
	sep, _ := a.next("d")
	path, has := a.next("attribute")
	var parts []Text
	for _, item := range e.iterate(v) {
		if has && path != nil {
			item = e.attribute(item, path)
		}
		parts = append(parts, e.printed(item))
	}
	if sep == nil {
		sep = Text{}
	}
	return e.join(parts, e.printed(sep))
}

func filterMap(e *evaluator, v Value, a *arguments) Value {
	out := &List{}
	if !truth(v) { // none too, as in the reference
		a.args, a.named = nil, nil
		return out
	}
	if path, ok := (&arguments{named: a.named}).next("attribute"); ok && len(a.args) == 0 {
		a.next("attribute")
		absent, hasAbsent := a.next("default")
		for _, item := range e.iterate(v) {
			got := e.attribute(item, path)
			if _, missing := got.(undefined); missing && hasAbsent {
				got = absent
			}
			out.Items = append(out.Items, got)
		}
		return out
	}
	name := a.text("filter").String()
	f, ok := filters[name]
	if !ok {
		fail("no filter named '%s'", name)
	}
	for _, item := range e.iterate(v) {
		e.spend(charge)
		each := &arguments{e: e, name: "filter '" + name + "'", args: a.args, named: a.named}
		out.Items = append(out.Items, f(e, item, each))
		each.done()
	}
	a.args, a.named = nil, nil
	return out
}

func (e *evaluator) extreme(v Value, a *arguments, sign int) Value {
	sensitive := a.boolOr("case_sensitive", false)
	path, has := a.next("attribute")
	key := func(v Value) Value {
		if has {
			v = e.attribute(v, path)
		}
		return e.folded(v, sensitive)
	}
	var best Value = undefined{"the sequence is empty"}
	for i, item := range e.iterate(v) {
		if i == 0 || sign*e.compare(key(item), key(best), "<") > 0 {
			best = item
		}
	}
	return best
}

// choose is select, reject and their forms that look at an attribute.
func (e *evaluator) choose(v Value, a *arguments, attr, want bool) Value {
	var path Value
	if attr {
		path = a.need("attribute")
	}
	test := Text(nil)
	if len(a.args) > 0 {
		test = a.text("test")
	}
	args := a.args
	a.args = nil
	out := &List{}
	if !truth(v) { // none too, as in the reference
		return out
	}
	for _, item := range e.iterate(v) {
		e.spend(charge)
		seen := item
		if attr {
			seen = e.attribute(item, path)
		}
		ok := truth(seen)
		if test != nil {
			ok = e.test(test.String(), seen, args)
		}
		if ok == want {
			out.Items = append(out.Items, item)
		}
	}
	return out
}

func filterReplace(e *evaluator, v Value, a *arguments) Value {
	old, new := e.printed(a.need("old")), e.printed(a.need("new"))
	count := int64(-1)
	if c, ok := a.next("count"); ok && c != nil {
		_, i, isInt, _ := number(c)
		if !isInt {
			fail("replace needs an integer, not '%s'", kind(c))
		}
		count = i
	}
	return e.replace(e.printed(v), old, new, count)
}

func filterReverse(e *evaluator, v Value, a *arguments) Value {
	if t, ok := v.(Text); ok {
		e.spend(len(t))
		out := slices.Clone(t)
		slices.Reverse(out)
		return out
	}
	out := &List{Items: slices.Clone(e.iterate(v))}
	slices.Reverse(out.Items)
	return out
}

func filterRound(e *evaluator, v Value, a *arguments) Value {
	f, i, isInt, ok := number(v)
	if !ok {
		needDefined(v)
		fail("round needs a number, not '%s'", kind(v))
	}
	precision, method := a.intOr("precision", 0), a.textOr("method").String()
	if precision < -20 || precision > 20 {
		fail("round supports precisions from -20 to 20")
	}
	scale := math.Pow(10, float64(precision))
	switch method {
	case "", "common":
		if isInt && precision >= 0 {
			return i
		}
		if precision > 0 {
			// To the nearest decimal, as its exact digits say.
			r, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(precision), 64), 64)
			return r
		}
		r := math.RoundToEven(f*scale) / scale
		if isInt {
			return toInt(r)
		}
		return r
	case "ceil":
		return math.Ceil(f*scale) / scale
	case "floor":
		return math.Floor(f*scale) / scale
	}
	fail("method must be common, ceil or floor")
	return nil
}

func filterSort(e *evaluator, v Value, a *arguments) Value {
	reverse, sensitive := a.boolOr("reverse", false), a.boolOr("case_sensitive", false)
	path, has := a.next("attribute")
	out := &List{Items: slices.Clone(e.iterate(v))}
	key := func(v Value) Value {
		if has && path != nil {
			v = e.attribute(v, path)
		}
		return e.folded(v, sensitive)
	}
	slices.SortStableFunc(out.Items, func(x, y Value) int {
		c := e.compare(key(x), key(y), "<")
		if reverse {
			c = -c
		}
		return c
	})
	return out
}

func filterSum(e *evaluator, v Value, a *arguments) Value {
	path, has := a.next("attribute")
	start, ok := a.next("start")
	if !ok {
		start = int64(0)
	}
	total := start
	for _, item := range e.iterate(v) {
		if has && path != nil {
			item = e.attribute(item, path)
		}
		total = (&binExpr{"+", constExpr{total}, constExpr{item}}).eval(e, nil)
	}
	return total
}

func filterToJSON(e *evaluator, v Value, a *arguments) Value {
	style := jsonStyle{item: Own(", "), key: Own(": ")}
	style.wide = a.boolOr("ensure_ascii", false)
	indent, ok := a.next("indent")
	if ok && indent != nil {
		switch n := indent.(type) {
		case Text:
			style.indent = append(Text{}, n...)
		case int64:
			style.indent = make(Text, e.times(1, n))
			for i := range style.indent {
				style.indent[i] = ' '
			}
		default:
			fail("tojson: indent must be a number or a string, not '%s'", kind(indent))
		}
		style.item = Own(",")
	}
	if sep, ok := a.next("separators"); ok && sep != nil {
		l, _ := sep.(*List)
		if l == nil || len(l.Items) != 2 {
			fail("tojson: separators must be two strings")
		}
		style.item, style.key = e.printed(l.Items[0]), e.printed(l.Items[1])
	}
	style.sort = a.boolOr("sort_keys", false)
	return e.toJSON(nil, v, style, 0)
}

func filterUnique(e *evaluator, v Value, a *arguments) Value {
	sensitive := a.boolOr("case_sensitive", false)
	path, has := a.next("attribute")
	out, seen := &List{}, NewDict()
	for _, item := range e.iterate(v) {
		key := item
		if has && path != nil {
			key = e.attribute(item, path)
		}
		if t, ok := key.(Text); ok {
			e.spend(2 * len(t))
		}
		key = e.folded(key, sensitive)
		if l, ok := key.(*List); ok { // a tuple, by what it prints
			key = e.repr(nil, l, 0)
		}
		if _, twice := seen.get(key); !twice {
			seen.set(key, true)
			out.Items = append(out.Items, item)
		}
	}
	return out
}

func filterWordcount(e *evaluator, v Value, a *arguments) Value {
	t := e.printed(v)
	e.spend(len(t))
	n, in := int64(0), false
	for _, r := range t {
		word := r&^foreign == '_' || unicode.IsLetter(r&^foreign) || unicode.IsNumber(r&^foreign)
		if word && !in {
			n++
		}
		in = word
	}
	return n
}
