package token

import "unicode/utf8"

// Stream turns tokens into text one by one. What it gives out is always valid
// UTF-8 and as much as can be told: it holds back at most the three bytes of a
// character that is not complete. What cannot become a character is given as
// U+FFFD, one for each longest beginning of a character, as decoders of the
// web do it; so the text does not depend on how the bytes were split. It belongs
// to one goroutine.
type Stream struct {
	t       *Tokenizer
	control bool
	utf8    repair
}

// NewStream begins a text. control says whether control tokens show their texts
// or nothing.
func (t *Tokenizer) NewStream(control bool) *Stream {
	return &Stream{t: t, control: control}
}

// Next takes one token and gives the text that is certain by now.
func (s *Stream) Next(id int32) string {
	return string(s.utf8.write(nil, s.t.Piece(id, s.control)))
}

// Held is the number of bytes held back.
func (s *Stream) Held() int { return s.utf8.n }

// Flush ends the text: what was held back is given as U+FFFD.
func (s *Stream) Flush() string { return string(s.utf8.flush(nil)) }

// Text is what a Stream gives for ids, all in one.
func (t *Tokenizer) Text(ids []int32, control bool) string {
	var u repair
	var out []byte
	for _, id := range ids {
		out = u.write(out, t.Piece(id, control))
	}
	return string(u.flush(out))
}

// repair copies bytes and replaces what is not UTF-8, in the state machine of
// the Encoding Standard's decoder: after a first byte, lo…hi is what may follow.
type repair struct {
	held   [3]byte
	n      int // bytes held
	want   int // bytes missing; 0 between characters
	lo, hi byte
}

const replacement = string(utf8.RuneError)

func (u *repair) write(dst, p []byte) []byte {
	for i := 0; i < len(p); {
		b := p[i]
		if u.want == 0 {
			i++
			u.lo, u.hi = 0x80, 0xbf
			switch {
			case b < 0x80:
				dst = append(dst, b)
				continue
			case b >= 0xc2 && b <= 0xdf:
				u.want = 1
			case b >= 0xe0 && b <= 0xef:
				u.want = 2
				if b == 0xe0 {
					u.lo = 0xa0
				} else if b == 0xed {
					u.hi = 0x9f
				}
			case b >= 0xf0 && b <= 0xf4:
				u.want = 3
				if b == 0xf0 {
					u.lo = 0x90
				} else if b == 0xf4 {
					u.hi = 0x8f
				}
			default:
				dst = append(dst, replacement...)
				continue
			}
			u.held[0], u.n = b, 1
			continue
		}
		if b < u.lo || b > u.hi {
			dst = u.flush(dst) // b begins anew
			continue
		}
		i++
		u.lo, u.hi = 0x80, 0xbf
		if u.want--; u.want > 0 {
			u.held[u.n] = b
			u.n++
			continue
		}
		dst = append(append(dst, u.held[:u.n]...), b)
		u.n = 0
	}
	return dst
}

func (u *repair) flush(dst []byte) []byte {
	if u.want > 0 {
		u.n, u.want = 0, 0
		dst = append(dst, replacement...)
	}
	return dst
}
