package cuda_test

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tandem/gpu/sim"
	"tandem/kernels"
	"tandem/kernels/cuda"
	"tandem/kernels/cuda/cudatest"
	"tandem/kernels/kerneltest"
)

// rankVar makes of the test binary a rank of a team of processes.
const rankVar = "CUDA_TEST_RANK"

func TestMain(m *testing.M) {
	if rank, err := strconv.Atoi(os.Getenv(rankVar)); err == nil {
		if err := beRank(rank); err != nil {
			fmt.Fprintf(os.Stderr, "rank %d: %v\n", rank, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const ranks = 2

// failing is a testing.TB for the helpers of a process that is no test.
type failing struct {
	testing.TB
	err error
}

func (f *failing) Helper() {}

func (f *failing) Error(a ...any) { f.err = errors.New(fmt.Sprint(a...)) }

func (f *failing) Fatal(a ...any) { panic(fmt.Sprint(a...)) }

// compute is one rank's side of the traced network. done is called before the rank's
// memory goes.
func compute(t testing.TB, rank, size int, shared []byte, done func()) (map[string][][]float64, error) {
	d := device(t, cudatest.Driver(t), 1)
	o := kerneltest.RankOptions()
	o.Team = kernels.Team{Rank: rank, Size: size, Shared: shared}
	b, err := d.New(o)
	if err != nil {
		return nil, err
	}
	defer d.Close(b)
	units := make([]kernels.Mem, o.Shape.Units)
	for u, end := o.Shape.Owner(rank, size); u < end; u++ {
		bytes := make([]byte, int(o.Shape.UnitPageBytes(cuda.ElemBytes))*kerneltest.RankPages())
		units[u] = d.Memory(b, bytes)
	}
	out, err := kerneltest.Rank(d, b, rank, units)
	done()
	return out, err
}

// beRank computes as a rank, writes what it got to its output, and goes when its
// input ends.
func beRank(rank int) error {
	shared, err := unix.Mmap(3, 0, int(cuda.SharedBytes(ranks)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	f := &failing{}
	out, err := compute(f, rank, ranks, shared, func() {
		fmt.Fprintln(os.Stderr, "done")
		_, _ = io.Copy(io.Discard, os.Stdin)
	})
	if err := errors.Join(err, f.err); err != nil {
		return err
	}
	return gob.NewEncoder(os.Stdout).Encode(out)
}

func TestRanksAreProcesses(t *testing.T) {
	if n := len(cudatest.Driver(t).Devices()); n < ranks {
		t.Skipf("%d cards where %d are needed", n, ranks)
	}
	fd, err := unix.MemfdCreate("cuda-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "shared")
	defer f.Close()
	if err := f.Truncate(cuda.SharedBytes(ranks)); err != nil {
		t.Fatal(err)
	}
	box, err := sim.NewBox(filepath.Join(t.TempDir(), "box"))
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	var out [ranks]bytes.Buffer
	var procs [ranks]*exec.Cmd
	var said, hold [ranks]*os.File
	for rank := range ranks {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), rankVar+"="+strconv.Itoa(rank), "CUSIM_CONTROL="+box.Path())
		cmd.ExtraFiles = []*os.File{f}
		cmd.Stdout = &out[rank]
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		in, keep, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr, cmd.Stdin, said[rank], hold[rank] = w, in, r, keep
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		in.Close()
		t.Cleanup(func() { cmd.Process.Kill() })
		procs[rank] = cmd
	}
	// All are done before the memory of one goes.
	for rank := range ranks {
		buf := make([]byte, 4096)
		n, _ := said[rank].Read(buf)
		if string(buf[:n]) != "done\n" {
			t.Fatalf("rank %d: %s", rank, buf[:n])
		}
	}
	for rank := range ranks {
		hold[rank].Close()
		more, _ := io.ReadAll(said[rank])
		if err := procs[rank].Wait(); err != nil {
			t.Fatalf("rank %d: %v: %s", rank, err, more)
		}
	}
	var got map[string][][]float64
	if err := gob.NewDecoder(&out[0]).Decode(&got); err != nil {
		t.Fatal(err)
	}
	want, err := compute(t, 0, 1, nil, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if len(want) == 0 {
		t.Fatal("nothing was computed")
	}
	kerneltest.SameBits(t, "two processes", got, want)
}

// pair makes the first n ranks of a team of two.
func pair(t *testing.T, n int, patience time.Duration) (team []*cuda.Backend, shared []byte) {
	t.Helper()
	shared, err := unix.Mmap(-1, 0, int(cuda.SharedBytes(2)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(shared) })
	for rank := range n {
		k := kerneltest.RankOptions()
		k.Team = kernels.Team{Rank: rank, Size: 2, Shared: shared}
		o := options(cudatest.Driver(t), k)
		o.Patience = patience
		b, err := cuda.New(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		team = append(team, b)
	}
	return team, shared
}

func TestARankThatDoesNotComeEndsTheTeam(t *testing.T) {
	for n, what := range map[int]string{1: "never began", 2: "does not come"} {
		team, _ := pair(t, n, 200*time.Millisecond)
		if err := team[0].Sync(); !errors.Is(err, kernels.ErrTeam) {
			t.Errorf("the other rank %s: %v, want %v", what, err, kernels.ErrTeam)
		}
		if err := team[0].Sync(); !errors.Is(err, kernels.ErrTeam) {
			t.Errorf("the other rank %s, and once more: %v, want %v", what, err, kernels.ErrTeam)
		}
	}
}

func TestAbortEndsWaiting(t *testing.T) {
	for _, n := range []int{1, 2} {
		team, shared := pair(t, n, time.Hour)
		got := make(chan error)
		go func() { got <- team[0].Sync() }()
		time.Sleep(20 * time.Millisecond) // so that it waits, mostly
		cuda.AbortTeam(shared, 2)
		select {
		case err := <-got:
			if !errors.Is(err, kernels.ErrTeam) {
				t.Errorf("of %d ranks that began: %v, want %v", n, err, kernels.ErrTeam)
			}
		case <-time.After(time.Minute):
			t.Fatal("the rank goes on waiting")
		}
	}
}

func TestPackerRefusesWhatItCannot(t *testing.T) {
	p := cuda.NewPacker()
	for _, c := range []struct {
		t          kernels.Type
		rows, cols int
	}{{0, 2, 32}, {kernels.F32, 2, 33}, {kernels.Q6_K, 2, 128}, {kernels.F32, 0, 32}} {
		if _, err := p.PackedBytes(c.t, c.rows, c.cols); !errors.Is(err, kernels.ErrUnsupported) {
			t.Errorf("%v of %d×%d: %v", c.t, c.rows, c.cols, err)
		}
	}
}

func TestOpenKVTakesOwnUnitsOnACard(t *testing.T) {
	k := kerneltest.RankOptions()
	k.Team.Size = 1
	b, err := cuda.New(options(cudatest.Driver(t), k))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	good := cuda.Mem{At: 4096, Bytes: 2 * k.Shape.UnitPageBytes(cuda.ElemBytes)}
	units := func(last kernels.Mem) []kernels.Mem {
		u := make([]kernels.Mem, k.Shape.Units)
		for i := range u {
			u[i] = good
		}
		u[len(u)-1] = last
		return u
	}
	if err := b.OpenKV(units(good)); err != nil {
		t.Error(err)
	}
	for what, bad := range map[string][]kernels.Mem{
		"no units": nil, "none of an own unit": units(nil), "memory of the host": units(make(kernels.Host, good.Bytes)),
		"part of a page": units(cuda.Mem{At: 4096, Bytes: good.Bytes - 4}), "other pages than the others": units(cuda.Mem{At: 4096, Bytes: good.Bytes / 2}),
	} {
		if err := b.OpenKV(bad); err == nil {
			t.Errorf("OpenKV takes %s", what)
		}
	}
}
