// Package family finds out which network a weight file holds and gives it a
// common face. It is the one place that lists the families.
package family

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"tandem/kernels"
	"tandem/model"
	"tandem/model/llama"
	"tandem/model/weights"
)

// Model is an opened weight file of a known family.
type Model struct {
	File  *weights.File
	Info  model.Info
	llama *llama.Config
}

// Open opens the file and checks that it is a model that can be run.
func Open(path string) (*Model, error) {
	f, err := weights.Open(path)
	if err != nil {
		return nil, err
	}
	m, err := of(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return m, nil
}

func of(f *weights.File) (*Model, error) {
	arch, err := f.String("general.architecture")
	if err != nil {
		return nil, err
	}
	switch arch {
	case "llama":
		c, err := llama.Open(f)
		if err != nil {
			return nil, err
		}
		return &Model{File: f, Info: c.Info(), llama: c}, nil
	}
	return nil, fmt.Errorf("%s: key %q: architecture %q is not supported (known: llama)", f.Name(), "general.architecture", arch)
}

// Layout is the KV layout when an element takes elem bytes.
func (m *Model) Layout(elem int) model.Layout { return m.llama.Layout(elem) }

// Plan lays out the image of the weights, for positions below context.
func (m *Model) Plan(p kernels.Packer, context int) (*weights.Plan, error) {
	return m.llama.Plan(p, context)
}

// ImageKey names the image that Plan makes of this file: another file, packing or
// context has another.
func (m *Model) ImageKey(packing string, context int) [32]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%d\x00%d\x00", packing, context, m.File.Size())
	for _, t := range m.File.Tensors() {
		fmt.Fprintf(h, "%s\x00%s\x00%v\x00", t.Name, t.TypeName(), t.Dims())
	}
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(m.Info.Parameters))
	h.Write(b[:])
	return [32]byte(h.Sum(nil))
}

// Rope is the rotary table of an image of this model.
func (m *Model) Rope(img *weights.Image) ([]float32, error) { return llama.Rope(img) }

// Bind makes the forward pass over an image's weights on one rank's backend.
func (m *Model) Bind(img *weights.Image, b kernels.Backend) (model.Network, error) {
	return llama.New(m.llama, img, b)
}

// Close unmaps the file. Nothing made from it may be used after.
func (m *Model) Close() error { return m.File.Close() }

// Keys are the file's keys, for the tokenizer and the chat template.
func (m *Model) Keys() *weights.File { return m.File }
