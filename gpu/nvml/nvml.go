// Package nvml is what we ask of NVIDIA's management library: which cards there are, how they are, and what
// happens to them. It is about the machine, not about this process: cards are all of the machine's, in the order
// of their PCI addresses, whatever CUDA_VISIBLE_DEVICES says. A card's UUID is the same in both worlds.
package nvml

import (
	"errors"
	"time"
)

var (
	// ErrNoLibrary: there is no library on this machine, or this build cannot load one.
	ErrNoLibrary = errors.New("no NVIDIA management library")
	// ErrNoDriver: the library is there, the kernel's driver does not answer or is of another version.
	ErrNoDriver = errors.New("the NVIDIA kernel driver does not answer")
	// ErrOldLibrary: the library lacks a function that we call.
	ErrOldLibrary = errors.New("NVIDIA management library is too old")
	// ErrLost: the card does not answer any more. It is back after a reset or a reboot at the earliest.
	ErrLost = errors.New("card is lost")
)

// Unknown stands for a number that a card does not tell, as a card without ECC does not tell of errors.
const Unknown = -1

// A Library is an initialized management library. Any goroutine may call it.
type Library interface {
	// Version is the kernel driver's, such as 580.95.05.
	Version() (string, error)
	// Cards lists the cards. It fails as a whole if one of them is lost.
	Cards() ([]Card, error)
	Health(index int) (Health, error)
	// Distance says how far apart two cards are.
	Distance(a, b int) (Distance, error)
	// Wait waits for an event of any card, for so long at most. Without one it returns false.
	Wait(d time.Duration) (Event, bool, error)
	Close() error
}

// Card is what does not change about a card.
type Card struct {
	Index        int
	Name         string
	UUID         string // GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx
	PCI          string // domain:bus:device.function
	Major, Minor int    // compute capability
	Bytes        int64
	LinkGen      int // what card and slot can do at most; Unknown
	LinkWidth    int
}

// Health is how a card is now.
type Health struct {
	Used, Free  int64 // bytes, of all processes
	Celsius     int
	Milliwatts  int
	Corrected   int64 // memory errors since the driver was loaded
	Uncorrected int64
	LinkGen     int // idle cards lower it to save power
	LinkWidth   int
	Processes   []Process
}

// Process is one that computes on a card.
type Process struct {
	PID   int   // as the driver's PID namespace has it
	Bytes int64 // Unknown within containers
}

// Distance orders pairs of cards by what is between them.
type Distance int

const (
	Same     Distance = iota // one card, or two on one board
	Switch                   // one PCIe switch
	Switches                 // several switches
	Bridge                   // one host bridge
	Node                     // one NUMA node
	System                   // between sockets
)

func (d Distance) String() string {
	return [...]string{"same", "switch", "switches", "bridge", "node", "system"}[d]
}

// Event is an error that the driver has logged for a card.
type Event struct {
	Card int // index; Unknown if the card does not even tell its name any more
	Xid  Xid
}

// Xid is the number of an error in NVIDIA's list.
type Xid uint64

// Does a card with this error need to be reset before it can be used again? Most others are faults of programs, or
// what follows from them.
func (x Xid) NeedsReset() bool {
	switch x {
	case 48, // uncorrectable memory error
		62,       // power management halted
		64,       // a row of memory could not be replaced
		79,       // fell off the bus
		95,       // uncontained memory error
		119, 120, // the card's own processor does not answer
		140: // unrecovered memory error
		return true
	}
	return false
}
