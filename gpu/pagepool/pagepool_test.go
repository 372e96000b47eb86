package pagepool

import (
	"testing"

	"pgregory.net/rapid"
)

// The ledger adds up, no page is in two leases and no epoch comes twice,
// whatever is done to it in whatever order.
func TestLedgerAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(0, 20).Draw(t, "pages")
		p := New("test", 7, total)
		var live []*Lease
		used := map[Page]bool{}
		note := func(ps []Page) {
			for _, pg := range ps {
				if used[pg] {
					t.Fatalf("%v handed out twice", pg)
				}
				used[pg] = true
			}
		}
		pick := func(t *rapid.T) int {
			if len(live) == 0 {
				t.Skip("no lease")
			}
			return rapid.IntRange(0, len(live)-1).Draw(t, "lease")
		}
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				n, free := rapid.IntRange(0, total+2).Draw(t, "n"), p.Free()
				l, ok := p.Reserve(n)
				if ok != (n <= free) {
					t.Fatalf("Reserve(%d) of %d free: %v", n, free, ok)
				}
				if ok {
					note(l.Pages())
					live = append(live, l)
				}
			},
			"grow": func(t *rapid.T) {
				if ps, ok := live[pick(t)].Grow(rapid.IntRange(0, 3).Draw(t, "n")); ok {
					note(ps)
				}
			},
			"advance": func(t *rapid.T) {
				l := live[pick(t)]
				if to := next[l.State()]; len(to) > 0 {
					l.To(rapid.SampledFrom(to).Draw(t, "to"))
				}
			},
			"free": func(t *rapid.T) {
				i := pick(t)
				switch l := live[i]; l.State() {
				case Reserved:
					l.Free(NeverExposed)
				case Releasing, Quarantined:
					l.Free(rapid.SampledFrom([]Proof{Quiet, Reaped}).Draw(t, "proof"))
				default:
					t.Skip("not to be freed")
				}
				live = append(live[:i], live[i+1:]...)
			},
			"": func(t *rapid.T) {
				if d := p.Drift(); d != 0 {
					t.Fatalf("drift %d", d)
				}
				held, seen := 0, map[uint32]bool{}
				for _, l := range live {
					held += len(l.Pages())
					for _, pg := range l.Pages() {
						if seen[pg.Index] {
							t.Fatalf("page %d is in two leases", pg.Index)
						}
						seen[pg.Index] = true
					}
				}
				if held+p.Free() != total || p.Leases() != len(live) {
					t.Fatalf("held %d + free %d != %d, or %d leases != %d", held, p.Free(), total, p.Leases(), len(live))
				}
			},
		})
	})
}

func TestOnlyProofFrees(t *testing.T) {
	for _, c := range []struct {
		to    []State
		proof Proof
	}{
		{nil, Quiet},
		{[]State{Writable}, Quiet},
		{[]State{Writable}, NeverExposed},
		{[]State{Writable, Leased}, Reaped},
		{[]State{Writable, Quarantined}, NeverExposed},
	} {
		p := New("test", 0, 4)
		l, _ := p.Reserve(2)
		for _, s := range c.to {
			l.To(s)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("proof %d freed a %s lease", c.proof, l.State())
				}
			}()
			l.Free(c.proof)
		}()
	}
}

func TestLeaseEndsOnce(t *testing.T) {
	p := New("test", 0, 1)
	l, _ := p.Reserve(1)
	l.Free(NeverExposed)
	defer func() {
		if recover() == nil {
			t.Error("a lease ended twice")
		}
	}()
	l.Free(NeverExposed)
}
