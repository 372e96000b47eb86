// Package ident holds the names that cross process boundaries. Each is a type
// of its own, so that a rank is never taken for a replica nor an attempt for a
// request.
package ident

import (
	"fmt"
	"strconv"
)

// Generation counts the lives of the worker groups. The supervisor adds one
// and syncs it to disk before it starts any process of that life; nothing else
// writes it. Whatever a worker says, lends or promises holds only within its
// generation. Zero belongs to no process.
type Generation uint64

func (g Generation) String() string { return strconv.FormatUint(uint64(g), 10) }

// Role is which group a worker belongs to.
type Role uint8

// The two groups.
const (
	Prefill Role = iota + 1
	Decode
)

func (r Role) String() string {
	switch r {
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	}
	return fmt.Sprintf("Role(%d)", uint8(r))
}

// MarshalText makes a role readable in JSON.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (r *Role) UnmarshalText(b []byte) error {
	switch string(b) {
	case "prefill":
		*r = Prefill
	case "decode":
		*r = Decode
	default:
		return fmt.Errorf("role %q: want prefill or decode", b)
	}
	return nil
}

// Replica is one tensor-parallel set of ranks within a group.
type Replica struct {
	Role  Role
	Index int // 0…replicas-1 within the group
}

func (r Replica) String() string { return fmt.Sprintf("%s/%d", r.Role, r.Index) }

// Rank is one worker process. Rank is its place in its replica: rank 0 leads.
type Rank struct {
	Replica
	Rank int
}

func (r Rank) String() string { return fmt.Sprintf("%s/%d.%d", r.Role, r.Index, r.Rank) }

// Attempt is one try at serving a request. It is never used again: a late
// message of an earlier attempt cannot be taken for one of a later attempt.
type Attempt struct {
	Generation Generation
	Seq        uint64
}

func (a Attempt) String() string { return fmt.Sprintf("a%d.%d", a.Generation, a.Seq) }

// Request names what a client asked. It is the client's X-Request-Id made
// unique, or one of ours.
type Request string
