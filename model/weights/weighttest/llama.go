package weighttest

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"tandem/kernels"
	"tandem/kernels/quant"
)

// Llama says what TinyLlama makes. Zero fields stand for the values in brackets.
type Llama struct {
	Layers  int // [2]
	Width   int // [64] a multiple of the matrices' block
	Heads   int // [4]; Width/Heads, the head's size, is even
	KVHeads int // [2]
	Hidden  int // [128] a multiple of the block of ffn_down
	Vocab   int // [288] tokens, at least MinVocab
	Context int // [256] positions

	RopeBase float32 // [10000]
	Epsilon  float32 // [1e-5]

	// Untied gives the output its own matrix; else it is the embedding.
	Untied bool

	// Matrices is the format of all matrices [F32] but those that Types names by
	// kind: "token_embd", "output", "attn_q", "attn_k", "attn_v", "attn_output",
	// "ffn_gate", "ffn_up", "ffn_down". Norms are F32.
	Matrices kernels.Type
	Types    map[string]kernels.Type

	// Seed determines all weights, each tensor's by its name: the same tensor has
	// the same values, before quantisation, whatever the other fields are.
	Seed uint64

	// Keys replace the file's keys of that name or add to them; nil leaves one out.
	Keys map[string]any
	// Without leaves out tensors by their full name.
	Without []string
}

// Tokens of a tiny model. Token FirstByte+b is the single byte b; after those
// come the results of the merges, in their order.
const (
	EndOfText = 0 // <|endoftext|>, also unknown_token_id
	BOS       = 1 // <|im_start|>
	EOS       = 2 // <|im_end|>, also padding_token_id
	FirstByte = 3
)

// frequent are the first merges of every tiny model, in the alphabet in which
// byte-level BPE writes bytes (Ġ is the space).
var frequent = [][2]string{
	{"Ġ", "t"}, {"h", "e"}, {"i", "n"}, {"r", "e"}, {"o", "n"}, {"Ġt", "he"}, {"e", "r"}, {"a", "t"}, {"a", "n"}, {"Ġ", "Ġ"},
	{"in", "g"}, {"an", "d"}, {"Ġ", "and"}, {"h", "i"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {"Ġ", "w"}, {"o", "r"}, {"ĠĠ", "ĠĠ"},
}

// MinVocab is the least vocabulary: control tokens, bytes and the frequent merges.
var MinVocab = FirstByte + 256 + len(frequent)

// ChatTemplate is the tiny models' template: ChatML without a default system message.
const ChatTemplate = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}" +
	"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

// TinyLlama is a GGUF file of architecture llama with random weights, a
// byte-level BPE vocabulary in which every byte has a token, and a chat template.
// Logits spread over a few units, and a greedy text soon changes if any token
// before it does. It panics at options that make no model.
func TinyLlama(o Llama) []byte { return TinyLlamaFile(o).Bytes() }

// TinyLlamaFile is TinyLlama before the bytes are put together.
func TinyLlamaFile(o Llama) *GGUF {
	o.fill()
	g := &GGUF{}
	for _, k := range o.keys() {
		if v, replaced := o.Keys[k.name]; !replaced {
			g.Key(k.name, k.value)
		} else if v != nil {
			g.Key(k.name, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Keys)) {
		if v := o.Keys[name]; v != nil && !slices.ContainsFunc(o.keys(), func(k keyValue) bool { return k.name == name }) {
			g.Key(name, v)
		}
	}
	add := func(prefix, kind string, rows, cols int) {
		name := prefix + kind + ".weight"
		if slices.Contains(o.Without, name) {
			return
		}
		format, x := o.format(kind), o.values(name, kind, rows*cols, cols)
		b := make([]byte, int64(rows)*format.RowBytes(cols))
		if cols%format.Block() != 0 {
			panic(fmt.Sprintf("weighttest: %s: rows of %d are not whole blocks of %v", name, cols, format))
		}
		if err := quant.Quantise(b, format, x); err != nil {
			panic(fmt.Sprintf("weighttest: %s: %v", name, err))
		}
		g.Tensor(name, format, rows, cols, b)
	}
	kv := o.Width / o.Heads * o.KVHeads
	add("", "token_embd", o.Vocab, o.Width)
	for i := range o.Layers {
		block := fmt.Sprintf("blk.%d.", i)
		add(block, "attn_norm", 1, o.Width)
		add(block, "attn_q", o.Width, o.Width)
		add(block, "attn_k", kv, o.Width)
		add(block, "attn_v", kv, o.Width)
		add(block, "attn_output", o.Width, o.Width)
		add(block, "ffn_norm", 1, o.Width)
		add(block, "ffn_gate", o.Hidden, o.Width)
		add(block, "ffn_up", o.Hidden, o.Width)
		add(block, "ffn_down", o.Width, o.Hidden)
	}
	add("", "output_norm", 1, o.Width)
	if o.Untied {
		add("", "output", o.Vocab, o.Width)
	}
	return g
}

func (o *Llama) fill() {
	set := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	set(&o.Layers, 2)
	set(&o.Width, 64)
	set(&o.Heads, 4)
	set(&o.KVHeads, 2)
	set(&o.Hidden, 128)
	set(&o.Vocab, 288)
	set(&o.Context, 256)
	if o.RopeBase == 0 {
		o.RopeBase = 10000
	}
	if o.Epsilon == 0 {
		o.Epsilon = 1e-5
	}
	if o.Matrices == 0 {
		o.Matrices = kernels.F32
	}
	if o.Vocab < MinVocab || o.Width%(2*o.Heads) != 0 || o.Heads%o.KVHeads != 0 {
		panic(fmt.Sprintf("weighttest: no model has %d tokens, width %d, %d heads, %d KV heads", o.Vocab, o.Width, o.Heads, o.KVHeads))
	}
}

func (o *Llama) format(kind string) kernels.Type {
	if t, ok := o.Types[kind]; ok {
		return t
	}
	if isNorm(kind) {
		return kernels.F32
	}
	return o.Matrices
}

func isNorm(kind string) bool {
	return kind == "attn_norm" || kind == "ffn_norm" || kind == "output_norm"
}

// values are a tensor's weights before quantisation, normally distributed about
// zero (norms: about a mean) so that a matrix keeps the size of what it multiplies,
// but for some that were found to make the greedy text lively and each token of it
// depend on all that went before: embeddings small beside what the layers add, or a
// token predicts itself (the last norm makes up for it in the logits); queries
// large, so that attention picks rather than averages; its result large beside the
// feed-forward's.
func (o *Llama) values(name, kind string, n, cols int) []float32 {
	h := fnv.New64a()
	h.Write([]byte(name))
	r := rand.New(rand.NewPCG(o.Seed, h.Sum64()))
	mean, deviation := 0.0, 1/math.Sqrt(float64(cols))
	switch kind {
	case "attn_norm", "ffn_norm":
		mean, deviation = 1, 0.1
	case "output_norm":
		mean, deviation = 4, 0.4
	case "token_embd", "output":
		deviation *= 0.5
	case "attn_q":
		deviation *= 3
	case "attn_output":
		deviation *= 2
	}
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(mean + deviation*r.NormFloat64())
	}
	return x
}

type keyValue struct {
	name  string
	value any
}

// keys are those that llama.cpp's converter writes for a Llama with a
// byte-level BPE vocabulary.
func (o *Llama) keys() []keyValue {
	tokens, types, merges := vocabulary(o.Vocab)
	fileType := map[kernels.Type]uint32{
		kernels.F32: 0, kernels.F16: 1, kernels.Q4_0: 2, kernels.Q4_1: 3, kernels.Q8_0: 7, kernels.Q6_K: 18, kernels.BF16: 32,
	}[o.Matrices]
	return []keyValue{
		{"general.architecture", "llama"},
		{"general.type", "model"},
		{"general.name", "Tiny"},
		{"llama.block_count", uint32(o.Layers)},
		{"llama.context_length", uint32(o.Context)},
		{"llama.embedding_length", uint32(o.Width)},
		{"llama.feed_forward_length", uint32(o.Hidden)},
		{"llama.attention.head_count", uint32(o.Heads)},
		{"llama.attention.head_count_kv", uint32(o.KVHeads)},
		{"llama.rope.freq_base", o.RopeBase},
		{"llama.attention.layer_norm_rms_epsilon", o.Epsilon},
		{"general.file_type", fileType},
		{"llama.vocab_size", uint32(o.Vocab)},
		{"llama.rope.dimension_count", uint32(o.Width / o.Heads)},
		{"tokenizer.ggml.add_space_prefix", false},
		{"tokenizer.ggml.add_bos_token", false},
		{"tokenizer.ggml.model", "gpt2"},
		{"tokenizer.ggml.pre", "smollm"},
		{"tokenizer.ggml.tokens", tokens},
		{"tokenizer.ggml.token_type", types},
		{"tokenizer.ggml.merges", merges},
		{"tokenizer.ggml.bos_token_id", uint32(BOS)},
		{"tokenizer.ggml.eos_token_id", uint32(EOS)},
		{"tokenizer.ggml.unknown_token_id", uint32(EndOfText)},
		{"tokenizer.ggml.padding_token_id", uint32(EOS)},
		{"tokenizer.chat_template", ChatTemplate},
		{"general.quantization_version", uint32(2)},
	}
}

// vocabulary makes n tokens: the control tokens, the bytes, the frequent merges,
// then merges of any two bytes, those of small letters first.
func vocabulary(n int) (tokens []string, types []int32, merges []string) {
	const normal, control = 1, 3
	known := make(map[string]bool)
	add := func(token string, kind int32) {
		known[token] = true
		tokens, types = append(tokens, token), append(types, kind)
	}
	merge := func(a, b string) {
		if len(tokens) < n && !known[a+b] {
			add(a+b, normal)
			merges = append(merges, a+" "+b)
		}
	}
	for _, s := range []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"} {
		add(s, control)
	}
	alphabet := byteAlphabet()
	for _, r := range alphabet {
		add(string(r), normal)
	}
	for _, m := range frequent {
		merge(m[0], m[1])
	}
	for _, letters := range [][]rune{alphabet['a' : 'z'+1], alphabet} {
		for _, a := range letters {
			for _, b := range letters {
				merge(string(a), string(b))
			}
		}
	}
	if len(tokens) < n {
		panic(fmt.Sprintf("weighttest: a vocabulary has at most %d tokens, not %d", len(tokens), n))
	}
	return tokens, types, merges
}

// byteAlphabet gives the character in which byte-level BPE writes each byte:
// printable Latin-1 as itself, the others as U+0100 and up, in order.
func byteAlphabet() []rune {
	list := make([]rune, 256)
	next := rune(0x100)
	for b := range list {
		if b >= '!' && b <= '~' || b >= 0xa1 && b != 0xad {
			list[b] = rune(b)
		} else {
			list[b] = next
			next++
		}
	}
	return list
}
