// Package cudatest gives tests a CUDA driver to run package cuda's kernels on.
package cudatest

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"tandem/gpu/driver"
	"tandem/gpu/driver/nvidia"
	"tandem/gpu/sim"
)

// Driver is the one that TANDEM_CUDA_DRIVER names ("libcuda.so.1" on a machine with
// cards), or else the simulated one with the host build of the kernels, which a
// process opens once.
func Driver(t testing.TB) driver.Driver {
	t.Helper()
	opened.Do(func() {
		library := os.Getenv("TANDEM_CUDA_DRIVER")
		if library == "" {
			var path string
			if path, opened.err = HostKernels(); opened.err != nil {
				return
			}
			if opened.err = os.Setenv("CUSIM_KERNELS", path); opened.err != nil {
				return
			}
			if library, opened.err = sim.Library(); opened.err != nil {
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

var opened struct {
	sync.Once
	d   driver.Driver
	err error
}

// OnCard says that Driver's is not the simulated one.
func OnCard() bool { return os.Getenv("TANDEM_CUDA_DRIVER") != "" }

// HostKernels builds the host library of all kernels, if it is not there, and returns
// its path, for CUSIM_KERNELS.
func HostKernels() (string, error) {
	root, err := sim.Root()
	if err != nil {
		return "", err
	}
	find := func(pattern string) []string {
		found, _ := filepath.Glob(filepath.Join(root, "kernels", "cuda", pattern))
		return found
	}
	var sources []string
	for _, f := range find("src/*.cu") {
		if filepath.Base(f) != "bad.cu" { // wrong on purpose, for scripts/sanitize-kernels
			sources = append(sources, f)
		}
	}
	sources = append(sources, find("host/rt_host.cc")...)
	return sim.Kernels("libkernels.so", sources, append(find("src/*.h"), find("host/*.h")...), "-fno-strict-aliasing", "-Wno-unused-function")
}
