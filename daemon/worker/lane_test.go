package worker

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/daemon/spawn"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
	"tandem/gpu/pagepool"
	"tandem/gpu/share"
	"tandem/kernels"
	"tandem/model"
)

// world is the memory of one prefill rank and one decode rank that own all units,
// and the decode rank's lane.
type world struct {
	t      *testing.T
	lane   *lane
	board  *share.Board
	kv     []*share.Segment // decode's
	peer   []*share.Segment // prefill's; the same with handover
	frames chan wire.Message
}

const (
	testPages  = 8
	testUnits  = 2
	testBytes  = 256
	testSlots  = 2
	testMaxSeq = 4
)

func newWorld(t *testing.T, tr transfer.Transport) *world {
	t.Helper()
	w := &world{t: t, frames: make(chan wire.Message, 100)}
	segs := func() (out []*share.Segment) {
		for range testUnits {
			s, err := share.OpenSegment(make([]byte, share.SegmentBytes(testPages, testBytes)), testPages, testBytes)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, s)
		}
		return out
	}
	w.kv = segs()
	w.peer = w.kv
	if tr != transfer.Handover {
		w.peer = segs()
	}
	board, err := share.OpenBoard(make([]byte, share.BoardBytes(testSlots, testUnits, testMaxSeq)), testSlots, testUnits, testMaxSeq)
	if err != nil {
		t.Fatal(err)
	}
	w.board = board
	sync := make([]byte, spawn.SyncBytes(1, 1))
	ours, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirs.Close(); ours.Close() })
	go func() {
		d := wire.NewDecoder(ours)
		for {
			f, err := d.Next()
			if err != nil {
				close(w.frames)
				return
			}
			w.frames <- f.Message
		}
	}()
	setup := &spawn.Setup{Rank: ident.Rank{Replica: ident.Replica{Role: ident.Decode}}, Degree: 1, Transport: tr, Digest: true, Slots: testSlots, MaxPages: testMaxSeq, Turns: 1, Bells: 1,
		KV: spawn.Arena{Pages: testPages}, Peer: &spawn.Arena{Pages: testPages}}
	r := &rank{setup: setup, gen: 1, post: newPost(theirs, 1), layout: model.Layout{Geometry: kernels.Geometry{Units: testUnits, PageTokens: 4}, UnitPageBytes: testBytes},
		mem: &memory{kv: w.kv, peer: w.peer, boards: []*share.Board{board}}, hi: testUnits}
	r.mem.sync = region(t, sync)
	w.lane = newLane(r)
	return w
}

// publish writes a page as a prefill rank does.
func (w *world) publish(attempt uint64, ordinal int, pg pagepool.Page, fill byte) {
	for u := range testUnits {
		if ordinal == 0 {
			w.board.Claim(0, u, attempt)
		}
		s := w.peer[u]
		s.Begin(pg.Index, pg.Epoch)
		for i := range s.Page(pg.Index) {
			s.Page(pg.Index)[i] = fill + byte(u)
		}
		s.Seal(pg.Index, pg.Epoch)
		w.board.Publish(0, u, share.Digest(attempt, u, ordinal, s.Page(pg.Index)))
	}
}

// poll lets the lane look once.
func (w *world) poll() {
	for _, r := range w.lane.active {
		w.lane.receive(r)
	}
}

func (w *world) order(m wire.Message) {
	w.t.Helper()
	if err := w.lane.order(m); err != nil {
		w.t.Fatal(err)
	}
}

// said is the next n messages.
func (w *world) said(n int) []wire.Message {
	w.t.Helper()
	var out []wire.Message
	for range n {
		select {
		case m := <-w.frames:
			out = append(out, m)
		case <-time.After(5 * time.Second):
			w.t.Fatalf("only %d of %d messages: %v", len(out), n, out)
		}
	}
	return out
}

func pages(idx ...uint32) (out []pagepool.Page) {
	for _, i := range idx {
		out = append(out, pagepool.Page{Index: i, Epoch: 3})
	}
	return out
}

func TestLaneTakesWhatIsPublishedAndChecksIt(t *testing.T) {
	for _, tr := range []transfer.Transport{transfer.Handover, transfer.Pull} {
		t.Run(tr.String(), func(t *testing.T) {
			w := newWorld(t, tr)
			src, dst := pages(5, 2), pages(5, 2)
			if tr == transfer.Pull {
				dst = pages(0, 7)
			}
			w.order(&wire.Expect{Attempt: 9, Src: src, Dst: dst})
			w.poll()
			w.publish(9, 0, src[0], 10)
			w.poll()
			w.poll()
			w.publish(9, 1, src[1], 20)
			w.poll()
			got := w.said(4)
			if _, ok := got[0].(*wire.Reserved); !ok {
				t.Errorf("first %T", got[0])
			}
			if m := got[1].(*wire.Landed); m.Pages != 1 {
				t.Errorf("%+v", m)
			}
			if m := got[2].(*wire.Landed); m.Pages != 2 {
				t.Errorf("%+v", m)
			}
			if m := got[3].(*wire.Verified); m.Attempt != 9 {
				t.Errorf("%+v", m)
			}
			for u := range testUnits {
				if b := w.kv[u].Page(dst[1].Index)[0]; b != 20+byte(u) {
					t.Errorf("unit %d holds %d", u, b)
				}
			}
		})
	}
}

// fails runs a reception that must fail, with one change made after the last page
// was published and before the lane looked.
func fails(t *testing.T, tr transfer.Transport, want fault.Kind, damage func(w *world, src, dst []pagepool.Page)) {
	t.Helper()
	w := newWorld(t, tr)
	src, dst := pages(5, 2), pages(5, 2)
	if tr == transfer.Pull {
		dst = pages(0, 7)
	}
	w.order(&wire.Expect{Attempt: 9, Src: src, Dst: dst})
	w.publish(9, 0, src[0], 10)
	w.publish(9, 1, src[1], 20)
	damage(w, src, dst)
	w.poll()
	for {
		switch m := w.said(1)[0].(type) {
		case *wire.Failed:
			if m.Kind != want {
				t.Errorf("%s: %s", m.Kind, m.Text)
			}
			if len(w.lane.active) != 0 {
				t.Error("the reception goes on")
			}
			return
		case *wire.Verified:
			t.Fatal("verified")
		}
	}
}

func TestLaneRefusesDamagedPages(t *testing.T) {
	for _, tr := range []transfer.Transport{transfer.Handover, transfer.Pull} {
		t.Run(tr.String(), func(t *testing.T) {
			fails(t, tr, fault.DigestMismatch, func(w *world, src, _ []pagepool.Page) { w.peer[1].Page(src[1].Index)[200] ^= 1 })
			fails(t, tr, fault.EpochChanged, func(w *world, src, _ []pagepool.Page) { w.peer[0].Begin(src[0].Index, src[0].Epoch+1) })
			fails(t, tr, fault.EpochChanged, func(w *world, src, _ []pagepool.Page) { w.peer[0].Seal(src[1].Index, src[1].Epoch-1) })
		})
	}
	// Two attempts' pages swapped: right bytes, wrong place.
	fails(t, transfer.Handover, fault.DigestMismatch, func(w *world, src, _ []pagepool.Page) {
		a, b := w.kv[0].Page(src[0].Index), w.kv[0].Page(src[1].Index)
		tmp := slices.Clone(a)
		copy(a, b)
		copy(b, tmp)
	})
}

func TestLaneWaitsForItsOwnAttempt(t *testing.T) {
	w := newWorld(t, transfer.Handover)
	w.order(&wire.Expect{Attempt: 9, Src: pages(5), Dst: pages(5)})
	w.publish(8, 0, pages(5)[0], 10) // the slot still is an earlier attempt's
	w.poll()
	if m := w.said(1); len(w.lane.active) != 1 {
		t.Errorf("%v, and the reception has ended", m)
	}
}

func TestRetiredAttemptIsRefused(t *testing.T) {
	w := newWorld(t, transfer.Handover)
	w.order(&wire.Quiesce{Attempt: 9})
	w.order(&wire.Expect{Attempt: 9, Src: pages(5), Dst: pages(5)})
	w.publish(9, 0, pages(5)[0], 10)
	w.poll()
	w.order(&wire.Quiesce{Attempt: 10})
	got := w.said(2)
	for i, want := range []uint64{9, 10} {
		if q, ok := got[i].(*wire.Quiet); !ok || q.Attempt != want {
			t.Errorf("message %d: %#v", i, got[i])
		}
	}
}

// Numbers from a message never become addresses unchecked.
func TestLaneRefusesWhatIsOutOfRange(t *testing.T) {
	for name, m := range map[string]*wire.Expect{
		"page":   {Attempt: 1, Src: pages(testPages), Dst: pages(testPages)},
		"target": {Attempt: 1, Src: pages(1), Dst: pages(1 << 31)},
		"slot":   {Attempt: 1, Slot: testSlots, Src: pages(1), Dst: pages(1)},
		"source": {Attempt: 1, Source: 1, Src: pages(1), Dst: pages(1)},
		"length": {Attempt: 1, Src: pages(1, 2), Dst: pages(1)},
		"count":  {Attempt: 1, Src: pages(0, 1, 2, 3, 4), Dst: pages(0, 1, 2, 3, 4)},
	} {
		w := newWorld(t, transfer.Handover)
		if err := w.lane.order(m); err == nil || !strings.Contains(err.Error(), "expect of attempt 1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
