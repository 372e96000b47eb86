package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"tandem/gpu/driver"
)

// Pages copies and hashes pages of the KV cache where they lie. It belongs to one
// goroutine, and works on a stream of its own, so beside whatever a backend computes
// in the same context; its methods return when the card is done.
type Pages struct {
	ctx    driver.Context
	stream driver.Stream
	code   *module
	most   int // pages at once
	bytes  int64
	// For most pages: numbers of pages (two each), seeds, digests, sums.
	list, seeds, digests, sums driver.Ptr
}

// OpenPages makes a Pages for pages of so many bytes, at most most in a call. The
// context is borrowed.
func OpenPages(ctx driver.Context, bytes int64, most int) (*Pages, error) {
	if bytes <= 240 || bytes%64 != 0 {
		return nil, fmt.Errorf("cuda: pages of %d bytes, want a multiple of 64 above 240", bytes)
	}
	p := &Pages{ctx: ctx, most: most, bytes: bytes}
	var err error
	if p.code, err = load(ctx, "pages"); err != nil {
		return nil, err
	}
	if p.stream, err = ctx.NewStream(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	for _, m := range []struct {
		at   *driver.Ptr
		each int64
	}{{&p.list, 8}, {&p.seeds, 8}, {&p.digests, 8}, {&p.sums, (bytes/1024 + 1) * 64}} {
		if *m.at, err = ctx.Alloc(m.each * int64(most)); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

// Close gives back what p holds in its context.
func (p *Pages) Close() error {
	var errs []error
	if p.stream != 0 {
		errs = append(errs, p.ctx.SyncStream(p.stream), p.ctx.CloseStream(p.stream))
	}
	for _, at := range []driver.Ptr{p.list, p.seeds, p.digests, p.sums} {
		if at != 0 {
			errs = append(errs, p.ctx.Free(at))
		}
	}
	return errors.Join(append(errs, p.code.close())...)
}

// A Move is a page's number where it is and where it goes.
type Move struct{ From, To uint32 }

// Copy copies pages from one memory to another, which may be another card's. No page
// is in two moves.
func (p *Pages) Copy(to, from driver.Ptr, moves []Move) error {
	if len(moves) == 0 {
		return nil
	}
	p.check(len(moves))
	list := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(moves))), 8*len(moves))
	if err := p.ctx.Write(p.list, list); err != nil {
		return err
	}
	const blocks = 4
	params := pageCopyParams{to: to, from: from, list: p.list, bytes: uint64(p.bytes), blocks: blocks}
	if err := launch(p.code, p.stream, "page_copy", [3]int{blocks, len(moves), 1}, 256, &params); err != nil {
		return err
	}
	return p.ctx.SyncStream(p.stream)
}

// Digest computes the digest of each page, with the seed of the same place: XXH3, as
// share.Digest does with share.Seed.
func (p *Pages) Digest(from driver.Ptr, pages []uint32, seeds []uint64) ([]uint64, error) {
	if len(pages) != len(seeds) {
		panic(fmt.Sprintf("cuda: %d pages and %d seeds", len(pages), len(seeds)))
	}
	out := make([]uint64, len(pages))
	if len(pages) == 0 {
		return out, nil
	}
	p.check(len(pages))
	longs := func(v []uint64) []byte {
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 8*len(v))
	}
	if err := p.ctx.Write(p.list, words(pages)); err != nil {
		return nil, err
	}
	if err := p.ctx.Write(p.seeds, longs(seeds)); err != nil {
		return nil, err
	}
	params := pageDigestParams{digests: p.digests, from: from, list: p.list, seeds: p.seeds, sums: p.sums, bytes: uint64(p.bytes)}
	if err := launch(p.code, p.stream, "page_digest", [3]int{len(pages), 1, 1}, 256, &params); err != nil {
		return nil, err
	}
	if err := p.ctx.SyncStream(p.stream); err != nil {
		return nil, err
	}
	return out, p.ctx.Read(longs(out), p.digests)
}

func (p *Pages) check(n int) {
	if n > p.most {
		panic(fmt.Sprintf("cuda: %d pages at once, at most %d were announced", n, p.most))
	}
}
