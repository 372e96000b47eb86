package cuda

import (
	"embed"
	"fmt"

	"tandem/gpu/driver"
	"tandem/kernels"
)

// What scripts/ptx makes of src.
//
//go:embed ptx/*.ptx
var ptx embed.FS

// Image is the PTX of one of the sources (llama, linear_q4_0, pages, …) for a device.
func Image(source string, d driver.Device) ([]byte, error) {
	target := "sm_90"
	switch {
	case d.Major == 12 && d.Minor == 0:
		target = "sm_120a"
	case d.Major < 9:
		return nil, fmt.Errorf("cuda: %s has compute capability %d.%d, and kernels are for 9.0 and later: %w", d.Name, d.Major, d.Minor, kernels.ErrUnsupported)
	}
	return ptx.ReadFile("ptx/" + source + "." + target + ".ptx")
}

// A module is a loaded source.
type module struct {
	ctx   driver.Context
	m     driver.Module
	funcs map[string]driver.Func
	args  driver.Args
}

func load(ctx driver.Context, source string) (*module, error) {
	image, err := Image(source, ctx.Device())
	if err != nil {
		return nil, err
	}
	m, err := ctx.Load(image)
	if err != nil {
		return nil, fmt.Errorf("cuda: kernels of %s: %w", source, err)
	}
	return &module{ctx: ctx, m: m, funcs: map[string]driver.Func{}}, nil
}

func (m *module) close() error { return m.ctx.Unload(m.m) }

// launch queues a kernel on s, whose one parameter is the structure p.
func launch[T any](m *module, s driver.Stream, name string, blocks [3]int, threads int, p *T) error {
	f, ok := m.funcs[name]
	if !ok {
		var err error
		if f, err = m.ctx.Func(m.m, name); err != nil {
			return fmt.Errorf("cuda: kernel %s: %w", name, err)
		}
		m.funcs[name] = f
	}
	grid := driver.Grid{Blocks: blocks, Threads: [3]int{threads, 1, 1}}
	if err := m.ctx.Launch(s, f, grid, m.args.Reset().Struct(bytesOf(p), 8)); err != nil {
		return fmt.Errorf("cuda: kernel %s: %w", name, err)
	}
	return nil
}
