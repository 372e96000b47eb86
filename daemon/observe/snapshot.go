package observe

import (
	"time"

	"tandem/daemon/ident"
)

// Snapshot is what the owner of the control state says about it, for gauges. It
// holds points in time rather than ages, so that ages go on growing in the
// metrics even if the owner hangs and its last snapshot is all there is.
type Snapshot struct {
	Taken      time.Time
	Generation ident.Generation

	// Requests counts live requests by state, and Oldest says since when the
	// oldest one of a state has been in it.
	Requests map[string]int
	Oldest   map[string]time.Time

	Pools   []PoolInfo
	Workers []WorkerInfo

	// Admission is the value in force of every limit that admission enforces.
	Admission map[string]float64

	// Quarantined is since when the oldest page has been in quarantine; zero if none is.
	Quarantined time.Time
}

// PoolInfo is the ledger of one pool of KV pages.
type PoolInfo struct {
	Name  string         // "decode/0"
	Pages map[string]int // by state
	Drift int            // how far the ledger is from adding up; 0 unless there is a bug
}

// WorkerInfo is one rank of the live generation.
type WorkerInfo struct {
	Rank       ident.Rank
	PID        int
	Generation ident.Generation
	Device     string
	// Progress is when it last made progress, or last had nothing to do.
	Progress time.Time
}
