// Package worker is a rank: a process that computes. Its engine thread executes
// plans; rank 0 of a replica makes them from what the daemon sent, the others
// follow through shared memory. A rank decides nothing about requests: it has no
// deadlines, retries nothing, and when something is wrong with the process rather
// than with a sequence it says so and exits, for the daemon to start a new
// generation.
//
// Goroutines: one reads the socket and is the only one that ends the process when
// the daemon is gone; one writes it; one beats the pulse; the engine; on decode
// ranks one that receives pages (the lane). The engine owns the sequences, the
// lane owns the receptions; both get their orders through a mailbox.
package worker

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tandem/daemon/ident"
	"tandem/daemon/spawn"
	"tandem/daemon/wire"
	"tandem/kernels"
	"tandem/model"
	"tandem/model/family"
	"tandem/model/weights"
)

// Device is a backend as the program links it.
type Device interface {
	// Packer lays weights out for this backend.
	Packer() kernels.Packer
	// Pin binds the calling thread to a processor.
	Pin(cpu int) error
	// SharedBytes is the size of Team.Shared that Open will use.
	SharedBytes(o DeviceOptions) int64
	Open(o DeviceOptions) (kernels.Backend, error)
}

// DeviceOptions say what to open.
type DeviceOptions struct {
	Set   string // kernel set
	Shape kernels.Shape
	Rope  []float32
	Team  kernels.Team
	Steps *atomic.Uint64 // the word that Backend.Steps counts in
}

// Main runs a worker and returns its exit status.
func Main(dev Device, revision string) int {
	faultAtStart()
	_ = unix.SetNonblock(spawn.ControlFD, true) // so that it goes through the poller
	conn := os.NewFile(spawn.ControlFD, "control")
	dec := wire.NewDecoder(conn)
	f, err := dec.Next()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tandem worker is started by tandem serve; it is of no use by itself:", err)
		return 2
	}
	setup, ok := f.Message.(*wire.Setup)
	if !ok {
		fmt.Fprintf(os.Stderr, "worker: %T instead of a setup\n", f.Message)
		return 1
	}
	s, err := spawn.DecodeSetup(setup.JSON)
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return 1
	}
	rename(s)
	post := newPost(conn, f.Generation)
	if s.Pack != nil {
		err = pack(dev, s, post)
	} else {
		err = run(dev, s, f.Generation, dec, post, revision)
	}
	if err != nil {
		// The daemon reads the reason from the frame; people find it on stderr.
		fmt.Fprintf(os.Stderr, "worker: %v\n", err)
		post.send(&wire.Fatal{Text: err.Error()})
		post.flush(time.Second)
		return 1
	}
	post.flush(time.Second)
	return 0
}

// rename gives the process a name of its own in ps and top: its command line says
// "tandem worker decode/0.1", its short name "tandem-d0.1".
func rename(s *spawn.Setup) {
	name := fmt.Sprintf("tandem-%c%d.%d", s.Rank.Role.String()[0], s.Rank.Index, s.Rank.Rank)
	if s.Pack != nil {
		name = "tandem-pack"
	}
	if b, err := unix.BytePtrFromString(name); err == nil {
		_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(b)), 0, 0, 0) // names the thread that calls: the main one
	}
}

// pack fills the image.
func pack(dev Device, s *spawn.Setup, post *post) error {
	m, err := family.Open(s.Model)
	if err != nil {
		return err
	}
	defer m.Close()
	plan, err := m.Plan(dev.Packer(), s.Context)
	if err != nil {
		return err
	}
	if plan.Bytes() != s.Pack.Bytes {
		return fmt.Errorf("the image takes %d bytes, but room for %d was made", plan.Bytes(), s.Pack.Bytes)
	}
	r, err := open("image", s.Image, true)
	if err != nil {
		return err
	}
	defer r.Close()
	r.Huge()
	if err := plan.Write(r.Bytes(), [32]byte(s.ImageKey), func(done, total int64) {
		post.send(&wire.Progress{Done: uint64(done), Total: uint64(total)})
	}); err != nil {
		return err
	}
	post.send(&wire.Ready{Backend: "packed"})
	return nil
}

// rank is what the parts of a worker share.
type rank struct {
	setup  *spawn.Setup
	gen    ident.Generation
	post   *post
	mem    *memory
	layout model.Layout
	vitals *spawn.Vitals
	lo, hi int // units it owns
}

func run(dev Device, s *spawn.Setup, gen ident.Generation, dec *wire.Decoder, post *post, revision string) error {
	post.send(&wire.Hello{PID: uint32(os.Getpid()), Revision: revision})
	m, err := family.Open(s.Model)
	if err != nil {
		return err
	}
	layout := m.Layout(s.Elem)
	if layout.Fingerprint() != s.Layout {
		return fmt.Errorf("the KV layout is %x here and %x in the daemon: the model file changed, or the builds differ", layout.Fingerprint(), s.Layout)
	}
	r := &rank{setup: s, gen: gen, post: post, layout: layout}
	r.lo, r.hi = layout.Owner(s.Rank.Rank, s.Degree)
	if r.mem, err = openMemory(s, layout); err != nil {
		return err
	}
	r.vitals = spawn.OpenVitals(r.mem.vitals.Bytes())
	go beat(r.vitals)

	eng, err := newEngine(dev, m, r)
	if err != nil {
		return err
	}
	var ln *lane
	if s.Rank.Role == ident.Decode {
		ln = newLane(r)
		eng.lane = ln
	}

	// The engine and the lane end only with an error; the socket ends the process.
	failed := make(chan error, 3)
	go func() { failed <- read(dec, r, eng, ln) }()
	if ln != nil {
		go func() { failed <- ln.run() }()
	}
	go func() {
		runtime.LockOSThread() // the device's thread, pinned where it was told to be
		if _, cpu, ok := strings.Cut(s.Device, ":"); ok {
			if n, err := strconv.Atoi(cpu); err == nil {
				if err := dev.Pin(n); err != nil {
					fmt.Fprintf(os.Stderr, "worker: not pinned to processor %d: %v\n", n, err)
				}
			}
		}
		failed <- eng.run()
	}()
	err = <-failed
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

var errStop = errors.New("told to stop")

// read takes the daemon's messages to the parts that they are for.
func read(dec *wire.Decoder, r *rank, eng *engine, ln *lane) error {
	for {
		f, err := dec.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			// The daemon is gone. Nothing that this process could still do is wanted.
			os.Exit(0)
		}
		if err != nil {
			return err
		}
		if f.Generation != r.gen {
			if f.Generation > r.gen {
				return fmt.Errorf("generation %d is over: a message came from %d", r.gen, f.Generation)
			}
			continue // of the past: it changes nothing
		}
		if err := faultAtHear(f.Message, func(m wire.Message) error { return hear(m, r, eng, ln) }); err != nil {
			return err
		}
	}
}

// hear takes one message to the part that it is for.
func hear(m wire.Message, r *rank, eng *engine, ln *lane) error {
	switch m := m.(type) {
	case *wire.Expect:
		if ln == nil {
			return fmt.Errorf("%T for a %s rank", m, r.setup.Rank.Role)
		}
		ln.inbox.put(m)
	case *wire.Prefill, *wire.Join, *wire.Grow, *wire.Quiesce:
		if r.setup.Rank.Rank != 0 {
			return fmt.Errorf("%T for rank %s, which does not lead", m, r.setup.Rank)
		}
		eng.inbox.put(m)
	case *wire.Dump:
		buf := make([]byte, 1<<20)
		r.post.send(&wire.Dumped{Text: string(buf[:runtime.Stack(buf, true)])})
	case *wire.Stop:
		return errStop
	default:
		return fmt.Errorf("%T is not for a worker", m)
	}
	return nil
}

// beat moves the pulse until the process ends.
func beat(v *spawn.Vitals) {
	for range time.Tick(100 * time.Millisecond) {
		v.Pulse.Add(1)
	}
}

// newNetwork opens the backend and binds the weights to it.
func newNetwork(dev Device, m *family.Model, r *rank, own int) (model.Network, kernels.Backend, []byte, error) {
	s := r.setup
	if len(s.ImageKey) != 32 {
		return nil, nil, nil, fmt.Errorf("setup: image key %s", hex.EncodeToString(s.ImageKey))
	}
	img, err := weights.OpenImage(r.mem.image.Bytes(), [32]byte(s.ImageKey))
	if err != nil {
		return nil, nil, nil, err
	}
	rope, err := m.Rope(img)
	if err != nil {
		return nil, nil, nil, err
	}
	o := DeviceOptions{Set: s.Kernels, Shape: m.Info.Shape, Rope: rope, Steps: &r.vitals.Steps}
	o.Shape.MaxRows, o.Shape.MaxOut, o.Shape.Context = s.MaxRows, s.MaxOut, s.Context
	o.Team = kernels.Team{Rank: s.Rank.Rank, Size: s.Degree, Crowded: s.Crowded}
	shared := dev.SharedBytes(o)
	if r.mem.scratch, err = sized("scratch", s.Scratch, int64(own)+shared); err != nil {
		return nil, nil, nil, err
	}
	r.mem.scratch.Huge()
	o.Team.Shared = r.mem.scratch.Bytes()[own:]
	b, err := dev.Open(o)
	if err != nil {
		return nil, nil, nil, err
	}
	units := make([]kernels.Mem, len(r.mem.kv))
	for u, seg := range r.mem.kv {
		if seg != nil {
			units[u] = kernels.Host(seg.Pages())
		}
	}
	if err := b.OpenKV(units); err != nil {
		return nil, nil, nil, err
	}
	net, err := m.Bind(img, b)
	return net, b, r.mem.scratch.Bytes()[:own], err
}

// spinFor is how long to look at a word before sleeping.
func spinFor(s *spawn.Setup) time.Duration {
	if s.Crowded {
		return 0
	}
	return 200 * time.Microsecond
}
