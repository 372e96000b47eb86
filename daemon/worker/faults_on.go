//go:build faults

package worker

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"tandem/daemon/wire"
)

// A worker of this build does wrong what the file $TANDEM_FAULTS/rules says, and
// notes each time in $TANDEM_FAULTS/done. The file is looked at whenever something
// could be done wrong, so a rule holds from the moment it is written. Without the
// variable, or the file, the worker behaves.
//
// The first line of the file is a number that no other version of it has, and a
// seed. Each further line is a rule: words of the form name=value.
//
//	at=start|plan|say|hear|take|seal   where; say and hear are messages to and from the daemon
//	kind=Sealed         the message; without it, any that is about requests
//	rank=decode/0.1     who; the beginning of a name is enough: rank=decode
//	last                a Sealed that is the last one
//	short=N long=N      a message of at most, at least so many tokens
//	p=0.01 nth=5        with this probability; only the fifth time (of a process)
//	most=N once         at most so often: of a process; of all
//	ms=50               how long, where something is late
//	id=x                the name under which it is noted
//	do=...              what, see below
//
// At every place: die, hang, exit (with status 3), late (by ms; messages are
// overtaken meanwhile). At say and hear: drop, twice, swap-order (with the next
// message). At say, instead of the message: garbage, truncated, oversized, unknown,
// older, newer, absurd. At hear: swap-pages (the first page of two Prefills). At
// take: corrupt. At seal: early (published before it has landed), unlanded (sealed
// and published before it has landed). At start: skew (another monotonic clock).
type rule struct {
	text, id, at, kind, rank, do string
	last, once                   bool
	short, long, nth, most       int
	p                            float64
	late                         time.Duration

	seen, done int // times that it fitted; times that it was done
}

// faults is what this process does wrong.
var faults = struct {
	sync.Mutex
	dir, who string // who: "decode/0.1"
	stamp    [3]int64
	serial   string
	rules    []*rule
	rnd      *rand.Rand
	held     map[string]func() // messages that wait for the next one, by direction
	prefill  *wire.Prefill     // that waits for another, to swap pages with
}{dir: os.Getenv("TANDEM_FAULTS"), who: strings.Join(os.Args[2:], " "), held: map[string]func(){}}

// load looks whether the rules changed.
func load() {
	path := filepath.Join(faults.dir, "rules")
	st, err := os.Stat(path)
	if err != nil {
		faults.rules = nil
		return
	}
	stamp := [3]int64{int64(st.Sys().(*syscall.Stat_t).Ino), st.ModTime().UnixNano(), st.Size()}
	if stamp == faults.stamp {
		return
	}
	b, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	var seed uint64
	if _, err := fmt.Sscan(lines[0], &faults.serial, &seed); err != nil {
		panic(err)
	}
	h := fnv.New64a()
	fmt.Fprint(h, faults.who, os.Getpid())
	faults.stamp, faults.rnd, faults.rules = stamp, rand.New(rand.NewPCG(seed, h.Sum64())), nil
	for _, l := range lines[1:] {
		faults.rules = append(faults.rules, parse(l))
	}
}

func parse(line string) *rule {
	r := &rule{text: line, id: line, p: 1}
	for _, w := range strings.Fields(line) {
		name, v, _ := strings.Cut(w, "=")
		n, _ := strconv.Atoi(v)
		switch name {
		case "at":
			r.at = v
		case "kind":
			r.kind = v
		case "rank":
			r.rank = v
		case "do":
			r.do = v
		case "id":
			r.id = v
		case "last":
			r.last = true
		case "once":
			r.once = true
		case "short":
			r.short = n
		case "long":
			r.long = n
		case "nth":
			r.nth = n
		case "most":
			r.most = n
		case "ms":
			r.late = time.Duration(n) * time.Millisecond
		case "p":
			var err error
			if r.p, err = strconv.ParseFloat(v, 64); err != nil {
				panic(err)
			}
		default:
			panic("fault rule: " + line)
		}
	}
	return r
}

// fitting finds the rule that is to be applied here and now, and notes it.
func fitting(at string, m wire.Message, attempt uint64) *rule {
	if faults.dir == "" {
		return nil
	}
	faults.Lock()
	defer faults.Unlock()
	load()
	for _, r := range faults.rules {
		if r.at != at || !strings.HasPrefix(faults.who, r.rank) || !r.fits(m) {
			continue
		}
		if r.seen++; r.nth != 0 && r.seen != r.nth || r.most != 0 && r.done >= r.most || faults.rnd.Float64() >= r.p {
			continue
		}
		if r.once {
			f, err := os.OpenFile(filepath.Join(faults.dir, "once-"+faults.serial+"-"+strings.ReplaceAll(r.id, "/", "_")), os.O_CREATE|os.O_EXCL, 0o644)
			if err != nil {
				continue // another process was first
			}
			f.Close()
		}
		r.done++
		note(r, m, attempt)
		return r
	}
	return nil
}

func (r *rule) fits(m wire.Message) bool {
	if m == nil {
		return true
	}
	kind := strings.TrimPrefix(fmt.Sprintf("%T", m), "*wire.")
	if r.kind != "" && r.kind != kind {
		return false
	}
	tokens := 0
	switch m := m.(type) {
	case *wire.Setup, *wire.Hello, *wire.Ready, *wire.Fatal, *wire.Stop, *wire.Dump, *wire.Dumped, *wire.Progress:
		return r.kind != ""
	case *wire.Sealed:
		return !r.last || m.Done
	case *wire.Join:
		tokens = len(m.Tokens)
	case *wire.Prefill:
		tokens = len(m.Tokens)
	}
	return (r.short == 0 || tokens <= r.short) && (r.long == 0 || tokens >= r.long)
}

func note(r *rule, m wire.Message, attempt uint64) {
	kind := "-"
	if m != nil {
		kind = strings.TrimPrefix(fmt.Sprintf("%T", m), "*wire.")
		if v := reflect.ValueOf(m).Elem().FieldByName("Attempt"); v.IsValid() {
			attempt = v.Uint()
		}
	}
	f, err := os.OpenFile(filepath.Join(faults.dir, "done"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintf(f, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\n", faults.serial, r.id, r.do, faults.who, kind, os.Getpid(), attempt, time.Now().UnixNano())
}

// anywhere does what can be done at every place; false: r wants something else.
func (r *rule) anywhere() bool {
	switch r.do {
	case "die":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "hang":
		select {}
	case "exit":
		fmt.Fprintln(os.Stderr, "told to exit by a rule")
		os.Exit(3)
	case "late":
		time.Sleep(r.late)
	default:
		return false
	}
	return true
}

func (r *rule) misplaced() { panic("fault rule: cannot be done there: " + r.text) }

func faultAtStart() {
	if os.Getenv("TANDEM_SKEWED") != "" {
		return
	}
	r := fitting("start", nil, 0)
	switch {
	case r == nil || r.anywhere():
	case r.do == "skew":
		// The kernel enters the new time namespace when the program is executed.
		unshare, err := exec.LookPath("unshare")
		if err != nil {
			panic(err)
		}
		s := strconv.Itoa(int(r.late / time.Second))
		args := append([]string{"unshare", "--time", "--monotonic", s, "--boottime", s, "/proc/self/exe"}, os.Args[1:]...)
		self, err := os.Executable()
		if err != nil {
			panic(err)
		}
		args[6] = self
		panic(syscall.Exec(unshare, args, append(os.Environ(), "TANDEM_SKEWED=1")))
	default:
		r.misplaced()
	}
}

func faultAtPlan(*rank) {
	if r := fitting("plan", nil, 0); r != nil && !r.anywhere() {
		r.misplaced()
	}
}

// pass gives a message on, after the one that was to be overtaken.
func pass(way string, do func()) {
	do()
	faults.Lock()
	held := faults.held[way]
	delete(faults.held, way)
	faults.Unlock()
	if held != nil {
		held()
	}
}

// hold keeps a message until the next one has passed, or for a while if none comes.
func hold(way string, do func()) {
	faults.Lock()
	before := faults.held[way]
	var once sync.Once
	later := func() { once.Do(do) }
	faults.held[way] = later
	faults.Unlock()
	if before != nil {
		before()
	}
	time.AfterFunc(100*time.Millisecond, later)
}

func faultAtSay(p *post, m wire.Message) bool {
	r := fitting("say", m, 0)
	if r == nil {
		if faults.dir == "" {
			return false
		}
		pass("say", func() { p.put(m) })
		return true
	}
	good, err := wire.Append(nil, p.gen, m)
	if err != nil {
		panic(err)
	}
	switch r.do {
	case "drop":
	case "twice":
		p.put(m)
		p.put(m)
	case "swap-order":
		hold("say", func() { p.put(m) })
	case "late":
		time.AfterFunc(r.late, func() { p.put(m) })
	case "garbage":
		b := make([]byte, 200)
		faults.Lock()
		for i := range b {
			b[i] = byte(faults.rnd.Uint32())
		}
		faults.Unlock()
		p.putBytes(b)
	case "truncated": // the next frame begins where this one should go on
		p.putBytes(good[:len(good)-1])
		p.put(m)
	case "oversized":
		binary.LittleEndian.PutUint32(good[4:], wire.MaxPayload+1)
		p.putBytes(good)
	case "unknown":
		good, _ = wire.Append(nil, p.gen, stranger{m})
		p.putBytes(good)
	case "older":
		good, _ = wire.Append(nil, p.gen-1, m)
		p.putBytes(good)
		p.put(m)
	case "newer":
		good, _ = wire.Append(nil, p.gen+1, m)
		p.putBytes(good)
		p.put(m)
	case "absurd": // a message that only the daemon sends
		p.put(&wire.Quiesce{Attempt: 1})
	default:
		if !r.anywhere() {
			r.misplaced()
		}
	}
	return true
}

// stranger is a message of a type that nobody knows.
type stranger struct{ wire.Message }

func (stranger) Type() wire.Type { return 200 }

func faultAtHear(m wire.Message, deliver func(wire.Message) error) error {
	give := func(m wire.Message) func() {
		return func() {
			if err := deliver(m); err != nil && err != errStop {
				panic(err)
			}
		}
	}
	r := fitting("hear", m, 0)
	if r == nil {
		if faults.dir == "" || m.Type() == wire.TStop {
			return deliver(m)
		}
		pass("hear", give(m))
		return nil
	}
	switch r.do {
	case "drop":
	case "twice":
		give(m)()
		give(m)()
	case "swap-order":
		hold("hear", give(m))
	case "late":
		time.AfterFunc(r.late, give(m))
	case "swap-pages":
		b := m.(*wire.Prefill)
		a := faults.prefill // the reader's alone
		if faults.prefill = b; a == nil {
			return nil
		}
		faults.prefill = nil
		if len(a.Dst) > 0 {
			a.Dst[0], b.Dst[0] = b.Dst[0], a.Dst[0]
		} else {
			a.Src[0], b.Src[0] = b.Src[0], a.Src[0]
		}
		give(a)()
		give(b)()
	default:
		if !r.anywhere() {
			r.misplaced()
		}
	}
	return nil
}

func faultAtTake(_ *rank, attempt uint64, page []byte) {
	r := fitting("take", nil, attempt)
	switch {
	case r == nil || r.anywhere():
	case r.do == "corrupt":
		page[len(page)/3] ^= 0x10
	default:
		r.misplaced()
	}
}

func faultAtSeal(e *engine, s *span, u, i int, digest uint64, src []byte) bool {
	r := fitting("seal", nil, s.attempt)
	if r == nil || r.anywhere() {
		return false
	}
	whole := append([]byte(nil), src...)
	board, kv := e.mem.boards[0], e.mem.kv[u]
	ring := func() {
		for _, b := range e.bells {
			b.Bump()
		}
		time.Sleep(r.late)
	}
	switch r.do {
	case "early": // published, then sealed
		board.Publish(s.slot, u, digest)
		ring()
		kv.Seal(s.pages[i], s.epochs[i])
		if len(s.target) > 0 {
			e.push(u, s.target[i], src)
		}
	case "unlanded": // sealed and published, then written
		land := src
		if len(s.target) > 0 {
			land = e.mem.peer[u].Page(s.target[i].Index)
			e.push(u, s.target[i], src)
		}
		clear(land[len(land)/2:])
		kv.Seal(s.pages[i], s.epochs[i])
		board.Publish(s.slot, u, digest)
		ring()
		copy(land, whole)
	default:
		r.misplaced()
	}
	return true
}

// putBytes sends what need not be a frame.
func (p *post) putBytes(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unsent = append(p.unsent, b...)
	p.wakeLocked()
}
