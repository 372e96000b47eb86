// Package roof measures what this machine could do at best: how fast it reads
// memory and how fast it multiplies. A kernel's speed means something beside
// these figures only, taken in the same minute: on shared machines they move by
// a factor of two.
package roof

/*
#cgo CFLAGS: -O2 -std=c11 -D_GNU_SOURCE
#include "roof.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Roof is a machine's bounds. A figure is zero where the machine has no
// instruction for it.
type Roof struct {
	Threads int
	Read1   float64 // bytes a second, one thread over the set
	ReadAll float64 // bytes a second, Threads threads with a share each
	FMA     float64 // float32 multiplications and additions a second, one thread
	Dot     float64 // the same of bytes by VNNI
	Pairs   float64 // the same of bytes by the two instructions that came before VNNI
}

// Int8 is the best rate of byte products.
func (r Roof) Int8() float64 { return max(r.Dot, r.Pairs) }

func (r Roof) String() string {
	return fmt.Sprintf("read %.1f GB/s on one thread, %.1f on %d; on one thread float32 %.0f GFLOP/s, int8 %.0f GOP/s (VNNI %.0f, pairs %.0f)",
		r.Read1*1e-9, r.ReadAll*1e-9, r.Threads, r.FMA*1e-9, r.Int8()*1e-9, r.Dot*1e-9, r.Pairs*1e-9)
}

// Measure takes all figures with the given number of threads, on different
// cores. set is the memory that the threads read together, in huge pages where
// the machine gives them; a model's weights are the set to take. Each figure is
// the best of several tries and takes about a fifth of a second.
func Measure(threads int, set int64) (Roof, error) {
	if threads < 1 || set < int64(threads)*512 {
		return Roof{}, fmt.Errorf("roof: %d threads over %d bytes", threads, set)
	}
	var cores unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cores); err != nil {
		return Roof{}, fmt.Errorf("roof: %w", err)
	}
	if cores.Count() < threads {
		return Roof{}, fmt.Errorf("roof: %d threads on %d cores", threads, cores.Count())
	}
	mem, err := unix.Mmap(-1, 0, int(set), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return Roof{}, fmt.Errorf("roof: %d bytes to read: %w", set, err)
	}
	defer unix.Munmap(mem)
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // a wish
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = 1
	}
	r := Roof{Threads: threads}
	share := mem[:len(mem)/threads/512*512]
	if r.Read1, err = best(cores, 1, func(int) float64 { return read(mem[:len(mem)/512*512]) }); err != nil {
		return Roof{}, err
	}
	if r.ReadAll, err = best(cores, threads, func(i int) float64 { return read(mem[i*len(share):][:len(share)]) }); err != nil {
		return Roof{}, err
	}
	for _, m := range []struct {
		to  *float64
		run func() float64
	}{
		{&r.FMA, func() float64 { return float64(C.roof_fma(rounds)) }},
		{&r.Dot, func() float64 { return float64(C.roof_dot(rounds)) }},
		{&r.Pairs, func() float64 { return float64(C.roof_pairs(rounds)) }},
	} {
		if *m.to, err = best(cores, 1, func(int) float64 { return m.run() }); err != nil {
			return Roof{}, err
		}
	}
	return r, nil
}

// rounds make about a millisecond.
const rounds = 1 << 18

func read(p []byte) float64 {
	C.roof_read(unsafe.Pointer(unsafe.SliceData(p)), C.size_t(len(p)))
	return float64(len(p))
}

// best is the highest rate at which threads threads do work, each pinned to a
// core of its own, over rounds of a few milliseconds.
func best(cores unix.CPUSet, threads int, work func(thread int) float64) (float64, error) {
	rate := 0.0
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
		done, errs := make([]float64, threads), make([]error, threads)
		took := make([]time.Duration, threads)
		var ready, wg sync.WaitGroup
		ready.Add(threads)
		for t := range threads {
			wg.Go(func() {
				runtime.LockOSThread() // and not unlocked: a pinned thread is of no use to others
				errs[t] = pin(cores, t)
				ready.Done()
				ready.Wait()
				start := time.Now()
				for time.Since(start) < 10*time.Millisecond {
					done[t] += work(t)
				}
				took[t] = time.Since(start)
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return 0, err
		}
		sum := 0.0
		for t := range threads {
			sum += done[t] / took[t].Seconds()
		}
		rate = max(rate, sum)
	}
	return rate, nil
}

// pin binds the calling thread to the n-th of some cores.
func pin(cores unix.CPUSet, n int) error {
	for core := range 1024 {
		if !cores.IsSet(core) {
			continue
		}
		if n == 0 {
			var one unix.CPUSet
			one.Set(core)
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				return fmt.Errorf("roof: core %d: %w", core, err)
			}
			return nil
		}
		n--
	}
	return errors.New("roof: too few cores")
}
