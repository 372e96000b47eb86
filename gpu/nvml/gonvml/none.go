//go:build !linux || !cgo

package gonvml

import (
	"fmt"

	"tandem/gpu/nvml"
)

// Open always fails: this build cannot load a library.
func Open(string) (nvml.Library, error) {
	return nil, fmt.Errorf("%w: this build has no cgo", nvml.ErrNoLibrary)
}
