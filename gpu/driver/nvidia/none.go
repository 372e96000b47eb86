//go:build !linux || !cgo

package nvidia

import (
	"fmt"

	"tandem/gpu/driver"
)

// Open always fails: this build cannot load a library.
func Open(Options) (driver.Driver, error) {
	return nil, fmt.Errorf("%w: this build has no cgo", driver.ErrNoDriver)
}
