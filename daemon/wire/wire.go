// Package wire holds the messages between the daemon and a rank and their form
// on a socket. It reads and writes bytes and keeps no state beyond a buffer; what
// a message means is decided elsewhere.
//
// # Frame
//
//	0  u16 magic "tM"        4  u32 length of the payload, at most MaxPayload
//	2  u8  version           8  u64 generation of the sender
//	3  u8  message type     16  u32 CRC-32C of bytes 0…16 and the payload
//	                        20  payload
//
// All integers are little endian. A list is its length (u32) and its elements.
// A frame that breaks these rules is an error that ends the connection, and with
// it the rank: there is no resynchronisation.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"tandem/daemon/ident"
)

// Limits.
const (
	HeaderBytes = 20
	MaxPayload  = 16 << 20 // a prompt of a million tokens with its pages
	MaxReply    = 2 << 20  // of a message from a rank: stacks are the longest
	MaxText     = 4 << 10  // of a text for people, which is cut
	version     = 1
	magic       = 't' | 'M'<<8
)

var table = crc32.MakeTable(crc32.Castagnoli)

// Type tells messages apart.
type Type uint8

// Messages to a rank, then from a rank.
const (
	TSetup Type = iota + 1
	TExpect
	TPrefill
	TJoin
	TGrow
	TQuiesce
	TDump
	TStop
	THello Type = iota + 64
	TReady
	TReserved
	TSealed
	TLanded
	TVerified
	TStep
	TQuiet
	TFailed
	TFatal
	TDumped
	TProgress
)

// Message is one of the message types of this package.
type Message interface {
	Type() Type
	append(b []byte) []byte
	read(r *reader)
}

// Frame is a message and the generation that its sender belonged to.
type Frame struct {
	Generation ident.Generation
	Message    Message
}

// Append adds a frame to b.
func Append(b []byte, g ident.Generation, m Message) ([]byte, error) {
	at := len(b)
	b = append(b, make([]byte, HeaderBytes)...)
	b = m.append(b)
	n := len(b) - at - HeaderBytes
	if n > MaxPayload {
		return b[:at], fmt.Errorf("wire: %T of %d bytes, at most %d", m, n, MaxPayload)
	}
	h := b[at:]
	binary.LittleEndian.PutUint16(h, magic)
	h[2], h[3] = version, byte(m.Type())
	binary.LittleEndian.PutUint32(h[4:], uint32(n))
	binary.LittleEndian.PutUint64(h[8:], uint64(g))
	crc := crc32.Update(crc32.Checksum(h[:16], table), table, h[HeaderBytes:])
	binary.LittleEndian.PutUint32(h[16:], crc)
	return b, nil
}

// ErrFrame is wrapped by every error about a frame that is not one.
var ErrFrame = errors.New("bad frame")

// Decoder reads frames from a stream.
type Decoder struct {
	r     io.Reader
	buf   []byte
	reply bool // only messages from ranks, of MaxReply at most
}

// NewReplies reads what a rank sends. A message that ranks do not send is an error.
func NewReplies(r io.Reader) *Decoder { return &Decoder{r: r, reply: true} }

// NewDecoder reads from r, which should be buffered by nobody else.
func NewDecoder(r io.Reader) *Decoder { return &Decoder{r: r} }

// Next reads one frame. Slices in the message are its own. io.EOF means the
// stream ended between frames.
func (d *Decoder) Next() (Frame, error) {
	var h [HeaderBytes]byte
	if _, err := io.ReadFull(d.r, h[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return Frame{}, fmt.Errorf("%w: the stream ends within a header", ErrFrame)
		}
		return Frame{}, err
	}
	if m := binary.LittleEndian.Uint16(h[:]); m != magic {
		return Frame{}, fmt.Errorf("%w: magic %#04x", ErrFrame, m)
	}
	if h[2] != version {
		return Frame{}, fmt.Errorf("%w: version %d, want %d", ErrFrame, h[2], version)
	}
	n := binary.LittleEndian.Uint32(h[4:])
	most := uint32(MaxPayload)
	if d.reply {
		if most = MaxReply; Type(h[3]) < THello {
			return Frame{}, fmt.Errorf("%w: type %d is not for a rank to send", ErrFrame, h[3])
		}
	}
	if n > most {
		return Frame{}, fmt.Errorf("%w: a payload of %d bytes, at most %d", ErrFrame, n, most)
	}
	// The buffer grows with what has really arrived, not with what is announced.
	d.buf = d.buf[:0]
	for len(d.buf) < int(n) {
		at := len(d.buf)
		d.buf = append(d.buf, make([]byte, min(int(n)-at, 256<<10))...)
		if _, err := io.ReadFull(d.r, d.buf[at:]); err != nil {
			return Frame{}, fmt.Errorf("%w: the stream ends within a payload of %d bytes: %v", ErrFrame, n, err)
		}
	}
	crc := crc32.Update(crc32.Checksum(h[:16], table), table, d.buf)
	if want := binary.LittleEndian.Uint32(h[16:]); crc != want {
		return Frame{}, fmt.Errorf("%w: checksum %#08x, want %#08x", ErrFrame, crc, want)
	}
	m := alloc(Type(h[3]))
	if m == nil {
		return Frame{}, fmt.Errorf("%w: unknown type %d", ErrFrame, h[3])
	}
	r := reader{b: d.buf}
	m.read(&r)
	if r.err == nil && len(r.b) != 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	if r.err != nil {
		return Frame{}, fmt.Errorf("%w: %T: %v", ErrFrame, m, r.err)
	}
	if cap(d.buf) > 1<<20 {
		d.buf = nil
	}
	return Frame{Generation: ident.Generation(binary.LittleEndian.Uint64(h[8:])), Message: m}, nil
}

// reader takes a payload apart. After the first fault it gives zeros.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
		r.b = nil
	}
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.fail("%d bytes too few", n-len(r.b))
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads a list's length and checks it against what is left, each element
// taking at least size bytes.
func (r *reader) count(size int) int {
	n := int(r.u32())
	if n > len(r.b)/size {
		r.fail("a list of %d in %d bytes", n, len(r.b))
		return 0
	}
	return n
}

func (r *reader) bytes() []byte {
	n := r.count(1)
	return append([]byte(nil), r.take(n)...)
}

// text is bytes for people, at most so many.
func (r *reader) text(most int) string {
	n := r.count(1)
	if n > most {
		r.fail("a text of %d bytes, at most %d", n, most)
	}
	return string(r.take(n))
}

func (r *reader) i32s() []int32 {
	v := make([]int32, r.count(4))
	for i := range v {
		v[i] = int32(r.u32())
	}
	return v
}

func putU32(b []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(b, v) }
func putU64(b []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(b, v) }

func putBytes[T ~string | ~[]byte](b []byte, v T) []byte {
	return append(putU32(b, uint32(len(v))), v...)
}

// putText is putBytes of a text that is cut to so many bytes.
func putText(b []byte, s string, most int) []byte { return putBytes(b, s[:min(len(s), most)]) }

func putI32s(b []byte, v []int32) []byte {
	b = putU32(b, uint32(len(v)))
	for _, x := range v {
		b = putU32(b, uint32(x))
	}
	return b
}
