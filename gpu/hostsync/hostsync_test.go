package hostsync

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The tests that need other processes start this binary again with a role; the
// shared memory is file descriptor 3.
const roleVar = "HOSTSYNC_TEST_ROLE"

func TestMain(m *testing.M) {
	// No wake-up may depend on looking again unasked, so nobody does.
	sleep = time.Hour
	if role := os.Getenv(roleVar); role != "" {
		if err := roles[role](mapShared(3), os.Args[1:]); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const sharedBytes = 1 << 16

func mapShared(fd int) []byte {
	mem, err := unix.Mmap(fd, 0, sharedBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	return mem
}

// shared is memory of this test and the file to pass it on.
func shared(t *testing.T) ([]byte, *os.File) {
	t.Helper()
	fd, err := unix.MemfdCreate("hostsync-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "shared")
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(sharedBytes); err != nil {
		t.Fatal(err)
	}
	mem := mapShared(fd)
	t.Cleanup(func() { unix.Munmap(mem) })
	return mem, f
}

// start runs this binary in a role. say returns the next line it prints.
func start(t *testing.T, f *os.File, role string, args ...any) (cmd *exec.Cmd, say func() string) {
	t.Helper()
	var words []string
	for _, a := range args {
		words = append(words, fmt.Sprint(a))
	}
	cmd = exec.Command("/proc/self/exe", words...)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	lines := bufio.NewScanner(out)
	return cmd, func() string {
		if !lines.Scan() {
			return "(end)"
		}
		return lines.Text()
	}
}

// word is the i-th of some words at the end of the memory that no primitive uses.
func word(mem []byte, i int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&mem[sharedBytes/2+lineBytes*i]))
}

var roles = map[string]func(mem []byte, args []string) error{
	"barrier": func(mem []byte, args []string) error {
		var rank, ranks, rounds int
		var spin time.Duration
		scan(args, &rank, &ranks, &rounds, &spin)
		return meet(NewBarrier(mem, ranks, spin), mem, rank, ranks, rounds)
	},
	"barrier-wait": func(mem []byte, args []string) error {
		b := NewBarrier(mem, 3, 0)
		fmt.Println("waits")
		fmt.Println(b.Wait(Forever))
		return nil
	},
	"echo": func(mem []byte, args []string) error {
		var rounds uint32
		var spin time.Duration
		scan(args, &rounds, &spin)
		ping, pong := NewEvent(mem, spin), NewEvent(mem[1024:], spin)
		for seen := uint32(0); seen < rounds; {
			n, err := ping.Wait(seen, time.Minute)
			if err != nil {
				return err
			}
			seen = n
			pong.Bump()
		}
		return nil
	},
	"turns": func(mem []byte, args []string) error {
		var seat, rounds int
		var spin time.Duration
		scan(args, &seat, &rounds, &spin)
		return takeTurns(NewTurn(mem, seat, spin), mem, rounds)
	},
	"turn-hold": func(mem []byte, args []string) error {
		t := NewTurn(mem, 1, 0)
		if err := t.Acquire(time.Minute); err != nil {
			return err
		}
		fmt.Println("has it")
		return unix.Pause()
	},
}

func scan(args []string, into ...any) {
	for i, p := range into {
		if d, ok := p.(*time.Duration); ok {
			*d, _ = time.ParseDuration(args[i])
		} else if _, err := fmt.Sscan(args[i], p); err != nil {
			panic(err)
		}
	}
}

// meet goes through many rounds and checks in each that every rank has written
// this round's number, and none has got further, when the barrier opens.
func meet(b *Barrier, mem []byte, rank, ranks, rounds int) error {
	for n := 1; n <= rounds; n++ {
		binary.NativeEndian.PutUint32(mem[sharedBytes/2+lineBytes*rank:], uint32(n)) // no atomic: the barrier orders it
		if err := b.Wait(time.Minute); err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
		for r := range ranks {
			if got := binary.NativeEndian.Uint32(mem[sharedBytes/2+lineBytes*r:]); got != uint32(n) {
				return fmt.Errorf("rank %d passed round %d when rank %d had written %d", rank, n, r, got)
			}
		}
		if err := b.Wait(time.Minute); err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
	}
	return nil
}

// The waiting styles every scenario runs under: asleep at once, and after a look.
// Where there are fewer cores than waiters, looking long is slow.
var spins = []time.Duration{0, 5 * time.Microsecond, 200 * time.Microsecond}

func TestBarrierHoldsGoroutinesTogether(t *testing.T) {
	for _, spin := range spins {
		for ranks := 1; ranks <= 4; ranks++ {
			mem, _ := shared(t)
			var wg sync.WaitGroup
			for rank := range ranks {
				wg.Go(func() {
					if err := meet(NewBarrier(mem, ranks, spin), mem, rank, ranks, 1000); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
	}
}

func TestBarrierHoldsProcessesTogether(t *testing.T) {
	for _, spin := range spins {
		mem, f := shared(t)
		const ranks, rounds = 3, 1000
		var cmds []*exec.Cmd
		var says []func() string
		for rank := 1; rank < ranks; rank++ {
			cmd, say := start(t, f, "barrier", rank, ranks, rounds, spin)
			cmds, says = append(cmds, cmd), append(says, say)
		}
		if err := meet(NewBarrier(mem, ranks, spin), mem, 0, ranks, rounds); err != nil {
			t.Error(err)
		}
		for i, cmd := range cmds {
			said := says[i]()
			if err := cmd.Wait(); err != nil {
				t.Errorf("spin %v: rank %d: %v: %s", spin, i+1, err, said)
			}
		}
	}
}

func TestBarrierGivesUpAfterItsLimit(t *testing.T) {
	mem, _ := shared(t)
	b := NewBarrier(mem, 2, 10*time.Microsecond)
	if err := b.Wait(5 * time.Millisecond); !errors.Is(err, ErrTimeout) {
		t.Errorf("Wait alone = %v, want ErrTimeout", err)
	}
}

// A rank is killed while two others wait for it; a fourth party, which learns
// of the death from the kernel, aborts the barrier.
func TestPeerIsKilledAndTheBarrierAborted(t *testing.T) {
	mem, f := shared(t)
	waiter, says := start(t, f, "barrier-wait")
	victim, victimSays := start(t, f, "barrier-wait")
	says()
	victimSays()
	own := NewBarrier(mem, 3, 0)
	for own.w.arrived.Load() != 2 || own.w.sleepers.Load() != 2 {
		runtime.Gosched() // until both are asleep, the hardest case
	}
	victim.Process.Kill()
	victim.Wait()
	own.Abort()
	if got := says(); got != ErrAborted.Error() {
		t.Errorf("the surviving rank got %q, want %q", got, ErrAborted)
	}
	if err := waiter.Wait(); err != nil {
		t.Error(err)
	}
	if err := own.Wait(Forever); !errors.Is(err, ErrAborted) {
		t.Errorf("a later Wait = %v, want ErrAborted", err)
	}
	if !own.Aborted() {
		t.Error("Aborted = false after Abort")
	}
}

func TestEventIsSeenByAnotherProcess(t *testing.T) {
	for _, spin := range spins {
		mem, f := shared(t)
		const rounds = 3000
		cmd, say := start(t, f, "echo", rounds, spin)
		ping, pong := NewEvent(mem, spin), NewEvent(mem[1024:], spin)
		for n := uint32(0); n < rounds; n++ {
			ping.Bump()
			if got, err := pong.Wait(n, time.Minute); err != nil || got != n+1 {
				t.Fatalf("spin %v, round %d: Wait = %d, %v (the other process: %s)", spin, n, got, err, say())
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("spin %v: %v", spin, err)
		}
	}
}

// Many wait for one event, each sleeping at once, while it is bumped as fast as
// they can follow: a lost wake-up would leave one of them asleep for an hour.
func TestEventWakesEveryWaiter(t *testing.T) {
	mem, _ := shared(t)
	const waiters, rounds = 4, 2000
	var wg sync.WaitGroup
	done := NewEvent(mem[1024:], 0)
	for range waiters {
		wg.Go(func() {
			e := NewEvent(mem, 0)
			for seen := uint32(0); seen < rounds; seen++ {
				if _, err := e.Wait(seen, time.Minute); err != nil {
					t.Error(err)
					return
				}
				done.Bump()
			}
		})
	}
	e := NewEvent(mem, 0)
	for n := range uint32(rounds) {
		e.Bump()
		for got := done.Count(); got != (n+1)*waiters; got = done.Count() {
			if _, err := done.Wait(got, 10*time.Second); errors.Is(err, ErrTimeout) {
				t.Fatalf("round %d: only %d of %d woke", n, got-n*waiters, waiters)
			}
		}
	}
	wg.Wait()
}

func TestEventLimitAndAbort(t *testing.T) {
	mem, _ := shared(t)
	e := NewEvent(mem, 10*time.Microsecond)
	if n, err := e.Wait(0, 2*time.Millisecond); n != 0 || !errors.Is(err, ErrTimeout) {
		t.Errorf("Wait = %d, %v, want 0, ErrTimeout", n, err)
	}
	e.Bump()
	if n, err := e.Wait(0, Forever); n != 1 || err != nil {
		t.Errorf("Wait after Bump = %d, %v, want 1, nil", n, err)
	}
	sleep = time.Millisecond // an aborted event is noticed at the next look
	defer func() { sleep = time.Hour }()
	got := make(chan error)
	go func() { _, err := NewEvent(mem, 0).Wait(1, Forever); got <- err }()
	e.Abort()
	if err := <-got; !errors.Is(err, ErrAborted) {
		t.Errorf("Wait during Abort = %v, want ErrAborted", err)
	}
}

// takeTurns takes the turn many times, now and then with too short a limit, and
// checks that nobody else has it meanwhile.
func takeTurns(turn *Turn, mem []byte, rounds int) error {
	inside, total := word(mem, 0), mem[sharedBytes/2+lineBytes:]
	r := rand.New(rand.NewPCG(uint64(turn.seat), 1))
	for n := 0; n < rounds; {
		limit := time.Minute
		if r.IntN(3) == 0 {
			limit = time.Duration(r.IntN(30)) * time.Microsecond
		}
		switch err := turn.Acquire(limit); {
		case errors.Is(err, ErrTimeout) && limit < time.Minute:
			continue
		case err != nil:
			return fmt.Errorf("round %d: %w", n, err)
		}
		if !inside.CompareAndSwap(0, turn.seat+1) {
			return fmt.Errorf("seat %d got the turn while seat %d had it", turn.seat, inside.Load()-1)
		}
		binary.NativeEndian.PutUint32(total, binary.NativeEndian.Uint32(total)+1)
		for range 20 + r.IntN(200) {
			pause() // long enough for others to queue up
		}
		if !inside.CompareAndSwap(turn.seat+1, 0) {
			return errors.New("somebody came in")
		}
		turn.Release()
		n++
	}
	return nil
}

func TestOnlyOneHasTheTurn(t *testing.T) {
	for _, spin := range spins {
		mem, f := shared(t)
		const seats, rounds = 4, 1500
		var cmds []*exec.Cmd
		var says []func() string
		for seat := 2; seat < seats; seat++ { // two processes and two goroutines
			cmd, say := start(t, f, "turns", seat, rounds, spin)
			cmds, says = append(cmds, cmd), append(says, say)
		}
		var wg sync.WaitGroup
		for seat := range 2 {
			wg.Go(func() {
				if err := takeTurns(NewTurn(mem, seat, spin), mem, rounds); err != nil {
					t.Error(err)
				}
			})
		}
		for i, cmd := range cmds {
			said := says[i]()
			if err := cmd.Wait(); err != nil {
				t.Errorf("spin %v: %v: %s", spin, err, said)
			}
		}
		wg.Wait()
		if got := binary.NativeEndian.Uint32(mem[sharedBytes/2+lineBytes:]); got != seats*rounds {
			t.Errorf("spin %v: %d turns counted, want %d", spin, got, seats*rounds)
		}
		if n := NewTurn(mem, 9, 0).Waiting(); n != 0 {
			t.Errorf("spin %v: %d seats left waiting", spin, n)
		}
	}
}

func TestTurnGoesToWhoWaitedLongest(t *testing.T) {
	mem, _ := shared(t)
	first := NewTurn(mem, 7, 0)
	// Stamps about to wrap around, and over the two values that mean something else.
	first.w.stamps.Store(^uint32(0) - 3)
	if err := first.Acquire(Forever); err != nil {
		t.Fatal(err)
	}
	order := make(chan int, 5)
	var wg sync.WaitGroup
	for i, seat := range []int{3, 1, 60, 0, 2} {
		wg.Go(func() {
			turn := NewTurn(mem, seat, 0)
			if err := turn.Acquire(time.Minute); err != nil {
				t.Error(err)
			}
			order <- seat
			turn.Release()
		})
		for first.Waiting() != i+1 {
			runtime.Gosched()
		}
		if !first.Waits(seat) {
			t.Errorf("seat %d does not show as waiting", seat)
		}
	}
	if h := first.Holder(); h != 7 {
		t.Errorf("holder %d, want 7", h)
	}
	first.Release()
	wg.Wait()
	for _, want := range []int{3, 1, 60, 0, 2} {
		if got := <-order; got != want {
			t.Errorf("the turn went to seat %d, want %d", got, want)
		}
	}
	if h := first.Holder(); h != -1 {
		t.Errorf("holder %d at the end, want none", h)
	}
}

func TestHolderOfTheTurnIsKilled(t *testing.T) {
	mem, f := shared(t)
	holder, say := start(t, f, "turn-hold")
	if got := say(); got != "has it" {
		t.Fatal(got)
	}
	turn := NewTurn(mem, 0, 0)
	if err := turn.Acquire(5 * time.Millisecond); !errors.Is(err, ErrTimeout) {
		t.Errorf("Acquire of a turn that is taken = %v, want ErrTimeout", err)
	}
	if n := turn.Waiting(); n != 0 {
		t.Errorf("%d waiting after the limit, want 0", n)
	}
	holder.Process.Kill()
	holder.Wait()
	sleep = time.Millisecond
	defer func() { sleep = time.Hour }()
	got := make(chan error)
	go func() { got <- NewTurn(mem, 0, 0).Acquire(Forever) }()
	turn.Abort()
	if err := <-got; !errors.Is(err, ErrAborted) {
		t.Errorf("Acquire = %v, want ErrAborted", err)
	}
	if err := NewTurn(mem, 5, 0).Acquire(Forever); !errors.Is(err, ErrAborted) {
		t.Errorf("a later Acquire = %v, want ErrAborted", err)
	}
}

func TestMisusePanics(t *testing.T) {
	mem, _ := shared(t)
	for name, f := range map[string]func(){
		"too little memory": func() { NewBarrier(mem[:BarrierBytes-1], 2, 0) },
		"unaligned memory":  func() { NewEvent(mem[2:], 0) },
		"no such seat":      func() { NewTurn(mem, TurnSeats, 0) },
		"not the holder":    func() { NewTurn(mem, 0, 0).Release() },
		"asked twice": func() {
			turn := NewTurn(mem[4096:], 0, 0)
			turn.Acquire(Forever)
			turn.Acquire(Forever)
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestSizesHoldTheirWords(t *testing.T) {
	for name, v := range map[string][2]uintptr{
		"barrier": {unsafe.Sizeof(barrierWords{}), BarrierBytes},
		"event":   {unsafe.Sizeof(eventWords{}), EventBytes},
		"turn":    {unsafe.Sizeof(turnWords{}), TurnBytes},
	} {
		if v[0] != v[1] {
			t.Errorf("%s: %d bytes of words, %d declared", name, v[0], v[1])
		}
	}
}
