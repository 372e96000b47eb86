package kerneltest_test

import (
	"testing"

	"tandem/kernels"
	"tandem/kernels/kerneltest"
	"tandem/kernels/ref"
)

// The reference passes its own suite: what the suite asks can be done.
func TestReference(t *testing.T) {
	kerneltest.Run(t, kerneltest.Device{
		Packer: ref.Packer{},
		New: func(o kerneltest.Options) (kernels.Backend, error) {
			return ref.New(ref.Options{Shape: o.Shape, Rope: o.Rope}), nil
		},
		Close: func(kernels.Backend) {},
		Read: func(_ kernels.Backend, v kernels.Buffer, r int) []float32 {
			var out []float32
			for _, x := range v.(*ref.Buffer).Row(r) {
				out = append(out, float32(x))
			}
			return out
		},
		ElemBytes: ref.ElemBytes,
		Slow:      true,
		Teams:     []int{1},
	})
}
