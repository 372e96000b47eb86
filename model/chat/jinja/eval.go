package jinja

import (
	"math"
	"time"
)

// scope holds names. A block's scope begins empty on every pass; what is not found
// is looked for further out.
type scope struct {
	vars   map[string]Value
	parent *scope
}

func (s *scope) get(name string) (Value, bool) {
	for ; s != nil; s = s.parent {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	return nil, false
}

func (s *scope) set(name string, v Value) {
	if s.vars == nil {
		s.vars = make(map[string]Value)
	}
	s.vars[name] = v
}

// evaluator is one rendering. What goes wrong is a panic of one of the kinds that
// Render recovers.
type evaluator struct {
	out    Text
	budget int
	depth  int // of calls
	line   int // of the statement that runs
	now    time.Time
	leave  leave
}

// leave says that statements are skipped, up to the loop.
type leave uint8

const (
	stay leave = iota
	leaveByBreak
	leaveByContinue
)

// charge is what a value on its own costs.
const charge = 8

func (e *evaluator) spend(n int) {
	if n > e.budget {
		panic(budgetSpent{})
	}
	e.budget -= n
}

// nested limits recursion over values.
func (e *evaluator) nested(depth int) {
	if depth > maxNesting {
		fail("values are nested more than %d deep", maxNesting)
	}
}

// call limits recursion of calls; the result ends it.
func (e *evaluator) enter() func() {
	if e.depth++; e.depth > maxNesting {
		fail("calls are nested more than %d deep", maxNesting)
	}
	line := e.line
	return func() { e.depth, e.line = e.depth-1, line }
}

func (e *evaluator) run(body []node, s *scope) {
	for _, n := range body {
		e.spend(charge)
		n.run(e, s)
		if e.leave != stay {
			return
		}
	}
}

func (e *evaluator) write(t Text) {
	e.spend(len(t))
	e.out = append(e.out, t...)
}

// capture gives what body prints.
func (e *evaluator) capture(body []node, s *scope) Text {
	out := e.out
	e.out = nil
	e.run(body, s)
	got := e.out
	e.out = out
	return got
}

func (n *textNode) run(e *evaluator, s *scope) { e.write(n.text) }

func (n *printNode) run(e *evaluator, s *scope) {
	e.line = n.line
	e.write(e.printed(n.x.eval(e, s)))
}

func (n *ifNode) run(e *evaluator, s *scope) {
	e.line = n.line
	for _, b := range n.branches {
		if truth(b.cond.eval(e, s)) {
			e.run(b.body, s)
			return
		}
	}
	e.run(n.otherwise, s)
}

func (n *forNode) run(e *evaluator, s *scope) {
	e.line = n.line
	n.loop(e, s, n.list.eval(e, s), 0)
}

func (n *forNode) loop(e *evaluator, s *scope, over Value, depth int) {
	items := e.iterate(over)
	if n.cond != nil {
		var kept []Value
		for _, item := range items {
			inner := &scope{parent: s}
			e.assign(inner, n.target, item)
			e.spend(charge)
			if truth(n.cond.eval(e, inner)) {
				kept = append(kept, item)
			}
		}
		items = kept
	}
	if len(items) == 0 {
		e.run(n.otherwise, &scope{parent: s})
		return
	}
	l := &loop{node: n, scope: s, items: items, depth: depth}
	for i, item := range items {
		e.spend(charge)
		l.i = i
		inner := &scope{parent: s}
		inner.set("loop", l)
		e.assign(inner, n.target, item)
		e.run(n.body, inner)
		how := e.leave
		e.leave = stay
		if how == leaveByBreak {
			break
		}
	}
}

func (breakNode) run(e *evaluator, s *scope)    { e.leave = leaveByBreak }
func (continueNode) run(e *evaluator, s *scope) { e.leave = leaveByContinue }

func (n *setNode) run(e *evaluator, s *scope) {
	e.line = n.line
	e.assign(s, n.target, n.x.eval(e, s))
}

func (n *captureNode) run(e *evaluator, s *scope) {
	e.line = n.line
	var v Value = e.capture(n.body, &scope{parent: s})
	if n.filters != nil {
		v = e.filtered(n.filters, v, s)
	}
	e.assign(s, n.target, v)
}

func (n *filterNode) run(e *evaluator, s *scope) {
	e.line = n.line
	v := e.filtered(n.filters, e.capture(n.body, &scope{parent: s}), s)
	e.write(e.printed(v))
}

func (n *macroNode) run(e *evaluator, s *scope) {
	s.set(n.m.name, n.m.function(s))
}

func (n *callNode) run(e *evaluator, s *scope) {
	e.line = n.line
	v := n.call.with(e, s, named{"caller", n.caller.function(s)})
	e.write(e.printed(v))
}

func (n *withNode) run(e *evaluator, s *scope) {
	e.line = n.line
	inner := &scope{parent: s}
	for i, t := range n.targets {
		e.assign(inner, t, n.values[i].eval(e, s))
	}
	e.run(n.body, inner)
}

func (e *evaluator) assign(s *scope, t target, v Value) {
	switch {
	case t.parts != nil:
		items := e.iterate(v)
		if len(items) != len(t.parts) {
			fail("%d values for %d names", len(items), len(t.parts))
		}
		for i, part := range t.parts {
			e.assign(s, part, items[i])
		}
	case t.attr != "":
		found, _ := s.get(t.name)
		ns, ok := found.(*namespace)
		if !ok {
			fail("cannot assign to an attribute of '%s', which is not a namespace", t.name)
		}
		ns.vars[t.attr] = v
	default:
		s.set(t.name, v)
	}
}

// function makes a macro callable; free names are looked up where it was defined.
func (m *macro) function(where *scope) *function {
	return &function{name: m.name, call: func(e *evaluator, args []Value, by []named) Value {
		defer e.enter()()
		s := &scope{parent: where}
		for i, p := range m.params {
			if i < len(args) {
				s.set(p, args[i])
				continue
			}
			s.set(p, undefined{"parameter '" + p + "' was not given"})
		}
		rest := NewDict()
	next:
		for _, a := range by {
			for i, p := range m.params {
				if p == a.name {
					if i < len(args) {
						fail("macro '%s' got '%s' twice", m.name, p)
					}
					s.set(p, a.value)
					continue next
				}
			}
			switch {
			case a.name == "caller" && m.caller:
				s.set("caller", a.value)
			case m.kwargs:
				rest.Set(Own(a.name), a.value)
			case a.name == "caller":
				fail("macro '%s' does not use caller, so it cannot be called by a call block", m.name)
			default:
				fail("macro '%s' takes no argument '%s'", m.name, a.name)
			}
		}
		for i, p := range m.params {
			if _, missing := s.vars[p].(undefined); missing && m.defaults[i] != nil {
				s.set(p, m.defaults[i].eval(e, s))
			}
		}
		if extra := len(args) - len(m.params); extra > 0 && !m.varargs {
			fail("macro '%s' takes %d arguments, got %d", m.name, len(m.params), len(args))
		}
		if m.varargs {
			s.set("varargs", &List{Items: args[min(len(args), len(m.params)):], look: asTuple})
		}
		if m.kwargs {
			s.set("kwargs", rest)
		}
		return e.capture(m.body, s)
	}}
}

func (x constExpr) eval(e *evaluator, s *scope) Value { return x.v }

func (x nameExpr) eval(e *evaluator, s *scope) Value {
	e.spend(1)
	if v, ok := s.get(x.name); ok {
		return v
	}
	return undefined{"'" + x.name + "' is undefined"}
}

func (x *listExpr) eval(e *evaluator, s *scope) Value {
	e.spend(charge * (1 + len(x.items)))
	l := &List{look: x.look}
	for _, item := range x.items {
		l.Items = append(l.Items, item.eval(e, s))
	}
	return l
}

func (x *dictExpr) eval(e *evaluator, s *scope) Value {
	e.spend(charge * (1 + 2*len(x.keys)))
	d := NewDict()
	for i, key := range x.keys {
		d.set(key.eval(e, s), x.values[i].eval(e, s))
	}
	return d
}

func (x *attrExpr) eval(e *evaluator, s *scope) Value {
	e.spend(1)
	return e.attr(x.x.eval(e, s), x.name)
}

func (x *itemExpr) eval(e *evaluator, s *scope) Value {
	e.spend(1)
	from := x.x.eval(e, s)
	if cut, ok := x.key.(*sliceExpr); ok {
		return e.slice(from, cut, s)
	}
	return e.item(from, x.key.eval(e, s))
}

func (x *sliceExpr) eval(e *evaluator, s *scope) Value {
	fail("a slice outside a subscript")
	return nil
}

// item is v[key].
func (e *evaluator) item(v, key Value) Value {
	switch v := v.(type) {
	case undefined:
		fail("%s", v.why)
	case *Dict:
		if t, ok := key.(Text); ok {
			e.spend(len(t))
		}
		if got, ok := v.get(key); ok {
			return got
		}
	case *List:
		if _, i, isInt, _ := number(key); isInt {
			if i < 0 {
				i += int64(len(v.Items))
			}
			if i >= 0 && i < int64(len(v.Items)) {
				return v.Items[i]
			}
			return undefined{"list has no element " + string(e.printed(key).String())}
		}
	case Text:
		if _, i, isInt, _ := number(key); isInt {
			if i < 0 {
				i += int64(len(v))
			}
			if i >= 0 && i < int64(len(v)) {
				return v[i : i+1 : i+1]
			}
			return undefined{"string has no element " + string(e.printed(key).String())}
		}
	}
	if t, ok := key.(Text); ok {
		return e.attr(v, t.String())
	}
	return undefined{"'" + kind(v) + " object' has no such element"}
}

// bounds gives the indices of a slice of something of length n, as Python does.
func (e *evaluator) bounds(x *sliceExpr, s *scope, n int) []int {
	part := func(p expr, absent int64) (int64, bool) {
		if p == nil {
			return absent, false
		}
		v := p.eval(e, s)
		if v == nil {
			return absent, false
		}
		_, i, isInt, _ := number(v)
		if !isInt {
			needDefined(v)
			fail("slice indices must be integers, not %s", kind(v))
		}
		return i, true
	}
	step, _ := part(x.step, 1)
	if step == 0 {
		fail("slice step cannot be zero")
	}
	lo, hi := int64(0), int64(n)
	if step < 0 {
		lo, hi = -1, int64(n)-1
	}
	clip := func(p expr, absent int64) int64 {
		i, given := part(p, absent)
		if given && i < 0 {
			i += int64(n)
		}
		return min(max(i, lo), hi)
	}
	from, to := lo, hi
	if step < 0 {
		from, to = hi, lo
	}
	from, to = clip(x.from, from), clip(x.to, to)
	e.spend(n)
	var at []int
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		at = append(at, int(i))
		if step > int64(n) || step < -int64(n) {
			break
		}
	}
	return at
}

func (e *evaluator) slice(v Value, x *sliceExpr, s *scope) Value {
	switch v := v.(type) {
	case Text:
		at := e.bounds(x, s, len(v))
		out := make(Text, len(at))
		for i, j := range at {
			out[i] = v[j]
		}
		return out
	case *List:
		at := e.bounds(x, s, len(v.Items))
		e.spend(len(at))
		out := &List{look: v.look}
		for _, j := range at {
			out.Items = append(out.Items, v.Items[j])
		}
		return out
	}
	needDefined(v)
	fail("'%s' object cannot be sliced", kind(v))
	return nil
}

func (x *callExpr) eval(e *evaluator, s *scope) Value { return x.with(e, s) }

// with calls with more named arguments.
func (x *callExpr) with(e *evaluator, s *scope, more ...named) Value {
	f := x.f.eval(e, s)
	var args []Value
	for _, a := range x.args {
		args = append(args, a.eval(e, s))
	}
	if x.list != nil {
		args = append(args, e.iterate(x.list.eval(e, s))...)
	}
	var by []named
	for _, a := range x.named {
		by = append(by, named{a.name, a.x.eval(e, s)})
	}
	if x.map_ != nil {
		d, ok := x.map_.eval(e, s).(*Dict)
		if !ok {
			fail("** needs a dictionary")
		}
		for _, entry := range d.entries {
			by = append(by, named{e.printed(entry.key).String(), entry.value})
		}
	}
	by = append(by, more...)
	e.spend(charge * (1 + len(args) + len(by)))
	switch f := f.(type) {
	case *function:
		return f.call(e, args, by)
	case *loop:
		return f.again(e, args)
	}
	needDefined(f)
	fail("'%s' object is not callable", kind(f))
	return nil
}

func (x *filterExpr) eval(e *evaluator, s *scope) Value { return x.apply(e, s, nil) }

// filtered applies a chain of filters to what was captured.
func (e *evaluator) filtered(x expr, captured Value, s *scope) Value {
	return x.(*filterExpr).apply(e, s, captured)
}

func (x *filterExpr) apply(e *evaluator, s *scope, captured Value) Value {
	v := captured
	switch inner := x.x.(type) {
	case nil:
	case *filterExpr:
		v = inner.apply(e, s, captured)
	default:
		v = inner.eval(e, s)
	}
	f, ok := filters[x.name]
	if !ok {
		fail("no filter named '%s'", x.name)
	}
	a := arguments{e: e, name: "filter '" + x.name + "'"}
	for _, arg := range x.args {
		a.args = append(a.args, arg.eval(e, s))
	}
	for _, arg := range x.named {
		a.named = append(a.named, named{arg.name, arg.x.eval(e, s)})
	}
	e.spend(charge)
	out := f(e, v, &a)
	a.done()
	return out
}

func (x *testExpr) eval(e *evaluator, s *scope) Value {
	v := x.x.eval(e, s)
	var args []Value
	for _, a := range x.args {
		args = append(args, a.eval(e, s))
	}
	e.spend(1)
	return e.test(x.name, v, args)
}

func (x *notExpr) eval(e *evaluator, s *scope) Value { return !truth(x.x.eval(e, s)) }

func (x *signExpr) eval(e *evaluator, s *scope) Value {
	v := x.x.eval(e, s)
	f, i, isInt, ok := number(v)
	if !ok {
		needDefined(v)
		fail("bad operand type for unary %c: '%s'", x.op, kind(v))
	}
	switch {
	case x.op == '+' && isInt:
		return i
	case x.op == '+':
		return f
	case isInt:
		if i == math.MinInt64 {
			fail("integer is too large")
		}
		return -i
	}
	return -f
}

func (x *logicExpr) eval(e *evaluator, s *scope) Value {
	e.spend(1)
	a := x.a.eval(e, s)
	if truth(a) != x.and {
		return a
	}
	return x.b.eval(e, s)
}

func (x *condExpr) eval(e *evaluator, s *scope) Value {
	e.spend(1)
	if truth(x.cond.eval(e, s)) {
		return x.then.eval(e, s)
	}
	if x.otherwise == nil {
		return undefined{"the inline if has no else"}
	}
	return x.otherwise.eval(e, s)
}

func (x *compareExpr) eval(e *evaluator, s *scope) Value {
	a := x.x.eval(e, s)
	for i, op := range x.ops {
		e.spend(1)
		b := x.args[i].eval(e, s)
		ok := false
		switch op {
		case "==":
			ok = e.equal(a, b)
		case "!=":
			ok = !e.equal(a, b)
		case "in":
			ok = e.contains(b, a)
		case "not in":
			ok = !e.contains(b, a)
		case "<":
			ok = e.compare(a, b, op) < 0
		case "<=":
			ok = e.compare(a, b, op) <= 0
		case ">":
			ok = e.compare(a, b, op) > 0
		case ">=":
			ok = e.compare(a, b, op) >= 0
		}
		if !ok {
			return false
		}
		a = b
	}
	return true
}

// contains is "v in in".
func (e *evaluator) contains(in, v Value) bool {
	switch in := in.(type) {
	case undefined:
		return false
	case Text:
		t, ok := v.(Text)
		if !ok {
			needDefined(v)
			fail("'in <string>' needs a string, not '%s'", kind(v))
		}
		e.spend(2 * len(in))
		return len(t) == 0 || len(in.find(t, 1)) > 0
	case *List:
		for _, item := range in.Items {
			if e.equal(item, v) {
				return true
			}
		}
		return false
	case *Dict:
		if t, ok := v.(Text); ok {
			e.spend(len(t))
		}
		_, ok := in.get(v)
		return ok
	}
	fail("argument of type '%s' is not iterable", kind(in))
	return false
}
