package llama

import (
	"encoding/binary"
	"fmt"
	"math"

	"tandem/kernels"
	"tandem/model/weights"
)

// Network is the forward pass bound to one rank's backend. It belongs to the
// goroutine that calls Forward.
type Network struct {
	c *Config
	b kernels.Backend

	embed, head kernels.Matrix
	norm        kernels.Vector
	layers      []layer

	x         kernels.Buffer // the residual stream, whole
	q, k, v   kernels.Buffer
	gate, up  kernels.Buffer
	in, att   kernels.Act // of attention, fine
	ffn, hide kernels.Act
}

type layer struct {
	attnNorm, ffnNorm          kernels.Vector
	q, k, v, o, gate, up, down kernels.Matrix
}

// Rope is the rotary table of an image, borrowed from it as [position][pair][cos,
// sin] in the machine's own float32.
func Rope(img *weights.Image) ([]float32, error) {
	b, err := img.Blob(ropeBlob)
	if err != nil {
		return nil, err
	}
	t := make([]float32, len(b)/4)
	for i := range t {
		t[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return t, nil
}

// New binds the weights of img to b. img must outlive the network.
func New(c *Config, img *weights.Image, b kernels.Backend) (*Network, error) {
	n := &Network{c: c, b: b, layers: make([]layer, c.Layers)}
	var err error
	packed := func(name string, rows, cols int) kernels.Packed {
		var p kernels.Packed
		if err == nil {
			p, err = img.Packed(name)
		}
		if err == nil && (p.Rows != rows || p.Cols != cols) {
			err = fmt.Errorf("image: %s is %d×%d, want %d×%d", name, p.Rows, p.Cols, rows, cols)
		}
		return p
	}
	matrix := func(name string, rows, cols int, part kernels.Partition) (m kernels.Matrix) {
		if p := packed(name, rows, cols); err == nil {
			m = b.Matrix(p, part)
		}
		return m
	}
	vector := func(name string) (v kernels.Vector) {
		if p := packed(name, 1, c.Width); err == nil {
			v = b.Vector(p)
		}
		return v
	}
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	n.embed = matrix("token_embd.weight", c.Vocab, c.Width, kernels.ByRow)
	n.head = n.embed
	if !c.Tied {
		n.head = matrix("output.weight", c.Vocab, c.Width, kernels.ByRow)
	}
	n.norm = vector("output_norm.weight")
	for i := range n.layers {
		name := func(part string) string { return fmt.Sprintf("blk.%d.%s.weight", i, part) }
		n.layers[i] = layer{
			attnNorm: vector(name("attn_norm")), ffnNorm: vector(name("ffn_norm")),
			q:    matrix(name("attn_q"), q, c.Width, kernels.ByRow),
			k:    matrix(name("attn_k"), kv, c.Width, kernels.ByUnit),
			v:    matrix(name("attn_v"), kv, c.Width, kernels.ByUnit),
			o:    matrix(name("attn_output"), c.Width, q, kernels.ByRow),
			gate: matrix(name("ffn_gate"), c.Hidden, c.Width, kernels.ByRow),
			up:   matrix(name("ffn_up"), c.Hidden, c.Width, kernels.ByRow),
			down: matrix(name("ffn_down"), c.Width, c.Hidden, kernels.ByRow),
		}
	}
	if err != nil {
		return nil, err
	}
	n.x = b.NewBuffer(c.Width)
	n.q, n.k, n.v = b.NewBuffer(q), b.NewBuffer(kv), b.NewBuffer(kv)
	n.gate, n.up = b.NewBuffer(c.Hidden), b.NewBuffer(c.Hidden)
	// What attention makes of rounded activations costs more than it saves: it is a
	// quarter of the work, and half of what rounding loses. Together with the head
	// (see Backend.Logits) it is kept fine.
	n.in, n.att = b.NewAct(c.Width, kernels.Fine), b.NewAct(q, kernels.Fine)
	n.ffn, n.hide = b.NewAct(c.Width, kernels.Coarse), b.NewAct(c.Hidden, kernels.Coarse)
	return n, nil
}

// Forward implements model.Network.
func (n *Network) Forward(b *kernels.Batch) (kernels.Logits, error) {
	d, rows := n.b, b.Rows()
	var err error
	ok := func(e error) bool {
		err = e
		return e == nil
	}
	if !ok(d.Embed(n.x, n.embed, b)) {
		return nil, err
	}
	for i := range n.layers {
		l := &n.layers[i]
		_ = ok(d.Norm(n.in, n.x, l.attnNorm, n.c.Eps, rows)) &&
			ok(d.Linear(n.q, l.q, n.in, rows)) &&
			ok(d.Linear(n.k, l.k, n.in, rows)) &&
			ok(d.Linear(n.v, l.v, n.in, rows)) &&
			ok(d.RopeAppend(i, n.q, n.k, n.v, b)) &&
			ok(d.Attend(i, n.att, n.q, b)) &&
			ok(d.LinearAdd(n.x, l.o, n.att, rows)) &&

			ok(d.Norm(n.ffn, n.x, l.ffnNorm, n.c.Eps, rows)) &&
			ok(d.Linear(n.gate, l.gate, n.ffn, rows)) &&
			ok(d.Linear(n.up, l.up, n.ffn, rows)) &&
			ok(d.SwiGLU(n.hide, n.gate, n.up, rows)) &&
			ok(d.LinearAdd(n.x, l.down, n.hide, rows))
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
	}
	if len(b.Out) == 0 {
		return nil, nil
	}
	return d.Logits(n.x, n.norm, n.c.Eps, n.head, b)
}
