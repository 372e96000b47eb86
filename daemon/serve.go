package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"tandem/daemon/admin"
	"tandem/daemon/admit"
	"tandem/daemon/api"
	"tandem/daemon/cli"
	"tandem/daemon/config"
	"tandem/daemon/control"
	"tandem/daemon/core"
	"tandem/daemon/generation"
	"tandem/daemon/ident"
	"tandem/daemon/observe"
	"tandem/daemon/request"
	"tandem/daemon/spawn"
	"tandem/daemon/supervise"
	"tandem/daemon/transfer"
	"tandem/kernels/cpu"
	"tandem/model/catalog"
	"tandem/model/family"
)

// Limits that are not settings: they bound the daemon's own work.
const (
	startLimit = 60 * time.Second // from spawn to all ranks ready
	reapLimit  = 5 * time.Second  // from kill to all reaped, before it is said that it takes long
	drainLimit = 50 * time.Second // for answers in progress when told to stop
	clientRest = 30 * time.Second // a client that has its answer and takes no byte of it
	headroom   = 128              // tokens for which a sequence gets pages beyond its prompt
	packStall  = 5 * time.Minute  // for the next matrix of the weights
	endLimit   = 10 * time.Second // for workers to be gone once they are killed, when the daemon stops
)

// serve is `tandem serve`.
func serve(ctx context.Context, o cli.ServeOptions) int {
	s := &server{build: observe.Build()}
	if err := s.configure(o); err != nil {
		var bad *config.Error
		if errors.As(err, &bad) {
			if log, e := observe.Open(observe.Options{}); e == nil {
				log.Event(observe.ConfigRejected, "the configuration cannot be used: "+strings.ReplaceAll(err.Error(), "\n", "; "), observe.Reason(err.Error()))
				log.Close(time.Second)
			}
			return cli.ExitConfig
		}
		fmt.Fprintln(os.Stderr, "tandem:", err)
		return cli.ExitFailed
	}
	defer s.log.Close(2 * time.Second)
	if err := s.open(); err != nil {
		s.log.Event(s.blame, err.Error(), observe.Reason(err.Error()))
		s.close()
		if s.blame == observe.ConfigRejected {
			return cli.ExitConfig
		}
		return cli.ExitFailed
	}
	defer s.close()
	if err := s.run(ctx); err != nil {
		s.log.Event(observe.ModelFailed, err.Error(), observe.Reason(err.Error()))
		return cli.ExitFailed
	}
	return cli.ExitDone
}

// server is the daemon's parts while it runs.
type server struct {
	build   observe.BuildInfo
	cfg     *config.Config // resolved
	log     *observe.Log
	blame   observe.Kind // what kind of thing went wrong in open
	store   *control.Store
	model   *family.Model
	file    string
	name    string
	text    api.Text
	api     []net.Listener
	admin   net.Listener
	keys    *config.APIKeys
	metrics *observe.Metrics
	loop    *control.Loop
	plan    generation.Plan
	closers []func() error
	stop    chan string // why to stop
	told    sync.Once   // that it is ready

	snapMu sync.Mutex // guards snap
	snap   observe.Snapshot
}

func (s *server) configure(o cli.ServeOptions) error {
	cfg, err := config.Load(o.Config, o.Set)
	if err != nil {
		return err
	}
	if s.cfg, err = cfg.Resolve(config.ThisMachine()); err != nil {
		return err
	}
	s.log, err = observe.Open(observe.Options{Level: s.cfg.Log.Level, Format: s.cfg.Log.Format})
	if err != nil {
		return err
	}
	for _, w := range s.cfg.Warnings(config.ThisMachine()) {
		s.log.Event(observe.ConfigWarning, w)
	}
	return nil
}

// later remembers what to close, last first.
func (s *server) later(f func() error) { s.closers = append(s.closers, f) }

func (s *server) close() {
	for i := len(s.closers) - 1; i >= 0; i-- {
		_ = s.closers[i]()
	}
	s.closers = nil
}

// open takes hold of everything that can be refused: the state folder, the model,
// the sockets. Each error is one line that says what to do.
func (s *server) open() error {
	c := s.cfg
	fields := []observe.Field{observe.Str("revision", s.build.Revision), observe.Bool("dirty", s.build.Dirty), observe.Str("config_digest", c.Digest()), observe.Str("config", c.TOML()), observe.Str("limits", effective(c))}
	s.log.Event(observe.Start, fmt.Sprintf("%s starts, process %d, configuration %s", s.build, os.Getpid(), c.Digest()), fields...)
	if s.build.Dirty {
		s.log.Event(observe.DirtyBuild, "this binary was built from code that is not committed")
	}

	s.blame = observe.StateFailed
	dir, err := c.StateDir(os.Getenv)
	if err != nil {
		return err
	}
	if s.store, err = control.OpenStore(dir); err != nil {
		if errors.Is(err, control.ErrInUse) {
			s.blame = observe.StateLocked
		}
		return err
	}
	s.later(s.store.Close)

	s.blame = observe.ModelFailed
	dirs, err := config.ModelsDirs(os.Getenv)
	if err != nil {
		return err
	}
	if s.file, s.name, err = catalog.Resolve(c.Model.Path, dirs...); err != nil {
		return err
	}
	if c.Model.Name != "" {
		s.name = c.Model.Name
	}
	if s.model, err = family.Open(s.file); err != nil {
		return err
	}
	s.later(s.model.Close)
	if s.text, err = api.ReadText(s.model.File); err != nil {
		return err
	}
	if err := s.makePlan(); err != nil {
		return err
	}

	s.blame = observe.ConfigRejected
	if c.Server.APIKeysFile != "" {
		if s.keys, err = config.ReadAPIKeys(c.Server.APIKeysFile, os.Getenv); err != nil {
			return err
		}
	}
	s.blame = observe.ListenFailed
	return s.listen()
}

// effective is a line for every value in force: where it came from, and where it is
// enforced. The last ones are no settings.
func effective(c *config.Config) string {
	var b strings.Builder
	for _, s := range c.Settings() {
		fmt.Fprintf(&b, "%s = %s (%s; enforced in %s)\n", s.Key, s.Value, s.Origin, s.Where)
	}
	for _, l := range []struct {
		name  string
		value time.Duration
		where string
	}{
		{"start limit", startLimit, "daemon/supervise"}, {"reap limit", reapLimit, "daemon/supervise"},
		{"drain limit", drainLimit, "daemon/serve.go"}, {"client rest", clientRest, "daemon/api, daemon/request"},
	} {
		fmt.Fprintf(&b, "%s = %s (fixed; enforced in %s)\n", l.name, l.value, l.where)
	}
	return b.String()
}

// makePlan computes what every generation is made of, and whether it fits.
func (s *server) makePlan() error {
	c, info := s.cfg, s.model.Info
	window := info.Context
	if n := c.Model.ContextLength; n > 0 {
		if n > info.Context {
			return fmt.Errorf("model.context_length is %d, but %s was made for %d: lower it", n, s.file, info.Context)
		}
		window = n
	}
	elem := cpu.ElemBytes(set(c))
	layout := s.model.Layout(elem)
	transports := map[string]transfer.Transport{"handover": transfer.Handover, "pull": transfer.Pull, "push": transfer.Push}
	p := generation.Plan{
		Prefill:   generation.Group{Devices: c.Prefill.Devices, Degree: c.Prefill.TensorParallel, MaxRows: c.Prefill.ChunkTokens, MaxOut: 1},
		Decode:    generation.Group{Devices: c.Decode.Devices, Degree: c.Decode.TensorParallel, MaxRows: c.Decode.MaxBatch, MaxOut: c.Decode.MaxBatch},
		Model:     s.file,
		Context:   window,
		Kernels:   set(c),
		Chunk:     c.Prefill.ChunkTokens,
		Layout:    layout,
		Elem:      elem,
		Transport: transports[c.KV.Transport],
		Digest:    c.KV.Digest,
		Slots:     2*c.Limits.MaxRequests + 8,
		Cores:     cores(),
		Env:       []string{"GOMAXPROCS=3"},
	}
	need := int64(layout.Pages(window)) * layout.PageBytes()
	groups := int64(1)
	for _, g := range []*generation.Group{&p.Decode, &p.Prefill} {
		if g == &p.Prefill && p.Transport == transfer.Handover {
			continue
		}
		share := c.KV.CPUBytes.Bytes() / int64(g.Replicas())
		if share < need {
			return fmt.Errorf("kv.cpu_bytes: each of %d replicas gets %s, and one sequence of the window's %d tokens takes %s: set kv.cpu_bytes to %s or more, or model.context_length lower",
				g.Replicas(), config.Size(share).Human(), window, config.Size(need).Human(), config.Size(need*int64(g.Replicas())).Enough())
		}
		g.Pages = int(share / layout.PageBytes())
		if g == &p.Prefill {
			groups++
		}
	}
	plan, err := s.model.Plan(cpu.NewPacker(), window)
	if err != nil {
		return err
	}
	total := plan.Bytes() + groups*c.KV.CPUBytes.Bytes()
	if m := config.ThisMachine().Memory; m > 0 && total > m.Bytes() {
		return fmt.Errorf("%s does not fit: %s of weights and %s of KV cache are %s, and this machine has %s: lower kv.cpu_bytes, or take a smaller model",
			s.file, config.Size(plan.Bytes()).Human(), config.Size(groups*c.KV.CPUBytes.Bytes()).Human(), config.Size(total).Human(), m.Human())
	}
	s.plan = p
	s.log.Event(observe.ModelLoaded, fmt.Sprintf("%s: %s %s, %d million parameters, %d tokens of window, %d bytes of KV a token; prefill %d×TP%d, decode %d×TP%d, %s",
		s.name, info.Arch, info.Quantisation, info.Parameters/1e6, window, layout.PageBytes()/int64(layout.PageTokens),
		p.Prefill.Replicas(), p.Prefill.Degree, p.Decode.Replicas(), p.Decode.Degree, c.KV.Transport),
		observe.Str("file", s.file), observe.Bytes("weights", info.WeightBytes))
	return nil
}

// set is the kernel set that the configuration asks for.
func set(c *config.Config) string {
	if c.Backend.Kernels == "auto" {
		return cpu.Fine
	}
	return c.Backend.Kernels
}

// cores lists the processors that this process may run on.
func cores() []int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	var out []int
	for i := 0; i < len(set)*64 && len(out) < set.Count(); i++ {
		if set.IsSet(i) {
			out = append(out, i)
		}
	}
	return out
}

func (s *server) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := s.cfg
	s.stop = make(chan string, 4)
	d := &c.Deadlines
	sp := spawn.NewSpawner()
	prepare := func(ctx context.Context, progress func(string)) error {
		key := s.model.ImageKey("cpu", s.plan.Context)
		plan, err := s.model.Plan(cpu.NewPacker(), s.plan.Context)
		if err != nil {
			return err
		}
		image, err := generation.Pack(ctx, sp, s.file, s.plan.Context, plan.Bytes(), key[:], s.plan.Env, packStall, func(done, total int64) {
			progress(fmt.Sprintf("loading weights, %d of %d MiB", done>>20, total>>20))
		})
		if err != nil {
			return err
		}
		ro, err := image.ReadOnly()
		if err != nil {
			return err
		}
		s.later(ro.Close)
		s.later(image.Close)
		s.plan.Image, s.plan.ImageKey = ro, key[:]
		return nil
	}
	launch := func(g ident.Generation, sink func(generation.Report)) (control.Generation, error) {
		gen, err := generation.Launch(sp, &s.plan, g, sink)
		return gen, err
	}
	var states []string
	for _, st := range request.LiveStates() {
		states = append(states, st.String())
	}
	s.metrics = observe.NewMetrics(observe.MetricsOptions{Build: s.build, ConfigDigest: c.Digest(), RequestStates: states, PageStates: pageStates(), Limits: []string{"max_requests", "max_queued"}, Reasons: core.Reasons,
		Snapshot: s.snapshot, Behind: func() time.Duration { return s.loop.Behind() }, Dropped: s.log.Dropped, Edges: s.edges()})
	s.loop = control.New(control.Options{
		Core: core.Options{
			Ranks: s.plan.Ranks(), Layout: s.plan.Layout, Context: s.plan.Context, Transport: s.plan.Transport,
			DecodePages: s.plan.Decode.Pages, PrefillPages: s.plan.Prefill.Pages, Slots: s.plan.Slots, MaxBatch: c.Decode.MaxBatch,
			Supervise: supervise.Limits{Start: startLimit, Reap: reapLimit, Budget: c.Restart.Budget, Window: c.Restart.Window.D(),
				BackoffMin: c.Restart.BackoffMin.D(), BackoffMax: c.Restart.BackoffMax.D()},
			Request: request.Limits{Queue: d.Queue.D(), Reserve: d.Reserve.D(), PrefillStall: d.PrefillStall.D(), Handoff: d.Handoff.D(), Transfer: d.Transfer.D(),
				Verify: d.Verify.D(), FirstToken: d.FirstToken.D(), TokenStall: d.TokenStall.D(), Drain: clientRest + 2*time.Second, Request: d.Request.D(), MaxAttempts: c.Limits.MaxAttempts},
			Admit:    admit.Limits{Running: c.Limits.MaxRequests, Queued: c.Limits.MaxQueued},
			Progress: d.Progress.D(), Quarantine: d.Quarantine.D(), Headroom: headroom, Canary: s.canary(),
		},
		Store: s.store, Log: s.log, Meter: s.metrics, Prepare: prepare, Launch: launch, Notify: s.notify,
	})

	var keys []string
	if s.keys != nil {
		keys = s.keys.List()
	}
	handler := api.New(api.Options{
		Engine: engine{s.loop}, Text: s.text,
		Model:   api.Model{Name: s.name, Aliases: c.Model.Aliases, Created: time.Now(), Context: s.plan.Context, DefaultOutput: c.Model.MaxOutputTokens},
		MaxBody: c.Server.MaxBody.Bytes(), CORSOrigins: c.Server.CORSOrigins, APIKeys: keys, Keepalive: c.Server.Keepalive.D(), ClientStall: clientRest,
		Log: s.log.Slog(), Recorder: s.metrics, Metrics: s.metrics.Handler(),
	})
	web := api.NewServer(handler, s.log.Slog())
	web.MaxConns = s.maxConns()

	// The parts, each in its goroutine; they are stopped in reverse order.
	var wg sync.WaitGroup
	failed := make(chan error, 3)
	part := func(f func() error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := f(); err != nil {
				failed <- err
			}
		}()
	}
	loopCtx, endLoop := context.WithCancel(context.Background())
	defer endLoop()
	loopDone := make(chan error, 1)
	go func() { loopDone <- s.loop.Run(loopCtx) }()
	part(func() error {
		return admin.Serve(ctx, s.admin, admin.Options{Loop: s.loop, Drain: func() { s.askStop("an operator drained it") }, Config: func() any { return c.Settings() }, Build: s.build, Log: s.log})
	})
	part(func() error { return web.Serve(s.api...) })
	part(func() error { return s.watchdog(ctx) })
	for _, l := range s.api {
		s.log.Event(observe.Start, fmt.Sprintf("listening on %s", l.Addr()), observe.Str("address", l.Addr().String()))
	}

	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	var err error
	why := ""
	select {
	case sig := <-signals:
		why = "signal: " + sig.String()
	case why = <-s.stop:
	case err = <-failed:
		why = err.Error()
	case err = <-loopDone:
		loopDone <- nil
		why = "the control loop ended"
	}
	s.log.Event(observe.Stopping, "stopping: "+why, observe.Reason(why))
	_, _ = sd.SdNotify(false, sd.SdNotifyStopping+"\nSTATUS=stopping: "+oneLine(why)+"\nEXTEND_TIMEOUT_USEC="+strconv.FormatInt((drainLimit+2*endLimit).Microseconds(), 10))
	s.loop.Drain()
	drain, cancelDrain := context.WithTimeout(context.Background(), drainLimit)
	go func() { // a second signal does not wait
		select {
		case <-signals:
			cancelDrain()
		case <-drain.Done():
		}
	}()
	if e := web.Shutdown(drain); e != nil {
		s.log.Event(observe.Stopping, fmt.Sprintf("answers were cut short: %v", e), observe.Reason(e.Error()))
	}
	cancelDrain()
	cancel()
	endLoop()
	select {
	case e := <-loopDone:
		if err == nil {
			err = e
		}
	case <-time.After(endLimit):
		// A process in an uninterruptible wait. It dies with that wait, and its memory
		// with it; there is nothing more to do for it.
		err = errors.Join(err, fmt.Errorf("workers were killed and did not end within %s: they are left behind", endLimit))
	}
	wg.Wait()
	s.log.Event(observe.Stopped, "stopped", observe.Reason(why))
	return err
}

// maxConns is how many connections the endpoint takes: enough for all places and for
// clients that keep some open, and never so many that a generation could not be
// started for want of file descriptors.
func (s *server) maxConns() int {
	places := 4*(s.cfg.Limits.MaxRequests+s.cfg.Limits.MaxQueued) + 1024
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return places
	}
	// Of a generation: the pages of each unit of both groups, to read and to write; for
	// each rank a socket, a pipe, its vital signs, its replica's memory and board.
	own := 4*s.plan.Layout.Units + 8*len(s.plan.Ranks()) + 128
	return max(min(places, int(min(files.Cur, 1<<30))-own), 16)
}

func (s *server) askStop(why string) {
	select {
	case s.stop <- why:
	default:
	}
}

func oneLine(t string) string { return strings.ReplaceAll(t, "\n", " ") }

// canary is a prompt of our own: two tokens, so that the whole way is gone.
func (s *server) canary() []int32 {
	ids := s.text.Encode("Hello, world.", true, false)
	if len(ids) < 2 {
		ids = []int32{0, 0}
	}
	return ids
}

// engine gives the endpoint what it needs of the loop.
type engine struct{ *control.Loop }

func (e engine) Submit(spec request.Spec) (api.Stream, error) {
	s, err := e.Loop.Submit(spec)
	if err != nil {
		return nil, err
	}
	return s, nil
}
