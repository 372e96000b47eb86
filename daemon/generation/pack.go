package generation

import (
	"context"
	"fmt"
	"os"

	"tandem/daemon/ident"
	"tandem/daemon/spawn"
	"tandem/daemon/wire"
	"tandem/gpu/hostmem"
)

// Pack makes the weights image: a process packs the weights into memory, which is
// then frozen. It belongs to no generation: every generation maps the same image,
// and none can change it. The daemon itself computes nothing.
func Pack(ctx context.Context, sp *spawn.Spawner, model string, window int, bytes int64, key []byte, env []string, progress func(done, total int64)) (*hostmem.Region, error) {
	r, err := hostmem.Create("weights", bytes)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*hostmem.Region, error) {
		r.Close()
		return nil, err
	}
	setup := spawn.Setup{Rank: ident.Rank{Replica: ident.Replica{Role: ident.Prefill}}, Model: model, Context: window, Image: spawn.ControlFD + 1, ImageKey: key, Pack: &spawn.Pack{Bytes: bytes}}
	js, err := setup.Encode()
	if err != nil {
		return fail(err)
	}
	packed, fatal := false, ""
	exit := make(chan spawn.Status, 1)
	drained := make(chan struct{})
	p, err := sp.Start(spawn.Options{
		Args: []string{"worker", "pack"}, Files: []*os.File{r.File()}, Env: env,
		Frame: func(f wire.Frame) {
			switch m := f.Message.(type) {
			case *wire.Progress:
				progress(int64(m.Done), int64(m.Total))
			case *wire.Ready:
				packed = true
			case *wire.Fatal:
				fatal = m.Text
			}
		},
		Lost: func(error) { close(drained) },
		Exit: func(st spawn.Status) { exit <- st },
		Line: func(string) {},
	})
	if err != nil {
		return fail(err)
	}
	if err := p.Send(&wire.Setup{JSON: js}); err != nil {
		p.Kill()
	}
	var st spawn.Status
	select {
	case st = <-exit:
	case <-ctx.Done():
		p.Kill()
		<-exit
		return fail(ctx.Err())
	}
	<-drained
	switch {
	case fatal != "":
		return fail(fmt.Errorf("%s", fatal))
	case !packed || st.Code != 0:
		return fail(fmt.Errorf("packing the weights of %s: the process ended: %s: %s", model, st.Text, st.Last))
	}
	if err := r.Freeze(); err != nil {
		return fail(err)
	}
	return r, nil
}
