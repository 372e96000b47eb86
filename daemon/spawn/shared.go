package spawn

import (
	"sync/atomic"
	"unsafe"

	"tandem/gpu/hostsync"
)

// Sync memory holds the words that replicas wait on:
//
//	for each core with a turn: a Turn, then a word that counts the decode
//	    sequences of replicas on that core
//	for each decode replica: a Bell, rung when prefill published pages for it
const demandBytes = 128

// SyncBytes is the size of Sync memory.
func SyncBytes(turns, bells int) int64 {
	return int64(turns)*int64(turnStride) + int64(bells)*int64(bellStride)
}

const (
	turnStride = (hostsync.TurnBytes+127)/128*128 + demandBytes
	bellStride = (hostsync.EventBytes + 127) / 128 * 128
)

// TurnWords is the memory of core i's Turn.
func TurnWords(sync []byte, i int) []byte { return sync[i*turnStride:][:hostsync.TurnBytes] }

// Demand is the word that says how many sequences decode wants to run on core i.
func Demand(sync []byte, i int) *atomic.Int32 {
	return (*atomic.Int32)(unsafe.Pointer(&sync[(i+1)*turnStride-demandBytes]))
}

// BellWords is the memory of decode replica i's Bell.
func BellWords(sync []byte, turns, i int) []byte {
	return sync[turns*turnStride+i*bellStride:][:hostsync.EventBytes]
}

// Vitals are a rank's vital signs, in memory that the daemon reads: they need no
// goroutine of the worker to be well.
type Vitals struct {
	// Pulse is beaten by a goroutine that does nothing else: it stands still when
	// the whole process does.
	Pulse atomic.Uint64
	// Steps moves while the rank computes.
	Steps atomic.Uint64
	// Doing says what the engine is at: one of the constants below.
	Doing atomic.Uint32
	_     uint32
	// Plans counts the plans that the rank has executed.
	Plans atomic.Uint64
}

// What an engine can be doing.
const (
	DoingNothing   = iota // nothing to do
	DoingCompute          // computing: Steps must move
	DoingTurn             // waiting for the cores
	DoingStartUp          // loading
	DoingFollowing        // a follower, waiting for its leader
)

// VitalsBytes is the memory of one rank's vital signs.
const VitalsBytes = 4096

// OpenVitals lays them over mem.
func OpenVitals(mem []byte) *Vitals { return (*Vitals)(unsafe.Pointer(&mem[:VitalsBytes][0])) }
