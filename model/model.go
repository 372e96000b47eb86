// Package model says what the rest of the appliance may know about a network:
// its sizes, how the state of a sequence lies in memory, and the two calls that
// run it. The child packages hold the parts: weights (files), token, chat,
// sample, and one package for each family (llama).
package model

import (
	"encoding/binary"
	"hash/fnv"

	"tandem/kernels"
)

// Info describes a loaded or loadable model to people and to admission.
type Info struct {
	Name         string // general.name of the file, may be empty
	Arch         string
	Quantisation string // the prevailing matrix format, as "Q4_1"
	Parameters   int64
	WeightBytes  int64
	Context      int // positions the model was trained for
	Vocab        int
	Shape        kernels.Shape // without the limits that the caller sets
}

// Layout is all that pools, transfers and checks know about a sequence's state
// on a device: growing parts in pages, cut into units that are dealt out to the
// ranks (see kernels.Geometry), and a tail of constant size (nothing for Llama).
type Layout struct {
	kernels.Geometry
	UnitPageBytes int64 // one page of one unit
	TailBytes     int64 // one sequence's tail on one rank
}

// PageBytes is what one page takes on a whole replica.
func (l Layout) PageBytes() int64 { return l.UnitPageBytes * int64(l.Units) }

// Pages is the number of pages that tokens positions need.
func (l Layout) Pages(tokens int) int { return (tokens + l.PageTokens - 1) / l.PageTokens }

// Fingerprint names the layout: two processes that disagree on it must not
// exchange pages.
func (l Layout) Fingerprint() uint64 {
	h := fnv.New64a()
	for _, v := range []int64{1, int64(l.Layers), int64(l.Units), int64(l.HeadDim), int64(l.PageTokens), l.UnitPageBytes, l.TailBytes} {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], uint64(v))
		h.Write(b[:])
	}
	return h.Sum64()
}

// Network is a forward pass bound to one rank's backend. It belongs to the
// goroutine that calls it.
type Network interface {
	// Forward computes the batch's rows and appends their keys and values to the
	// cache. The result holds logits for b.Out, valid until the next call; it is
	// nil if b.Out is empty.
	Forward(b *kernels.Batch) (kernels.Logits, error)
}
