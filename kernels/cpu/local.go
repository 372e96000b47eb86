package cpu

import "golang.org/x/sys/unix"

// local is a rank's copies of the rows of weights that it computes with.
type local struct {
	limit int64
	mem   []byte
	used  int
}

// rows is the packed form of n groups of m from the given one on: a copy, if
// there is room for it, else the original. A matrix is copied once, by the rows
// of its first use, which are those of every use but in odd tests.
func (l *local) rows(m *matrix, group, n int) []byte {
	bytes := n * m.group
	if m.copied == nil && l.limit > 0 && int64(l.used+bytes) <= l.limit {
		if l.mem == nil {
			mem, err := anonymous(int(l.limit))
			if err != nil {
				l.limit = 0 // do without
				return m.Data[group*m.group:][:bytes]
			}
			l.mem = mem
		}
		m.copied, m.copiedFrom = l.mem[l.used:l.used+bytes:l.used+bytes], group
		l.used += (bytes + 63) &^ 63
		copy(m.copied, m.Data[group*m.group:])
	}
	if at := (group - m.copiedFrom) * m.group; m.copied != nil && at >= 0 && at+bytes <= len(m.copied) {
		return m.copied[at : at+bytes]
	}
	return m.Data[group*m.group:][:bytes]
}

func (l *local) close() error {
	if l.mem == nil {
		return nil
	}
	return unix.Munmap(l.mem)
}
