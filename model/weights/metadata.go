package weights

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// kind is a value's type, numbered as GGUF does.
type kind uint32

const (
	kindU8 kind = iota
	kindI8
	kindU16
	kindI16
	kindU32
	kindI32
	kindF32
	kindBool
	kindString
	kindArray
	kindU64
	kindI64
	kindF64
)

// kinds gives each type's name and the bytes it takes, for a string at least.
var kinds = [...]struct {
	name string
	size int
}{
	kindU8: {"u8", 1}, kindI8: {"i8", 1}, kindU16: {"u16", 2}, kindI16: {"i16", 2}, kindU32: {"u32", 4}, kindI32: {"i32", 4},
	kindF32: {"f32", 4}, kindBool: {"bool", 1}, kindString: {"string", 8}, kindArray: {"array", 12},
	kindU64: {"u64", 8}, kindI64: {"i64", 8}, kindF64: {"f64", 8},
}

// key is one of the file's, with its value.
type key struct {
	name string
	value
}

// value is where a key's value lies. Elements stay in the file until asked for.
type value struct {
	kind    kind // of the elements, if an array
	array   bool
	count   uint64 // elements; 1 if no array
	at, end int    // the elements' bytes
}

func (v value) typeName() string {
	if v.array {
		return "array of " + kinds[v.kind].name
	}
	return kinds[v.kind].name
}

func (v value) integer() bool { return v.kind <= kindI32 || v.kind == kindU64 || v.kind == kindI64 }
func (v value) float() bool   { return v.kind == kindF32 || v.kind == kindF64 }

// int gives integer element i as its two's complement bits, and whether it is negative.
func (f *File) int(v value, i int) (bits uint64, negative bool) {
	le, b := binary.LittleEndian, f.data[v.at+i*kinds[v.kind].size:v.end]
	var n int64
	switch v.kind {
	case kindU8:
		return uint64(b[0]), false
	case kindU16:
		return uint64(le.Uint16(b)), false
	case kindU32:
		return uint64(le.Uint32(b)), false
	case kindU64:
		return le.Uint64(b), false
	case kindI8:
		n = int64(int8(b[0]))
	case kindI16:
		n = int64(int16(le.Uint16(b)))
	case kindI32:
		n = int64(int32(le.Uint32(b)))
	case kindI64:
		n = int64(le.Uint64(b))
	}
	return uint64(n), n < 0
}

func (f *File) float(v value, i int) float64 {
	b := f.data[v.at+i*kinds[v.kind].size : v.end]
	if v.kind == kindF32 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b))
}

// lookup finds a key's value and checks its type; want says it for people.
func (f *File) lookup(name, want string, fits func(value) bool) (value, error) {
	if f.data == nil {
		return value{}, f.errorf(keyItem(name), nil, "the file is closed")
	}
	i, ok := f.byKey[name]
	if !ok {
		return value{}, f.errorf(keyItem(name), ErrMissing, "missing; it should be %s", want)
	}
	v := f.keys[i].value
	if !fits(v) {
		return value{}, f.errorf(keyItem(name), ErrWrongType, "of type %s; it should be %s", v.typeName(), want)
	}
	return v, nil
}

// Has reports whether the file has the key.
func (f *File) Has(key string) bool {
	_, ok := f.byKey[key]
	return ok
}

// String is the value of a key of type string. This and the methods like it fail
// if there is no such key (ErrMissing), if its value is of another type
// (ErrWrongType) or out of range.
func (f *File) String(key string) (string, error) {
	v, err := f.lookup(key, "a string", func(v value) bool { return !v.array && v.kind == kindString })
	if err != nil {
		return "", err
	}
	return string(f.data[v.at+8 : v.end]), nil
}

// Uint is the value of a key of any integer type, if it is not negative.
func (f *File) Uint(key string) (uint64, error) {
	v, err := f.lookup(key, "an integer", func(v value) bool { return !v.array && v.integer() })
	if err != nil {
		return 0, err
	}
	n, negative := f.int(v, 0)
	if negative {
		return 0, f.errorf(keyItem(key), nil, "%d; it must not be negative", int64(n))
	}
	return n, nil
}

// Float is the value of a key of type f32 or f64.
func (f *File) Float(key string) (float64, error) {
	v, err := f.lookup(key, "a floating-point number", func(v value) bool { return !v.array && v.float() })
	if err != nil {
		return 0, err
	}
	return f.float(v, 0), nil
}

// Bool is the value of a key of type bool.
func (f *File) Bool(key string) (bool, error) {
	v, err := f.lookup(key, "a bool", func(v value) bool { return !v.array && v.kind == kindBool })
	if err != nil {
		return false, err
	}
	return f.data[v.at] == 1, nil
}

// Strings is the value of a key that is an array of strings. They are copies,
// made in one piece: keeping one of them keeps all.
func (f *File) Strings(key string) ([]string, error) {
	v, err := f.lookup(key, "an array of strings", func(v value) bool { return v.array && v.kind == kindString })
	if err != nil {
		return nil, err
	}
	all := string(f.data[v.at:v.end]) // the lengths too, which are not worth taking out
	list := make([]string, v.count)
	at := 0
	for i := range list {
		n := int(binary.LittleEndian.Uint64(f.data[v.at+at:]))
		list[i] = all[at+8 : at+8+n]
		at += 8 + n
	}
	return list, nil
}

// Ints is the value of a key that is an array of any integer type.
func (f *File) Ints(key string) ([]int64, error) {
	v, err := f.lookup(key, "an array of integers", func(v value) bool { return v.array && v.integer() })
	if err != nil {
		return nil, err
	}
	list := make([]int64, v.count)
	for i := range list {
		n, negative := f.int(v, i)
		if !negative && n > math.MaxInt64 {
			return nil, f.errorf(keyItem(key), nil, "element %d is %d; at most %d is allowed", i, n, int64(math.MaxInt64))
		}
		list[i] = int64(n)
	}
	return list, nil
}

// Floats is the value of a key that is an array of f32 or f64.
func (f *File) Floats(key string) ([]float64, error) {
	v, err := f.lookup(key, "an array of floating-point numbers", func(v value) bool { return v.array && v.float() })
	if err != nil {
		return nil, err
	}
	list := make([]float64, v.count)
	for i := range list {
		list[i] = f.float(v, i)
	}
	return list, nil
}

// StringOr is as String, but absent if the file does not have the key. A key
// that is there with a wrong value is an error here too, as in the methods like it.
func (f *File) StringOr(key, absent string) (string, error) { return or(f, f.String, key, absent) }

// UintOr is as Uint, but absent if the file does not have the key.
func (f *File) UintOr(key string, absent uint64) (uint64, error) { return or(f, f.Uint, key, absent) }

// FloatOr is as Float, but absent if the file does not have the key.
func (f *File) FloatOr(key string, absent float64) (float64, error) {
	return or(f, f.Float, key, absent)
}

// BoolOr is as Bool, but absent if the file does not have the key.
func (f *File) BoolOr(key string, absent bool) (bool, error) { return or(f, f.Bool, key, absent) }

func or[T any](f *File, get func(string) (T, error), key string, absent T) (T, error) {
	if f.data != nil && !f.Has(key) {
		return absent, nil
	}
	return get(key)
}

// Key describes one of the file's keys to people.
type Key struct {
	Name  string
	Type  string // as "u32" or "array of string"
	Count int    // elements of an array, else 1
	Value string // on one line, quoted and cut short as needed
}

// Keys lists the keys in the file's order. It is empty once the file is closed.
func (f *File) Keys() []Key {
	if f.data == nil {
		return nil
	}
	list := make([]Key, len(f.keys))
	for i, k := range f.keys {
		list[i] = Key{Name: k.name, Type: k.typeName(), Count: int(k.count), Value: f.short(k.value)}
	}
	return list
}

// short prints a value: the first elements of an array, the beginning of a
// string.
func (f *File) short(v value) string {
	if !v.array {
		s, _ := f.print(v, 0, v.at, 72)
		return s
	}
	var b strings.Builder
	b.WriteByte('[')
	at := v.at
	for i := range int(v.count) {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == 6 || b.Len() > 60 {
			b.WriteString("…")
			break
		}
		var s string
		s, at = f.print(v, i, at, 24)
		b.WriteString(s)
	}
	b.WriteByte(']')
	return b.String()
}

// print prints element i, which is at byte at if it is a string, and gives the
// place of the string after it. A string is cut to about limit bytes.
func (f *File) print(v value, i, at, limit int) (s string, next int) {
	switch {
	case v.kind == kindString:
		n := int(binary.LittleEndian.Uint64(f.data[at:]))
		text := f.data[at+8 : at+8+n]
		if n <= limit {
			return strconv.Quote(string(text)), at + 8 + n
		}
		for limit > 0 && text[limit]&0xc0 == 0x80 { // not within a character
			limit--
		}
		return fmt.Sprintf("%q… (%d bytes)", text[:limit], n), at + 8 + n
	case v.kind == kindBool:
		return strconv.FormatBool(f.data[v.at+i] == 1), at
	case v.float():
		size := 64
		if v.kind == kindF32 {
			size = 32
		}
		return strconv.FormatFloat(f.float(v, i), 'g', -1, size), at
	}
	n, negative := f.int(v, i)
	if negative {
		return strconv.FormatInt(int64(n), 10), at
	}
	return strconv.FormatUint(n, 10), at
}
