package worker

import (
	"testing"

	"tandem/daemon/ident"
	"tandem/daemon/spawn"
	"tandem/daemon/transfer"
	"tandem/daemon/wire"
	"tandem/gpu/pagepool"
	"tandem/kernels"
	"tandem/model"
	"tandem/model/sample"
)

func testRank(role ident.Role) *rank {
	return &rank{layout: model.Layout{Geometry: kernels.Geometry{Units: 1, PageTokens: 4}},
		setup: &spawn.Setup{Rank: ident.Rank{Replica: ident.Replica{Role: role}}, Degree: 1, Transport: transfer.Push, Slots: 2, MaxPages: 4, MaxRows: 6, MaxOut: 2, Chunk: 6, Context: 16,
			KV: spawn.Arena{Pages: 8}, Peer: &spawn.Arena{Pages: 8}}}
}

// Orders that cannot be right end the rank with an error that names them; no
// number in them is used before.
func TestLeadersRefuseImpossibleOrders(t *testing.T) {
	toks := []int32{1, 2, 3, 4, 5}
	good := wire.Prefill{Attempt: 1, Tokens: toks, Src: pages(0, 1), Dst: pages(2, 3)}
	for name, change := range map[string]func(*wire.Prefill){
		"no tokens":      func(m *wire.Prefill) { m.Tokens = nil },
		"too few pages":  func(m *wire.Prefill) { m.Src = pages(0) },
		"page":           func(m *wire.Prefill) { m.Src = pages(0, 8) },
		"target page":    func(m *wire.Prefill) { m.Dst = pages(0, 1<<31) },
		"target pages":   func(m *wire.Prefill) { m.Dst = nil },
		"slot":           func(m *wire.Prefill) { m.Slot = 2 },
		"too many pages": func(m *wire.Prefill) { m.Tokens = make([]int32, 17); m.Src = pages(0, 1, 2, 3, 4) },
	} {
		m := good
		change(&m)
		if err := newPrefiller(testRank(ident.Prefill)).order(&m); err == nil {
			t.Errorf("prefill: %s: accepted", name)
		}
	}
	if err := newPrefiller(testRank(ident.Prefill)).order(&good); err != nil {
		t.Error(err)
	}

	join := wire.Join{Attempt: 1, Prompt: 5, MaxTokens: 3, Tokens: toks, Pages: pages(0, 1)}
	for name, change := range map[string]func(*wire.Join){
		"no tokens":     func(m *wire.Join) { m.Tokens = nil },
		"token":         func(m *wire.Join) { m.Tokens = []int32{1, 100} },
		"negative":      func(m *wire.Join) { m.Tokens = []int32{-1} },
		"prompt":        func(m *wire.Join) { m.Prompt = 6 },
		"nothing to do": func(m *wire.Join) { m.MaxTokens = 0 },
		"window":        func(m *wire.Join) { m.Tokens = make([]int32, 17) },
		"page":          func(m *wire.Join) { m.Pages = []pagepool.Page{{Index: 8}} },
		"pages":         func(m *wire.Join) { m.Pages = pages(0, 1, 2, 3, 4) },
		"temperature":   func(m *wire.Join) { m.Params = sample.Params{Temperature: -1} },
	} {
		m := join
		change(&m)
		if err := newDecoder(testRank(ident.Decode), 100).order(&m); err == nil {
			t.Errorf("join: %s: accepted", name)
		}
	}
	d := newDecoder(testRank(ident.Decode), 100)
	if err := d.order(&join); err != nil {
		t.Error(err)
	}
	if err := d.order(&join); err == nil {
		t.Error("the same attempt joined twice")
	}
	if err := d.order(&wire.Grow{Attempt: 1, At: 2, Pages: pages(0, 1, 2)}); err == nil {
		t.Error("grew beyond the longest sequence")
	}
	for _, m := range []wire.Message{&wire.Stop{}, &wire.Hello{}} {
		if newDecoder(testRank(ident.Decode), 100).order(m) == nil || newPrefiller(testRank(ident.Prefill)).order(m) == nil {
			t.Errorf("%T was taken for an order", m)
		}
	}
}

// A prompt that was given up is not computed, whether it was known or not.
func TestPrefillGivenUp(t *testing.T) {
	p := newPrefiller(testRank(ident.Prefill))
	job := func(a uint64) *wire.Prefill {
		return &wire.Prefill{Attempt: a, Tokens: []int32{1, 2, 3, 4, 5}, Src: pages(0, 1), Dst: pages(2, 3)}
	}
	for _, m := range []wire.Message{job(1), &wire.Quiesce{Attempt: 1}, &wire.Quiesce{Attempt: 2}, job(2)} {
		if err := p.order(m); err != nil {
			t.Fatal(err)
		}
	}
	if pl := p.next(false); pl != nil {
		t.Errorf("still computes %+v", pl.spans)
	}
}

// Two prompts share a step; each is computed to its end, in order, and its pages
// are final only when full, or at the end.
func TestPrefillSteps(t *testing.T) {
	p := newPrefiller(testRank(ident.Prefill))
	for a := range uint64(2) {
		if err := p.order(&wire.Prefill{Attempt: a + 1, Tokens: make([]int32, 5), Src: pages(uint32(2*a), uint32(2*a+1)), Dst: pages(2, 3)}); err != nil {
			t.Fatal(err)
		}
	}
	done := map[uint64]int{}
	for range 10 {
		pl := p.next(false)
		if pl == nil {
			break
		}
		rows := 0
		for _, s := range pl.spans {
			if s.pos != done[s.attempt] {
				t.Fatalf("attempt %d goes on at %d after %d tokens", s.attempt, s.pos, done[s.attempt])
			}
			done[s.attempt] += len(s.tokens)
			rows += len(s.tokens)
			if s.last != (done[s.attempt] == 5) || len(s.pages) != (done[s.attempt]+3)/4 {
				t.Errorf("%+v", s)
			}
		}
		if rows > 6 {
			t.Errorf("a step of %d tokens", rows)
		}
		if err := p.done(pl, nil); err != nil {
			t.Fatal(err)
		}
	}
	if done[1] != 5 || done[2] != 5 {
		t.Errorf("computed %v", done)
	}
}

// A sequence that has no page for its next token waits for one, and the others go on.
func TestSequenceWithoutRoomWaits(t *testing.T) {
	d := newDecoder(testRank(ident.Decode), 100)
	for a, n := range []int{4, 5} { // one page each: room for four tokens
		if err := d.order(&wire.Join{Attempt: uint64(a + 1), Prompt: 1, MaxTokens: 3, Tokens: make([]int32, n), Pages: pages(uint32(a))}); err != nil {
			t.Fatal(err)
		}
	}
	if pl := d.next(false); len(pl.spans) != 1 || pl.spans[0].attempt != 1 {
		t.Fatalf("%+v", pl.spans)
	}
	if err := d.order(&wire.Grow{Attempt: 2, At: 1, Pages: pages(5)}); err != nil {
		t.Fatal(err)
	}
	if pl := d.next(false); len(pl.spans) != 2 || len(pl.spans[1].pages) != 2 {
		t.Fatalf("%+v", pl.spans)
	}
}

// An order that comes again, when its pages may be another's, does nothing.
func TestOrdersAreObeyedOnce(t *testing.T) {
	p := newPrefiller(testRank(ident.Prefill))
	job := &wire.Prefill{Attempt: 1, Tokens: []int32{1, 2, 3, 4, 5}, Src: pages(0, 1), Dst: pages(2, 3)}
	if err := p.order(job); err != nil {
		t.Fatal(err)
	}
	if err := p.order(job); err == nil {
		t.Error("the same attempt is computed twice at once")
	}
	if err := p.done(p.next(false), nil); err != nil {
		t.Fatal(err)
	}
	if err := p.order(job); err != nil || p.next(false) != nil {
		t.Errorf("it is computed again after it was done: %v", err)
	}

	d := newDecoder(testRank(ident.Decode), 100)
	join := &wire.Join{Attempt: 1, Prompt: 1, MaxTokens: 3, Tokens: []int32{1, 2, 3, 4}, Pages: pages(0)}
	if err := d.order(join); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.order(&wire.Grow{Attempt: 1, At: 1, Pages: pages(5)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(d.seqs[0].pages); n != 2 {
		t.Errorf("one page was added, and again, and it has %d", n)
	}
	if err := d.order(&wire.Grow{Attempt: 1, At: 3, Pages: pages(6)}); err == nil {
		t.Error("a page was added where another is missing")
	}
	d.end(0)
	if err := d.order(join); err != nil || len(d.seqs) != 0 {
		t.Errorf("it runs again after it ended: %v", err)
	}
}
