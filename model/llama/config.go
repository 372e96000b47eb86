// Package llama is the Llama family: grouped-query attention, rotary positions,
// SwiGLU. It knows the sizes and the tensors of such a model and runs its
// forward pass on any kernels.Backend. It owns no memory of its own: weights lie
// in an image, the KV cache where the backend was told, everything else in the
// backend.
package llama

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"tandem/kernels"
	"tandem/model"
	"tandem/model/weights"
)

// PageTokens is the number of tokens that a KV page of this family holds.
const PageTokens = 64

// Config is what a file says about the network.
type Config struct {
	Layers, Width, Hidden  int
	Heads, KVHeads         int
	HeadDim                int
	Vocab, Context         int
	Eps                    float32
	RopeBase               float64
	Tied                   bool // the head is the embedding table
	file                   *weights.File
	name, quantisation     string
	parameters, sizeOnDisk int64
}

// Bounds that no real model of this family approaches; they keep arithmetic on
// what a file says from overflowing.
const (
	maxLayers  = 1 << 10
	maxWidth   = 1 << 17
	maxVocab   = 1 << 22
	maxContext = 1 << 24
)

// Open reads the configuration from a file and checks that all tensors are there
// in the shapes that it implies. The file stays the caller's and must stay open
// while the Config is used.
func Open(f *weights.File) (*Config, error) {
	c := &Config{file: f}
	var err error
	fail := func(key string, format string, args ...any) (*Config, error) {
		return nil, fmt.Errorf("%s: key %q: %s", f.Name(), key, fmt.Sprintf(format, args...))
	}
	get := func(key string, max uint64) int {
		if err != nil {
			return 0
		}
		var v uint64
		if v, err = f.Uint("llama." + key); err == nil && (v == 0 || v > max) {
			err = fmt.Errorf("%s: key %q is %d, want 1 to %d", f.Name(), "llama."+key, v, max)
		}
		return int(v)
	}
	c.Layers = get("block_count", maxLayers)
	c.Width = get("embedding_length", maxWidth)
	c.Hidden = get("feed_forward_length", 8*maxWidth)
	c.Heads = get("attention.head_count", maxWidth)
	c.Context = get("context_length", maxContext)
	if err != nil {
		return nil, err
	}
	kv, err := f.UintOr("llama.attention.head_count_kv", uint64(c.Heads))
	if err != nil {
		return nil, err
	}
	if kv == 0 || kv > uint64(c.Heads) || c.Heads%int(kv) != 0 {
		return fail("llama.attention.head_count_kv", "%d does not divide %d heads", kv, c.Heads)
	}
	c.KVHeads = int(kv)
	if c.Width%c.Heads != 0 && !f.Has("llama.attention.key_length") {
		return fail("llama.attention.head_count", "%d does not divide the width %d", c.Heads, c.Width)
	}
	dim, err := f.UintOr("llama.attention.key_length", uint64(c.Width/c.Heads))
	if err != nil {
		return nil, err
	}
	if dim < 2 || dim%2 != 0 || dim > 1<<12 {
		return fail("llama.attention.key_length", "a head of %d elements", dim)
	}
	c.HeadDim = int(dim)
	if v, err := f.UintOr("llama.attention.value_length", dim); err != nil {
		return nil, err
	} else if v != dim {
		return fail("llama.attention.value_length", "%d differs from the keys' %d", v, dim)
	}
	rot, err := f.UintOr("llama.rope.dimension_count", dim)
	if err != nil {
		return nil, err
	}
	if rot != dim {
		return fail("llama.rope.dimension_count", "%d of %d dimensions rotated: only whole heads are supported", rot, dim)
	}
	if c.RopeBase, err = f.FloatOr("llama.rope.freq_base", 10000); err != nil {
		return nil, err
	}
	if !(c.RopeBase > 0) || math.IsInf(c.RopeBase, 0) {
		return fail("llama.rope.freq_base", "%v", c.RopeBase)
	}
	if kind, err := f.StringOr("llama.rope.scaling.type", "none"); err != nil {
		return nil, err
	} else if kind != "none" {
		return fail("llama.rope.scaling.type", "%q is not supported", kind)
	}
	if has(f, "rope_freqs.weight") {
		return nil, fmt.Errorf("%s: tensor %q: scaled rotary frequencies are not supported", f.Name(), "rope_freqs.weight")
	}
	eps, err := f.Float("llama.attention.layer_norm_rms_epsilon")
	if err != nil {
		return nil, err
	}
	if !(eps > 0 && eps < 1) {
		return fail("llama.attention.layer_norm_rms_epsilon", "%v", eps)
	}
	c.Eps = float32(eps)
	if n, err := f.UintOr("llama.expert_count", 0); err != nil {
		return nil, err
	} else if n != 0 {
		return fail("llama.expert_count", "%d: mixtures of experts are not supported in this family", n)
	}

	embd, err := f.Tensor("token_embd.weight")
	if err != nil {
		return nil, err
	}
	if embd.Cols != c.Width || embd.Rows < 1 || embd.Rows > maxVocab {
		return nil, fmt.Errorf("%s: tensor %q is %d×%d, want rows of %d, at most %d of them", f.Name(), embd.Name, embd.Rows, embd.Cols, c.Width, maxVocab)
	}
	c.Vocab = embd.Rows
	c.Tied = !has(f, "output.weight")
	if c.name, err = f.StringOr("general.name", ""); err != nil {
		return nil, err
	}
	return c, c.check()
}

func has(f *weights.File, tensor string) bool {
	_, err := f.Tensor(tensor)
	return !errors.Is(err, weights.ErrMissing)
}

// check looks at every tensor the forward pass needs.
func (c *Config) check() error {
	count := map[kernels.Type]int64{}
	for _, s := range c.specs() {
		t, err := c.file.Tensor(s.name)
		if err != nil {
			return err
		}
		if t.Rows != s.rows || t.Cols != s.cols {
			return fmt.Errorf("%s: tensor %q is %d×%d, want %d×%d", c.file.Name(), s.name, t.Rows, t.Cols, s.rows, s.cols)
		}
		if s.vector && t.Type != kernels.F32 {
			return fmt.Errorf("%s: tensor %q is %s, want F32", c.file.Name(), s.name, t.Type)
		}
		n := int64(t.Rows) * int64(t.Cols)
		count[t.Type] += n
		c.parameters += n
		c.sizeOnDisk += int64(len(t.Data))
	}
	var most int64
	for t, n := range count {
		if n > most {
			most, c.quantisation = n, t.String()
		}
	}
	return nil
}

// spec is a tensor that the forward pass needs.
type spec struct {
	name       string
	rows, cols int
	vector     bool
}

// specs lists them in the order in which a forward pass reads them.
func (c *Config) specs() []spec {
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	s := []spec{{"token_embd.weight", c.Vocab, c.Width, false}}
	for l := range c.Layers {
		n := func(part string) string { return fmt.Sprintf("blk.%d.%s.weight", l, part) }
		s = append(s,
			spec{n("attn_norm"), 1, c.Width, true},
			spec{n("attn_q"), q, c.Width, false},
			spec{n("attn_k"), kv, c.Width, false},
			spec{n("attn_v"), kv, c.Width, false},
			spec{n("attn_output"), c.Width, q, false},
			spec{n("ffn_norm"), 1, c.Width, true},
			spec{n("ffn_gate"), c.Hidden, c.Width, false},
			spec{n("ffn_up"), c.Hidden, c.Width, false},
			spec{n("ffn_down"), c.Width, c.Hidden, false})
	}
	s = append(s, spec{"output_norm.weight", 1, c.Width, true})
	if !c.Tied {
		s = append(s, spec{"output.weight", c.Vocab, c.Width, false})
	}
	return s
}

// Info describes the model.
func (c *Config) Info() model.Info {
	return model.Info{
		Name: c.name, Arch: "llama", Quantisation: c.quantisation, Parameters: c.parameters, WeightBytes: c.sizeOnDisk,
		Context: c.Context, Vocab: c.Vocab,
		Shape: kernels.Shape{
			Geometry: kernels.Geometry{Layers: c.Layers, Units: c.KVHeads, HeadDim: c.HeadDim, PageTokens: PageTokens},
			Width:    c.Width, Heads: c.Heads, Hidden: c.Hidden, Vocab: c.Vocab,
		},
	}
}

// Layout is the KV layout when an element takes elem bytes.
func (c *Config) Layout(elem int) model.Layout {
	g := c.Info().Shape.Geometry
	return model.Layout{Geometry: g, UnitPageBytes: g.UnitPageBytes(elem)}
}

// ropeBlob is the name of the rotary table in an image.
const ropeBlob = "rope"

// Plan lays out the image of this model's weights for positions below context.
func (c *Config) Plan(p kernels.Packer, context int) (*weights.Plan, error) {
	var ts []kernels.Tensor
	for _, s := range c.specs() {
		t, err := c.file.Tensor(s.name)
		if err != nil {
			return nil, err
		}
		ts = append(ts, t)
	}
	plan, err := weights.NewPlan(p, ts)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.file.Name(), err)
	}
	table := RopeTable(c.RopeBase, c.HeadDim, context)
	blob := make([]byte, 4*len(table))
	for i, v := range table {
		binary.LittleEndian.PutUint32(blob[4*i:], math.Float32bits(v))
	}
	return plan, plan.AddBlob(ropeBlob, blob)
}

// RopeTable holds cos and sin of position·base^(-2i/dim) for each position below
// context and each pair i of a head of dim elements, as [position][i][cos, sin].
// Angles are taken in float64: float32 angles are off by position·2⁻²⁴, which at
// position 8,000 is 5e-4.
func RopeTable(base float64, dim, context int) []float32 {
	freq := make([]float64, dim/2)
	for i := range freq {
		freq[i] = math.Pow(base, -float64(2*i)/float64(dim))
	}
	table := make([]float32, 0, context*dim)
	for pos := range context {
		for _, f := range freq {
			sin, cos := math.Sincos(float64(pos) * f)
			table = append(table, float32(cos), float32(sin))
		}
	}
	return table
}
