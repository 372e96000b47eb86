package roof

import (
	"runtime"
	"testing"
)

// Speeds depend on what else the machine does; what must hold is that there are
// figures and that none is absurd.
func TestMeasure(t *testing.T) {
	r, err := Measure(1, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	if !(r.Read1 > 1e7 && r.Read1 < 1e13) || !(r.ReadAll > 1e7 && r.ReadAll < 1e13) {
		t.Errorf("reads %g and %g bytes a second", r.Read1, r.ReadAll)
	}
	if runtime.GOARCH == "amd64" {
		for name, v := range map[string]float64{"FMA": r.FMA, "Pairs": r.Pairs} {
			if v != 0 && !(v > 1e8 && v < 1e13) {
				t.Errorf("%s %g operations a second", name, v)
			}
		}
	}
}

func TestWhatCannotBeMeasured(t *testing.T) {
	for _, c := range [][2]int{{0, 1 << 20}, {1, 100}, {10000, 1 << 30}} {
		if r, err := Measure(c[0], int64(c[1])); err == nil {
			t.Errorf("%d threads over %d bytes gave %v", c[0], c[1], r)
		}
	}
}
