package cpu

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"tandem/kernels"
)

// anonymous is zeroed memory outside the Go heap, in huge pages where the
// machine gives them.
func anonymous(bytes int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, max(bytes, 1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	if bytes >= 2<<20 {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // a wish
	}
	return mem, nil
}

// An arena hands out pieces of a memory in order. The ranks ask for the same
// pieces in the same order, so a piece of shared memory lies at the same offset
// for all.
type arena struct {
	mem  []byte
	used int
}

func (a *arena) bytes(n int) []byte {
	n = align(n)
	if a.used+n > len(a.mem) {
		panic(fmt.Sprintf("cpu: no room for %d more bytes of values: %d of %d are used; the plan holds %d values of each width", n, a.used, len(a.mem), valuesOfEach))
	}
	a.used += n
	return a.mem[a.used-n : a.used : a.used]
}

func (a *arena) floats(n int) []float32 {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(a.bytes(4*n)))), n)
}

// align rounds up to pairs of cache lines.
func align(n int) int { return (n + 127) &^ 127 }

// leading is the distance between rows of cols floats: whole groups of 16, and
// not a multiple of a page, so that the same column of different rows does not
// fall into the same set of the cache.
func leading(cols int) int {
	ld := (cols + 15) &^ 15
	if ld%1024 == 0 {
		ld += 16
	}
	return ld
}

// rowsUp is the number of rows that storage for n rows has: whole tiles.
func rowsUp(n int) int { return (n + tileRows - 1) &^ (tileRows - 1) }

// partFloats is the room of one block's attention result for one query.
func partFloats(s kernels.Shape) int { return s.HeadDim + partExtra }

// blockKeys is the number of positions in a block of attention.
func blockKeys(g kernels.Geometry) int {
	if g.PageTokens >= keysOfBlock {
		return g.PageTokens
	}
	return keysOfBlock / g.PageTokens * g.PageTokens
}

func widest(s kernels.Shape) int { return max(s.Width, s.Hidden, s.Heads*s.HeadDim) }

// valuesOfEach is how many Buffers and how many Acts of each of a model's
// widths there is room for. Memory that no value is made of is never touched.
const valuesOfEach = 4

// A plan is what a backend needs of memory.
type plan struct {
	shared, private  int
	blocks, partRows int
}

func planOf(o Options) plan {
	s := o.Shape
	p := plan{blocks: (s.Context + blockKeys(s.Geometry) - 1) / blockKeys(s.Geometry)}
	if o.Team.Size > 1 {
		p.partRows = min(s.MaxRows, partialRows)
	}
	p.shared = align(barrierBytes) +
		align(4*p.partRows*s.Heads*p.blocks*partFloats(s)) +
		align(4*s.MaxOut*leading(s.Vocab)) +
		align(4*maxRanks*s.MaxOut*2)
	p.private = align(4*attendFloats(s.HeadDim, s.PageTokens, s.Heads/s.Units)) + align(4*widest(s)) +
		actBytes(s.Width, s.MaxOut)
	for _, cols := range []int{s.Width, s.Heads * s.HeadDim, s.Units * s.HeadDim, s.Hidden} {
		p.shared += valuesOfEach * (bufferBytes(cols, s.MaxRows) + actBytes(cols, s.MaxRows))
		p.private += valuesOfEach * actBytes(cols, min(few, s.MaxRows))
	}
	return p
}

func bufferBytes(cols, rows int) int { return align(4 * leading(cols) * rowsUp(rows)) }

// actBytes is the storage of an Act, in both forms, at its finest.
func actBytes(cols, rows int) int {
	rows = rowsUp(rows)
	return align(4*leading(cols)*rows) + align(rows/tileRows*tileBytes(cols, true))
}

// SharedBytes is the size of the Team.Shared that backends with these options
// need. It depends on the shape and the size of the team.
func SharedBytes(o Options) int64 { return int64(planOf(o).shared) }
