package cuda

import (
	"unsafe"

	"tandem/gpu/driver"
)

// The structures that kernels take, as src declares them: fields of natural
// alignment, so Go and C lay them out alike.

const maxRanks = 8

type peers struct {
	p [maxRanks]driver.Ptr // the rank's own first
	n int32
}

type cache struct {
	units                      driver.Ptr
	pageBytes                  uint64
	layer, headDim, pageTokens int32
}

type rowsOf struct{ pos, seq, first, pages driver.Ptr }

type embedParams struct {
	x, table, tokens driver.Ptr
	ld, cols         int32
}

type linearParams struct {
	out                                 peers
	a, w                                driver.Ptr
	ldOut, ldA, n, cols, rows, to, addd int32
}

type normParams struct {
	a, x, w, rows  driver.Ptr
	eps            float32
	ldA, ldX, cols int32
}

type ropeParams struct {
	kv                                    cache
	rows                                  rowsOf
	q, k, v, rope                         driver.Ptr
	ldQ, ldKV, head, heads, unit, unitsOf int32
}

type attendParams struct {
	out                                   peers
	kv                                    cache
	rows                                  rowsOf
	q, parts                              driver.Ptr
	scale                                 float32
	ldOut, ldQ, head, heads, each, blocks int32
}

type swigluParams struct {
	a               peers
	gate, up        driver.Ptr
	ldA, ld, lo, hi int32
}

type argmaxParams struct {
	x, best driver.Ptr
	ld, n   int32
}

type meetParams struct {
	words, failed       driver.Ptr
	patience            uint64
	rank, size, meeting uint32
}

type pageCopyParams struct {
	to, from, list driver.Ptr
	bytes          uint64
	blocks         int32
}

type pageDigestParams struct {
	digests, from, list, seeds, sums driver.Ptr
	bytes                            uint64
}

func bytesOf[T any](p *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
}
