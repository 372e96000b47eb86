package jinja

// test is "v is name(args)".
func (e *evaluator) test(name string, v Value, args []Value) bool {
	arg := func() Value {
		if len(args) != 1 {
			fail("test '%s' needs one argument", name)
		}
		return args[0]
	}
	_, i, isInt, isNumber := number(v)
	_, isBool := v.(bool)
	_, isUndefined := v.(undefined)
	switch name {
	case "defined":
		return !isUndefined
	case "undefined":
		return isUndefined
	case "none":
		return v == nil
	case "boolean":
		return isBool
	case "true":
		return v == true
	case "false":
		return v == false
	case "integer":
		return isInt && !isBool
	case "float":
		return isNumber && !isInt
	case "number":
		return isNumber
	case "string":
		_, ok := v.(Text)
		return ok
	case "mapping":
		_, ok := v.(*Dict)
		return ok
	case "iterable", "sequence":
		switch v.(type) {
		case Text, *List, *Dict, undefined:
			return true
		}
		return false
	case "callable":
		switch v.(type) {
		case *function, *loop:
			return true
		}
		return false
	case "odd", "even", "divisibleby":
		if !isInt {
			needDefined(v)
			fail("test '%s' needs an integer, not '%s'", name, kind(v))
		}
		by := int64(2)
		if name == "divisibleby" {
			_, n, ok, _ := number(arg())
			if !ok || n == 0 {
				fail("test 'divisibleby' needs an integer that is not 0")
			}
			by = n
		}
		return by == -1 || (i%by == 0) != (name == "odd")
	case "upper", "lower":
		t := e.printed(v)
		e.spend(len(t))
		if name == "upper" {
			return cased(isUpper, isLower)(e, t, nil) == true
		}
		return cased(isLower, isUpper)(e, t, nil) == true
	case "eq", "equalto", "==":
		return e.equal(v, arg())
	case "ne", "!=":
		return !e.equal(v, arg())
	case "lt", "lessthan", "<":
		return e.compare(v, arg(), "<") < 0
	case "le", "<=":
		return e.compare(v, arg(), "<=") <= 0
	case "gt", "greaterthan", ">":
		return e.compare(v, arg(), ">") > 0
	case "ge", ">=":
		return e.compare(v, arg(), ">=") >= 0
	case "in":
		return e.contains(arg(), v)
	case "sameas":
		return kind(v) == kind(arg()) && e.equal(v, arg())
	case "filter":
		_, ok := filters[e.printed(v).String()]
		return ok
	case "escaped":
		return false
	}
	fail("no test named '%s'", name)
	return false
}
