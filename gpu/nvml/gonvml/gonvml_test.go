//go:build linux && cgo

package gonvml

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	api "github.com/NVIDIA/go-nvml/pkg/nvml"

	"tandem/gpu/nvml"
	"tandem/gpu/nvml/nvmltest"
)

func open(t *testing.T) (*nvmltest.Box, nvml.Library) {
	t.Helper()
	b, err := nvmltest.New()
	if err != nil {
		t.Fatal(err)
	}
	l, err := New(b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, l
}

func TestInventory(t *testing.T) {
	_, l := open(t)
	cards, err := l.Cards()
	if err != nil {
		t.Fatal(err)
	}
	want := nvml.Card{Index: 5, Name: "NVIDIA RTX PRO 6000 Blackwell Server Edition", UUID: "GPU-c0510000-0000-4000-8000-000000000005",
		PCI: "00000000:15:00.0", Major: 12, Bytes: 97887 << 20, LinkGen: 5, LinkWidth: 16}
	if len(cards) != 8 || cards[5] != want {
		t.Errorf("%d cards, the sixth is %+v", len(cards), cards[5])
	}
	if v, err := l.Version(); v != "580.95.05" || err != nil {
		t.Errorf("version %q, %v", v, err)
	}
	var far []nvml.Distance
	for i := range cards {
		d, err := l.Distance(0, i)
		if err != nil {
			t.Fatal(err)
		}
		far = append(far, d)
	}
	if !slices.Equal(far, []nvml.Distance{nvml.Same, nvml.Switch, nvml.Node, nvml.Node, nvml.System, nvml.System, nvml.System, nvml.System}) {
		t.Errorf("distances from card 0: %v", far)
	}
}

func TestHealth(t *testing.T) {
	b, l := open(t)
	want := nvml.Health{Used: 1 << 30, Free: 2 << 30, Celsius: 83, Milliwatts: 597_000, Corrected: 3, Uncorrected: 2, LinkGen: 1, LinkWidth: 8,
		Processes: []nvml.Process{{PID: 7, Bytes: 512}, {PID: 8, Bytes: nvml.Unknown}}}
	b.Set(3, func(h *nvml.Health) { *h = want })
	got, err := l.Health(3)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Processes, want.Processes) {
		t.Errorf("processes %v", got.Processes)
	}
	got.Processes, want.Processes = nil, nil
	if got.Used != want.Used || got.Free != want.Free || got.Celsius != want.Celsius || got.Milliwatts != want.Milliwatts || got.Corrected != want.Corrected ||
		got.Uncorrected != want.Uncorrected || got.LinkGen != want.LinkGen || got.LinkWidth != want.LinkWidth {
		t.Errorf("got %+v, want %+v", got, want)
	}
	b.WithoutECC(3)
	if got, err = l.Health(3); err != nil || got.Corrected != nvml.Unknown || got.Uncorrected != nvml.Unknown || got.Celsius != 83 {
		t.Errorf("a card without ECC: %+v, %v", got, err)
	}
}

func TestEvents(t *testing.T) {
	b, l := open(t)
	if e, ok, err := l.Wait(time.Millisecond); ok || err != nil {
		t.Errorf("nothing happened: %v, %v, %v", e, ok, err)
	}
	b.Log(2, 31)
	b.Log(3, 79)
	for _, want := range []nvml.Event{{Card: 2, Xid: 31}, {Card: 3, Xid: 79}} {
		e, ok, err := l.Wait(time.Minute)
		if !ok || err != nil || e != want {
			t.Errorf("got %v, %v, %v, want %v", e, ok, err, want)
		}
		if e.Xid.NeedsReset() != (e.Xid == 79) {
			t.Errorf("xid %d needs a reset: %v", e.Xid, e.Xid.NeedsReset())
		}
	}
	if _, err := l.Health(3); !errors.Is(err, nvml.ErrLost) {
		t.Errorf("a lost card: %v", err)
	}
	if _, err := l.Health(2); err != nil {
		t.Errorf("its neighbour: %v", err)
	}
}

func TestWhatInitCameTo(t *testing.T) {
	_, err := Open("/nonexistent/libnvidia-ml.so.1")
	if !errors.Is(err, nvml.ErrNoLibrary) {
		t.Errorf("no library: %v", err)
	}
	b, err := nvmltest.New()
	if err != nil {
		t.Fatal(err)
	}
	b.InitFunc = func() api.Return { return api.ERROR_LIB_RM_VERSION_MISMATCH }
	if _, err := New(b); !errors.Is(err, nvml.ErrNoDriver) || !errors.Is(err, api.ERROR_LIB_RM_VERSION_MISMATCH) {
		t.Errorf("a driver of another version: %v", err)
	}
}

// A library that lacks functions would end the process at the first call of one.
func TestOldLibrary(t *testing.T) {
	dir := t.TempDir()
	c, so := filepath.Join(dir, "l.c"), filepath.Join(dir, "libnvidia-ml.so.1")
	if err := os.WriteFile(c, []byte("int nvmlInit_v2(void) { return 0; }\nint nvmlShutdown(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command("gcc", "-shared", "-fPIC", "-o", so, c).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if _, err := Open(so); !errors.Is(err, nvml.ErrOldLibrary) {
		t.Errorf("got %v", err)
	}
}
