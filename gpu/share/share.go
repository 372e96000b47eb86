// Package share is how one process's pages become another's to read: the memory
// of a unit's pages with a header word for each page (Segment), and the table in
// which a writer publishes which pages of a sequence are final (Board). Both lie
// in memory that several processes map; nothing here waits or decides.
//
// # The protocol of a page
//
// Who may touch a page is decided by the ledger (pagepool), and said to the
// ranks with the page's epoch. The writer marks the page with Begin before its
// first byte and with Seal after its last. A reader checks Sealed before and
// after it copied or hashed: a page that was given away in between carries
// another epoch. The writer then publishes the page's digest on the board. A
// reader takes nothing on trust: the digest of what it holds must be the
// published one.
package share

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/zeebo/xxh3"
)

const align = 4096

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// Segment is the memory of one unit's pages in one pool:
//
//	pages × 8 bytes   header words, rounded up to 4096
//	pages × pageBytes the pages
//
// A header word is epoch<<2 | state, with state 0 untouched, 1 being written, 2
// sealed. It is written by the unit's owner alone.
type Segment struct {
	mem       []byte
	pages     int
	pageBytes int64
	head      int64
}

const (
	wordWriting = 1
	wordSealed  = 2
)

// SegmentBytes is the memory that a segment needs.
func SegmentBytes(pages int, pageBytes int64) int64 {
	return roundUp(int64(pages)*8, align) + int64(pages)*pageBytes
}

// OpenSegment lays a segment over mem, which stays the caller's.
func OpenSegment(mem []byte, pages int, pageBytes int64) (*Segment, error) {
	if pages < 0 || pageBytes < 0 || int64(len(mem)) != SegmentBytes(pages, pageBytes) {
		return nil, fmt.Errorf("segment of %d pages of %d bytes in memory of %d bytes", pages, pageBytes, len(mem))
	}
	return &Segment{mem: mem, pages: pages, pageBytes: pageBytes, head: roundUp(int64(pages)*8, align)}, nil
}

// Pages is the memory of all pages, one after another.
func (s *Segment) Pages() []byte { return s.mem[s.head:] }

// Len is the number of pages.
func (s *Segment) Len() int { return s.pages }

// Page is the memory of page i.
func (s *Segment) Page(i uint32) []byte {
	at := s.head + int64(i)*s.pageBytes
	return s.mem[at : at+s.pageBytes : at+s.pageBytes]
}

func (s *Segment) word(i uint32) *atomic.Uint64 {
	if int(i) >= s.pages {
		panic(fmt.Sprintf("share: page %d of %d", i, s.pages))
	}
	return (*atomic.Uint64)(unsafe.Pointer(&s.mem[int(i)*8]))
}

// Begin marks page i as being written in the use that epoch names.
func (s *Segment) Begin(i, epoch uint32) { s.word(i).Store(uint64(epoch)<<2 | wordWriting) }

// Seal marks page i as final in that use: what was written before is visible to
// whoever sees the mark.
func (s *Segment) Seal(i, epoch uint32) { s.word(i).Store(uint64(epoch)<<2 | wordSealed) }

// Sealed reports whether page i is final in the use that epoch names.
func (s *Segment) Sealed(i, epoch uint32) bool {
	return s.word(i).Load() == uint64(epoch)<<2|wordSealed
}

// Open reports whether page i is being written in the use that epoch names.
func (s *Segment) Open(i, epoch uint32) bool { return s.word(i).Load() == uint64(epoch)<<2|wordWriting }

// Digest is the digest of a page's bytes as page number ordinal of one unit of an
// attempt's sequence (XXH3, seeded with all three): the same bytes in another
// place or for another attempt have another digest.
func Digest(attempt uint64, unit, ordinal int, page []byte) uint64 {
	return xxh3.HashSeed(page, Seed(attempt, unit, ordinal))
}

// Seed is the seed of Digest, for devices that compute it where the page lies.
func Seed(attempt uint64, unit, ordinal int) uint64 {
	return attempt*0x9E3779B97F4A7C15 ^ uint64(unit)<<48 ^ uint64(ordinal)
}

// Board is the table of one prefill replica. It has slots; an attempt is given a
// slot while its pages move. In a slot each unit has a column, written by the
// unit's owner in the prefill replica:
//
//	0  u64 attempt   whose column this is; 0: nobody's
//	8  u32 sealed    pages published so far
//	16 u64 digests   one for each published page
type Board struct {
	mem                    []byte
	slots, units, maxPages int
	column                 int64
}

// BoardBytes is the memory that a board needs.
func BoardBytes(slots, units, maxPages int) int64 {
	return int64(slots) * int64(units) * columnBytes(maxPages)
}

func columnBytes(maxPages int) int64 { return roundUp(16+8*int64(maxPages), 64) }

// OpenBoard lays a board over mem, which stays the caller's.
func OpenBoard(mem []byte, slots, units, maxPages int) (*Board, error) {
	if slots < 0 || units < 0 || maxPages < 0 || int64(len(mem)) < BoardBytes(slots, units, maxPages) {
		return nil, fmt.Errorf("board of %d slots, %d units, %d pages in memory of %d bytes", slots, units, maxPages, len(mem))
	}
	return &Board{mem: mem, slots: slots, units: units, maxPages: maxPages, column: columnBytes(maxPages)}, nil
}

func (b *Board) at(slot uint32, unit int) int64 {
	if int(slot) >= b.slots || unit < 0 || unit >= b.units {
		panic(fmt.Sprintf("share: slot %d of %d, unit %d of %d", slot, b.slots, unit, b.units))
	}
	return (int64(slot)*int64(b.units) + int64(unit)) * b.column
}

func (b *Board) attempt(at int64) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b.mem[at])) }
func (b *Board) sealed(at int64) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&b.mem[at+8]))
}
func (b *Board) digest(at int64, i int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&b.mem[at+16+8*int64(i)]))
}

// Slots is the number of slots.
func (b *Board) Slots() int { return b.slots }

// MaxPages is the number of pages that a column can publish.
func (b *Board) MaxPages() int { return b.maxPages }

// Claim makes a unit's column that of an attempt, with nothing published.
func (b *Board) Claim(slot uint32, unit int, attempt uint64) {
	at := b.at(slot, unit)
	b.attempt(at).Store(0)
	b.sealed(at).Store(0)
	b.attempt(at).Store(attempt)
}

// Publish adds the digest of the next page.
func (b *Board) Publish(slot uint32, unit int, digest uint64) {
	at := b.at(slot, unit)
	n := b.sealed(at).Load()
	if int(n) >= b.maxPages {
		panic(fmt.Sprintf("share: more than %d pages published", b.maxPages))
	}
	b.digest(at, int(n)).Store(digest)
	b.sealed(at).Store(n + 1)
}

// Published is how many pages of a unit an attempt has published, and false when
// the column is not (or no longer) that attempt's.
func (b *Board) Published(slot uint32, unit int, attempt uint64) (int, bool) {
	at := b.at(slot, unit)
	if b.attempt(at).Load() != attempt {
		return 0, false
	}
	n := int(b.sealed(at).Load())
	if b.attempt(at).Load() != attempt || n > b.maxPages {
		return 0, false
	}
	return n, true
}

// DigestOf is the published digest of page i, i below what Published said.
func (b *Board) DigestOf(slot uint32, unit, i int) uint64 {
	if i < 0 || i >= b.maxPages {
		panic(fmt.Sprintf("share: page %d of %d", i, b.maxPages))
	}
	return b.digest(b.at(slot, unit), i).Load()
}
