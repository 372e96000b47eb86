package cuda

import (
	"encoding/binary"
	"fmt"
	"math"

	"tandem/kernels"
	"tandem/kernels/quant"
)

// Packer lays weights out as src/weights.h says: the file's numbers, regrouped so
// that a thread takes a block's in whole words. A tensor of one row is a vector and
// becomes floats.
type Packer struct{}

// NewPacker returns the packer for this package's backends.
func NewPacker() kernels.Packer { return Packer{} }

func up16(n int) int { return (n + 15) &^ 15 }

// rowBytes is the size of a packed row.
func rowBytes(t kernels.Type, cols int) int {
	switch t {
	case kernels.F32:
		return up16(4 * cols)
	case kernels.F16, kernels.BF16:
		return up16(2 * cols)
	case kernels.Q8_0:
		return up16(cols) + up16(cols/16)
	case kernels.Q4_0:
		return up16(cols/2) + up16(cols/16)
	case kernels.Q4_1:
		return up16(cols/2) + up16(cols/8)
	case kernels.Q6_K:
		return up16(cols/2) + up16(cols/4) + up16(cols/16) + up16(cols/128)
	}
	panic(fmt.Sprintf("cuda: no packed form of %v", t))
}

// PackedBytes implements kernels.Packer.
func (Packer) PackedBytes(t kernels.Type, rows, cols int) (int64, error) {
	switch {
	case !t.Valid():
		return 0, fmt.Errorf("cuda: a %d×%d matrix of %v: %w", rows, cols, t, kernels.ErrUnsupported)
	case rows < 1 || cols < 1 || rows > math.MaxInt32 || cols > math.MaxInt32:
		return 0, fmt.Errorf("cuda: a %d×%d matrix: %w", rows, cols, kernels.ErrUnsupported)
	case cols%t.Block() != 0:
		return 0, fmt.Errorf("cuda: a %d×%d matrix of %v, whose blocks are of %d: %w", rows, cols, t, t.Block(), kernels.ErrUnsupported)
	case rows == 1:
		return (4*int64(cols) + 63) &^ 63, nil
	case cols%32 != 0:
		return 0, fmt.Errorf("cuda: a %d×%d matrix, whose columns are no multiple of 32: %w", rows, cols, kernels.ErrUnsupported)
	}
	return (int64(rows)*int64(rowBytes(t, cols)) + 63) &^ 63, nil
}

// Pack implements kernels.Packer.
func (p Packer) Pack(dst []byte, src kernels.Tensor) error {
	want, err := p.PackedBytes(src.Type, src.Rows, src.Cols)
	if err != nil {
		return fmt.Errorf("%s: %w", src.Name, err)
	}
	if int64(len(dst)) != want {
		return fmt.Errorf("cuda: %s: %d bytes for a packed form of %d", src.Name, len(dst), want)
	}
	row := int(src.Type.RowBytes(src.Cols))
	if len(src.Data) != row*src.Rows {
		return fmt.Errorf("cuda: %s: %d bytes of %v, %d×%d has %d", src.Name, len(src.Data), src.Type, src.Rows, src.Cols, row*src.Rows)
	}
	clear(dst)
	if src.Rows == 1 {
		v := make([]float32, src.Cols)
		if err := quant.Dequantise(v, src.Type, src.Data); err != nil {
			return fmt.Errorf("cuda: %s: %w", src.Name, err)
		}
		for i, x := range v {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
		}
		return nil
	}
	packed := rowBytes(src.Type, src.Cols)
	for r := range src.Rows {
		packRow(dst[r*packed:(r+1)*packed], src.Type, src.Cols, src.Data[r*row:(r+1)*row])
	}
	return nil
}

// packRow packs one row, as a file stores it.
func packRow(dst []byte, t kernels.Type, cols int, row []byte) {
	switch t {
	case kernels.F32, kernels.F16, kernels.BF16:
		copy(dst, row)
	case kernels.Q8_0:
		scales := dst[up16(cols):]
		for b := range cols / 32 {
			copy(scales[2*b:][:2], row[34*b:])
			copy(dst[32*b:][:32], row[34*b+2:])
		}
	case kernels.Q4_0:
		scales := dst[up16(cols/2):]
		for b := range cols / 32 {
			copy(scales[2*b:][:2], row[18*b:])
			copy(dst[16*b:][:16], row[18*b+2:])
		}
	case kernels.Q4_1:
		scales := dst[up16(cols/2):]
		for b := range cols / 32 {
			copy(scales[4*b:][:4], row[20*b:])
			copy(dst[16*b:][:16], row[20*b+4:])
		}
	case kernels.Q6_K:
		high := dst[up16(cols/2):]
		scales := high[up16(cols/4):]
		d := scales[up16(cols/16):]
		for s := range cols / 256 {
			block := row[210*s : 210*s+210]
			copy(scales[16*s:][:16], block[192:])
			copy(d[2*s:][:2], block[208:])
			for i := range 256 {
				// Element i = 128h + 32g + l, see package quant; in the packed form it is
				// element j of block b.
				h, g, l := i/128, i/32%4, i%32
				lo := block[64*h+32*(g%2)+l] >> (g / 2 * 4) & 15
				hi := block[128+32*h+l] >> (2 * g) & 3
				b, j := 8*s+i/32, i%32
				dst[16*b+j%16] |= lo << (j / 16 * 4)
				high[8*b+j%8] |= hi << (j / 8 * 2)
			}
		}
	}
}
