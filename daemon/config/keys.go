package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode"
)

// Key describes one key of the file: what the struct tags of Config say.
type Key struct {
	Name    string // "server.listen"
	Section string // "server"
	Leaf    string // "listen"
	Type    string // "string", "list of strings", "whole number", "number", "true or false", "duration", "size"
	Default string // in the form that a file writes, `"30s"`
	Allowed string // "1 to 8192", `"auto", "cpu" or "cuda"`, or empty
	Unit    string // of a number, or empty
	Doc     string // sentences
	Where   string // the place that enforces it

	index    [2]int // of the field in Config
	kind     reflect.Type
	min, max float64 // in the smallest unit: nanoseconds, bytes
	oneOf    []string
	path     bool
	auto     bool // a size that may be "auto"
}

var (
	typeString   = reflect.TypeFor[string]()
	typeStrings  = reflect.TypeFor[[]string]()
	typeInt      = reflect.TypeFor[int]()
	typeFloat    = reflect.TypeFor[float64]()
	typeBool     = reflect.TypeFor[bool]()
	typeDuration = reflect.TypeFor[Duration]()
	typeSize     = reflect.TypeFor[Size]()
)

var typeNames = map[reflect.Type]string{
	typeString: "string", typeStrings: "list of strings", typeInt: "whole number", typeFloat: "number",
	typeBool: "true or false", typeDuration: "duration", typeSize: "size",
}

// schema is the list of keys, in the order of the example file.
type schema struct {
	keys     []*Key
	byName   map[string]*Key
	sections []section
}

type section struct{ name, doc string }

var keys = readSchema()

// Keys lists every key in the order of the example file.
func Keys() []Key {
	out := make([]Key, len(keys.keys))
	for i, k := range keys.keys {
		out[i] = *k
	}
	return out
}

// readSchema reads the tags of Config. A malformed tag is our bug: it panics.
func readSchema() schema {
	s := schema{byName: map[string]*Key{}}
	top := reflect.TypeFor[Config]()
	for i := range top.NumField() {
		sec := top.Field(i)
		name := sec.Tag.Get("toml")
		if name == "" {
			continue
		}
		s.sections = append(s.sections, section{name, sec.Tag.Get("doc")})
		for j := range sec.Type.NumField() {
			k := newKey(name, sec.Type.Field(j))
			k.index = [2]int{i, j}
			s.keys = append(s.keys, k)
			s.byName[k.Name] = k
		}
	}
	return s
}

func newKey(sectionName string, f reflect.StructField) *Key {
	k := &Key{
		Section: sectionName, Leaf: f.Tag.Get("toml"), Unit: f.Tag.Get("unit"), Doc: f.Tag.Get("doc"), Where: f.Tag.Get("at"),
		kind: f.Type, path: f.Tag.Get("path") != "", min: math.Inf(-1), max: math.Inf(1),
	}
	k.Name = sectionName + "." + k.Leaf
	k.Type = typeNames[f.Type]
	k.auto = f.Type == typeSize && f.Tag.Get("default") == "auto"
	if k.Type == "" || k.Leaf == "" || k.Doc == "" || k.Where == "" {
		panic("config: field " + f.Name + " of [" + sectionName + "] lacks a type, name, doc or place")
	}
	lo, hi := f.Tag.Get("min"), f.Tag.Get("max")
	if lo != "" {
		k.min, k.max = k.mustNumber(lo), k.mustNumber(hi)
		k.Allowed = lo + " to " + hi
	}
	if one := f.Tag.Get("oneof"); one != "" {
		k.oneOf = strings.Fields(one)
		k.Allowed = orList(k.oneOf)
	}
	v, err := k.fromWord(f.Tag.Get("default"))
	if err == nil {
		err = k.allowed(v)
	}
	if err != nil {
		panic("config: default of " + k.Name + ": " + err.Error())
	}
	k.Default = render(v)
	return k
}

func (k *Key) mustNumber(s string) float64 {
	v, err := k.fromWord(s)
	if err != nil {
		panic("config: limit of " + k.Name + ": " + err.Error())
	}
	return number(v)
}

// field is the key's place in c.
func (k *Key) field(c *Config) reflect.Value {
	return reflect.ValueOf(c).Elem().Field(k.index[0]).Field(k.index[1])
}

// value is the key's value in c, as one of the types above.
func (k *Key) value(c *Config) any { return k.field(c).Interface() }

// set stores v, which fromTOML or fromWord made.
func (k *Key) set(c *Config, v any) { k.field(c).Set(reflect.ValueOf(v)) }

// fromTOML converts a decoded TOML value to the key's type.
func (k *Key) fromTOML(raw any) (any, error) {
	s, isString := raw.(string)
	switch k.kind {
	case typeString:
		if isString {
			return s, nil
		}
	case typeStrings:
		list, ok := raw.([]any)
		if !ok {
			break
		}
		out := make([]string, len(list))
		for i, e := range list {
			s, ok := e.(string)
			if !ok {
				return nil, fmt.Errorf("element %d is %s; want a list of strings, such as %s", i+1, describe(e), k.listExample())
			}
			out[i] = s
		}
		return out, nil
	case typeInt:
		if n, ok := raw.(int64); ok {
			if int64(int(n)) != n {
				return nil, fmt.Errorf("%d is out of range; allowed: %s", n, k.Allowed)
			}
			return int(n), nil
		}
	case typeFloat:
		switch n := raw.(type) {
		case float64:
			return n, nil
		case int64:
			return float64(n), nil
		}
	case typeBool:
		if b, ok := raw.(bool); ok {
			return b, nil
		}
	case typeDuration:
		if isString {
			return parseDuration(s)
		}
		if n, ok := raw.(int64); ok {
			return nil, fmt.Errorf("%d has no unit; write \"%ds\"", n, n)
		}
	case typeSize:
		if isString {
			return parseSize(s)
		}
		if n, ok := raw.(int64); ok {
			return nil, fmt.Errorf("%d has no unit; write it like \"%dMiB\" or \"%dGiB\"", n, n, n)
		}
	}
	want := k.Type
	switch k.kind {
	case typeString, typeStrings, typeInt, typeFloat:
		want = "a " + want
	case typeDuration:
		want = `a duration in quotes, such as "30s"`
	case typeSize:
		want = `a size in quotes, such as "512MiB"`
	}
	if k.kind == typeStrings {
		want += ", such as " + k.listExample()
	}
	return nil, fmt.Errorf("%s where %s is wanted", describe(raw), want)
}

func (k *Key) listExample() string {
	if k.Leaf == "devices" {
		return `["cpu:0", "cpu:1"]`
	}
	return `["one", "two"]`
}

// fromWord converts the text of --set, or of a default: a TOML value, or a
// bare word that is a string.
func (k *Key) fromWord(text string) (any, error) {
	raw, err := parseValue(text)
	switch k.kind {
	case typeString, typeDuration, typeSize:
		if _, isString := raw.(string); err != nil || !isString {
			if strings.HasPrefix(text, `"`) || strings.HasPrefix(text, "'") {
				return nil, fmt.Errorf("%s is not a TOML string", clipQuote(text))
			}
			raw = text
		}
	default:
		if err != nil {
			raw = text
		}
	}
	return k.fromTOML(raw)
}

// allowed checks the limits in the tags.
func (k *Key) allowed(v any) error {
	switch v := v.(type) {
	case string:
		if err := plainText(v); err != nil || k.oneOf == nil {
			return err
		}
		for _, o := range k.oneOf {
			if v == o {
				return nil
			}
		}
		if near := nearest(v, k.oneOf); near != "" {
			return fmt.Errorf("%s is not known; did you mean %q? allowed: %s", clipQuote(v), near, k.Allowed)
		}
		return fmt.Errorf("%s is not known; allowed: %s", clipQuote(v), k.Allowed)
	case Size:
		if v == Auto {
			if k.auto {
				return nil
			}
			return fmt.Errorf(`"auto" is not allowed here; %w`, errSizeForm)
		}
	case []string:
		if len(v) > maxList {
			return fmt.Errorf("has %d elements; at most %d are allowed", len(v), maxList)
		}
		for i, s := range v {
			if err := plainText(s); err != nil {
				return fmt.Errorf("element %d: %w", i+1, err)
			}
		}
		return nil
	case bool:
		return nil
	}
	if n := number(v); !(n >= k.min && n <= k.max) {
		return fmt.Errorf("%s is out of range; allowed: %s", strings.Trim(render(v), `"`), k.Allowed)
	}
	return nil
}

const (
	maxList = 256
	maxText = 4096
)

// plainText refuses what no path, name or address contains.
func plainText(s string) error {
	if len(s) > maxText {
		return fmt.Errorf("has %d bytes; at most %d are allowed", len(s), maxText)
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		return errors.New("contains a control character")
	}
	return nil
}

// number is a numeric value in its smallest unit.
func number(v any) float64 {
	switch v := v.(type) {
	case int:
		return float64(v)
	case float64:
		return v
	case Duration:
		return float64(v)
	case Size:
		return float64(v)
	}
	panic(fmt.Sprintf("config: %T is no number", v))
}

// render writes a value as TOML.
func render(v any) string {
	switch v := v.(type) {
	case string:
		return quote(v)
	case []string:
		parts := make([]string, len(v))
		for i, s := range v {
			parts[i] = quote(s)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case Duration:
		return quote(v.String())
	case Size:
		return quote(v.String())
	case float64:
		s := strconv.FormatFloat(v, 'f', -1, 64)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
		return s
	}
	return fmt.Sprint(v)
}

// quote writes a TOML basic string. Go's escapes \x, \a and \v are not TOML's.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// describe names a TOML value for a message: `"x" (a string)`.
func describe(raw any) string {
	switch v := raw.(type) {
	case string:
		return clipQuote(v)
	case int64, float64, bool:
		return fmt.Sprint(v)
	case []any:
		return "a list"
	case map[string]any:
		return "a table"
	case []map[string]any:
		return "a list of tables"
	}
	return "a date"
}

func orList(words []string) string {
	q := make([]string, len(words))
	for i, w := range words {
		q[i] = strconv.Quote(w)
	}
	if len(q) == 1 {
		return q[0]
	}
	return strings.Join(q[:len(q)-1], ", ") + " or " + q[len(q)-1]
}
