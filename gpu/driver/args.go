package driver

import (
	"encoding/binary"
	"math"
)

// Args are the arguments of a launch, laid out as a kernel's parameters are: each at the next multiple of
// its alignment. One is meant to be used again and again by whoever launches; the zero value is empty.
//
//	c.Launch(s, f, grid, args.Reset().Ptr(x).Ptr(y).I32(n))
type Args struct{ buf []byte }

// Reset empties a.
func (a *Args) Reset() *Args {
	a.buf = a.buf[:0]
	return a
}

// Bytes is what the parameters are filled with. It is a's until the next call.
func (a *Args) Bytes() []byte { return a.buf }

func (a *Args) align(n int) {
	for len(a.buf)%n != 0 {
		a.buf = append(a.buf, 0)
	}
}

func (a *Args) U32(v uint32) *Args {
	a.align(4)
	a.buf = binary.LittleEndian.AppendUint32(a.buf, v)
	return a
}

func (a *Args) U64(v uint64) *Args {
	a.align(8)
	a.buf = binary.LittleEndian.AppendUint64(a.buf, v)
	return a
}

func (a *Args) Ptr(p Ptr) *Args     { return a.U64(uint64(p)) }
func (a *Args) I32(v int32) *Args   { return a.U32(uint32(v)) }
func (a *Args) I64(v int64) *Args   { return a.U64(uint64(v)) }
func (a *Args) F32(v float32) *Args { return a.U32(math.Float32bits(v)) }

// Struct adds a parameter that is a struct: its bytes, and the alignment that C gives it (a power of two).
func (a *Args) Struct(mem []byte, align int) *Args {
	a.align(align)
	a.buf = append(a.buf, mem...)
	return a
}
