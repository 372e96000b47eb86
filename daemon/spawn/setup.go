package spawn

import (
	"bytes"
	"encoding/json"
	"fmt"

	"tandem/daemon/ident"
	"tandem/daemon/transfer"
)

// Setup is all that a rank is told about its place. Descriptors are numbers in
// the rank's own table. It crosses the wire as JSON, once.
type Setup struct {
	Rank   ident.Rank
	Degree int // ranks in the replica

	Model   string // path of the weight file, for its header
	Kernels string // kernel set
	Device  string // "cpu", "cpu:3"
	Context int    // positions of a sequence at most
	MaxRows int    // tokens of a step at most
	MaxOut  int    // sequences of a step at most
	Chunk   int    // prefill: tokens of a step

	Layout   uint64 // fingerprint that the daemon computed
	Elem     int    // bytes of a KV element
	Image    int    // weights, read-only
	ImageKey []byte

	Scratch int  // memory of the replica's ranks, sized by them
	Crowded bool // ranks of the replica share cores
	Vitals  int  // this rank's vital signs
	Sync    int  // words that replicas wait on
	Cores   []int
	Seat    int // this replica's seat at the turns of its cores
	Turns   int // cores that have a turn
	Bells   int // decode replicas

	Transport transfer.Transport
	Digest    bool
	KV        Arena   // the pages this rank works on
	Peer      *Arena  // pull: the pages it takes from; push: the pages it puts into
	Boards    []Board // decode: of each prefill replica; prefill: its own
	Slots     int     // of each board
	MaxPages  int     // pages of a sequence

	Pack *Pack // instead of working: fill the image and exit
}

// Arena is the memory of one group's pages, one descriptor for each unit that
// the rank may map; -1 for the others.
type Arena struct {
	Pages int
	Units []Unit
}

// Unit is one unit's segment.
type Unit struct {
	FD       int
	Writable bool
}

// Board is one prefill replica's board.
type Board struct{ FD int }

// Pack tells a process to pack the weights into its image descriptor, which it
// got writable.
type Pack struct{ Bytes int64 }

// Encode is the wire form.
func (s *Setup) Encode() ([]byte, error) { return json.Marshal(s) }

// DecodeSetup is the inverse of Encode; unknown fields are an error, because they
// mean that the two ends are of different builds.
func DecodeSetup(b []byte) (*Setup, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	s := new(Setup)
	if err := d.Decode(s); err != nil {
		return nil, fmt.Errorf("setup: %w", err)
	}
	if s.Pack == nil && (s.Degree < 1 || s.Rank.Rank < 0 || s.Rank.Rank >= s.Degree || s.Degree > 64) {
		return nil, fmt.Errorf("setup: rank %d of %d", s.Rank.Rank, s.Degree)
	}
	return s, nil
}
