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

// underTest is the driver under test: the simulated one, unless TANDEM_TEST_CUDA names another, such as
// libcuda.so.1.
var underTest = os.Getenv("TANDEM_TEST_CUDA")

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "box")
	if err == nil {
		err = setUp(dir)
	}
	status := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		status = drivertest.Main(m, open)
	}
	os.RemoveAll(dir)
	os.Exit(status)
}

// setUp makes a machine of simulated cards. Children of tests find it in the environment.
func setUp(dir string) (err error) {
	if underTest != "" {
		return nil
	}
	if underTest, err = sim.Library(); err != nil {
		return err
	}
	root, err := sim.Root()
	if err != nil {
		return err
	}
	kernels, err := sim.Kernels("libdrivertest.so", []string{filepath.Join(root, "gpu/driver/drivertest/kernels/kernels.cc")}, nil)
	if err != nil {
		return err
	}
	box, err := sim.NewBox(filepath.Join(dir, "box"))
	if err != nil {
		return err
	}
	os.Setenv("CUSIM_CONTROL", box.Path())
	os.Setenv("CUSIM_KERNELS", kernels)
	os.Setenv("TANDEM_TEST_CUDA", underTest)
	return nil
}

func open() (driver.Driver, error) { return Open(Options{Library: underTest}) }

// simulated skips a test that a card cannot be asked for.
func simulated(t *testing.T) {
	if os.Getenv("CUSIM_CONTROL") == "" {
		t.Skip("the driver is not the simulated one")
	}
}

func TestSuite(t *testing.T) { drivertest.Run(t, open) }

func TestNoDriver(t *testing.T) {
	_, err := Open(Options{Library: "/nonexistent/libcuda.so.1"})
	if !errors.Is(err, driver.ErrNoDriver) {
		t.Errorf("got %v", err)
	}
}
