//go:build linux && cgo

package nvidia

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tandem/gpu/driver"
)

func TestOldDriver(t *testing.T) {
	simulated(t)
	t.Setenv("CUSIM_VERSION", "11080")
	_, err := open()
	if !errors.Is(err, driver.ErrOldDriver) || !strings.Contains(err.Error(), "11.8") {
		t.Errorf("got %v", err)
	}
}

// A library that lacks what we ask for, and one that the toolkit links against.
func TestOtherLibraries(t *testing.T) {
	library := func(code string) string {
		dir := t.TempDir()
		c, so := filepath.Join(dir, "l.c"), filepath.Join(dir, "libcuda.so.1")
		if err := os.WriteFile(c, []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
		if said, err := exec.Command("gcc", "-shared", "-fPIC", "-o", so, c).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
		return so
	}
	_, err := Open(Options{Library: library("int cuInit(unsigned f) { return 0; }")})
	if !errors.Is(err, driver.ErrOldDriver) || !strings.Contains(err.Error(), "cuDriverGetVersion") {
		t.Errorf("a library without symbols: %v", err)
	}
	if err := openError("libcuda.so.1", 34, 13000, 0, t.TempDir()); !errors.Is(err, driver.ErrNoDriver) {
		t.Errorf("a stub: %v", err)
	}
}

func TestWhatOpeningCameTo(t *testing.T) {
	none, locked := t.TempDir(), t.TempDir()
	node := filepath.Join(locked, "nvidia0")
	if err := os.WriteFile(node, nil, 0o000); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name           string
		r              driver.Result
		version, count int
		dev            string
		want           error
	}{
		{"in order", 0, 12080, 1, locked, nil},
		{"no device", driver.NoDevice, 12080, 0, none, driver.ErrNoDevice},
		{"none visible", 0, 12080, 0, none, driver.ErrNoDevice},
		{"kernel module of another version", 803, 12080, 0, none, driver.ErrOldDriver},
		{"old", 0, 11080, 1, none, driver.ErrOldDriver},
		{"unknown", driver.Unknown, 12080, 0, none, driver.Unknown},
		{"locked nodes", driver.NoDevice, 12080, 0, locked, driver.ErrNoPermission},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.want == driver.ErrNoPermission && unix.Access(node, unix.R_OK) == nil {
				t.Skip("this user may open every file: root")
			}
			if err := openError("libcuda.so.1", c.r, c.version, c.count, c.dev); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestQueueingAllocatesNothing(t *testing.T) {
	d, err := open()
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p, err := c.Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Free(p)
	if n := testing.AllocsPerRun(100, func() {
		if err := c.Fill32(0, p, 1, 1); err != nil {
			t.Fatal(err)
		}
		if err := c.Copy(0, p+4, p, 4); err != nil {
			t.Fatal(err)
		}
		if err := c.Write32(0, p, 2); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkCall is what crossing into C costs, with the context set.
func BenchmarkCall(b *testing.B) {
	d, err := open()
	if err != nil {
		b.Fatal(err)
	}
	c, err := d.Open(0)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	e, err := c.NewEvent(0)
	if err != nil {
		b.Fatal(err)
	}
	defer c.CloseEvent(e)
	for b.Loop() {
		if _, err := c.Happened(e); err != nil {
			b.Fatal(err)
		}
	}
}
