package cuda

import "tandem/gpu/driver"

// Kernels is a loaded source, for tests of single kernels.
type Kernels struct{ m *module }

// Load loads a source.
func Load(ctx driver.Context, source string) (Kernels, error) {
	m, err := load(ctx, source)
	return Kernels{m}, err
}

// Launch runs a kernel of one row of blocks on the default stream and waits.
func (k Kernels) Launch(name string, blocks, threads, shared int, args *driver.Args) error {
	f, err := k.m.ctx.Func(k.m.m, name)
	if err != nil {
		return err
	}
	if shared > 48<<10 {
		if err := k.m.ctx.AllowShared(f, shared); err != nil {
			return err
		}
	}
	if err := k.m.ctx.Launch(0, f, driver.Grid{Blocks: [3]int{blocks}, Threads: [3]int{threads}, Shared: shared}, args); err != nil {
		return err
	}
	return k.m.ctx.Sync()
}

// Close unloads the source.
func (k Kernels) Close() error { return k.m.close() }
