// Package kernels says what a model asks of a device. It holds the interface
// and its vocabulary; the child packages hold the devices (cpu, cuda), the
// float64 reference (ref) and the suite that each device must pass (kerneltest).
//
// # One answer
//
// Every operation computes each output row in one fixed order of operations
// that depends on nothing but the operands of that row: not on how many rows
// are computed together, not on how many ranks share the work, not on where
// pages lie. So a token sequence does not depend on batch, chunk or degree.
//
// # Ranks
//
// A Backend value belongs to one rank of a tensor-parallel replica. All ranks
// of the replica call the same operations in the same order on the same
// operands' names; an operation may wait for the other ranks. A value is either
// whole (every rank may read all of it after the operation that made it) or
// sharded (a rank may count only on the part it computed). How rows are dealt
// out is the backend's business; that the KV cache is dealt out by units is not:
// see Geometry.
package kernels

import (
	"errors"
	"fmt"
)

// Type is how a weight file stores the elements of a tensor.
type Type uint8

// The formats, named as GGUF names them. Block formats pack 32 elements (Q6_K: 256)
// along a row with their scales.
const (
	F32 Type = iota + 1
	F16
	BF16
	Q4_0
	Q4_1
	Q8_0
	Q6_K
)

var types = [...]struct {
	name        string
	block, size int
}{
	F32:  {"F32", 1, 4},
	F16:  {"F16", 1, 2},
	BF16: {"BF16", 1, 2},
	Q4_0: {"Q4_0", 32, 18},
	Q4_1: {"Q4_1", 32, 20},
	Q8_0: {"Q8_0", 32, 34},
	Q6_K: {"Q6_K", 256, 210},
}

// Valid reports whether t is one of the formats above.
func (t Type) Valid() bool { return t > 0 && int(t) < len(types) }

func (t Type) String() string {
	if !t.Valid() {
		return fmt.Sprintf("Type(%d)", uint8(t))
	}
	return types[t].name
}

// Block is the number of elements that share one set of scales: a row's length
// is a multiple of it.
func (t Type) Block() int { return types[t].block }

// RowBytes is the size of a row of cols elements as the file stores it.
func (t Type) RowBytes(cols int) int64 {
	return int64(cols/types[t].block) * int64(types[t].size)
}

// Tensor is a weight matrix as its file holds it: Rows rows of Cols elements,
// row after row. A vector is one row. Data is borrowed from the file's mapping.
type Tensor struct {
	Name       string
	Type       Type
	Rows, Cols int
	Data       []byte
}

// ErrUnsupported is wrapped by the error of a Packer that has no kernel for a
// tensor's format or shape.
var ErrUnsupported = errors.New("not supported by this backend")

// A Packer lays weights out the way one backend wants to read them. Packing is
// done once, by one process, into memory that all ranks then map read-only; so
// the packed form depends on no rank or degree.
type Packer interface {
	// PackedBytes is the size of the packed form, a multiple of 64, or an error
	// wrapping ErrUnsupported.
	PackedBytes(t Type, rows, cols int) (int64, error)
	// Pack writes src's packed form to dst, which has exactly PackedBytes bytes.
	Pack(dst []byte, src Tensor) error
}

// Packed is a weight matrix in a backend's own form. Data is read-only memory
// that outlives the backend.
type Packed struct {
	Type       Type
	Rows, Cols int
	Data       []byte
}

// Partition says how the output rows of a matrix are dealt out to the ranks.
type Partition uint8

const (
	// ByRow lets the backend deal rows out as suits it best.
	ByRow Partition = iota + 1
	// ByUnit gives the rows of KV unit u to the rank that owns u.
	ByUnit
)

// Precision says how much of activations a backend may round away where they meet
// quantised weights. It is for backends that round at all.
type Precision uint8

const (
	// Coarse keeps about 8 bits of a value.
	Coarse Precision = iota + 1
	// Fine keeps about 15 bits, at up to twice the work.
	Fine
)

// Geometry is the shape of the KV cache. The cache is cut into units (a Llama
// layer's KV heads: unit u is head u of every layer), and a unit belongs to
// exactly one rank of a replica, which writes it, moves it and answers for its
// digest. Memory of a unit is an array of pages; a page holds PageTokens
// consecutive tokens of all layers, keys and values.
type Geometry struct {
	Layers     int
	Units      int
	HeadDim    int
	PageTokens int
}

// Owner reports which units rank owns of a replica of degree ranks: [lo, hi),
// as even as can be, lower ranks first. A rank may own none.
func (g Geometry) Owner(rank, degree int) (lo, hi int) {
	base, more := g.Units/degree, g.Units%degree
	lo = rank*base + min(rank, more)
	hi = lo + base
	if rank < more {
		hi++
	}
	return lo, hi
}

// UnitPageBytes is the size of one page of one unit whose elements take elem
// bytes: for each layer the keys, HeadDim × PageTokens, then the values, as many.
func (g Geometry) UnitPageBytes(elem int) int64 {
	return int64(g.Layers) * 2 * int64(g.HeadDim) * int64(g.PageTokens) * int64(elem)
}

// Team is what one rank shares with the others of its replica.
type Team struct {
	Rank, Size int
	// Shared is memory that all ranks of the replica map at the same offsets,
	// zeroed before the first of them starts. A backend on one rank may leave it nil.
	Shared []byte
	// Crowded says that ranks outnumber cores, so spinning for another rank
	// keeps that rank from running.
	Crowded bool
}

// Shape is what a backend must know before it allocates.
type Shape struct {
	Geometry
	Width  int // elements of the residual stream
	Heads  int // query heads; Heads/Units of them read one unit
	Hidden int // elements of the feed-forward's hidden layer
	Vocab  int
	// MaxRows bounds the rows of a Batch; MaxOut the rows whose logits are asked;
	// Context the positions of a sequence.
	MaxRows, MaxOut, Context int
}

// Batch is what one forward pass computes: rows, each one token of one
// sequence. Rows of a sequence are consecutive and their positions ascend by one.
// Slices are borrowed until the operation that got them returns.
type Batch struct {
	Tokens []int32    // token of row r
	Pos    []int32    // position of row r in its sequence
	Seq    []int32    // index into Pages of row r's sequence
	Pages  [][]uint32 // page table of each sequence: page i holds positions i*PageTokens…
	Out    []int32    // rows whose logits are wanted, ascending
}

// Rows is the number of rows.
func (b *Batch) Rows() int { return len(b.Tokens) }

// Mem is memory that holds pages, which a backend of the right kind can use: Host,
// or a device's, whose type is in the package of its backend. It stays its owner's.
type Mem interface {
	// Len is its size in bytes.
	Len() int64
}

// Host is memory of this process.
type Host []byte

// Len implements Mem.
func (h Host) Len() int64 { return int64(len(h)) }

// HostUnits is OpenKV's argument for pages in memory of this process.
func HostUnits(units [][]byte) []Mem {
	m := make([]Mem, len(units))
	for u, mem := range units {
		if mem != nil {
			m[u] = Host(mem)
		}
	}
	return m
}

// Values handed from operation to operation. A backend makes and owns them;
// every one holds at most Shape.MaxRows rows.
type (
	// Buffer holds rows of float32.
	Buffer interface{ Buffer() }
	// Act holds rows in the form in which this backend's matrices take them
	// (float32, or 8-bit blocks with scales).
	Act interface{ Act() }
	// Matrix is weights bound to this rank's share of their rows.
	Matrix interface{ Matrix() }
	// Vector is a float32 weight vector.
	Vector interface{ Vector() }
)

// Backend computes for one rank. Shapes come from our own model code, so a
// wrong one panics. After an error the rank cannot go on: the error says that
// another rank is gone (ErrTeam) or that the device failed.
type Backend interface {
	// Name says what computes, for people: "cpu avx512-vnni".
	Name() string

	Matrix(w Packed, p Partition) Matrix
	Vector(w Packed) Vector
	NewBuffer(cols int) Buffer
	NewAct(cols int, p Precision) Act

	// OpenKV tells the backend where each unit's pages lie: units[u] holds all
	// pages of unit u, Geometry.UnitPageBytes apart. A rank writes only the units
	// it owns; on devices that share memory it reads all of them, elsewhere the
	// units of other ranks are nil. Memory of a kind that the device cannot use is
	// an error.
	OpenKV(units []Mem) error

	// Embed sets row r of x to the table's row of token r. x is whole.
	Embed(x Buffer, table Matrix, b *Batch) error
	// Norm sets row r of a to RMSNorm(x_r)·w, x and a whole.
	Norm(a Act, x Buffer, w Vector, eps float32, rows int) error
	// Linear computes this rank's share of the columns of out: out_r = m·a_r.
	Linear(out Buffer, m Matrix, a Act, rows int) error
	// RopeAppend rotates this rank's share of q and k by position (pairs 2i, 2i+1)
	// and appends k and v of its units to the cache.
	RopeAppend(layer int, q, k, v Buffer, b *Batch) error
	// Attend sets row r of a to softmax(q·Kᵀ/√d)·V over positions 0…Pos[r] of its
	// sequence. a is sharded by query head.
	Attend(layer int, a Act, q Buffer, b *Batch) error
	// SwiGLU sets a to silu(gate)·up, sharded as gate and up are.
	SwiGLU(a Act, gate, up Buffer, rows int) error
	// LinearAdd adds m·a_r to row r of x. a may be sharded; x is whole after it.
	LinearAdd(x Buffer, m Matrix, a Act, rows int) error
	// Logits computes head·norm(x_r)·w, fine, for the rows b.Out; Row(i) of the result,
	// valid until the next pass, is the logits of b.Out[i]. Only rank 0 may read it.
	Logits(x Buffer, w Vector, eps float32, head Matrix, b *Batch) (Logits, error)

	// Sync waits until every rank of the replica got here. What any of them wrote
	// before, all can read after.
	Sync() error

	// Steps counts operations done by this rank since it started: it moves while
	// the rank computes and is how a stuck rank is known from a busy one.
	// It may be read from any goroutine.
	Steps() uint64
}

// Logits gives rank 0 the result of Backend.Logits.
type Logits interface {
	// Row is the logits of the i-th output row, Vocab floats.
	Row(i int) []float32
	// Best is the token with the largest logit of that row; the lowest of equals.
	Best(i int) int32
}

// ErrTeam is wrapped by errors of operations that waited in vain for another rank.
var ErrTeam = errors.New("another rank of the replica is gone")
