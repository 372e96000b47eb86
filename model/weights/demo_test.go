package weights

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tandem/kernels"
	"tandem/kernels/quant"
	"tandem/model/modeltest"
)

func openDemo(t testing.TB) *File {
	t.Helper()
	f, err := Open(modeltest.Path(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// The demo model's file as two other readers see it.
func TestDemoModelIsReadRight(t *testing.T) {
	f := openDemo(t)
	checkSound(t, f)
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"size", f.Size(), int64(98362432)},
		{"version", f.Version(), 3},
		{"keys", len(f.Keys()), 33},
		{"tensors", len(f.Tensors()), 272},
		{"alignment", f.Alignment(), 32},
		{"data from", f.DataOffset(), int64(1785664)},
		{"architecture", got(f.String("general.architecture")), "llama"},
		{"name", got(f.String("general.name")), "Smollm2 135M 8k Lc100K Mix1 Ep2"},
		{"file type", got(f.Uint("general.file_type")), uint64(3)},
		{"languages", got(f.Strings("general.languages")), []string{"en"}},
		{"layers", got(f.Uint("llama.block_count")), uint64(30)},
		{"context", got(f.Uint("llama.context_length")), uint64(8192)},
		{"width", got(f.Uint("llama.embedding_length")), uint64(576)},
		{"hidden", got(f.Uint("llama.feed_forward_length")), uint64(1536)},
		{"heads", got(f.Uint("llama.attention.head_count")), uint64(9)},
		{"KV heads", got(f.Uint("llama.attention.head_count_kv")), uint64(3)},
		{"key length", f.Has("llama.attention.key_length"), false},
		{"rope base", got(f.Float("llama.rope.freq_base")), 100000.0},
		{"epsilon", got(f.Float("llama.attention.layer_norm_rms_epsilon")), float64(float32(1e-5))},
		{"rope dimensions", got(f.Uint("llama.rope.dimension_count")), uint64(64)},
		{"vocabulary", got(f.Uint("llama.vocab_size")), uint64(49152)},
		{"add_bos", got(f.Bool("tokenizer.ggml.add_bos_token")), false},
		{"pre", got(f.String("tokenizer.ggml.pre")), "smollm"},
		{"bos", got(f.Uint("tokenizer.ggml.bos_token_id")), uint64(1)},
		{"eos", got(f.Uint("tokenizer.ggml.eos_token_id")), uint64(2)},
	} {
		if d := cmp.Diff(c.want, c.got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, d)
		}
	}
	tokens, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil || len(tokens) != 49152 || tokens[2] != "<|im_end|>" || tokens[17] != "!" {
		t.Errorf("%d tokens, %v", len(tokens), err)
	}
	merges, err := f.Strings("tokenizer.ggml.merges")
	if err != nil || len(merges) != 48900 || merges[0] != "Ġ t" {
		t.Errorf("%d merges, %v", len(merges), err)
	}
	types, err := f.Ints("tokenizer.ggml.token_type")
	if err != nil || len(types) != 49152 || types[16] != 3 || types[17] != 1 {
		t.Errorf("%d token types, %v", len(types), err)
	}
	if template, err := f.String("tokenizer.chat_template"); err != nil || !strings.Contains(template, "<|im_start|>assistant\n") {
		t.Errorf("chat template %q, %v", template, err)
	}
}

func TestDemoModelHasTheTensorsOfALlama(t *testing.T) {
	f := openDemo(t)
	type shape struct {
		format     kernels.Type
		rows, cols int
	}
	want := map[string]shape{
		"token_embd.weight":  {kernels.Q8_0, 49152, 576},
		"output_norm.weight": {kernels.F32, 1, 576},
	}
	for i := range 30 {
		for kind, s := range map[string]shape{
			"attn_norm": {kernels.F32, 1, 576}, "ffn_norm": {kernels.F32, 1, 576},
			"attn_q": {kernels.Q4_1, 576, 576}, "attn_output": {kernels.Q4_1, 576, 576},
			"attn_k": {kernels.Q4_1, 192, 576}, "attn_v": {kernels.Q4_1, 192, 576},
			"ffn_gate": {kernels.Q4_1, 1536, 576}, "ffn_up": {kernels.Q4_1, 1536, 576}, "ffn_down": {kernels.Q4_1, 576, 1536},
		} {
			want[fmt.Sprintf("blk.%d.%s.weight", i, kind)] = s
		}
	}
	bytes := make(map[kernels.Type]int64)
	for _, info := range f.Tensors() {
		s, ok := want[info.Name]
		if !ok {
			t.Errorf("tensor %q is one too many", info.Name)
			continue
		}
		delete(want, info.Name)
		tensor, err := f.Tensor(info.Name)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(s, shape{tensor.Type, tensor.Rows, tensor.Cols}, cmp.AllowUnexported(shape{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", info.Name, d)
		}
		bytes[tensor.Type] += int64(len(tensor.Data))
	}
	for name := range want {
		t.Errorf("tensor %q is missing", name)
	}
	if bytes[kernels.Q8_0] != 30081024 || bytes[kernels.Q4_1] != 66355200 {
		t.Errorf("%d bytes of Q8_0, %d of Q4_1; want 30081024, 66355200", bytes[kernels.Q8_0], bytes[kernels.Q4_1])
	}
}

// Digests of the float32 values that the Python package gguf 0.19.0 gives: equal
// bit for bit, as each format rounds once.
func TestDemoModelsNumbersAgreeWithAnotherImplementation(t *testing.T) {
	f := openDemo(t)
	for name, want := range map[string]string{
		"token_embd.weight":      "3fd491c8066dd9dc1a2bf6796701526c82817d95c0ecabacdef3013c2b8bbbaa",
		"blk.0.attn_q.weight":    "aa74111ad24c3624a20374d2026fd1f50bfe2520252e3c9aef4a666a28593cc8",
		"blk.29.ffn_down.weight": "c19605745425a11e704e305ce3d27b632c406195d39eb3377e9cfb140ac643d1",
		"output_norm.weight":     "3b87f8e27335e67fc08f159cabfd2d18f205d6c5b225a6f978153552bf01d559",
	} {
		tensor, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		sum, size := sha256.New(), int(tensor.Type.RowBytes(tensor.Cols))
		x, b := make([]float32, tensor.Cols), make([]byte, 4*tensor.Cols)
		for row := range tensor.Rows {
			if err := quant.Dequantise(x, tensor.Type, tensor.Data[row*size:(row+1)*size]); err != nil {
				t.Fatal(err)
			}
			for i, v := range x {
				binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
			}
			sum.Write(b)
		}
		if got := hex.EncodeToString(sum.Sum(nil)); got != want {
			t.Errorf("%s: the digest of its numbers is %s, want %s", name, got, want)
		}
	}
}

// The header of this file holds 98,052 strings. Opening it must not make objects
// of them; the bound is a few for each of the 305 keys and tensors.
func TestOpeningMakesNoObjectsOfArrays(t *testing.T) {
	path := modeltest.Path(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := Open(path)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, b := after.Mallocs-before.Mallocs, after.TotalAlloc-before.TotalAlloc; n > 2000 || b > 512<<10 {
		t.Errorf("opening made %d objects of %d bytes", n, b)
	}
}

func TestDemoModelsDigest(t *testing.T) {
	got, err := Digest(modeltest.Path(t), nil)
	if want := "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"; err != nil || got != want {
		t.Errorf("digest %s, %v; want %s", got, err, want)
	}
}

func BenchmarkOpenDemo(b *testing.B) {
	path := modeltest.Path(b)
	b.ReportAllocs()
	for b.Loop() {
		f, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}

func BenchmarkTokensOfDemo(b *testing.B) {
	f := openDemo(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Strings("tokenizer.ggml.tokens"); err != nil {
			b.Fatal(err)
		}
	}
}
