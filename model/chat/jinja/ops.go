package jinja

import (
	"math"
	"math/bits"
	"strconv"
)

func (x *binExpr) eval(e *evaluator, s *scope) Value {
	e.spend(1)
	a := x.a.eval(e, s)
	b := x.b.eval(e, s)
	if x.op == "~" {
		return e.concat(e.printed(a), e.printed(b))
	}
	needDefined(a)
	needDefined(b)
	f, i, aInt, aOK := number(a)
	g, j, bInt, bOK := number(b)
	switch {
	case aOK && bOK && aInt && bInt:
		return integers(x.op, i, j)
	case aOK && bOK:
		return floats(x.op, f, g)
	}
	switch x.op {
	case "+":
		switch a := a.(type) {
		case Text:
			if b, ok := b.(Text); ok {
				return e.concat(a, b)
			}
		case *List:
			if b, ok := b.(*List); ok && (a.look == asTuple) == (b.look == asTuple) {
				e.spend(charge + len(a.Items) + len(b.Items))
				out := &List{look: a.look, Items: make([]Value, 0, len(a.Items)+len(b.Items))}
				out.Items = append(append(out.Items, a.Items...), b.Items...)
				return out
			}
		}
	case "*":
		if aInt {
			a, b, j, bInt = b, a, i, true
		}
		if bInt {
			switch a := a.(type) {
			case Text:
				n := e.times(len(a), j)
				out := make(Text, 0, len(a)*n)
				for range n {
					out = append(out, a...)
				}
				return out
			case *List:
				n := e.times(len(a.Items), j)
				out := &List{look: a.look}
				for range n {
					out.Items = append(out.Items, a.Items...)
				}
				return out
			}
		}
	case "%":
		if a, ok := a.(Text); ok {
			args := []Value{b}
			if l, ok := b.(*List); ok && l.look == asTuple {
				args = l.Items
			}
			return e.format(a, args)
		}
	}
	fail("unsupported operand types for %s: '%s' and '%s'", x.op, kind(a), kind(b))
	return nil
}

// concat makes a new text of two; it never writes into either.
func (e *evaluator) concat(a, b Text) Text {
	e.spend(len(a) + len(b) + 1)
	return append(append(make(Text, 0, len(a)+len(b)), a...), b...)
}

// times charges for n copies of size and gives how many there are.
func (e *evaluator) times(size int, n int64) int {
	if n <= 0 || size == 0 {
		return 0
	}
	if n > int64(e.budget) {
		panic(budgetSpent{})
	}
	hi, lo := bits.Mul64(uint64(size), uint64(n))
	if hi != 0 || lo > uint64(e.budget) {
		panic(budgetSpent{})
	}
	e.spend(int(lo) + charge)
	return int(n)
}

func integers(op string, a, b int64) Value {
	large := func(bad bool) {
		if bad {
			fail("integer is too large")
		}
	}
	switch op {
	case "+":
		c := a + b
		large((c > a) != (b > 0) && b != 0)
		return c
	case "-":
		c := a - b
		large((c < a) != (b > 0) && b != 0)
		return c
	case "*":
		if a == 0 || b == 0 {
			return int64(0)
		}
		c := a * b
		large(c/b != a || a == -1 && b == math.MinInt64 || b == -1 && a == math.MinInt64)
		return c
	case "/":
		if b == 0 {
			fail("division by zero")
		}
		return float64(a) / float64(b)
	case "//", "%":
		if b == 0 {
			fail("integer division or modulo by zero")
		}
		large(a == math.MinInt64 && b == -1)
		q, r := a/b, a%b
		if r != 0 && (r < 0) != (b < 0) {
			q, r = q-1, r+b
		}
		if op == "//" {
			return q
		}
		return r
	case "**":
		if b < 0 {
			return math.Pow(float64(a), float64(b))
		}
		c := int64(1)
		for range min(b, 64) {
			c = integers("*", c, a).(int64)
		}
		if b > 64 && (a > 1 || a < -1) {
			fail("integer is too large")
		}
		if b > 64 && a == -1 && b%2 == 1 {
			c = -1
		}
		return c
	}
	fail("unknown operator %s", op)
	return nil
}

func floats(op string, a, b float64) Value {
	switch op {
	case "+":
		return a + b
	case "-":
		return a - b
	case "*":
		return a * b
	case "**":
		return math.Pow(a, b)
	}
	if b == 0 {
		fail("float division by zero")
	}
	switch op {
	case "/":
		return a / b
	case "//":
		return math.Floor(a / b)
	case "%":
		r := math.Mod(a, b)
		if r != 0 && (r < 0) != (b < 0) {
			r += b
		}
		return r
	}
	fail("unknown operator %s", op)
	return nil
}

// format is Python's % on strings, as far as templates use it.
func (e *evaluator) format(t Text, args []Value) Text {
	var out Text
	used := 0
	for i := 0; i < len(t); i++ {
		if t[i]&^foreign != '%' {
			e.spend(1)
			out = append(out, t[i])
			continue
		}
		precision := -1
		i++
		if i+1 < len(t) && t[i]&^foreign == '.' {
			precision = 0
			for i++; i < len(t) && t[i]&^foreign >= '0' && t[i]&^foreign <= '9' && precision < 100; i++ {
				precision = 10*precision + int(t[i]&^foreign-'0')
			}
		}
		if i >= len(t) {
			fail("incomplete format")
		}
		verb := t[i] &^ foreign
		if verb == '%' {
			out = append(out, '%')
			continue
		}
		if used >= len(args) {
			fail("not enough arguments for format string")
		}
		v := args[used]
		used++
		var part Text
		f, whole, isInt, isNumber := number(v)
		switch {
		case verb == 's':
			part = e.printed(v)
			if precision >= 0 && precision < len(part) {
				part = part[:precision]
			}
		case verb == 'r':
			part = e.repr(nil, v, 0)
		case verb == 'd' && isNumber:
			if !isInt {
				whole = toInt(f)
			}
			part = Own(strconv.FormatInt(whole, 10))
		case verb == 'f' && isNumber:
			if precision < 0 {
				precision = 6
			}
			part = Own(strconv.FormatFloat(f, 'f', precision, 64))
		default:
			fail("format %%%c is not supported for '%s'", verb, kind(v))
		}
		e.spend(len(part))
		out = append(out, part...)
	}
	if used < len(args) {
		fail("not all arguments converted during string formatting")
	}
	return out
}

// toInt cuts a float to an integer.
func toInt(f float64) int64 {
	if !(f > -1<<63 && f < 1<<63) {
		fail("cannot convert %s to integer", formatFloat(f))
	}
	return int64(f)
}
