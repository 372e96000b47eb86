package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/gpu/pagepool"
	"tandem/model/sample"
)

// examples has one of each message with every field set.
func examples() []Message {
	ps := []pagepool.Page{{Index: 3, Epoch: 4}, {Index: 1 << 31, Epoch: 9}}
	return []Message{
		&Setup{JSON: []byte(`{"a":1}`)},
		&Expect{Attempt: 1 << 40, Source: 2, Slot: 3, Src: ps, Dst: ps[:1]},
		&Prefill{Attempt: 7, Target: 1, Slot: 2, Tokens: []int32{1, -1, 49151}, Src: ps, Dst: ps},
		&Join{Attempt: 8, Prompt: 2, MaxTokens: 99, Tokens: []int32{5, 6, 7}, Stop: []int32{2}, Pages: ps,
			Params: sample.Params{Temperature: .7, TopP: .9, TopK: -1, MinP: .1, Seed: 1 << 63, Presence: -1, Frequency: 2, Repetition: 1.1, Bias: []sample.Bias{{Token: 4, Value: -100}}}},
		&Grow{Attempt: 8, At: 3, Pages: ps},
		&Quiesce{Attempt: 8}, &Dump{}, &Stop{},
		&Hello{PID: 77, Revision: "abc", Layout: 1 << 60}, &Ready{Backend: "cpu"}, &Reserved{Attempt: 8},
		&Sealed{Attempt: 8, Tokens: 64, Pages: 1, Done: true}, &Landed{Attempt: 8, Pages: 4}, &Verified{Attempt: 8},
		&Step{Seq: 5, Results: []Result{{Attempt: 8, Token: 17, Finish: 1}, {Attempt: 9, Token: 0}}},
		&Quiet{Attempt: 8}, &Failed{Attempt: 8, Kind: fault.DigestMismatch, Text: "page 4"}, &Fatal{Text: "x"}, &Dumped{Text: "goroutine 1"}, &Progress{Done: 5, Total: 1 << 40},
	}
}

func TestEveryMessageArrivesAsSent(t *testing.T) {
	var b []byte
	seen := map[Type]bool{}
	for i, m := range examples() {
		var err error
		if b, err = Append(b, ident.Generation(i), m); err != nil {
			t.Fatal(err)
		}
		seen[m.Type()] = true
	}
	for ty := range Type(255) {
		if alloc(ty) != nil && !seen[ty] {
			t.Errorf("no example of message type %d", ty)
		}
	}
	d := NewDecoder(iotestOneByte{bytes.NewReader(b)})
	for i, want := range examples() {
		f, err := d.Next()
		if err != nil {
			t.Fatalf("%T: %v", want, err)
		}
		if diff := cmp.Diff(want, f.Message); diff != "" || f.Generation != ident.Generation(i) {
			t.Errorf("%T of generation %d: %s", want, f.Generation, diff)
		}
	}
	if _, err := d.Next(); err != io.EOF {
		t.Errorf("after the last frame: %v", err)
	}
}

type iotestOneByte struct{ r io.Reader }

func (o iotestOneByte) Read(p []byte) (int, error) { return o.r.Read(p[:min(1, len(p))]) }

func TestAnyDamagedByteIsNoticed(t *testing.T) {
	for _, m := range examples() {
		good, err := Append(nil, 3, m)
		if err != nil {
			t.Fatal(err)
		}
		for i := range good {
			bad := bytes.Clone(good)
			bad[i] ^= 0x10
			if f, err := NewDecoder(bytes.NewReader(bad)).Next(); err == nil {
				t.Fatalf("%T with byte %d changed was taken for %#v", m, i, f.Message)
			}
		}
		for n := 1; n < len(good); n++ {
			if _, err := NewDecoder(bytes.NewReader(good[:n])).Next(); !errors.Is(err, ErrFrame) {
				t.Fatalf("%T cut at %d: %v", m, n, err)
			}
		}
	}
}

func TestAnnouncedSizeTakesNoMemory(t *testing.T) {
	b, err := Append(nil, 1, &Setup{JSON: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(b[4:], MaxPayload)
	d := NewDecoder(bytes.NewReader(b))
	if _, err := d.Next(); !errors.Is(err, ErrFrame) {
		t.Fatal(err)
	}
	if cap(d.buf) > 1<<20 {
		t.Errorf("a header took %d bytes", cap(d.buf))
	}
	binary.LittleEndian.PutUint32(b[4:], MaxPayload+1)
	if _, err := NewDecoder(bytes.NewReader(b)).Next(); !errors.Is(err, ErrFrame) {
		t.Fatal(err)
	}
}

// FuzzPayload puts any payload under a right header: the decoder answers with an
// error or with a message that survives being sent again.
func FuzzPayload(f *testing.F) {
	for _, m := range examples() {
		f.Add(byte(m.Type()), m.append(nil))
	}
	f.Fuzz(func(t *testing.T, ty byte, payload []byte) {
		b := make([]byte, HeaderBytes, HeaderBytes+len(payload))
		binary.LittleEndian.PutUint16(b, magic)
		b[2], b[3] = version, ty
		binary.LittleEndian.PutUint32(b[4:], uint32(len(payload)))
		b = append(b, payload...)
		binary.LittleEndian.PutUint32(b[16:], crc32.Update(crc32.Checksum(b[:16], table), table, payload))
		fr, err := NewDecoder(bytes.NewReader(b)).Next()
		if err != nil {
			return
		}
		again, err := Append(nil, fr.Generation, fr.Message)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%#v: sent again it differs: %v", fr.Message, err)
		}
	})
}

func FuzzStream(f *testing.F) {
	b, _ := Append(nil, 1, &Quiet{Attempt: 4})
	f.Add(b)
	f.Add(append(bytes.Clone(b), b...))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := NewDecoder(bytes.NewReader(b))
		for {
			if _, err := d.Next(); err != nil {
				return
			}
		}
	})
}
