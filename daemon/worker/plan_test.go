package worker

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"tandem/gpu/hostmem"
	"tandem/gpu/pagepool"
)

func region(t *testing.T, like []byte) *hostmem.Region {
	t.Helper()
	r, err := hostmem.Create("test", int64(len(like)))
	if err != nil {
		t.Fatal(err)
	}
	copy(r.Bytes(), like)
	t.Cleanup(func() { r.Close() })
	return r
}

func examplePlan() *plan {
	return &plan{retire: []uint64{5, 1 << 40}, spans: []span{
		{attempt: 7, pos: 63, tokens: []int32{1, 2, 49151}, pages: []uint32{4, 9}, slot: 3, sealing: true, last: true, epochs: []uint32{1, 2},
			target: []pagepool.Page{{Index: 8, Epoch: 1}, {Index: 1, Epoch: 2}}},
		{attempt: 8, pos: 100, tokens: []int32{5}, pages: []uint32{1, 2}, out: true},
	}}
}

func TestPlanArrivesAsMade(t *testing.T) {
	want := examplePlan()
	b := want.encode(nil)
	if n := planBytes(4, 2, 2); len(b) > n {
		t.Errorf("%d bytes, planned for %d", len(b), n)
	}
	var got plan
	if err := got.decode(b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, &got, cmp.AllowUnexported(plan{}, span{})); diff != "" {
		t.Error(diff)
	}
	for n := range len(b) {
		if err := new(plan).decode(b[:n]); err == nil {
			t.Fatalf("cut at %d of %d it still decodes", n, len(b))
		}
	}
}

func FuzzPlan(f *testing.F) {
	f.Add(examplePlan().encode(nil))
	f.Fuzz(func(t *testing.T, b []byte) { _ = new(plan).decode(b) })
}

func TestTombsForgetTheOldest(t *testing.T) {
	var g tombs
	for a := range uint64(maxTombs + 10) {
		g.add(a)
		g.add(a)
	}
	if g.has(9) || !g.has(10) || !g.has(maxTombs+9) || len(g.set) != maxTombs {
		t.Errorf("%d tombs", len(g.set))
	}
}
