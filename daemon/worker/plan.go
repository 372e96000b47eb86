package worker

import (
	"encoding/binary"
	"fmt"

	"tandem/gpu/pagepool"
)

// A plan is one step of a replica: what its leader decided and every rank
// executes. It is all that a rank needs to know; followers keep no state of
// sequences. The leader writes it into the replica's scratch memory and rings.
type plan struct {
	spans  []span
	retire []uint64 // attempts that no later plan will touch
}

// span is consecutive tokens of one sequence.
type span struct {
	attempt uint64
	pos     int // of the first token
	tokens  []int32
	pages   []uint32 // page table up to the last token
	out     bool     // the logits after the last token are wanted

	// Of a prefill span:
	slot    uint32
	sealing bool // pages are published as they fill
	last    bool // after this span the sequence's prefill is complete
	target  []pagepool.Page
	epochs  []uint32 // of pages
}

// planBytes bounds the encoding of a plan.
func planBytes(maxRows, maxSpans, maxPages int) int {
	return 64 + 8*maxSpans + 4*maxRows + maxSpans*(64+16*maxPages) + 1<<14
}

func (p *plan) encode(b []byte) []byte {
	u32 := func(v int) { b = binary.LittleEndian.AppendUint32(b, uint32(v)) }
	u64 := func(v uint64) { b = binary.LittleEndian.AppendUint64(b, v) }
	u32(len(p.retire))
	for _, a := range p.retire {
		u64(a)
	}
	u32(len(p.spans))
	for i := range p.spans {
		s := &p.spans[i]
		flags := 0
		for bit, set := range []bool{s.out, s.sealing, s.last, len(s.target) > 0} {
			if set {
				flags |= 1 << bit
			}
		}
		u64(s.attempt)
		u32(s.pos)
		u32(int(s.slot))
		u32(flags)
		u32(len(s.tokens))
		for _, t := range s.tokens {
			u32(int(t))
		}
		u32(len(s.pages))
		for i, pg := range s.pages {
			u32(int(pg))
			if s.sealing {
				u32(int(s.epochs[i]))
			}
			if len(s.target) > 0 {
				u32(int(s.target[i].Index))
				u32(int(s.target[i].Epoch))
			}
		}
	}
	return b
}

// decode is the inverse of encode. The bytes come from our own leader; a fault in
// them is a bug that ends the rank.
func (p *plan) decode(b []byte) error {
	bad := false
	u32 := func() int {
		if len(b) < 4 {
			bad = true
			return 0
		}
		v := binary.LittleEndian.Uint32(b)
		b = b[4:]
		return int(v)
	}
	u64 := func() uint64 { lo := u32(); return uint64(lo) | uint64(u32())<<32 }
	list := func() int {
		n := u32()
		if n > len(b)/4 {
			bad = true
			return 0
		}
		return n
	}
	p.retire, p.spans = p.retire[:0], p.spans[:0]
	for range list() {
		p.retire = append(p.retire, u64())
	}
	for range list() {
		s := span{attempt: u64(), pos: u32(), slot: uint32(u32())}
		flags := u32()
		s.out, s.sealing, s.last = flags&1 != 0, flags&2 != 0, flags&4 != 0
		s.tokens = make([]int32, list())
		for i := range s.tokens {
			s.tokens[i] = int32(u32())
		}
		s.pages = make([]uint32, list())
		if s.sealing {
			s.epochs = make([]uint32, len(s.pages))
		}
		if flags&8 != 0 {
			s.target = make([]pagepool.Page, len(s.pages))
		}
		for i := range s.pages {
			s.pages[i] = uint32(u32())
			if s.sealing {
				s.epochs[i] = uint32(u32())
			}
			if s.target != nil {
				s.target[i] = pagepool.Page{Index: uint32(u32()), Epoch: uint32(u32())}
			}
		}
		p.spans = append(p.spans, s)
	}
	if bad {
		return fmt.Errorf("a plan that cannot be read")
	}
	return nil
}
