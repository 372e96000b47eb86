package cpu

import (
	"fmt"

	"tandem/kernels"
)

// OpenKV implements kernels.Backend: units[u] holds the pages of unit u, in
// kernels.Host memory. It is borrowed for the backend's life and may lie inside or
// outside the Go heap.
func (b *Backend) OpenKV(units []kernels.Mem) error {
	g := b.shape.Geometry
	if len(units) != g.Units {
		return fmt.Errorf("cpu: the memory of %d units, want %d", len(units), g.Units)
	}
	page := int(g.UnitPageBytes(ElemBytes(b.set)))
	n := -1
	host := make([][]byte, len(units))
	for u, m := range units {
		mem, ok := m.(kernels.Host)
		if !ok {
			return fmt.Errorf("cpu: unit %d lies in %T, want memory of the host", u, m)
		}
		host[u] = mem
		if len(mem)%page != 0 || len(mem) == 0 {
			return fmt.Errorf("cpu: unit %d: %d bytes are no whole pages of %d", u, len(mem), page)
		}
		if n >= 0 && len(mem)/page != n {
			return fmt.Errorf("cpu: unit %d has %d pages, the units before it %d", u, len(mem)/page, n)
		}
		n = len(mem) / page
	}
	b.units, b.nPages = host, n
	return nil
}

// form of the KV cache.
func (b *Backend) cache() cacheForm {
	elem := kernels.F16
	if b.set == Float32 {
		elem = kernels.F32
	}
	g := b.shape.Geometry
	return cacheForm{g.HeadDim, g.PageTokens, elem, int(g.UnitPageBytes(ElemBytes(b.set)))}
}

// layerOffset is where a layer's keys and values begin in a page.
func (b *Backend) layerOffset(layer int) int {
	if layer < 0 || layer >= b.shape.Layers {
		panic(fmt.Sprintf("cpu: layer %d of %d", layer, b.shape.Layers))
	}
	return layer * (b.cache().pageStride / b.shape.Layers)
}

// RopeAppend implements kernels.Backend.
func (b *Backend) RopeAppend(layer int, q, k, v kernels.Buffer, batch *kernels.Batch) error {
	if b.err != nil {
		return b.err
	}
	defer b.step()
	qb, kb, vb := q.(*buffer), k.(*buffer), v.(*buffer)
	hd := b.shape.HeadDim
	mustMatch("q", qb.cols, b.shape.Heads*hd)
	mustMatch("k", kb.cols, b.shape.Units*hd)
	mustMatch("v", vb.cols, b.shape.Units*hd)
	if kb.deal != byUnit || vb.deal != byUnit {
		panic("cpu: keys and values must come from matrices dealt out by unit")
	}
	segs := b.segments(batch)
	if err := b.write("RopeAppend", &qb.use, &b.kv); err != nil {
		return err
	}
	c, at := b.cache(), b.layerOffset(layer)
	lo, hi := b.share(qb.deal, qb.cols)
	u0, u1 := b.shape.Owner(b.team.Rank, b.team.Size)
	for i, s := range segs {
		table := b.rope[s.pos*hd : (s.pos+s.n)*hd]
		if lo < hi {
			b.kern.rope(qb.data[s.row*qb.ld:], qb.ld, s.n, lo, hi, hd, table)
		}
		if u0 == u1 {
			continue
		}
		b.kern.rope(kb.data[s.row*kb.ld:], kb.ld, s.n, u0*hd, u1*hd, hd, table)
		for u := u0; u < u1; u++ {
			var next []byte
			switch {
			case u+1 < u1:
				next = b.keys(u+1, at, s, batch)
			case i+1 < len(segs):
				next = b.keys(u0, at, segs[i+1], batch)
			}
			b.kern.append(c, b.units[u][at:], batch.Pages[s.seq], s.pos, s.n, kb.data[s.row*kb.ld+u*hd:], vb.data[s.row*vb.ld+u*hd:], kb.ld, next)
		}
	}
	return nil
}

// keys is the memory of the group of 16 keys that a segment's first goes to.
func (b *Backend) keys(unit, at int, s segment, batch *kernels.Batch) []byte {
	c := b.cache()
	page, token := int(batch.Pages[s.seq][s.pos/c.pageTokens]), s.pos%c.pageTokens
	return b.units[unit][page*c.pageStride+at+token/16*16*c.headDim*ElemBytes(b.set):]
}

// rowCost is the work of one row of attention in one unit, in keys, with what
// comes on top of the keys.
func rowCost(pos int) int { return pos + 1 + 64 }

// Attend implements kernels.Backend. The work is dealt out evenly: in pieces of
// one row and unit, or, where those are few, of one block of keys of them. The
// pieces a rank gets have nothing to do with the units it owns, since the cache
// lies in shared memory.
func (b *Backend) Attend(layer int, a kernels.Act, q kernels.Buffer, batch *kernels.Batch) error {
	if b.err != nil {
		return b.err
	}
	defer b.step()
	v, qb := a.(*act), q.(*buffer)
	mustMatch("q", qb.cols, b.shape.Heads*b.shape.HeadDim)
	mustMatch("the activations", v.cols, qb.cols)
	segs := b.segments(batch)
	rows := batch.Rows()
	if err := b.read("Attend", &qb.use, &b.kv); err != nil {
		return err
	}
	at := b.layerOffset(layer)
	total, most := 0, 0
	for _, s := range segs {
		for i := range s.n {
			c := rowCost(s.pos + i)
			total += c
			most = max(most, c)
		}
	}
	total *= b.shape.Units
	v.renew(rows)
	if o := b.partsOf; o != nil && o != v && o.parts { // its parts are about to be overwritten
		if err := b.join("Attend", o, false); err != nil {
			return err
		}
	}
	v.parts = b.team.Size > 1 && rows <= b.partRows && most*b.team.Size*8 > total
	if v.parts {
		if err := b.write("Attend", &b.partsUse); err != nil {
			return err
		}
		b.partsOf = v
		b.attendParts(at, qb, segs, batch)
		return nil
	}
	if err := b.write("Attend", &v.shared.useFloats); err != nil {
		return err
	}
	v.shared.hasFloats = true
	b.attendRows(at, v, qb, segs, batch, total)
	return nil
}

// A piece of attention is what one call computes: rows [row, row+n) of one
// sequence, the first of them at position pos, with the heads of one unit and
// blocks [b0, b1) of keys.
type piece struct{ unit, seq, row, n, pos, b0, b1 int }

// run computes pieces, telling each where the next will begin to read.
func (b *Backend) run(pieces []piece, at int, batch *kernels.Batch, do func(p piece, next []byte)) {
	stride := b.cache().pageStride
	for i, p := range pieces {
		var next []byte
		if i+1 < len(pieces) {
			n := pieces[i+1]
			next = b.units[n.unit][int(batch.Pages[n.seq][n.b0*b.blockKeys/b.shape.PageTokens])*stride+at:]
		}
		do(p, next)
	}
}

// attendRows computes this rank's rows and units. In units' order, and in each
// in rows' order, the rank has a stretch of total/size.
func (b *Backend) attendRows(at int, v *act, q *buffer, segs []segment, batch *kernels.Batch, total int) {
	heads, hd := b.shape.Heads/b.shape.Units, b.shape.HeadDim
	lo, hi := total*b.team.Rank/b.team.Size, total*(b.team.Rank+1)/b.team.Size
	done := 0
	b.pieces = b.pieces[:0]
	for u := range b.shape.Units {
		for _, s := range segs {
			p := piece{unit: u, seq: s.seq}
			for i := range s.n {
				if done >= lo && done < hi {
					if p.n == 0 {
						p.row, p.pos = s.row+i, s.pos+i
					}
					p.n++
				}
				done += rowCost(s.pos + i)
			}
			if p.n > 0 {
				p.b1 = (p.pos+p.n-1)/b.blockKeys + 1
				b.pieces = append(b.pieces, p)
			}
		}
	}
	c := b.cache()
	b.run(b.pieces, at, batch, func(p piece, next []byte) {
		col := p.unit * heads * hd
		b.kern.attend(c, b.units[p.unit][at:], batch.Pages[p.seq], q.data[p.row*q.ld+col:], q.ld, p.pos, p.n, heads,
			p.b0, p.b1, v.shared.floats[p.row*v.ld+col:], v.ld, nil, 0, 0, next, b.scratch, b.progress)
	})
}

// attendParts computes this rank's blocks of keys. Row r, block k and head h
// have the part at (r·blocks + k)·heads + h, where blocks is the number that a
// whole context has.
func (b *Backend) attendParts(at int, q *buffer, segs []segment, batch *kernels.Batch) {
	heads, hd, size := b.shape.Heads/b.shape.Units, b.shape.HeadDim, partFloats(b.shape)
	cost := func(pos, k int) int { return min(pos+1-k*b.blockKeys, b.blockKeys) + 32 }
	total := 0
	b.rowBlocks = b.rowBlocks[:0]
	for _, s := range segs {
		for i := range s.n {
			n := (s.pos+i)/b.blockKeys + 1
			b.rowBlocks = append(b.rowBlocks, n)
			for k := range n {
				total += cost(s.pos+i, k)
			}
		}
	}
	total *= b.shape.Units
	lo, hi := total*b.team.Rank/b.team.Size, total*(b.team.Rank+1)/b.team.Size
	done := 0
	b.pieces = b.pieces[:0]
	for u := range b.shape.Units {
		for _, s := range segs {
			for i := range s.n {
				p := piece{unit: u, seq: s.seq, row: s.row + i, n: 1, pos: s.pos + i}
				for k := range b.rowBlocks[p.row] {
					if done >= lo && done < hi {
						if p.b1 == 0 {
							p.b0 = k
						}
						p.b1 = k + 1
					}
					done += cost(p.pos, k)
				}
				if p.b1 > 0 {
					b.pieces = append(b.pieces, p)
				}
			}
		}
	}
	c := b.cache()
	b.run(b.pieces, at, batch, func(p piece, next []byte) {
		part := b.parts[(p.row*b.blocks*b.shape.Heads+p.unit*heads)*size:]
		b.kern.attend(c, b.units[p.unit][at:], batch.Pages[p.seq], q.data[p.row*q.ld+p.unit*heads*hd:], q.ld, p.pos, 1, heads,
			p.b0, p.b1, nil, 0, part, b.shape.Heads*size, size, next, b.scratch, b.progress)
	})
}

// join folds the parts of attention into rows of a, all of them privately if
// they are few, else a share of them; and quantises them if asked to.
func (b *Backend) join(op string, a *act, quantise bool) error {
	rows := a.rows
	if err := b.read(op, &b.partsUse); err != nil {
		return err
	}
	to, lo, hi := &a.private, 0, rows
	if !b.alone(rows) {
		to = &a.shared
		if err := b.write(op, &to.useFloats, &to.useBytes); err != nil {
			return err
		}
		lo, hi = b.rowShare(rows)
	}
	a.parts, to.hasFloats, to.hasBytes = false, true, quantise
	hd, size := b.shape.HeadDim, partFloats(b.shape)
	for r := lo; r < hi; r++ {
		for h := range b.shape.Heads {
			b.kern.fold(hd, b.parts[(r*b.blocks*b.shape.Heads+h)*size:], b.shape.Heads*size, b.rowBlocks[r], to.floats[r*a.ld+h*hd:])
		}
	}
	if quantise && lo < hi {
		b.kern.quant(to.floats, a.ld, a.cols, lo, hi, to.bytes, to.fine)
	}
	return nil
}
