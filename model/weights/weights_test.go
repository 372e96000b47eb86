package weights

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"tandem/kernels"
	"tandem/kernels/quant"
	"tandem/model/weights/weighttest"
)

// everyType is a file with a key of every type GGUF has.
func everyType() *weighttest.GGUF {
	g := &weighttest.GGUF{}
	g.Key("u8", uint8(200))
	g.Key("i8", int8(-3))
	g.Key("u16", uint16(60000))
	g.Key("i16", int16(-300))
	g.Key("u32", uint32(4e9))
	g.Key("i32", int32(-70000))
	g.Key("u64", uint64(math.MaxUint64))
	g.Key("i64", int64(math.MinInt64))
	g.Key("i64+", int64(7))
	g.Key("f32", float32(0.1))
	g.Key("f64", 0.1)
	g.Key("yes", true)
	g.Key("no", false)
	g.Key("string", "grüß\x00\n")
	g.Key("empty string", "")
	g.Key("strings", []string{"a", "", "ccc"})
	g.Key("no strings", []string{})
	g.Key("u8s", []uint8{0, 255})
	g.Key("i32s", []int32{-1, 0, 1 << 30})
	g.Key("u64s", []uint64{1, math.MaxInt64})
	g.Key("u64s!", []uint64{1, math.MaxUint64})
	g.Key("f32s", []float32{0.5, -2})
	g.Key("f64s", []float64{0.25})
	g.Key("bools", []bool{true, false})
	return g
}

func parse(t *testing.T, data []byte) *File {
	t.Helper()
	f, err := Parse("test.gguf", data)
	if err != nil {
		t.Fatal(err)
	}
	checkSound(t, f)
	return f
}

// got is a value or the beginning of an error, to compare in one go.
func got[T any](v T, err error) any {
	if err != nil {
		return "error: " + strings.TrimPrefix(err.Error(), "test.gguf: ")
	}
	return v
}

func TestMetadataOfEveryType(t *testing.T) {
	f := parse(t, everyType().Bytes())
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"String", got(f.String("string")), "grüß\x00\n"},
		{"String of none", got(f.String("empty string")), ""},
		{"String missing", got(f.String("nix")), `error: key "nix": missing; it should be a string`},
		{"String of u8", got(f.String("u8")), `error: key "u8": of type u8; it should be a string`},
		{"String of strings", got(f.String("strings")), `error: key "strings": of type array of string; it should be a string`},
		{"Uint u8", got(f.Uint("u8")), uint64(200)},
		{"Uint u16", got(f.Uint("u16")), uint64(60000)},
		{"Uint u32", got(f.Uint("u32")), uint64(4e9)},
		{"Uint u64", got(f.Uint("u64")), uint64(math.MaxUint64)},
		{"Uint i64", got(f.Uint("i64+")), uint64(7)},
		{"Uint of i8 below zero", got(f.Uint("i8")), `error: key "i8": -3; it must not be negative`},
		{"Uint of i16 below zero", got(f.Uint("i16")), `error: key "i16": -300; it must not be negative`},
		{"Uint of i32 below zero", got(f.Uint("i32")), `error: key "i32": -70000; it must not be negative`},
		{"Uint of i64 below zero", got(f.Uint("i64")), `error: key "i64": -9223372036854775808; it must not be negative`},
		{"Uint of f32", got(f.Uint("f32")), `error: key "f32": of type f32; it should be an integer`},
		{"Uint of bool", got(f.Uint("yes")), `error: key "yes": of type bool; it should be an integer`},
		{"Uint of array", got(f.Uint("u8s")), `error: key "u8s": of type array of u8; it should be an integer`},
		{"Float f32", got(f.Float("f32")), float64(float32(0.1))},
		{"Float f64", got(f.Float("f64")), 0.1},
		{"Float of u8", got(f.Float("u8")), `error: key "u8": of type u8; it should be a floating-point number`},
		{"Bool true", got(f.Bool("yes")), true},
		{"Bool false", got(f.Bool("no")), false},
		{"Bool of u8", got(f.Bool("u8")), `error: key "u8": of type u8; it should be a bool`},
		{"Strings", got(f.Strings("strings")), []string{"a", "", "ccc"}},
		{"Strings of none", got(f.Strings("no strings")), []string{}},
		{"Strings of string", got(f.Strings("string")), `error: key "string": of type string; it should be an array of strings`},
		{"Ints u8", got(f.Ints("u8s")), []int64{0, 255}},
		{"Ints i32", got(f.Ints("i32s")), []int64{-1, 0, 1 << 30}},
		{"Ints u64", got(f.Ints("u64s")), []int64{1, math.MaxInt64}},
		{"Ints of a u64 too large", got(f.Ints("u64s!")), `error: key "u64s!": element 1 is 18446744073709551615; at most 9223372036854775807 is allowed`},
		{"Ints of f32s", got(f.Ints("f32s")), `error: key "f32s": of type array of f32; it should be an array of integers`},
		{"Floats f32", got(f.Floats("f32s")), []float64{0.5, -2}},
		{"Floats f64", got(f.Floats("f64s")), []float64{0.25}},
		{"Floats of bools", got(f.Floats("bools")), `error: key "bools": of type array of bool; it should be an array of floating-point numbers`},
		{"StringOr", got(f.StringOr("string", "x")), "grüß\x00\n"},
		{"StringOr missing", got(f.StringOr("nix", "x")), "x"},
		{"StringOr of u8", got(f.StringOr("u8", "x")), `error: key "u8": of type u8; it should be a string`},
		{"UintOr missing", got(f.UintOr("nix", 9)), uint64(9)},
		{"UintOr below zero", got(f.UintOr("i8", 9)), `error: key "i8": -3; it must not be negative`},
		{"FloatOr missing", got(f.FloatOr("nix", 1.5)), 1.5},
		{"BoolOr missing", got(f.BoolOr("nix", true)), true},
		{"BoolOr there", got(f.BoolOr("no", true)), false},
	} {
		if d := cmp.Diff(c.want, c.got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, d)
		}
	}
	if _, err := f.String("nix"); !errors.Is(err, ErrMissing) || errors.Is(err, ErrWrongType) {
		t.Errorf("a missing key's error is of another kind: %v", err)
	}
	if _, err := f.String("u8"); !errors.Is(err, ErrWrongType) || errors.Is(err, ErrMissing) {
		t.Errorf("a wrong type's error is of another kind: %v", err)
	}
}

func TestKeysAreListedInOrderAndBrief(t *testing.T) {
	g := everyType()
	g.Key("long", strings.Repeat("ä", 100))
	g.Key("many", []string{"one", "two", strings.Repeat("z", 30), "four", "five", "six", "seven"})
	g.Key("numbers", []int32{-1, 2, 3, 4, 5, 6, 7, 8})
	want := []Key{
		{"u8", "u8", 1, "200"},
		{"i8", "i8", 1, "-3"},
		{"u16", "u16", 1, "60000"},
		{"i16", "i16", 1, "-300"},
		{"u32", "u32", 1, "4000000000"},
		{"i32", "i32", 1, "-70000"},
		{"u64", "u64", 1, "18446744073709551615"},
		{"i64", "i64", 1, "-9223372036854775808"},
		{"i64+", "i64", 1, "7"},
		{"f32", "f32", 1, "0.1"},
		{"f64", "f64", 1, "0.1"},
		{"yes", "bool", 1, "true"},
		{"no", "bool", 1, "false"},
		{"string", "string", 1, `"grüß\x00\n"`},
		{"empty string", "string", 1, `""`},
		{"strings", "array of string", 3, `["a", "", "ccc"]`},
		{"no strings", "array of string", 0, `[]`},
		{"u8s", "array of u8", 2, "[0, 255]"},
		{"i32s", "array of i32", 3, "[-1, 0, 1073741824]"},
		{"u64s", "array of u64", 2, "[1, 9223372036854775807]"},
		{"u64s!", "array of u64", 2, "[1, 18446744073709551615]"},
		{"f32s", "array of f32", 2, "[0.5, -2]"},
		{"f64s", "array of f64", 1, "[0.25]"},
		{"bools", "array of bool", 2, "[true, false]"},
		{"long", "string", 1, `"` + strings.Repeat("ä", 36) + `"… (200 bytes)`},
		{"many", "array of string", 7, `["one", "two", "` + strings.Repeat("z", 24) + `"… (30 bytes), "four", …]`},
		{"numbers", "array of i32", 8, "[-1, 2, 3, 4, 5, 6, …]"},
	}
	if d := cmp.Diff(want, parse(t, g.Bytes()).Keys()); d != "" {
		t.Errorf("keys (-want +got):\n%s", d)
	}
}

func TestTensorsOfEveryFormat(t *testing.T) {
	const rows, cols = 6, 256
	x := make([]float32, rows*cols)
	for i := range x {
		x[i] = float32(i%37) - 18
	}
	g := &weighttest.GGUF{Version: 2}
	formats := []kernels.Type{kernels.F32, kernels.F16, kernels.BF16, kernels.Q4_0, kernels.Q4_1, kernels.Q8_0, kernels.Q6_K}
	data := make(map[kernels.Type][]byte)
	for _, ty := range formats {
		data[ty] = make([]byte, rows*ty.RowBytes(cols))
		if err := quant.Quantise(data[ty], ty, x); err != nil {
			t.Fatal(err)
		}
		g.RawTensor(ty.String(), weighttest.Number(ty), []uint64{cols, 3, 2, 1}, data[ty])
	}
	f := parse(t, g.Bytes())
	if f.Version() != 2 || f.Alignment() != 32 {
		t.Errorf("version %d, alignment %d; want 2, 32", f.Version(), f.Alignment())
	}
	for i, ty := range formats {
		tensor, err := f.Tensor(ty.String())
		if err != nil {
			t.Fatal(err)
		}
		want := kernels.Tensor{Name: ty.String(), Type: ty, Rows: rows, Cols: cols, Data: data[ty]}
		if d := cmp.Diff(want, tensor); d != "" {
			t.Errorf("%v (-want +got):\n%s", ty, d)
		}
		if cap(tensor.Data) != len(tensor.Data) {
			t.Errorf("%v: appending to its data would write into the next tensor", ty)
		}
		info := f.Tensors()[i]
		if d := cmp.Diff([]int{cols, 3, 2, 1}, info.Dims()); d != "" || info.TypeName() != ty.String() {
			t.Errorf("%v is listed as %s with dimensions %v", ty, info.TypeName(), info.Dims())
		}
	}
	if _, err := f.Tensor("nix"); !errors.Is(err, ErrMissing) || err.Error() != `test.gguf: tensor "nix": missing` {
		t.Errorf("a missing tensor: %v", err)
	}
}

func TestOtherFormatsAreListedButNotUsed(t *testing.T) {
	g := &weighttest.GGUF{}
	g.RawTensor("q5k", 13, []uint64{256, 2}, make([]byte, 2*176))
	g.RawTensor("i32", 26, []uint64{3}, make([]byte, 12))
	g.RawTensor("old", 4, []uint64{32}, make([]byte, 20))
	g.RawTensor("new", 4711, []uint64{7, 5}, make([]byte, 100))
	g.Tensor("good", kernels.F32, 1, 2, make([]byte, 8))
	f := parse(t, g.Bytes())
	type row struct {
		name, format string
		rows, cols   int
		bytes        int64
	}
	var list []row
	for _, info := range f.Tensors() {
		list = append(list, row{info.Name, info.TypeName(), info.Rows, info.Cols, info.Bytes})
	}
	want := []row{{"q5k", "Q5_K", 2, 256, 352}, {"i32", "I32", 1, 3, 12}, {"old", "Q4_2", 1, 32, 0}, {"new", "type 4711", 5, 7, 0}, {"good", "F32", 1, 2, 8}}
	if d := cmp.Diff(want, list, cmp.AllowUnexported(row{})); d != "" {
		t.Errorf("tensors (-want +got):\n%s", d)
	}
	for name, format := range map[string]string{"q5k": "Q5_K", "i32": "I32", "old": "Q4_2", "new": "type 4711"} {
		_, err := f.Tensor(name)
		if !errors.Is(err, kernels.ErrUnsupported) || !strings.Contains(err.Error(), `tensor "`+name+`": its format, `+format+`, is not supported`) {
			t.Errorf("using %s: %v", name, err)
		}
	}
	if _, err := f.Tensor("good"); err != nil {
		t.Errorf("the tensor beside them: %v", err)
	}
}

func TestFileWithoutTensorsNeedsNoPadding(t *testing.T) {
	g := &weighttest.GGUF{}
	g.Key("k", uint8(1))
	f := parse(t, g.Bytes()[:g.HeaderBytes()])
	if len(f.Tensors()) != 0 || len(f.Keys()) != 1 {
		t.Errorf("%d tensors, %d keys; want 0, 1", len(f.Tensors()), len(f.Keys()))
	}
}

func TestAlignmentOfTheFileIsUsed(t *testing.T) {
	g := &weighttest.GGUF{Alignment: 4096}
	g.Key("general.alignment", uint32(4096))
	g.Tensor("a", kernels.F32, 1, 1, []byte{1, 2, 3, 4})
	g.Tensor("b", kernels.F32, 1, 1, []byte{5, 6, 7, 8})
	f := parse(t, g.Bytes())
	if f.Alignment() != 4096 || f.DataOffset() != 4096 || f.Tensors()[1].Offset != 8192 {
		t.Errorf("alignment %d, data from %d, second tensor at %d", f.Alignment(), f.DataOffset(), f.Tensors()[1].Offset)
	}
	if b, err := f.Tensor("b"); err != nil || !bytes.Equal(b.Data, []byte{5, 6, 7, 8}) {
		t.Errorf("tensor b: %v, %v", b.Data, err)
	}
}

func TestOpenMapsAndCloseUnmaps(t *testing.T) {
	path := weighttest.Write(t, weighttest.TinyLlama(weighttest.Llama{}))
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	checkSound(t, f)
	if !mapped(t, path) {
		t.Error("the open file is not mapped")
	}
	tokens, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if mapped(t, path) {
		t.Error("the closed file is still mapped")
	}
	// Copies outlive the file.
	if tokens[weighttest.EOS] != "<|im_end|>" {
		t.Errorf("token %d is %q", weighttest.EOS, tokens[weighttest.EOS])
	}
	if _, err := f.Tensor("token_embd.weight"); err == nil || !strings.Contains(err.Error(), "the file is closed") {
		t.Errorf("a tensor of a closed file: %v", err)
	}
	if _, err := f.StringOr("general.name", ""); err == nil || !strings.Contains(err.Error(), "the file is closed") {
		t.Errorf("a key of a closed file: %v", err)
	}
	if keys := f.Keys(); keys != nil {
		t.Errorf("keys of a closed file: %v", keys)
	}
}

func TestFileThatFailsToOpenIsNotLeftMapped(t *testing.T) {
	data := weighttest.TinyLlama(weighttest.Llama{})
	path := weighttest.Write(t, data[:len(data)/2])
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path+": tensor \"") {
		t.Fatalf("half a file: %v", err)
	}
	if mapped(t, path) {
		t.Error("the file is still mapped")
	}
}

// mapped reports whether this process maps the file.
func mapped(t *testing.T, path string) bool {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(maps, []byte(path))
}

func TestWhatIsNotARegularFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir:         "not a regular file but a directory",
		pipe:        "not a regular file but a pipe", // and nobody waits for a writer
		"/dev/null": "not a regular file but a device",
	} {
		_, err := Open(path)
		if err == nil || !strings.HasSuffix(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("Open(%s): %v", path, err)
		}
		if _, err := Digest(path, nil); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("Digest(%s): %v", path, err)
		}
	}
	absent := filepath.Join(dir, "absent")
	if _, err := Open(absent); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), absent) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestOtherKindsOfFileAreNamed(t *testing.T) {
	long := strings.Repeat("\x00", 5000)
	for _, c := range []struct{ begin, want string }{
		{"", "it is empty"},
		{"PK\x03\x04....", "zip archive"},
		{"\x1f\x8b\x08", "gzip"},
		{"\x28\xb5\x2f\xfd", "zstd"},
		{"\x80\x02}q", "pickle"},
		{"\x40\x00\x00\x00\x00\x00\x00\x00{\"__metadata__\"", "safetensors"},
		{"\n <!DOCTYPE HTML><title>404", "HTML page"},
		{"\xef\xbb\xbf<html lang=en>", "HTML page"},
		{"version https://git-lfs.github.com/spec/v1\noid sha256:", "Git LFS pointer"},
		{"tjgg\x01\x00\x00\x00", "came before GGUF"},
		{"FUGG\x03", "bytes swapped"},
		{"{\"error\": 404}", "JSON"},
		{long, "first 4096 bytes are zero"},
		{"hello there", `it begins with "hello th"`},
		{"x", `it begins with "x"`},
		{"GG", "truncated: the file has 2 bytes of a GGUF file's first 4"},
	} {
		_, err := Open(weighttest.Write(t, []byte(c.begin)))
		if !errors.Is(err, ErrNotGGUF) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.20q: %v; want %q", c.begin, err, c.want)
		}
	}
}

// checkSound says what must hold for any file that Parse accepts, by using all
// of it.
func checkSound(t testing.TB, f *File) {
	t.Helper()
	for _, k := range f.Keys() {
		if len(k.Value) > 1000 {
			t.Errorf("key %q prints as %d bytes", k.Name, len(k.Value))
		}
		f.String(k.Name)
		f.Uint(k.Name)
		f.Float(k.Name)
		f.Bool(k.Name)
		n := -1
		if list, err := f.Strings(k.Name); err == nil {
			n = len(list)
		}
		if list, err := f.Ints(k.Name); err == nil {
			n = len(list)
		}
		if list, err := f.Floats(k.Name); err == nil {
			n = len(list)
		}
		if n >= 0 && n != k.Count {
			t.Errorf("key %q has %d elements, listed are %d", k.Name, n, k.Count)
		}
	}
	owner := make(map[*byte]string)
	for _, info := range f.Tensors() {
		if info.Offset%int64(f.Alignment()) != 0 || info.Offset < f.DataOffset() {
			t.Errorf("tensor %q begins at byte %d", info.Name, info.Offset)
		}
		tensor, err := f.Tensor(info.Name)
		if _, known := info.Type(); !known {
			if !errors.Is(err, kernels.ErrUnsupported) {
				t.Errorf("tensor %q of %s: %v", info.Name, info.TypeName(), err)
			}
			continue
		}
		if err != nil {
			t.Errorf("tensor %q: %v", info.Name, err)
			continue
		}
		if want := int64(tensor.Rows) * tensor.Type.RowBytes(tensor.Cols); int64(len(tensor.Data)) != want {
			t.Errorf("tensor %q: %d bytes for %d rows of %d %v", info.Name, len(tensor.Data), tensor.Rows, tensor.Cols, tensor.Type)
		}
		for _, end := range []*byte{&tensor.Data[0], &tensor.Data[len(tensor.Data)-1]} {
			if other, taken := owner[end]; taken && other != info.Name {
				t.Errorf("tensors %q and %q share bytes", other, info.Name)
			}
			owner[end] = info.Name
		}
	}
}
