package cuda_test

import (
	"os"
	"sync"
	"testing"

	"tandem/gpu/driver"
	"tandem/kernels"
	"tandem/kernels/cuda"
	"tandem/kernels/cuda/cudatest"
	"tandem/kernels/kerneltest"
)

func options(d driver.Driver, o kerneltest.Options) cuda.Options {
	return cuda.Options{Driver: d, Device: o.Team.Rank % len(d.Devices()), Shape: o.Shape, Rope: o.Rope, Team: o.Team}
}

// device is what kerneltest tests.
func device(t testing.TB, d driver.Driver, teams ...int) kerneltest.Device {
	var mu sync.Mutex
	lent := map[*cuda.Backend][]driver.Ptr{}
	return kerneltest.Device{
		Packer: cuda.NewPacker(),
		New:    func(o kerneltest.Options) (kernels.Backend, error) { return cuda.New(options(d, o)) },
		Close: func(k kernels.Backend) {
			b := k.(*cuda.Backend)
			for _, p := range lent[b] {
				if err := b.Context().Free(p); err != nil {
					t.Error(err)
				}
			}
			delete(lent, b)
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		},
		Read: func(k kernels.Backend, v kernels.Buffer, r int) []float32 {
			row, err := k.(*cuda.Backend).Row(v, r)
			if err != nil {
				t.Error(err)
			}
			return row
		},
		SharedBytes: func(o kerneltest.Options) int64 { return cuda.SharedBytes(o.Team.Size) },
		Memory: func(k kernels.Backend, contents []byte) kernels.Mem {
			b := k.(*cuda.Backend)
			p, err := b.Context().Alloc(int64(len(contents)))
			if err == nil {
				err = b.Context().Write(p, contents)
			}
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			lent[b] = append(lent[b], p)
			return cuda.Mem{At: p, Bytes: int64(len(contents))}
		},
		ElemBytes: cuda.ElemBytes,
		Slow:      true,
		Teams:     teams,
	}
}

func TestKernels(t *testing.T) {
	kerneltest.Run(t, device(t, cudatest.Driver(t), 1, 2, 3))
}

func TestSuiteNoticesBrokenKernels(t *testing.T) {
	if os.Getenv("TANDEM_CUDA_MUTANTS") == "" && !cudatest.OnCard() {
		t.Skip("minutes on a simulated card, and what it tests is the suite, which the CPU backend tests too: set TANDEM_CUDA_MUTANTS=1")
	}
	kerneltest.Mutants(t, device(t, cudatest.Driver(t), 1, 2))
}
