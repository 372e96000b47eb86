package weights

import (
	"fmt"
	"slices"

	"tandem/kernels"
)

// encoding is a tensor type of GGUF: its name, and the block of elements that it
// packs into size bytes (0 where that is not known: types that were withdrawn or
// never are in files).
type encoding struct {
	name        string
	block, size int
	computed    kernels.Type // 0 if we cannot compute with it
}

// encodings by GGUF's numbers. 4, 5, 31 to 33 and 36 to 38 were withdrawn.
var encodings = [...]encoding{
	0:  {"F32", 1, 4, kernels.F32},
	1:  {"F16", 1, 2, kernels.F16},
	2:  {"Q4_0", 32, 18, kernels.Q4_0},
	3:  {"Q4_1", 32, 20, kernels.Q4_1},
	4:  {"Q4_2", 0, 0, 0},
	5:  {"Q4_3", 0, 0, 0},
	6:  {"Q5_0", 32, 22, 0},
	7:  {"Q5_1", 32, 24, 0},
	8:  {"Q8_0", 32, 34, kernels.Q8_0},
	9:  {"Q8_1", 0, 0, 0},
	10: {"Q2_K", 256, 84, 0},
	11: {"Q3_K", 256, 110, 0},
	12: {"Q4_K", 256, 144, 0},
	13: {"Q5_K", 256, 176, 0},
	14: {"Q6_K", 256, 210, kernels.Q6_K},
	15: {"Q8_K", 0, 0, 0},
	16: {"IQ2_XXS", 256, 66, 0},
	17: {"IQ2_XS", 256, 74, 0},
	18: {"IQ3_XXS", 256, 98, 0},
	19: {"IQ1_S", 256, 50, 0},
	20: {"IQ4_NL", 32, 18, 0},
	21: {"IQ3_S", 256, 110, 0},
	22: {"IQ2_S", 256, 82, 0},
	23: {"IQ4_XS", 256, 136, 0},
	24: {"I8", 1, 1, 0},
	25: {"I16", 1, 2, 0},
	26: {"I32", 1, 4, 0},
	27: {"I64", 1, 8, 0},
	28: {"F64", 1, 8, 0},
	29: {"IQ1_M", 256, 56, 0},
	30: {"BF16", 1, 2, kernels.BF16},
	31: {"Q4_0_4_4", 0, 0, 0},
	32: {"Q4_0_4_8", 0, 0, 0},
	33: {"Q4_0_8_8", 0, 0, 0},
	34: {"TQ1_0", 256, 54, 0},
	35: {"TQ2_0", 256, 66, 0},
	36: {"IQ4_NL_4_4", 0, 0, 0},
	37: {"IQ4_NL_4_8", 0, 0, 0},
	38: {"IQ4_NL_8_8", 0, 0, 0},
	39: {"MXFP4", 32, 17, 0},
	40: {"NVFP4", 64, 36, 0},
	41: {"Q1_0", 128, 18, 0},
}

// TensorInfo is what a file's header says of a tensor.
type TensorInfo struct {
	Name string
	// Rows of Cols elements: Cols is the first of GGUF's dimensions, Rows the
	// product of the others.
	Rows, Cols int
	Offset     int64 // in the file, bytes
	Bytes      int64 // 0 if the type's size is not known

	dims   [maxDims]int
	ndims  int
	number uint32 // GGUF's number of the type
}

// Dims are GGUF's dimensions, one to four, the elements of a row first.
func (t TensorInfo) Dims() []int { return slices.Clone(t.dims[:t.ndims]) }

// Type is the format of the elements, or false if it is none that kernels know.
func (t TensorInfo) Type() (kernels.Type, bool) {
	e := t.encoding()
	return e.computed, e.computed != 0
}

// TypeName is the name of the format, known to kernels or not: "Q5_K".
func (t TensorInfo) TypeName() string { return t.encoding().name }

func (t TensorInfo) encoding() encoding {
	if t.number < uint32(len(encodings)) {
		return encodings[t.number]
	}
	return encoding{name: fmt.Sprintf("type %d", t.number)}
}

// Tensors lists the tensors in the file's order.
func (f *File) Tensors() []TensorInfo { return slices.Clone(f.tensors) }

// Tensor gives a tensor whose Data is borrowed from the file until it is closed,
// and read-only. The error wraps ErrMissing if there is no such tensor, and
// kernels.ErrUnsupported if its format is none that kernels know.
func (f *File) Tensor(name string) (kernels.Tensor, error) {
	if f.data == nil {
		return kernels.Tensor{}, f.errorf(tensorItem(name), nil, "the file is closed")
	}
	i, ok := f.byName[name]
	if !ok {
		return kernels.Tensor{}, f.errorf(tensorItem(name), ErrMissing, "missing")
	}
	info := f.tensors[i]
	t, ok := info.Type()
	if !ok {
		return kernels.Tensor{}, f.errorf(tensorItem(name), kernels.ErrUnsupported,
			"its format, %s, is not supported; F32, F16, BF16, Q4_0, Q4_1, Q8_0 and Q6_K are", info.TypeName())
	}
	end := info.Offset + info.Bytes
	return kernels.Tensor{Name: name, Type: t, Rows: info.Rows, Cols: info.Cols, Data: f.data[info.Offset:end:end]}, nil
}
