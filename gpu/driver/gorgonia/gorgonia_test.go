//go:build gorgonia && linux && cgo

package gorgonia

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"tandem/gpu/driver"
	"tandem/gpu/driver/drivertest"
	"tandem/gpu/driver/nvidia"
	"tandem/gpu/sim"
)

func TestMain(m *testing.M) { os.Exit(drivertest.Main(m, open)) }

func open() (driver.Driver, error) {
	root, err := sim.Root()
	if err != nil {
		return nil, err
	}
	kernels, err := sim.Kernels("libdrivertest.so", []string{filepath.Join(root, "gpu/driver/drivertest/kernels/kernels.cc")}, nil)
	if err != nil {
		return nil, err
	}
	if err := os.Setenv("CUSIM_KERNELS", kernels); err != nil {
		return nil, err
	}
	return Open(nvidia.Options{})
}

func TestSuite(t *testing.T) {
	if os.Getenv("CUSIM_CONTROL") == "" {
		t.Skip("scripts/gorgonia runs this on simulated cards")
	}
	drivertest.Run(t, open)
}

// Package cu is linked in, and the program starts all the same.
func TestNoDriver(t *testing.T) {
	if os.Getenv("CUSIM_CONTROL") != "" {
		t.Skip("there is a driver")
	}
	_, err := open()
	if !errors.Is(err, driver.ErrNoDriver) {
		t.Skip(fmt.Sprint("there is a driver on this machine: ", err))
	}
}
