package weighttest

import (
	"bytes"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"tandem/kernels"
	"tandem/model/weights"
)

func open(t *testing.T, o Llama) *weights.File {
	t.Helper()
	f, err := weights.Parse("tiny", TinyLlama(o))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestTinyLlamaIsDeterminedBySeed(t *testing.T) {
	one, same, other := TinyLlama(Llama{Seed: 1}), TinyLlama(Llama{Seed: 1}), TinyLlama(Llama{Seed: 2})
	if !bytes.Equal(one, same) {
		t.Error("the same seed makes two files")
	}
	if len(one) != len(other) || bytes.Equal(one, other) {
		t.Error("another seed makes the same weights")
	}
}

func TestTinyLlamaHasWhatItsOptionsSay(t *testing.T) {
	f := open(t, Llama{
		Layers: 3, Width: 96, Heads: 6, KVHeads: 3, Hidden: 256, Vocab: 1000, Context: 77, Untied: true, Matrices: kernels.Q4_1,
		Types: map[string]kernels.Type{"token_embd": kernels.Q8_0, "output": kernels.BF16, "ffn_down": kernels.Q6_K, "attn_v": kernels.F16, "attn_k": kernels.Q4_0},
	})
	for key, want := range map[string]uint64{
		"llama.block_count": 3, "llama.context_length": 77, "llama.embedding_length": 96, "llama.feed_forward_length": 256,
		"llama.attention.head_count": 6, "llama.attention.head_count_kv": 3, "llama.rope.dimension_count": 16, "llama.vocab_size": 1000,
		"tokenizer.ggml.bos_token_id": BOS, "tokenizer.ggml.eos_token_id": EOS,
	} {
		if got, err := f.Uint(key); err != nil || got != want {
			t.Errorf("%s is %d, %v; want %d", key, got, err, want)
		}
	}
	type shape struct {
		format     kernels.Type
		rows, cols int
	}
	want := map[string]shape{
		"token_embd.weight": {kernels.Q8_0, 1000, 96}, "output.weight": {kernels.BF16, 1000, 96}, "output_norm.weight": {kernels.F32, 1, 96},
	}
	for _, block := range []string{"blk.0.", "blk.1.", "blk.2."} {
		maps.Copy(want, map[string]shape{
			block + "attn_norm.weight": {kernels.F32, 1, 96}, block + "ffn_norm.weight": {kernels.F32, 1, 96},
			block + "attn_q.weight": {kernels.Q4_1, 96, 96}, block + "attn_output.weight": {kernels.Q4_1, 96, 96},
			block + "attn_k.weight": {kernels.Q4_0, 48, 96}, block + "attn_v.weight": {kernels.F16, 48, 96},
			block + "ffn_gate.weight": {kernels.Q4_1, 256, 96}, block + "ffn_up.weight": {kernels.Q4_1, 256, 96}, block + "ffn_down.weight": {kernels.Q6_K, 96, 256},
		})
	}
	got := make(map[string]shape)
	for _, info := range f.Tensors() {
		format, _ := info.Type()
		got[info.Name] = shape{format, info.Rows, info.Cols}
	}
	if !maps.Equal(got, want) {
		t.Errorf("tensors\n%v\nwant\n%v", got, want)
	}
}

func TestTinyVocabularyCanWriteAnyByte(t *testing.T) {
	f := open(t, Llama{Vocab: 1200})
	tokens, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil {
		t.Fatal(err)
	}
	types, err := f.Ints("tokenizer.ggml.token_type")
	if err != nil {
		t.Fatal(err)
	}
	merges, err := f.Strings("tokenizer.ggml.merges")
	if err != nil {
		t.Fatal(err)
	}
	if len(tokens) != 1200 || len(types) != 1200 || len(merges) != 1200-FirstByte-256 {
		t.Fatalf("%d tokens, %d types, %d merges", len(tokens), len(types), len(merges))
	}
	unique := slices.Compact(slices.Sorted(slices.Values(tokens)))
	if len(unique) != len(tokens) {
		t.Errorf("%d tokens are there twice", len(tokens)-len(unique))
	}
	for token, want := range map[int]string{EndOfText: "<|endoftext|>", BOS: "<|im_start|>", EOS: "<|im_end|>",
		FirstByte + 'a': "a", FirstByte + ' ': "Ġ", FirstByte + '\n': "Ċ", FirstByte + 0xff: "ÿ", FirstByte + 0xad: "Ń"} {
		if tokens[token] != want {
			t.Errorf("token %d is %q, want %q", token, tokens[token], want)
		}
	}
	for i, kind := range types {
		if want := map[bool]int64{true: 3, false: 1}[i < FirstByte]; kind != want {
			t.Errorf("token %d, %q, is of type %d, want %d", i, tokens[i], kind, want)
		}
	}
	// Each merge makes the next token out of tokens that are already there.
	known := make(map[string]bool)
	for _, s := range tokens[:FirstByte+256] {
		known[s] = true
	}
	for i, m := range merges {
		a, b, _ := strings.Cut(m, " ")
		if !known[a] || !known[b] || tokens[FirstByte+256+i] != a+b {
			t.Errorf("merge %d, %q, does not make token %q", i, m, tokens[FirstByte+256+i])
		}
		known[a+b] = true
	}
	if len(TinyLlama(Llama{Vocab: MinVocab})) == 0 {
		t.Error("no file with the least vocabulary")
	}
}

func TestKeysAndTensorsCanBeChangedAndLeftOut(t *testing.T) {
	f := open(t, Llama{
		Keys:    map[string]any{"general.name": nil, "llama.block_count": "two", "extra.key": []int32{5}},
		Without: []string{"blk.1.attn_q.weight"},
	})
	if f.Has("general.name") {
		t.Error("general.name was to be left out")
	}
	if s, err := f.String("llama.block_count"); err != nil || s != "two" {
		t.Errorf("llama.block_count is %q, %v", s, err)
	}
	if n, err := f.Ints("extra.key"); err != nil || !slices.Equal(n, []int64{5}) {
		t.Errorf("extra.key is %v, %v", n, err)
	}
	if _, err := f.Tensor("blk.1.attn_q.weight"); err == nil {
		t.Error("blk.1.attn_q.weight was to be left out")
	}
	if _, err := f.Tensor("blk.0.attn_q.weight"); err != nil {
		t.Error(err)
	}
}

// The same weights in two formats differ by the coarser one's rounding only.
func TestFormatsHoldTheSameWeights(t *testing.T) {
	exact, err := open(t, Llama{Seed: 5}).Tensor("blk.0.ffn_up.weight")
	if err != nil {
		t.Fatal(err)
	}
	coarse, err := open(t, Llama{Seed: 5, Layers: 1, Untied: true, Matrices: kernels.BF16}).Tensor("blk.0.ffn_up.weight")
	if err != nil {
		t.Fatal(err)
	}
	if coarse.Rows != exact.Rows || coarse.Cols != exact.Cols {
		t.Fatalf("shapes differ: %v, %v", coarse, exact)
	}
	var square float64
	for i := range exact.Rows * exact.Cols {
		x := math.Float32frombits(uint32(exact.Data[4*i]) | uint32(exact.Data[4*i+1])<<8 | uint32(exact.Data[4*i+2])<<16 | uint32(exact.Data[4*i+3])<<24)
		y := math.Float32frombits(uint32(coarse.Data[2*i])<<16 | uint32(coarse.Data[2*i+1])<<24)
		if d := math.Abs(float64(x - y)); d > math.Abs(float64(x))/256 { // half of the last of 8 bits
			t.Fatalf("element %d is %g and %g", i, x, y)
		}
		square += float64(x) * float64(x)
	}
	// Deviation 1/√columns: the sum of squares is the number of rows, within 5
	// times its own deviation, √(2/elements).
	if got, want := square/float64(exact.Rows), 1.0; math.Abs(got-want) > 5*math.Sqrt(2/float64(exact.Rows*exact.Cols)) {
		t.Errorf("the mean square of a row is %g, want about %g", got, want)
	}
}

func TestImpossibleModelsPanic(t *testing.T) {
	for name, o := range map[string]Llama{
		"too few tokens":       {Vocab: MinVocab - 1},
		"too many tokens":      {Vocab: 200000},
		"heads that are odd":   {Width: 63, Heads: 4},
		"KV heads that do not": {Heads: 4, KVHeads: 3},
		"half a block":         {Width: 48, Heads: 4, Matrices: kernels.Q8_0},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: made", name)
				}
			}()
			TinyLlama(o)
		}()
	}
}
