package cpu

import "tandem/kernels"

// Row is row r of a buffer.
func Row(v kernels.Buffer, r int) []float32 { return v.(*buffer).row(r) }

// Share is the part of cols columns that a rank has under the deal of a matrix
// with those rows in Linear, and under LinearAdd's.
func Share(b *Backend, rows int, p kernels.Partition) (lo, hi, addLo, addHi int) {
	lo, hi = b.share(b.dealOf(&matrix{Packed: kernels.Packed{Rows: rows}, part: p}), rows)
	addLo, addHi = b.share(byGroup, rows)
	return
}

// WideBuffer is a buffer for n rows, in memory of its own.
func WideBuffer(b *Backend, cols, n int) kernels.Buffer {
	ld := leading(cols)
	return &buffer{cols: cols, ld: ld, data: make([]float32, ld*rowsUp(n))}
}
