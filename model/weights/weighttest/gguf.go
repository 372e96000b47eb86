// Package weighttest makes weight files for tests: any GGUF file, sound or not,
// from keys and tensors, and tiny Llama models that a test can afford to run.
// It shares no code with the reader that it helps to test.
package weighttest

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"tandem/kernels"
)

// Numbers of the GGUF format.
const (
	typeU8, typeI8, typeU16, typeI16, typeU32, typeI32 = 0, 1, 2, 3, 4, 5
	typeF32, typeBool, typeString, typeArray           = 6, 7, 8, 9
	typeU64, typeI64, typeF64                          = 10, 11, 12
)

// Number is GGUF's number of a tensor format.
func Number(t kernels.Type) uint32 {
	return map[kernels.Type]uint32{
		kernels.F32: 0, kernels.F16: 1, kernels.Q4_0: 2, kernels.Q4_1: 3, kernels.Q8_0: 8, kernels.Q6_K: 14, kernels.BF16: 30,
	}[t]
}

// GGUF is a file in the making. The zero value is an empty file of version 3 and
// alignment 32.
type GGUF struct {
	Version   uint32 // 0 stands for 3
	Alignment int    // 0 stands for 32; what general.alignment says is not looked at

	keys    []byte
	count   uint64
	tensors []tensor
}

type tensor struct {
	name   string
	number uint32
	dims   []uint64
	data   []byte
	offset *uint64 // instead of the next free one
}

// Key adds a key. v is a number of a sized type, a bool, a string, or a slice of
// those. It panics at anything else.
func (g *GGUF) Key(name string, v any) {
	g.keys = appendValue(appendString(g.keys, name), reflect.ValueOf(v))
	g.count++
}

// RawKey adds a key whose type and value are these bytes.
func (g *GGUF) RawKey(name string, value []byte) {
	g.keys = append(appendString(g.keys, name), value...)
	g.count++
}

// Tensor adds a tensor of rows × cols elements, encoded in data. Its dimensions
// in the file are cols and, if rows is not 1, rows.
func (g *GGUF) Tensor(name string, t kernels.Type, rows, cols int, data []byte) {
	if int64(len(data)) != int64(rows)*t.RowBytes(cols) {
		panic(fmt.Sprintf("tensor %s: %d bytes for %d rows of %d %v", name, len(data), rows, cols, t))
	}
	dims := []uint64{uint64(cols)}
	if rows != 1 {
		dims = append(dims, uint64(rows))
	}
	g.RawTensor(name, Number(t), dims, data)
}

// RawTensor adds a tensor whatever its number, dimensions and data.
func (g *GGUF) RawTensor(name string, number uint32, dims []uint64, data []byte) {
	g.tensors = append(g.tensors, tensor{name: name, number: number, dims: dims, data: data})
}

// Place sets the offset that the last tensor added claims to have, without
// moving its data.
func (g *GGUF) Place(offset uint64) { g.tensors[len(g.tensors)-1].offset = &offset }

// Bytes is the file: header, padding, and each tensor's data padded to the alignment.
func (g *GGUF) Bytes() []byte {
	header, data := g.parts()
	return append(pad(header, g.alignment()), data...)
}

// HeaderBytes is the length of the header without the padding after it.
func (g *GGUF) HeaderBytes() int {
	header, _ := g.parts()
	return len(header)
}

func (g *GGUF) alignment() int {
	if g.Alignment == 0 {
		return 32
	}
	return g.Alignment
}

func (g *GGUF) parts() (header, data []byte) {
	version := g.Version
	if version == 0 {
		version = 3
	}
	le := binary.LittleEndian
	b := le.AppendUint32([]byte("GGUF"), version)
	b = le.AppendUint64(b, uint64(len(g.tensors)))
	b = le.AppendUint64(b, g.count)
	b = append(b, g.keys...)
	for _, t := range g.tensors {
		b = le.AppendUint32(appendString(b, t.name), uint32(len(t.dims)))
		for _, d := range t.dims {
			b = le.AppendUint64(b, d)
		}
		b = le.AppendUint32(b, t.number)
		offset := uint64(len(data))
		if t.offset != nil {
			offset = *t.offset
		}
		b = le.AppendUint64(b, offset)
		data = pad(append(data, t.data...), g.alignment())
	}
	return b, data
}

func pad(b []byte, unit int) []byte {
	return append(b, make([]byte, (unit-len(b)%unit)%unit)...)
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

func appendValue(b []byte, v reflect.Value) []byte {
	b = binary.LittleEndian.AppendUint32(b, number(v.Type()))
	if v.Kind() != reflect.Slice {
		return appendElement(b, v)
	}
	b = binary.LittleEndian.AppendUint32(b, number(v.Type().Elem()))
	b = binary.LittleEndian.AppendUint64(b, uint64(v.Len()))
	for i := range v.Len() {
		if v.Index(i).Kind() == reflect.Slice {
			b = appendValue(b, v.Index(i))
		} else {
			b = appendElement(b, v.Index(i))
		}
	}
	return b
}

func number(t reflect.Type) uint32 {
	n, ok := map[reflect.Kind]uint32{
		reflect.Uint8: typeU8, reflect.Int8: typeI8, reflect.Uint16: typeU16, reflect.Int16: typeI16,
		reflect.Uint32: typeU32, reflect.Int32: typeI32, reflect.Uint64: typeU64, reflect.Int64: typeI64,
		reflect.Float32: typeF32, reflect.Float64: typeF64, reflect.Bool: typeBool, reflect.String: typeString, reflect.Slice: typeArray,
	}[t.Kind()]
	if !ok {
		panic(fmt.Sprintf("GGUF has no type for %v", t))
	}
	return n
}

func appendElement(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.String:
		return appendString(b, v.String())
	case reflect.Bool:
		if v.Bool() {
			return append(b, 1)
		}
		return append(b, 0)
	case reflect.Float32:
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v.Float())))
	case reflect.Float64:
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(v.Float()))
	}
	var n uint64
	if v.CanUint() {
		n = v.Uint()
	} else {
		n = uint64(v.Int())
	}
	var all [8]byte
	binary.LittleEndian.PutUint64(all[:], n)
	return append(b, all[:v.Type().Size()]...)
}

// Write puts a file into the test's temporary folder and returns its path.
func Write(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.gguf")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
