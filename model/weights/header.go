package weights

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A cursor walks a header. It is the only code that turns a header's lengths
// into positions.
type cursor struct {
	f   *File
	at  int
	end int // of what may be read: the file's end or the header's limit

	// What is being read, for errors: number of count keys or tensors, and its
	// name once that is known.
	part          string
	number, count int
	name          string
}

// take gives the next n bytes.
func (c *cursor) take(n uint64, what string) ([]byte, error) {
	if n > uint64(c.end-c.at) {
		return nil, c.beyond("%s takes %d bytes", what, n)
	}
	b := c.f.data[c.at : c.at+int(n)]
	c.at += int(n)
	return b, nil
}

// beyond is the error of a header that says there is more than there is.
func (c *cursor) beyond(format string, args ...any) error {
	says := fmt.Sprintf(format, args...)
	if c.end < len(c.f.data) {
		return c.errorf("the header says that %s at byte %d; a header ends at byte %d at the latest", says, c.at, c.end)
	}
	return c.errorf("truncated: the header says that %s at byte %d, the file has %d", says, c.at, len(c.f.data))
}

func (c *cursor) u32(what string) (uint32, error) {
	b, err := c.take(4, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (c *cursor) u64(what string) (uint64, error) {
	b, err := c.take(8, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// skipString goes past a string.
func (c *cursor) skipString() error {
	n, err := c.u64("a string's length")
	if err != nil {
		return err
	}
	_, err = c.take(n, "a string")
	return err
}

// label reads a key or a tensor's name: of limited length and fit to be shown.
func (c *cursor) label(limit int) (string, error) {
	n, err := c.u64("a name's length")
	if err != nil {
		return "", err
	}
	if n == 0 || n > uint64(limit) {
		return "", c.errorf("a name of %d bytes: 1 to %d are allowed", n, limit)
	}
	b, err := c.take(n, "a name")
	if err != nil {
		return "", err
	}
	name := string(b)
	if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "", c.errorf("the name %.100q is not printable text", name)
	}
	return name, nil
}

func (c *cursor) errorf(format string, args ...any) error {
	item := c.part
	switch {
	case c.name != "":
		item = quoted(c.part, c.name)
	case c.count > 0:
		item = fmt.Sprintf("%s %d of %d", c.part, c.number, c.count)
	}
	return c.f.errorf(item, nil, format, args...)
}

// parse reads and checks the whole header.
func (f *File) parse() error {
	if err := f.foreign(); err != nil {
		return err
	}
	c := &cursor{f: f, at: len(magic), end: min(len(f.data), maxHeaderBytes), part: "header"}
	var err error
	if f.version, err = c.u32("the version"); err != nil {
		return err
	}
	switch {
	case f.version == 2 || f.version == 3:
	case f.version == 1 || f.version > 3 && f.version < 1<<16:
		return c.errorf("GGUF version %d: only 2 and 3 are read", f.version)
	case bits.ReverseBytes32(f.version) < 1<<16 && f.version != 0:
		return c.errorf("a big-endian GGUF file: only little-endian ones are read")
	default:
		return c.errorf("GGUF version %d: only 2 and 3 are read; the file is damaged", f.version)
	}
	tensors, err := c.u64("the number of tensors")
	if err != nil {
		return err
	}
	keys, err := c.u64("the number of keys")
	if err != nil {
		return err
	}
	if tensors > maxTensors {
		return c.errorf("%d tensors: at most %d are allowed", tensors, maxTensors)
	}
	if keys > maxKeys {
		return c.errorf("%d keys: at most %d are allowed", keys, maxKeys)
	}
	if err := c.keys(int(keys)); err != nil {
		return err
	}
	if err := f.findAlignment(); err != nil {
		return err
	}
	if err := c.tensors(int(tensors)); err != nil {
		return err
	}
	f.dataAt = roundUp(int64(c.at), int64(f.alignment))
	return f.placeTensors()
}

// keys reads the keys and goes past their values.
func (c *cursor) keys(n int) error {
	f := c.f
	f.byKey = make(map[string]int)
	for i := range n {
		c.part, c.number, c.count, c.name = "key", i+1, n, ""
		name, err := c.label(maxKeyBytes)
		if err != nil {
			return err
		}
		c.name = name
		if _, twice := f.byKey[name]; twice {
			return c.errorf("the key comes twice")
		}
		v, err := c.value()
		if err != nil {
			return err
		}
		f.byKey[name] = len(f.keys)
		f.keys = append(f.keys, key{name, v})
	}
	return nil
}

// value reads a value's type and goes past it.
func (c *cursor) value() (value, error) {
	n, err := c.u32("a value's type")
	if err != nil {
		return value{}, err
	}
	v := value{kind: kind(n), count: 1}
	if n >= uint32(len(kinds)) {
		return v, c.errorf("value type %d is not one of GGUF's", n)
	}
	if v.kind == kindArray {
		if n, err = c.u32("the type of an array's elements"); err != nil {
			return v, err
		}
		if v.count, err = c.u64("an array's length"); err != nil {
			return v, err
		}
		if n >= uint32(len(kinds)) {
			return v, c.errorf("element type %d is not one of GGUF's", n)
		}
		if kind(n) == kindArray {
			return v, c.errorf("an array of arrays, which is not supported")
		}
		v.array, v.kind = true, kind(n)
	}
	v.at = c.at
	size := uint64(kinds[v.kind].size)
	if v.count > uint64(c.end-c.at)/size { // a string takes at least its length's
		return v, c.beyond("%d elements of type %s begin", v.count, kinds[v.kind].name)
	}
	if v.kind == kindString {
		for range v.count {
			if err := c.skipString(); err != nil {
				return v, err
			}
		}
	} else if _, err := c.take(v.count*size, "a value"); err != nil {
		return v, err
	}
	v.end = c.at
	if v.kind == kindBool {
		for i, b := range c.f.data[v.at:v.end] {
			if b > 1 {
				return v, c.errorf("element %d of type bool is %d: 0 and 1 are allowed", i, b)
			}
		}
	}
	return v, nil
}

func (f *File) findAlignment() error {
	const name = "general.alignment"
	n, err := f.UintOr(name, defaultAlignment)
	if err != nil {
		return err
	}
	if n < minAlignment || n > maxAlignment || n&(n-1) != 0 {
		return f.errorf(keyItem(name), nil, "%d: a power of two from %d to %d is needed", n, minAlignment, maxAlignment)
	}
	f.alignment = n
	return nil
}

// tensors reads what the header says of tensors and checks each on its own.
func (c *cursor) tensors(n int) error {
	f := c.f
	f.byName = make(map[string]int)
	for i := range n {
		c.part, c.number, c.count, c.name = "tensor", i+1, n, ""
		name, err := c.label(maxNameBytes)
		if err != nil {
			return err
		}
		c.name = name
		if _, twice := f.byName[name]; twice {
			return c.errorf("the tensor comes twice")
		}
		t, err := c.tensor(name)
		if err != nil {
			return err
		}
		f.byName[name] = len(f.tensors)
		f.tensors = append(f.tensors, t)
	}
	return nil
}

func (c *cursor) tensor(name string) (TensorInfo, error) {
	t := TensorInfo{Name: name, dims: [maxDims]int{1, 1, 1, 1}}
	n, err := c.u32("the number of dimensions")
	if err != nil {
		return t, err
	}
	if n < 1 || n > maxDims {
		return t, c.errorf("%d dimensions: 1 to %d are allowed", n, maxDims)
	}
	t.ndims = int(n)
	elements := 1
	for i := range t.ndims {
		d, err := c.u64("a dimension")
		if err != nil {
			return t, err
		}
		if d == 0 {
			return t, c.errorf("dimension %d is 0", i)
		}
		over, product := bits.Mul64(uint64(elements), d)
		if over != 0 || uint64(int(product)) != product || int(product) < 0 {
			return t, c.errorf("dimension %d is %d: more elements than can be counted", i, d)
		}
		t.dims[i], elements = int(d), int(product)
	}
	t.Cols, t.Rows = t.dims[0], elements/t.dims[0]
	number, err := c.u32("the type")
	if err != nil {
		return t, err
	}
	t.number = number
	if e := t.encoding(); e.block > 0 {
		if t.Cols%e.block != 0 {
			return t, c.errorf("rows of %d elements are not whole %s blocks of %d", t.Cols, e.name, e.block)
		}
		over, bytes := bits.Mul64(uint64(elements/e.block), uint64(e.size))
		if over != 0 || int64(bytes) < 0 {
			return t, c.errorf("%d elements of %s: more bytes than can be counted", elements, e.name)
		}
		t.Bytes = int64(bytes)
	}
	offset, err := c.u64("the offset")
	if err != nil {
		return t, err
	}
	if int64(offset) < 0 {
		return t, c.errorf("offset %d is beyond any file", offset)
	}
	if offset%c.f.alignment != 0 {
		return t, c.errorf("offset %d is not a multiple of the alignment, %d", offset, c.f.alignment)
	}
	t.Offset = int64(offset) // from the start of the data, until placeTensors
	return t, nil
}

// placeTensors makes offsets those in the file, and checks that every tensor
// lies in the file and none in another. A tensor of unknown type is taken to
// have one byte, as nothing is known about more.
func (f *File) placeTensors() error {
	order := make([]int, len(f.tensors))
	var last int64 // where the file should end
	lastName := ""
	for i := range f.tensors {
		t := &f.tensors[i]
		at, carry1 := bits.Add64(uint64(t.Offset), uint64(f.dataAt), 0)
		end, carry2 := bits.Add64(at, uint64(max(t.Bytes, 1)), 0)
		if carry1+carry2 != 0 || int64(at) < 0 || int64(end) < 0 {
			return f.errorf(tensorItem(t.Name), nil, "offset %d and %d bytes reach beyond any file", t.Offset, t.Bytes)
		}
		t.Offset = int64(at)
		if int64(end) > last {
			last, lastName = int64(end), t.Name
		}
		order[i] = i
	}
	if last > f.size {
		return f.errorf(tensorItem(lastName), nil, "truncated: the header says %d bytes, the file has %d", last, f.size)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(f.tensors[a].Offset, f.tensors[b].Offset)
	})
	for i := 1; i < len(order); i++ {
		a, b := &f.tensors[order[i-1]], &f.tensors[order[i]]
		if a.Offset+max(a.Bytes, 1) > b.Offset {
			return f.errorf(tensorItem(b.Name), nil, "begins at byte %d, within tensor %q, which has bytes %d to %d",
				b.Offset, a.Name, a.Offset, a.Offset+max(a.Bytes, 1)-1)
		}
	}
	return nil
}

// roundUp is the first multiple of unit, a power of two, from n on.
func roundUp(n, unit int64) int64 { return (n + unit - 1) &^ (unit - 1) }

func keyItem(name string) string    { return quoted("key", name) }
func tensorItem(name string) string { return quoted("tensor", name) }

// quoted names a part of the file; long names are cut.
func quoted(part, name string) string { return fmt.Sprintf("%s %.100q", part, name) }
