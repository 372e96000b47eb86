package spawn

import (
	"os"
	"testing"
	"time"

	"tandem/daemon/ident"
	"tandem/daemon/wire"
)

// words is what the worker of the tests says before it ends.
const words = 300

// TestMain is also that worker: it says its words and ends at once.
func TestMain(m *testing.M) {
	if os.Args[0] == "tandem" {
		out := os.NewFile(ControlFD, "control")
		for i := range words {
			b, err := wire.Append(nil, 1, &wire.Progress{Done: uint64(i + 1), Total: words})
			if err != nil {
				os.Exit(3)
			}
			for len(b) > 0 { // the socket does not block, and may be full
				n, err := out.Write(b)
				if err != nil {
					os.Exit(4)
				}
				b = b[n:]
			}
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestLastWordsArrive: what a worker said before it ended is heard before its end
// is, however close they are.
func TestLastWordsArrive(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sp := NewSpawner()
	for range 20 {
		var heard uint64
		lost := make(chan error, 1)
		ended := make(chan Status, 1)
		_, err := sp.Start(Options{
			Binary: self, Rank: ident.Rank{Replica: ident.Replica{Role: ident.Prefill}}, Generation: 1,
			Frame: func(f wire.Frame) {
				if p, ok := f.Message.(*wire.Progress); ok {
					heard = p.Done
				}
			},
			Lost: func(err error) { lost <- err },
			Exit: func(st Status) { ended <- st },
			Line: func(l string) { t.Logf("the worker says: %s", l) },
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			select {
			case err := <-lost:
				if err != nil {
					t.Errorf("the socket: %v", err)
				}
				if heard != words {
					t.Fatalf("only %d of %d words were heard", heard, words)
				}
			case st := <-ended:
				if st.Code != 0 {
					t.Fatalf("the worker: %+v", st)
				}
			case <-time.After(time.Minute):
				t.Fatal("the worker's end is not noticed")
			}
		}
	}
}
