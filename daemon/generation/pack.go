package generation

import (
	"context"
	"fmt"
	"os"
	"time"

	"tandem/daemon/ident"
	"tandem/daemon/spawn"
	"tandem/daemon/wire"
	"tandem/gpu/hostmem"
)

// killed is how long a process that was killed may take to be gone.
const killed = 5 * time.Second

// Pack makes the weights image: a process packs the weights into memory, which is
// then frozen. It belongs to no generation: every generation maps the same image,
// and none can change it. The daemon itself computes nothing. A process that packs
// nothing for as long as stall is given up.
func Pack(ctx context.Context, sp *spawn.Spawner, model string, window int, bytes int64, key []byte, env []string, stall time.Duration, progress func(done, total int64)) (*hostmem.Region, error) {
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
	moved := make(chan struct{}, 1)
	p, err := sp.Start(spawn.Options{
		Args: []string{"worker", "pack"}, Files: []*os.File{r.File()}, Env: env,
		Frame: func(f wire.Frame) {
			switch m := f.Message.(type) {
			case *wire.Progress:
				progress(int64(m.Done), int64(m.Total))
				select {
				case moved <- struct{}{}:
				default:
				}
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
	// give ends the process. One that cannot be killed is not waited for: it writes only
	// to memory that nobody else has.
	give := func(err error) (*hostmem.Region, error) {
		p.Kill()
		select {
		case <-exit:
		case <-time.After(killed):
		}
		return fail(err)
	}
	var st spawn.Status
	patience := time.NewTimer(stall)
	defer patience.Stop()
	for running := true; running; {
		select {
		case st = <-exit:
			running = false
		case <-moved:
			patience.Reset(stall)
		case <-patience.C:
			return give(fmt.Errorf("packing the weights of %s: nothing was packed for %s: is the disk that holds it well?", model, stall))
		case <-ctx.Done():
			return give(ctx.Err())
		}
	}
	<-drained
	switch {
	case fatal != "":
		return fail(fmt.Errorf("%s", fatal))
	case !packed || st.Code != 0:
		return fail(fmt.Errorf("packing the weights of %s: the process ended: %s: %s", model, st.Text, st.Last))
	}
	if err := r.Freeze(5 * time.Second); err != nil {
		return fail(err)
	}
	return r, nil
}
