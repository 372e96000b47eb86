//go:build linux && cgo

package nvidia

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"tandem/gpu/driver"
	"tandem/gpu/driver/drivertest"
	"tandem/gpu/sim"
)

// simulated is the path of the simulated driver. Its machine is box; children have the same.
var (
	simulated string
	box       *sim.Box
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if err := setUp(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return drivertest.Main(m, open)
	}())
}

func setUp() (err error) {
	if simulated, err = sim.Library(); err != nil {
		return err
	}
	if os.Getenv("CUSIM_CONTROL") != "" {
		return nil // a child: all is in the environment
	}
	root, err := sim.Root()
	if err != nil {
		return err
	}
	kernels, err := sim.Kernels("libdrivertest.so", []string{filepath.Join(root, "gpu/driver/drivertest/kernels/kernels.cc")}, nil)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp("", "box")
	if err != nil {
		return err
	}
	f.Close()
	if box, err = sim.NewBox(f.Name()); err != nil {
		return err
	}
	os.Setenv("CUSIM_CONTROL", f.Name())
	os.Setenv("CUSIM_KERNELS", kernels)
	return nil
}

func open() (driver.Driver, error) { return Open(Options{Library: simulated}) }

func TestSuite(t *testing.T) { drivertest.Run(t, open) }

func TestNoDriver(t *testing.T) {
	_, err := Open(Options{Library: "/nonexistent/libcuda.so.1"})
	if !errors.Is(err, driver.ErrNoDriver) {
		t.Errorf("got %v", err)
	}
}
