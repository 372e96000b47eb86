// Package nvidia is driver.Driver over libcuda.so.1, which it loads at run time: building needs no CUDA, and a
// machine without a driver gets driver.ErrNoDriver. Symbols are asked for by their exact names (abi.h), so that
// drivers of CUDA 12 and 13 mean the same by them.
//
// Every call is one cgo call that also makes the context current on whatever thread it runs on.
package nvidia

// Options say what to load.
type Options struct {
	// Library is a path or a name for the dynamic linker; empty is libcuda.so.1.
	Library string
}

// minVersion is CUDA 12.0: earlier drivers lack functions that we ask for.
const minVersion = 12000
