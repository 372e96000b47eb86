package cuda_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"tandem/gpu/driver"
	"tandem/gpu/driver/nvidia"
	"tandem/gpu/sim"
	"tandem/kernels"
	"tandem/kernels/cuda"
	"tandem/kernels/kerneltest"
)

// open opens the driver under test: the one that TANDEM_CUDA_DRIVER names
// ("libcuda.so.1" on a machine with cards), or the simulated one with the host build
// of our kernels.
func open(t testing.TB) driver.Driver {
	t.Helper()
	opened.Do(func() {
		library := os.Getenv("TANDEM_CUDA_DRIVER")
		onCard = library != ""
		if library == "" {
			var err error
			if library, err = sim.Library(); err == nil {
				err = hostKernels()
			}
			if err != nil {
				opened.err = err
				return
			}
		}
		opened.d, opened.err = nvidia.Open(nvidia.Options{Library: library})
	})
	if opened.err != nil {
		t.Fatal(opened.err)
	}
	return opened.d
}

// onCard says that the driver is not the simulated one.
var onCard bool

var opened struct {
	sync.Once
	d   driver.Driver
	err error
}

// hostKernels builds the host library of all kernels and names it to the simulation.
func hostKernels() error {
	sources, _ := filepath.Glob("src/*.cu")
	headers, _ := filepath.Glob("src/*.h")
	more, _ := filepath.Glob("host/*.h")
	path, err := sim.Kernels("libkernels.so", append(sources, "host/rt_host.cc"), append(headers, more...), "-fno-strict-aliasing", "-Wno-unused-function")
	if err != nil {
		return err
	}
	return os.Setenv("CUSIM_KERNELS", path)
}

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
	kerneltest.Run(t, device(t, open(t), 1, 2, 3))
}
