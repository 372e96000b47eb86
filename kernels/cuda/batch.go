package cuda

import (
	"bytes"
	"fmt"
	"slices"

	"tandem/gpu/driver"
	"tandem/kernels"
)

// meta is the card's copy of a batch's numbers: tokens, positions, sequences, the
// rows whose logits are asked, and the pages of the sequences.
type meta struct {
	at    driver.Ptr
	slots [2]slot // written in turn: the card may still be reading the last
	next  int
	have  []byte // what the card has, or will have when it gets there
	buf   []byte
	rows  rowsOf
	// Of the batch that the card has.
	tokens, out driver.Ptr
	longest     int // positions
}

type slot struct {
	hostBlock
	copied driver.Event
}

func metaBytes(s kernels.Shape) int {
	per := (s.Context + s.PageTokens - 1) / s.PageTokens
	return 4 * (4*s.MaxRows + s.MaxOut + s.MaxRows*per)
}

func (b *Backend) openMeta() (err error) {
	n := metaBytes(b.shape)
	if b.meta.at, err = b.alloc(int64(n)); err != nil {
		return err
	}
	for i := range b.meta.slots {
		s := &b.meta.slots[i]
		if s.hostBlock, err = b.pin(n); err != nil {
			return err
		}
		if s.copied, err = b.ctx.NewEvent(0); err != nil {
			return err
		}
	}
	return nil
}

func (m *meta) close(b *Backend) (err error) {
	for _, s := range m.slots {
		if s.copied != 0 {
			err = first(err, b.ctx.CloseEvent(s.copied))
		}
		if s.mem != nil {
			err = first(err, b.unpin(s.hostBlock))
		}
	}
	return err
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// use makes the card have batch's numbers. A batch is our own doing, so a wrong one
// panics, before any of its numbers becomes an address.
func (m *meta) use(b *Backend, batch *kernels.Batch) error {
	s := b.shape
	n := batch.Rows()
	b.checkRows(n)
	if len(batch.Pos) != n || len(batch.Seq) != n || len(batch.Out) > s.MaxOut {
		panic(fmt.Sprintf("cuda: a batch of %d tokens, %d positions, %d sequences, %d outputs", n, len(batch.Pos), len(batch.Seq), len(batch.Out)))
	}
	for _, r := range batch.Out {
		if r < 0 || int(r) >= n {
			panic(fmt.Sprintf("cuda: logits of row %d of %d", r, n))
		}
	}
	// Sequences are numbered anew, as runs of consecutive rows.
	var seqs []int32
	var firsts, pages []uint32
	m.longest = 0
	for r := range n {
		seq, pos := int(batch.Seq[r]), int(batch.Pos[r])
		if seq < 0 || seq >= len(batch.Pages) || pos < 0 || pos >= s.Context {
			panic(fmt.Sprintf("cuda: row %d is position %d (context %d) of sequence %d of %d", r, pos, s.Context, seq, len(batch.Pages)))
		}
		used := pos/s.PageTokens + 1
		if used > len(batch.Pages[seq]) {
			panic(fmt.Sprintf("cuda: row %d: %d pages for %d positions", r, len(batch.Pages[seq]), pos+1))
		}
		m.longest = max(m.longest, pos+1)
		if r == 0 || batch.Seq[r-1] != batch.Seq[r] {
			firsts = append(firsts, uint32(len(pages)))
		}
		have := len(pages) - int(firsts[len(firsts)-1])
		for i := have; i < used; i++ {
			p := batch.Pages[seq][i]
			if int(p) >= b.pages {
				panic(fmt.Sprintf("cuda: sequence %d: page %d is number %d of %d", seq, i, p, b.pages))
			}
			pages = append(pages, p)
		}
		seqs = append(seqs, int32(len(firsts)-1))
	}
	m.buf = m.buf[:0]
	put := func(v []byte) driver.Ptr {
		at := m.at + driver.Ptr(len(m.buf))
		m.buf = append(m.buf, v...)
		return at
	}
	m.tokens = put(words(batch.Tokens))
	m.rows = rowsOf{pos: put(words(batch.Pos)), seq: put(words(seqs)), first: put(words(firsts)), pages: put(words(pages))}
	m.out = put(words(batch.Out))
	if bytes.Equal(m.buf, m.have) {
		return nil
	}
	slot := &m.slots[m.next]
	m.next = (m.next + 1) % len(m.slots)
	if err := b.ctx.SyncEvent(slot.copied); err != nil {
		return b.fail(err)
	}
	copy(slot.mem, m.buf)
	m.have = slices.Clone(m.buf)
	return b.fail(first(
		b.ctx.Copy(b.stream, m.at, slot.at, int64(len(m.buf))),
		b.ctx.Record(b.stream, slot.copied)))
}

func (b *Backend) checkRows(rows int) {
	if rows < 0 || rows > b.shape.MaxRows {
		panic(fmt.Sprintf("cuda: %d rows, at most %d were announced", rows, b.shape.MaxRows))
	}
}
