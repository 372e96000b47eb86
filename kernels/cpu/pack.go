package cpu

import (
	"encoding/binary"
	"fmt"
	"math"

	"tandem/kernels"
	"tandem/kernels/quant"
)

// Packer lays weights out as kern.h says: rows in groups of 16, the last group
// filled up with zeros. A tensor of one row is a vector and becomes floats.
type Packer struct{}

// NewPacker returns the packer for every backend of this package: the packed
// form is the same for all instruction sets and both sets of kernels.
func NewPacker() kernels.Packer { return Packer{} }

// PackedBytes implements kernels.Packer.
func (Packer) PackedBytes(t kernels.Type, rows, cols int) (int64, error) {
	switch {
	case !t.Valid():
		return 0, fmt.Errorf("cpu: a %d×%d matrix of %v: %w", rows, cols, t, kernels.ErrUnsupported)
	case rows < 1 || cols < 1 || rows > math.MaxInt32 || cols > math.MaxInt32:
		return 0, fmt.Errorf("cpu: a %d×%d matrix: %w", rows, cols, kernels.ErrUnsupported)
	case cols%t.Block() != 0:
		return 0, fmt.Errorf("cpu: a %d×%d matrix of %v, whose blocks are of %d: %w", rows, cols, t, t.Block(), kernels.ErrUnsupported)
	case rows == 1:
		return (4*int64(cols) + 63) &^ 63, nil
	case cols%32 != 0:
		return 0, fmt.Errorf("cpu: a %d×%d matrix, whose columns are no multiple of 32: %w", rows, cols, kernels.ErrUnsupported)
	}
	return int64(rows+15) / 16 * int64(groupBytes(t, cols)), nil
}

// Pack implements kernels.Packer.
func (p Packer) Pack(dst []byte, src kernels.Tensor) error {
	want, err := p.PackedBytes(src.Type, src.Rows, src.Cols)
	if err != nil {
		return fmt.Errorf("%s: %w", src.Name, err)
	}
	if int64(len(dst)) != want {
		return fmt.Errorf("cpu: %s: %d bytes for a packed form of %d", src.Name, len(dst), want)
	}
	row := int(src.Type.RowBytes(src.Cols))
	if len(src.Data) != row*src.Rows {
		return fmt.Errorf("cpu: %s: %d bytes of %v, %d×%d has %d", src.Name, len(src.Data), src.Type, src.Rows, src.Cols, row*src.Rows)
	}
	clear(dst)
	if src.Rows == 1 {
		v := make([]float32, src.Cols)
		if err := quant.Dequantise(v, src.Type, src.Data); err != nil {
			return fmt.Errorf("cpu: %s: %w", src.Name, err)
		}
		for i, x := range v {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
		}
		return nil
	}
	group := groupBytes(src.Type, src.Cols)
	for r := range src.Rows {
		packRow[src.Type](dst[r/16*group:(r/16+1)*group], r%16, src.Data[r*row:(r+1)*row])
	}
	return nil
}

// packRow puts one row, as a file stores it, into slot r of a group.
var packRow = [...]func(g []byte, r int, row []byte){
	kernels.F32: func(g []byte, r int, row []byte) {
		for k := 0; k < len(row); k += 4 {
			copy(g[k*16+r*4:][:4], row[k:])
		}
	},
	kernels.F16:  packHalves,
	kernels.BF16: packHalves,
	kernels.Q4_0: func(g []byte, r int, row []byte) {
		for b := 0; len(row) > 0; b, row = b+1, row[18:] {
			pair := g[b/2*q40Pair:]
			copy(pair[b%2*32+r*2:][:2], row)
			packQuants(pair[64+b%2*256:], r, row[2:18])
		}
	},
	kernels.Q4_1: func(g []byte, r int, row []byte) {
		for ; len(row) > 0; g, row = g[q41Block:], row[20:] {
			copy(g[r*2:][:2], row)
			copy(g[32+r*2:][:2], row[2:])
			packQuants(g[64:], r, row[4:20])
		}
	},
	kernels.Q8_0: func(g []byte, r int, row []byte) {
		for b := 0; len(row) > 0; b, row = b+1, row[34:] {
			pair := g[b/2*q80Pair:]
			copy(pair[b%2*32+r*2:][:2], row)
			for j := range 8 {
				v := binary.LittleEndian.Uint32(row[2+4*j:])
				binary.LittleEndian.PutUint32(pair[64+b%2*512+64*j+4*r:], v^0x80808080) // adds 128 to each byte
			}
		}
	},
	kernels.Q6_K: func(g []byte, r int, row []byte) {
		for ; len(row) > 0; g, row = g[q6kSuper:], row[210:] {
			low, high, scales := row[:128], row[128:192], row[192:208]
			copy(g[r*2:][:2], row[208:])
			for i := range 256 {
				// Element i = 128h + 32k + l, see package quant.
				h, k, l := i/128, i/32%4, i%32
				lo := low[64*h+32*(k%2)+l] >> (k / 2 * 4) & 15
				hi := high[32*h+l] >> (2 * k) & 3
				b, col := i/32, i%32
				j, at := col%16/4, r*4+col%4
				g[64+256+1024+b*256+64*j+at] |= lo << (col / 16 * 4)
				g[64+256+b*128+col/16*64+at] |= hi << (2 * j)
				if i%16 == 0 {
					g[64+b*32+col/16*16+r] = scales[i/16]
				}
			}
		}
	},
}

func packHalves(g []byte, r int, row []byte) {
	for k := 0; k < len(row); k += 2 {
		copy(g[k*16+r*2:][:2], row[k:])
	}
}

// packQuants puts 16 bytes of 4-bit numbers into slot r: the halves of a file's
// bytes are 16 columns apart, as here.
func packQuants(q []byte, r int, row []byte) {
	for j := range 4 {
		copy(q[64*j+4*r:][:4], row[4*j:])
	}
}
