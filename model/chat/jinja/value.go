package jinja

import (
	"fmt"
	"math"
)

// Value is what a template computes with: nil (none), bool, int64, float64, Text,
// *List, *Dict, or one of the package's own kinds. Values that were given to a
// rendering are never changed by it.
type Value any

// List is a list or, for templates that look closely, a tuple or another thing
// that is iterated.
type List struct {
	Items []Value
	look  look
}

// look says how a list prints.
type look uint8

const (
	asList look = iota
	asTuple
	asRange
	asItems
	asKeys
	asValues
)

// Dict is a dictionary that keeps the order of insertion.
type Dict struct {
	entries []entry
	index   map[any]int
}

type entry struct {
	key, value Value
}

// NewDict is an empty dictionary.
func NewDict() *Dict { return &Dict{index: map[any]int{}} }

// Set enters a value. Of a key that is set twice the place of the first stays.
func (d *Dict) Set(key Text, v Value) { d.set(key, v) }

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.entries) }

func (d *Dict) set(key, v Value) {
	k := hash(key)
	if i, ok := d.index[k]; ok {
		d.entries[i].value = v
		return
	}
	d.index[k] = len(d.entries)
	d.entries = append(d.entries, entry{key, v})
}

func (d *Dict) get(key Value) (Value, bool) {
	i, ok := d.index[hash(key)]
	if !ok {
		return nil, false
	}
	return d.entries[i].value, true
}

// hash maps equal keys to one Go value.
func hash(key Value) any {
	switch k := key.(type) {
	case nil:
		return nil
	case bool:
		if k {
			return int64(1)
		}
		return int64(0)
	case int64:
		return k
	case float64:
		if k == math.Trunc(k) && math.Abs(k) < 1<<53 {
			return int64(k)
		}
		return k
	case Text:
		return k.String()
	}
	fail("unhashable type: '%s'", kind(key))
	return nil
}

// undefined is the value of what does not exist; why says so.
type undefined struct{ why string }

// namespace is the one thing that a template may change.
type namespace struct{ vars map[string]Value }

// function is what can be called.
type function struct {
	name string
	call func(e *evaluator, args []Value, named []named) Value
}

// named is an argument given by name.
type named struct {
	name  string
	value Value
}

func fail(format string, args ...any) {
	panic(&RuntimeError{Message: fmt.Sprintf(format, args...)})
}

// kind names a value's type as Python does.
func kind(v Value) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case Text:
		return "str"
	case *List:
		switch v.look {
		case asTuple:
			return "tuple"
		case asRange:
			return "range"
		}
		return "list"
	case *Dict:
		return "dict"
	case undefined:
		return "Undefined"
	case *namespace:
		return "Namespace"
	case *function:
		return "function"
	}
	return "object"
}

func truth(v Value) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case Text:
		return len(v) > 0
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return v.Len() > 0
	}
	return true
}

// number gives v as a float if it is a number; whole says that it is an integer.
func number(v Value) (f float64, whole int64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int64:
		return float64(v), v, true, true
	case float64:
		return v, 0, false, true
	}
	return 0, 0, false, false
}

func (e *evaluator) equal(a, b Value) bool { return e.equalAt(a, b, 0) }

func (e *evaluator) equalAt(a, b Value, depth int) bool {
	e.nested(depth)
	e.spend(1)
	if x, i, xInt, ok := number(a); ok {
		y, j, yInt, ok := number(b)
		if xInt && yInt {
			return ok && i == j
		}
		return ok && x == y
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case undefined:
		_, ok := b.(undefined)
		return ok
	case Text:
		b, ok := b.(Text)
		e.spend(len(a))
		return ok && a.equal(b)
	case *List:
		b, ok := b.(*List)
		if !ok || len(a.Items) != len(b.Items) || (a.look == asTuple) != (b.look == asTuple) {
			return false
		}
		for i := range a.Items {
			if !e.equalAt(a.Items[i], b.Items[i], depth+1) {
				return false
			}
		}
		return true
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || a.Len() != b.Len() {
			return false
		}
		for _, x := range a.entries {
			y, ok := b.get(x.key)
			if !ok || !e.equalAt(x.value, y, depth+1) {
				return false
			}
		}
		return true
	}
	return a == b
}

// compare orders two values; it fails if they have no order.
func (e *evaluator) compare(a, b Value, op string) int {
	return e.compareAt(a, b, op, 0)
}

func (e *evaluator) compareAt(a, b Value, op string, depth int) int {
	e.nested(depth)
	e.spend(1)
	x, i, xInt, ok1 := number(a)
	y, j, yInt, ok2 := number(b)
	if ok1 && ok2 {
		switch {
		case xInt && yInt && i < j, !(xInt && yInt) && x < y:
			return -1
		case xInt && yInt && i > j, !(xInt && yInt) && x > y:
			return 1
		}
		return 0
	}
	if a, ok := a.(Text); ok {
		if b, ok := b.(Text); ok {
			e.spend(min(len(a), len(b)))
			return a.compare(b)
		}
	}
	if a, ok := a.(*List); ok {
		if b, ok := b.(*List); ok {
			for i := 0; i < len(a.Items) && i < len(b.Items); i++ {
				if !e.equalAt(a.Items[i], b.Items[i], depth+1) {
					return e.compareAt(a.Items[i], b.Items[i], op, depth+1)
				}
			}
			return len(a.Items) - len(b.Items)
		}
	}
	needDefined(a)
	needDefined(b)
	fail("'%s' not supported between instances of '%s' and '%s'", op, kind(a), kind(b))
	return 0
}

func needDefined(v Value) {
	if u, ok := v.(undefined); ok {
		fail("%s", u.why)
	}
}

// iterate gives what a loop over v sees.
func (e *evaluator) iterate(v Value) []Value {
	switch v := v.(type) {
	case undefined:
		return nil
	case *List:
		e.spend(len(v.Items))
		return v.Items
	case *Dict:
		e.spend(v.Len())
		keys := make([]Value, v.Len())
		for i, x := range v.entries {
			keys[i] = x.key
		}
		return keys
	case Text:
		e.spend(len(v) * charge)
		items := make([]Value, len(v))
		for i := range v {
			items[i] = v[i : i+1 : i+1]
		}
		return items
	}
	fail("'%s' object is not iterable", kind(v))
	return nil
}
