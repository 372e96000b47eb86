package weights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"tandem/kernels"
	"tandem/model/weights/weighttest"
)

// parseWithin parses and checks that memory taken is in proportion to the bytes
// that are there: an entry of a few dozen bytes takes up to about three hundred
// for its record, its name and its places in the tables, which grow by copying.
func parseWithin(t testing.TB, data []byte) (*File, error) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := Parse("test.gguf", data)
	runtime.ReadMemStats(&after)
	if took, limit := after.TotalAlloc-before.TotalAlloc, uint64(16<<10+32*len(data)); took > limit {
		t.Errorf("parsing %d bytes took %d bytes of memory, more than %d (result: %v)", len(data), took, limit, err)
	}
	if err == nil {
		checkSound(t, f)
	}
	return f, err
}

// small is a sound file with all that a header can have, few bytes each.
func small() *weighttest.GGUF {
	g := &weighttest.GGUF{}
	g.Key("general.architecture", "test")
	g.Key("general.alignment", uint32(32))
	g.Key("number", uint64(77))
	g.Key("flags", []bool{true, false, true})
	g.Key("list", []string{"x", "yy", ""})
	g.Key("ints", []int32{1, 2, 3, 4})
	g.Tensor("one", kernels.F32, 1, 8, make([]byte, 32))
	g.Tensor("two", kernels.Q8_0, 2, 32, make([]byte, 68))
	g.Tensor("three", kernels.F16, 3, 5, make([]byte, 30))
	return g
}

// after gives the position right behind a name in the header.
func after(t *testing.T, data []byte, name string) int {
	t.Helper()
	i := bytes.Index(data, append(binary.LittleEndian.AppendUint64(nil, uint64(len(name))), name...))
	if i < 0 {
		t.Fatalf("no name %q in the file", name)
	}
	return i + 8 + len(name)
}

func TestTruncatedAnywhere(t *testing.T) {
	g := small()
	data := g.Bytes()
	whole := parse(t, data)

	// Where each part of the header begins, to know what an error must name.
	type part struct {
		from  int
		names []string // any of them
	}
	parts := []part{{4, []string{"header: "}}}
	for i, k := range whole.Keys() {
		parts = append(parts, part{after(t, data, k.Name) - 8 - len(k.Name), []string{fmt.Sprintf("key %q", k.Name), fmt.Sprintf("key %d of 6", i+1)}})
	}
	for i, info := range whole.Tensors() {
		parts = append(parts, part{after(t, data, info.Name) - 8 - len(info.Name), []string{fmt.Sprintf("tensor %q", info.Name), fmt.Sprintf("tensor %d of 3", i+1)}})
	}
	last := whole.Tensors()[2]
	for n := range len(data) {
		_, err := parseWithin(t, data[:n])
		switch {
		case n < 4:
			if !errors.Is(err, ErrNotGGUF) {
				t.Errorf("%d bytes: %v", n, err)
			}
			continue
		case int64(n) >= last.Offset+last.Bytes: // only padding is gone
			if err != nil {
				t.Errorf("%d bytes: %v", n, err)
			}
			continue
		case err == nil || !strings.Contains(err.Error(), "truncated: the header says ") || !strings.Contains(err.Error(), fmt.Sprintf("the file has %d", n)):
			t.Errorf("%d bytes: %v", n, err)
			continue
		case n >= g.HeaderBytes():
			want := fmt.Sprintf(`tensor "three": truncated: the header says %d bytes, the file has %d`, last.Offset+last.Bytes, n)
			if !strings.HasSuffix(err.Error(), want) {
				t.Errorf("%d bytes: %v; want %s", n, err, want)
			}
			continue
		}
		in := parts[0]
		for _, p := range parts {
			if p.from <= n {
				in = p
			}
		}
		named := false
		for _, name := range in.names {
			named = named || strings.Contains(err.Error(), "test.gguf: "+name)
		}
		if !named {
			t.Errorf("%d bytes: %v; want one of %q named", n, err, in.names)
		}
	}
}

func TestLyingHeadersAreRefusedByName(t *testing.T) {
	u32 := func(at func([]byte) int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint32(b[at(b):], v); return b }
	}
	u64 := func(at func([]byte) int, v uint64) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint64(b[at(b):], v); return b }
	}
	at := func(n int) func([]byte) int { return func([]byte) int { return n } }
	// behind is n bytes behind a name: of a key 0 is the type, 4 the value; of an
	// array 4 is the element type, 8 the count, 16 the elements; of a tensor 0 is
	// the number of dimensions, 4 the first.
	behind := func(name string, n int) func([]byte) int {
		return func(b []byte) int { return after(t, b, name) + n }
	}
	const huge, negative = uint64(math.MaxUint64), uint64(1) << 63
	add := func(f func(*weighttest.GGUF)) func([]byte) []byte {
		return func([]byte) []byte {
			g := small()
			f(g)
			return g.Bytes()
		}
	}
	for _, c := range []struct {
		name string
		lie  func([]byte) []byte
		want string // after the file's name
	}{
		{"version 1", u32(at(4), 1), "header: GGUF version 1: only 2 and 3 are read"},
		{"version 4", u32(at(4), 4), "header: GGUF version 4: only 2 and 3 are read"},
		{"version 0", u32(at(4), 0), "header: GGUF version 0: only 2 and 3 are read; the file is damaged"},
		{"version of the other byte order", u32(at(4), 3<<24), "header: a big-endian GGUF file"},
		{"version huge", u32(at(4), math.MaxUint32), "header: GGUF version 4294967295"},

		{"tensors huge", u64(at(8), huge), "header: 18446744073709551615 tensors: at most 1048576 are allowed"},
		{"tensors negative", u64(at(8), negative), "tensors: at most 1048576"},
		{"tensors at the limit", u64(at(8), maxTensors), "tensor 4 of 1048576: "},
		{"keys huge", u64(at(16), huge), "header: 18446744073709551615 keys: at most 65536 are allowed"},
		{"keys at the limit", u64(at(16), maxKeys), "of 65536: "},
		{"one key more", u64(at(16), 7), "tensor 1 of 3: a name of 0 bytes"}, // "one" was read as a key
		{"one key less", u64(at(16), 5), `tensor "ints": 9 dimensions: 1 to 4 are allowed`},

		{"key of no length", u64(behind("general.architecture", -28), 0), "key 1 of 6: a name of 0 bytes: 1 to 65535 are allowed"},
		{"key of huge length", u64(behind("general.architecture", -28), huge), "key 1 of 6: a name of 18446744073709551615 bytes"},
		{"key longer than the file", u64(behind("number", -14), 60000), "key 3 of 6: truncated: the header says that a name takes 60000 bytes at byte"},
		{"key that is no text", add(func(g *weighttest.GGUF) { g.Key("a\x1b[2Jb", true) }), `key 7 of 7: the name "a\x1b[2Jb" is not printable text`},
		{"key that is no UTF-8", add(func(g *weighttest.GGUF) { g.Key("a\xff", true) }), `the name "a\xff" is not printable text`},
		{"key twice", add(func(g *weighttest.GGUF) { g.Key("number", true) }), `key "number": the key comes twice`},

		{"value type unknown", u32(behind("number", 0), 13), `key "number": value type 13 is not one of GGUF's`},
		{"value type huge", u32(behind("number", 0), math.MaxUint32), `key "number": value type 4294967295 is not`},
		{"string of huge length", u64(behind("general.architecture", 4), huge), `key "general.architecture": truncated: the header says that a string takes 18446744073709551615 bytes at byte`},
		{"string longer than the file", u64(behind("general.architecture", 4), 5000), `key "general.architecture": truncated: the header says that a string takes 5000 bytes`},
		{"element type unknown", u32(behind("ints", 4), 99), `key "ints": element type 99 is not one of GGUF's`},
		{"array of arrays", add(func(g *weighttest.GGUF) { g.Key("deep", [][]int32{{1}, {2}}) }), `key "deep": an array of arrays`},
		{"array of huge length", u64(behind("ints", 8), huge), `key "ints": truncated: the header says that 18446744073709551615 elements of type i32 begin at byte`},
		{"array whose bytes overflow", u64(behind("ints", 8), 1<<62+1), `key "ints": truncated: `},
		{"array longer than the file", u64(behind("ints", 8), 1000), `key "ints": truncated: the header says that 1000 elements of type i32`},
		{"strings of huge number", u64(behind("list", 8), huge), `key "list": truncated: the header says that 18446744073709551615 elements of type string`},
		{"string of huge length in an array", u64(behind("list", 16), huge), `key "list": truncated: the header says that a string takes 18446744073709551615`},
		{"bool that is none", func(b []byte) []byte { b[after(t, b, "flags")+17] = 2; return b }, `key "flags": element 1 of type bool is 2: 0 and 1 are allowed`},

		{"alignment 0", u32(behind("general.alignment", 4), 0), `key "general.alignment": 0: a power of two from 8 to 65536 is needed`},
		{"alignment 4", u32(behind("general.alignment", 4), 4), `key "general.alignment": 4: a power of two`},
		{"alignment 48", u32(behind("general.alignment", 4), 48), `key "general.alignment": 48: a power of two`},
		{"alignment huge", u32(behind("general.alignment", 4), 1<<31), `key "general.alignment": 2147483648: a power of two`},
		{"alignment of another type", u32(behind("general.alignment", 0), uint32(kindF32)), `key "general.alignment": of type f32; it should be an integer`},
		{"alignment negative", func(b []byte) []byte {
			b = u32(behind("general.alignment", 0), uint32(kindI32))(b)
			return u32(behind("general.alignment", 4), math.MaxUint32)(b)
		}, `key "general.alignment": -1; it must not be negative`},

		{"name of no length", u64(behind("one", -11), 0), "tensor 1 of 3: a name of 0 bytes: 1 to 1024 are allowed"},
		{"name of huge length", u64(behind("one", -11), huge), "tensor 1 of 3: a name of 18446744073709551615 bytes"},
		{"name twice", add(func(g *weighttest.GGUF) { g.Tensor("two", kernels.F32, 1, 1, make([]byte, 4)) }), `tensor "two": the tensor comes twice`},
		{"no dimensions", u32(behind("two", 0), 0), `tensor "two": 0 dimensions: 1 to 4 are allowed`},
		{"five dimensions", u32(behind("two", 0), 5), `tensor "two": 5 dimensions`},
		{"huge dimensions", u32(behind("two", 0), math.MaxUint32), `tensor "two": 4294967295 dimensions`},
		{"dimension zero", u64(behind("two", 12), 0), `tensor "two": dimension 1 is 0`},
		{"dimension huge", u64(behind("two", 12), huge), `tensor "two": dimension 1 is 18446744073709551615: more elements than can be counted`},
		{"dimension negative", u64(behind("two", 4), negative), `tensor "two": dimension 0 is 9223372036854775808: more elements`},
		{"elements overflow", u64(behind("two", 12), 1<<59), `tensor "two": dimension 1 is 576460752303423488: more elements`},
		{"bytes overflow", u64(behind("two", 12), 1<<58-1), `tensor "two": 9223372036854775776 elements of Q8_0: more bytes than can be counted`},
		{"many rows", u64(behind("two", 12), 1000), `tensor "two": truncated: the header says `},
		{"half a block", u64(behind("two", 4), 16), `tensor "two": rows of 16 elements are not whole Q8_0 blocks of 32`},
		{"offset askew", u64(behind("two", 24), 33), `tensor "two": offset 33 is not a multiple of the alignment, 32`},
		{"offset huge", u64(behind("two", 24), huge), `tensor "two": offset 18446744073709551615 is beyond any file`},
		{"offset at the end of numbers", u64(behind("two", 24), 1<<63-32), `tensor "two": offset 9223372036854775776 and 68 bytes reach beyond any file`},
		{"offset beyond the file", u64(behind("two", 24), 1<<40), `tensor "two": truncated: the header says 10995116`},
		{"offset at the file's end", u64(behind("three", 24), 32+96+32), `tensor "three": truncated: `},
		{"within the one before", u64(behind("three", 24), 64), `tensor "three": begins at byte `},
		{"on the one before", u64(behind("two", 24), 0), `tensor "two": begins at byte `},
		{"unknown type on another", func(b []byte) []byte {
			b = u32(behind("three", 20), 4711)(b)
			return u64(behind("three", 24), 32)(b)
		}, `tensor "three": begins at byte `},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseWithin(t, c.lie(small().Bytes()))
			var e *Error
			if !errors.As(err, &e) || e.File != "test.gguf" || !strings.HasPrefix(err.Error(), "test.gguf: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

// Whatever number stands anywhere in a header: no panic, no memory on its word,
// and a file that is taken for sound is sound.
func TestAnyNumberAnywhereInTheHeader(t *testing.T) {
	g := small()
	data := g.Bytes()
	values := []uint64{0, 1, 2, 7, 8, 31, 64, 255, 1 << 16, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1 << 40, 1<<63 - 1, 1 << 63, math.MaxUint64 - 7, math.MaxUint64}
	refused := 0
	for at := range g.HeaderBytes() - 8 {
		for _, v := range values {
			for _, width := range []int{4, 8} {
				b := bytes.Clone(data)
				var n [8]byte
				binary.LittleEndian.PutUint64(n[:], v)
				copy(b[at:at+width], n[:])
				if _, err := parseWithin(t, b); err != nil {
					refused++
				}
				if t.Failed() {
					t.Fatalf("with %d in %d bytes at byte %d", v, width, at)
				}
			}
		}
	}
	if refused < 1000 {
		t.Errorf("only %d files were refused: the sweep misses the header", refused)
	}
}

// A header may be as long as the file, but not longer than the limit. The file
// is a hole; nobody reads what the strings say.
func TestHeaderBeyondItsLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "long.gguf")
	b := []byte("GGUF\x03\x00\x00\x00")
	b = binary.LittleEndian.AppendUint64(b, 0)
	b = binary.LittleEndian.AppendUint64(b, 1)
	b = append(binary.LittleEndian.AppendUint64(b, 4), "long"...)
	b = binary.LittleEndian.AppendUint32(b, uint32(kindString))
	b = binary.LittleEndian.AppendUint64(b, maxHeaderBytes)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 2*maxHeaderBytes); err != nil {
		t.Fatal(err)
	}
	_, err := Open(path)
	if err == nil || !strings.Contains(err.Error(), `key "long": the header says that a string takes 268435456 bytes at byte 48; a header ends at byte 268435456 at the latest`) {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(small().Bytes())
	f.Add(everyType().Bytes())
	tiny := weighttest.Llama{Layers: 1, Width: 8, Heads: 2, KVHeads: 1, Hidden: 8, Vocab: weighttest.MinVocab}
	f.Add(weighttest.TinyLlama(tiny))
	tiny.Width, tiny.Hidden, tiny.Untied, tiny.Matrices = 32, 32, true, kernels.Q4_1
	tiny.Types = map[string]kernels.Type{"token_embd": kernels.Q8_0}
	f.Add(weighttest.TinyLlama(tiny))
	aligned := &weighttest.GGUF{Alignment: 64}
	aligned.Key("general.alignment", uint16(64))
	aligned.RawTensor("other", 99, []uint64{3, 1, 4, 1}, make([]byte, 70))
	aligned.RawTensor("q5_k", 13, []uint64{256}, make([]byte, 176))
	f.Add(aligned.Bytes())
	nested := &weighttest.GGUF{Version: 2}
	nested.Key("deep", [][]string{{"a"}, {}})
	f.Add(nested.Bytes())
	f.Add([]byte("GGUF"))
	f.Add([]byte("PK\x03\x04"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("fuzz", data)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Reason == "" || e.File != "fuzz" {
				t.Errorf("an error that does not say what is wrong: %#v", err)
			}
			return
		}
		checkSound(t, file)
	})
}
