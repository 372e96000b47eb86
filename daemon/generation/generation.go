// Package generation makes the processes and the memory of one generation, and ends
// them. When that happens is decided by package supervise.
package generation

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"tandem/daemon/core"
	"tandem/daemon/ident"
	"tandem/daemon/spawn"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
	"tandem/gpu/hostmem"
	"tandem/gpu/share"
	"tandem/model"
)

// Group is one of the two worker groups.
type Group struct {
	Devices []string // one for each rank: "cpu", "cpu:3"
	Degree  int      // ranks of a replica; divides the number of devices
	Pages   int      // of each replica's pool; 0 if it has none of its own
	MaxRows int      // tokens of a step at most
	MaxOut  int      // sequences whose logits a step gives at most
}

// Replicas is the number of replicas.
func (g *Group) Replicas() int { return len(g.Devices) / g.Degree }

// Plan is what every generation is made of.
type Plan struct {
	Prefill, Decode Group
	Model           string
	Context         int
	Kernels         string
	Chunk           int
	Layout          model.Layout
	Elem            int
	Transport       transfer.Transport
	Digest          bool
	Slots           int   // of each prefill replica's board
	Cores           []int // processors that ranks may be pinned to, in order
	Env             []string
	Binary          string // for tests; default: this binary

	Image    *os.File // read-only
	ImageKey []byte
}

// MaxPages is the number of pages of the longest sequence.
func (p *Plan) MaxPages() int { return p.Layout.Pages(p.Context) }

// Ranks lists every rank, prefill first. Their order is their index everywhere.
func (p *Plan) Ranks() []ident.Rank {
	var out []ident.Rank
	for role, g := range map[ident.Role]*Group{ident.Prefill: &p.Prefill, ident.Decode: &p.Decode} {
		for i := range g.Devices {
			out = append(out, ident.Rank{Replica: ident.Replica{Role: role, Index: i / g.Degree}, Rank: i % g.Degree})
		}
	}
	slices.SortFunc(out, func(a, b ident.Rank) int {
		if a.Role != b.Role {
			return int(a.Role) - int(b.Role)
		}
		if a.Index != b.Index {
			return a.Index - b.Index
		}
		return a.Rank - b.Rank
	})
	return out
}

func (p *Plan) group(r ident.Role) *Group {
	if r == ident.Prefill {
		return &p.Prefill
	}
	return &p.Decode
}

// core is the index into Cores of a device, -1 if it names none.
func (p *Plan) core(device string) int {
	_, n, ok := strings.Cut(device, ":")
	if !ok {
		return -1
	}
	i, err := strconv.Atoi(n)
	if err != nil || len(p.Cores) == 0 {
		return -1
	}
	return i % len(p.Cores)
}

// Report is something a rank did. Exactly one of the pointers is set.
type Report struct {
	Generation ident.Generation
	Rank       int // index in Plan.Ranks
	Frame      *wire.Frame
	Lost       *error        // the socket broke; nil inside: it was closed
	Exit       *spawn.Status // the process is reaped
	Line       *string       // it wrote a line on stderr
}

// Rank is one worker of a generation.
type Rank struct {
	ident.Rank
	*spawn.Process
	Device string
	Vitals *spawn.Vitals

	vitals *hostmem.Region
}

// Generation is the processes and the memory of one generation. It belongs to
// the control loop.
type Generation struct {
	Number  ident.Generation
	Started time.Time
	Ranks   []*Rank

	regions []*hostmem.Region
}

// Launch makes the memory of generation g and starts its ranks. Reports go to
// sink, from many goroutines; sink may block. If a rank cannot be started, those
// that were are killed and their exits still reported; the error says which, and
// Generation.Ranks holds the started ones.
func Launch(sp *spawn.Spawner, p *Plan, g ident.Generation, sink func(Report)) (*Generation, error) {
	gen := &Generation{Number: g, Started: time.Now()}
	err := gen.launch(sp, p, sink)
	if err != nil {
		gen.Kill()
	}
	return gen, err
}

func (gen *Generation) create(name string, size int64) (*hostmem.Region, error) {
	r, err := hostmem.Create(fmt.Sprintf("%s-g%d", name, gen.Number), size)
	if err == nil {
		gen.regions = append(gen.regions, r)
	}
	return r, err
}

// arena is one group's pages: a segment for each unit, in two descriptors.
type arena struct {
	pages   int
	rw, ro  []*os.File
	toClose []*os.File
}

func (gen *Generation) newArena(p *Plan, name string, pages int) (*arena, error) {
	a := &arena{pages: pages}
	for u := range p.Layout.Units {
		r, err := gen.create(fmt.Sprintf("%s-kv%d", name, u), share.SegmentBytes(pages, p.Layout.UnitPageBytes))
		if err != nil {
			return a, err
		}
		ro, err := r.ReadOnly()
		if err != nil {
			return a, err
		}
		a.toClose = append(a.toClose, ro)
		a.rw, a.ro = append(a.rw, r.File()), append(a.ro, ro)
	}
	return a, nil
}

func (a *arena) close() {
	if a == nil {
		return
	}
	for _, f := range a.toClose {
		f.Close()
	}
}

// table collects the descriptors to pass to a rank.
type table struct{ files []*os.File }

func (t *table) add(f *os.File) int {
	t.files = append(t.files, f)
	return spawn.ControlFD + len(t.files)
}

// arena gives a rank the units in [lo, hi) for writing and, if others is set,
// the rest for reading.
func (t *table) arena(a *arena, lo, hi int, writable, others bool) spawn.Arena {
	out := spawn.Arena{Pages: a.pages}
	for u := range a.rw {
		switch {
		case u >= lo && u < hi && writable:
			out.Units = append(out.Units, spawn.Unit{FD: t.add(a.rw[u]), Writable: true})
		case u >= lo && u < hi || others:
			out.Units = append(out.Units, spawn.Unit{FD: t.add(a.ro[u])})
		default:
			out.Units = append(out.Units, spawn.Unit{FD: -1})
		}
	}
	return out
}

func (gen *Generation) launch(sp *spawn.Spawner, p *Plan, sink func(Report)) error {
	decode, err := gen.newArena(p, "decode", p.Decode.Pages*p.Decode.Replicas())
	defer decode.close()
	if err != nil {
		return err
	}
	prefill := decode
	if p.Transport != transfer.Handover {
		prefill, err = gen.newArena(p, "prefill", p.Prefill.Pages*p.Prefill.Replicas())
		defer prefill.close()
		if err != nil {
			return err
		}
	}
	var boards []*hostmem.Region
	for i := range p.Prefill.Replicas() {
		b, err := gen.create(fmt.Sprintf("board%d", i), share.BoardBytes(p.Slots, p.Layout.Units, p.MaxPages()))
		if err != nil {
			return err
		}
		boards = append(boards, b)
	}
	sync, err := gen.create("sync", spawn.SyncBytes(len(p.Cores), p.Decode.Replicas()))
	if err != nil {
		return err
	}
	scratch := map[ident.Replica]*hostmem.Region{}
	seat := 0
	for i, r := range p.Ranks() {
		g := p.group(r.Role)
		if r.Rank == 0 {
			s, err := gen.create(fmt.Sprintf("%s%d-scratch", r.Role, r.Index), 0)
			if err != nil {
				return err
			}
			scratch[r.Replica] = s
			seat++
		}
		vitals, err := gen.create("vitals", spawn.VitalsBytes)
		if err != nil {
			return err
		}
		device := g.Devices[r.Index*g.Degree+r.Rank]
		lo, hi := p.Layout.Owner(r.Rank, g.Degree)
		var t table
		s := spawn.Setup{
			Rank: r, Degree: g.Degree, Model: p.Model, Kernels: p.Kernels, Device: device, Context: p.Context,
			MaxRows: g.MaxRows, MaxOut: g.MaxOut, Chunk: p.Chunk, Layout: p.Layout.Fingerprint(), Elem: p.Elem,
			Image: t.add(p.Image), ImageKey: p.ImageKey, Scratch: t.add(scratch[r.Replica].File()), Vitals: t.add(vitals.File()),
			Sync: t.add(sync.File()), Seat: seat - 1, Turns: len(p.Cores), Bells: p.Decode.Replicas(),
			Transport: p.Transport, Digest: p.Digest, Slots: p.Slots, MaxPages: p.MaxPages(),
		}
		used := map[int]int{}
		for _, d := range g.Devices[r.Index*g.Degree : (r.Index+1)*g.Degree] {
			if c := p.core(d); c >= 0 {
				if used[c]++; used[c] == 1 {
					s.Cores = append(s.Cores, c)
				}
				s.Crowded = s.Crowded || used[c] > 1
			}
		}
		slices.Sort(s.Cores) // turns are taken in one order by all, so that none can wait in a circle
		if c := p.core(device); c >= 0 {
			s.Device = "cpu:" + strconv.Itoa(p.Cores[c])
		}
		if r.Role == ident.Prefill {
			s.KV = t.arena(prefill, lo, hi, true, true)
			if p.Transport == transfer.Push {
				a := t.arena(decode, lo, hi, true, false)
				s.Peer = &a
			}
			s.Boards = []spawn.Board{{FD: t.add(boards[r.Index].File())}}
		} else {
			s.KV = t.arena(decode, lo, hi, true, true)
			if p.Transport == transfer.Pull {
				a := t.arena(prefill, lo, hi, false, false)
				s.Peer = &a
			}
			for _, b := range boards {
				ro, err := b.ReadOnly()
				if err != nil {
					return err
				}
				defer ro.Close()
				s.Boards = append(s.Boards, spawn.Board{FD: t.add(ro)})
			}
		}
		js, err := s.Encode()
		if err != nil {
			return err
		}
		rank := &Rank{Rank: r, Device: device, Vitals: spawn.OpenVitals(vitals.Bytes()), vitals: vitals}
		rank.Vitals.Doing.Store(spawn.DoingStartUp)
		report := func(rep Report) {
			rep.Generation, rep.Rank = gen.Number, i
			sink(rep)
		}
		rank.Process, err = sp.Start(spawn.Options{
			Rank: r, Generation: gen.Number, Files: t.files, Env: p.Env, Binary: p.Binary,
			Frame: func(f wire.Frame) { report(Report{Frame: &f}) },
			Lost:  func(err error) { report(Report{Lost: &err}) },
			Exit:  func(st spawn.Status) { report(Report{Exit: &st}) },
			Line:  func(l string) { report(Report{Line: &l}) },
		})
		if err != nil {
			return err
		}
		gen.Ranks = append(gen.Ranks, rank)
		if err := rank.Send(&wire.Setup{JSON: js}); err != nil {
			return fmt.Errorf("%s: %w", r, err)
		}
	}
	return nil
}

// Procs are the processes that were started, in the order of Plan.Ranks.
func (gen *Generation) Procs() []core.Proc {
	out := make([]core.Proc, len(gen.Ranks))
	for i, r := range gen.Ranks {
		out[i] = core.Proc{PID: r.PID, Device: r.Device, Started: r.Started}
	}
	return out
}

// Send queues a message for a rank. An error says that the rank does not read.
func (gen *Generation) Send(rank int, m wire.Message) error { return gen.Ranks[rank].Send(m) }

var doing = [...]string{spawn.DoingNothing: "idle", spawn.DoingCompute: "computing", spawn.DoingTurn: "waiting for its turn", spawn.DoingStartUp: "starting", spawn.DoingFollowing: "following"}

// Vitals appends every rank's vital signs.
func (gen *Generation) Vitals(into []core.Vital) []core.Vital {
	for _, r := range gen.Ranks {
		d := r.Vitals.Doing.Load()
		v := core.Vital{Pulse: r.Vitals.Pulse.Load(), Steps: r.Vitals.Steps.Load(), Plans: r.Vitals.Plans.Load(), Busy: d == spawn.DoingCompute}
		if int(d) < len(doing) {
			v.Doing = doing[d]
		}
		into = append(into, v)
	}
	return into
}

// Kill kills every process. Their exits are reported.
func (gen *Generation) Kill() {
	for _, r := range gen.Ranks {
		r.Kill()
	}
}

// Close gives the memory back. Every process must be reaped.
func (gen *Generation) Close() error {
	var errs []error
	for _, r := range gen.regions {
		errs = append(errs, r.Close())
	}
	gen.regions = nil
	return errors.Join(errs...)
}
