package cpu

/*
#cgo CFLAGS: -O3 -std=c11 -D_GNU_SOURCE
#cgo LDFLAGS: -lm
#include <stdlib.h>
#include "call.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"

	"tandem/gpu/hostsync"
	"tandem/kernels"
)

// -std=c11 above is not a matter of taste: it is what keeps the compiler from
// fusing multiplications with additions on its own account. See kern.h.

const (
	tileRows     = C.tk_tile
	expandGroups = C.tk_expand
	partExtra    = C.tk_part_extra
	keysOfBlock  = C.tk_keys
	q41Block     = C.tk_q4_1_block
	q40Pair      = C.tk_q4_0_pair
	q80Pair      = C.tk_q8_0_pair
	q6kSuper     = C.tk_q6_k_super
	barrierBytes = hostsync.BarrierBytes
)

func tileBytes(cols int, fine bool) int { return int(C.tk_tile_bytes(C.int(cols), flag(fine))) }

func groupBytes(t kernels.Type, cols int) int { return int(C.tk_group_bytes(C.int(t), C.int(cols))) }

func attendFloats(headDim, pageTokens, heads int) int {
	return int(C.tk_attend_floats(C.int(headDim), C.int(pageTokens), C.int(heads)))
}

// kern is a table of kernels. Memory that its methods get is not kept by C.
type kern struct{ t *C.tk_table }

func find(isa string) (kern, bool) {
	name := C.CString(isa)
	defer C.free(unsafe.Pointer(name))
	t := C.tk_find(name)
	return kern{t}, t != nil
}

func (k kern) name() string { return C.GoString(k.t.name) }

func fp(s []float32) *C.float         { return (*C.float)(unsafe.Pointer(unsafe.SliceData(s))) }
func bp(s []byte) *C.uint8_t          { return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(s))) }
func ip(s []uint32) *C.uint32_t       { return (*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(s))) }
func up(n *atomic.Uint64) *C.uint64_t { return (*C.uint64_t)(unsafe.Pointer(n)) }

func (k kern) norm(x []float32, ldx int, w []float32, eps float32, cols, n, to int, f []float32, ldf int, t []byte, fine bool, tmp []float32) {
	C.tk_norm(k.t, fp(x), C.long(ldx), fp(w), C.float(eps), C.int(cols), C.int(n), C.int(to), fp(f), C.long(ldf), bp(t), flag(fine), fp(tmp))
}

func (k kern) quant(x []float32, ldx, cols, r0, r1 int, t []byte, fine bool) {
	C.tk_quant(k.t, fp(x), C.long(ldx), C.int(cols), C.int(r0), C.int(r1), bp(t), flag(fine))
}

func (k kern) gemmQ(t kernels.Type, w []byte, g0, g1, cols int, tiles []byte, fine bool, n int, out []float32, ldo int, add bool, steps *atomic.Uint64) {
	C.tk_gemm_q(k.t, C.int(t), bp(w), C.int(g0), C.int(g1), C.int(cols), bp(tiles), flag(fine), C.int(n), fp(out), C.long(ldo), flag(add), up(steps))
}

func (k kern) gemmF(t kernels.Type, w []byte, g0, g1, cols int, x []float32, ldx, n int, out []float32, ldo int, add bool, scratch []float32, steps *atomic.Uint64) {
	C.tk_gemm_f(k.t, C.int(t), bp(w), C.int(g0), C.int(g1), C.int(cols), fp(x), C.long(ldx), C.int(n), fp(out), C.long(ldo), flag(add), fp(scratch), up(steps))
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func (k kern) rope(x []float32, ldx, n, c0, c1, headDim int, table []float32) {
	C.tk_rope(k.t, fp(x), C.long(ldx), C.int(n), C.int(c0), C.int(c1), C.int(headDim), fp(table))
}

// A cacheForm is how the KV cache lies in memory.
type cacheForm struct {
	headDim, pageTokens int
	elem                kernels.Type
	pageStride          int
}

func (k kern) append(c cacheForm, unit []byte, pages []uint32, pos, n int, key, value []float32, ld int, next []byte) {
	C.tk_append(k.t, C.int(c.headDim), C.int(c.pageTokens), C.int(c.elem), C.size_t(c.pageStride),
		bp(unit), ip(pages), C.int(pos), C.int(n), fp(key), fp(value), C.long(ld), bp(next))
}

// attend writes to out, or to part if that is not nil.
func (k kern) attend(c cacheForm, unit []byte, pages []uint32, q []float32, ldq, pos, rows, heads, b0, b1 int,
	out []float32, ldo int, part []float32, partBlock, partHead int, next []byte, scratch []float32, steps *atomic.Uint64) {
	C.tk_attend(k.t, C.int(c.headDim), C.int(c.pageTokens), C.int(c.elem), C.size_t(c.pageStride),
		bp(unit), ip(pages), fp(q), C.long(ldq), C.int(pos), C.int(rows), C.int(heads), C.int(b0), C.int(b1),
		fp(out), C.long(ldo), fp(part), C.long(partBlock), C.long(partHead), bp(next), fp(scratch), up(steps))
}

func (k kern) fold(headDim int, part []float32, partBlock, blocks int, out []float32) {
	C.tk_fold(k.t, C.int(headDim), fp(part), C.long(partBlock), C.int(blocks), fp(out))
}

func (k kern) swiglu(gate, up []float32, ld, c0, c1, n int, f []float32, ldf int, t []byte, fine bool, cols int) {
	C.tk_swiglu(k.t, fp(gate), fp(up), C.long(ld), C.int(c0), C.int(c1), C.int(n), fp(f), C.long(ldf), bp(t), flag(fine), C.int(cols))
}

func (k kern) embed(t kernels.Type, w []byte, cols, row, c0, c1 int, out []float32) {
	C.tk_embed(k.t, C.int(t), bp(w), C.int(cols), C.int(row), C.int(c0), C.int(c1), fp(out))
}

func (k kern) argmax(x []float32, lo, hi int) int {
	return int(C.tk_argmax(k.t, fp(x), C.int(lo), C.int(hi)))
}
