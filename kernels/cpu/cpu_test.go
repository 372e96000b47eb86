package cpu_test

import (
	"fmt"
	"slices"
	"testing"

	"tandem/kernels"
	"tandem/kernels/cpu"
	"tandem/kernels/kerneltest"
)

// isas are the instruction sets that this machine has, the plainest first.
func isas(t testing.TB) []string {
	var have []string
	for _, isa := range []string{"generic", "avx2", "avx512"} {
		o := smallest()
		o.ISA = isa
		b, err := cpu.New(o)
		if err != nil {
			t.Logf("not tested here: %v", err)
			continue
		}
		b.Close()
		have = append(have, isa)
	}
	return have
}

func smallest() cpu.Options {
	s := kernels.Shape{
		Geometry: kernels.Geometry{Layers: 1, Units: 1, HeadDim: 32, PageTokens: 16},
		Width:    32, Heads: 1, Hidden: 32, Vocab: 16, MaxRows: 1, MaxOut: 1, Context: 16,
	}
	return cpu.Options{Shape: s, Rope: make([]float32, s.Context*s.HeadDim), Team: kernels.Team{Size: 1}}
}

func device(set, isa string, teams ...int) kerneltest.Device {
	return deviceOf(cpu.Options{Set: set, ISA: isa}, teams...)
}

// deviceOf is the device of backends with the given options, whose shape and
// team are the suite's.
func deviceOf(base cpu.Options, teams ...int) kerneltest.Device {
	options := func(o kerneltest.Options) cpu.Options {
		c := base
		c.Shape, c.Rope, c.Team = o.Shape, o.Rope, o.Team
		return c
	}
	return kerneltest.Device{
		Packer:      cpu.NewPacker(),
		New:         func(o kerneltest.Options) (kernels.Backend, error) { return cpu.New(options(o)) },
		Close:       func(b kernels.Backend) { b.(*cpu.Backend).Close() },
		Read:        func(_ kernels.Backend, v kernels.Buffer, r int) []float32 { return slices.Clone(cpu.Row(v, r)) },
		SharedBytes: func(o kerneltest.Options) int64 { return cpu.SharedBytes(options(o)) },
		ElemBytes:   cpu.ElemBytes(base.Set),
		Rounds:      base.Set != cpu.Float32,
		AlwaysFine:  base.Set == cpu.Fine,
		Teams:       teams,
	}
}

func TestKernels(t *testing.T) {
	for _, set := range []string{cpu.Fine, cpu.Fast, cpu.Float32} {
		for _, isa := range isas(t) {
			t.Run(set+" "+isa, func(t *testing.T) {
				d := device(set, isa, 1, 2, 3, 4)
				if isa == "generic" { // what it shares with the others needs no second proof
					d.Slow, d.Teams = true, []int{1, 2}
				}
				kerneltest.Run(t, d)
			})
		}
	}
}

func TestInstructionSetsGiveTheSameBits(t *testing.T) {
	for _, set := range []string{cpu.Fine, cpu.Fast, cpu.Float32} {
		var want map[string][][]float64
		for _, isa := range isas(t) {
			got := kerneltest.Trace(t, device(set, isa, 1))
			if want == nil {
				want = got
				continue
			}
			kerneltest.SameBits(t, set+" "+isa, got, want)
		}
	}
}

func TestCopiesOfWeightsChangeNothing(t *testing.T) {
	trace := func(bytes int64) map[string][][]float64 {
		return kerneltest.Trace(t, deviceOf(cpu.Options{Set: cpu.Fast, LocalBytes: bytes}, 2))
	}
	want := trace(-1)
	for _, bytes := range []int64{0, 200 << 10} { // room for all, and for some
		kerneltest.SameBits(t, fmt.Sprintf("%d bytes of copies", bytes), trace(bytes), want)
	}
}

func TestSuiteNoticesBrokenKernels(t *testing.T) {
	kerneltest.Mutants(t, device(cpu.Fast, "", 1, 2))
}
