package share

import (
	"bytes"
	"testing"
)

func TestSealedNamesOneUseOfAPage(t *testing.T) {
	s, err := OpenSegment(make([]byte, SegmentBytes(3, 128)), 3, 128)
	if err != nil {
		t.Fatal(err)
	}
	if s.Sealed(1, 0) || s.Open(1, 0) {
		t.Error("an untouched page looks used")
	}
	s.Begin(1, 7)
	if s.Sealed(1, 7) || !s.Open(1, 7) {
		t.Error("a page being written looks final")
	}
	s.Seal(1, 7)
	if !s.Sealed(1, 7) || s.Sealed(1, 6) || s.Sealed(1, 8) || s.Sealed(0, 7) {
		t.Error("the seal does not name its use and page alone")
	}
	s.Begin(1, 8)
	if s.Sealed(1, 7) {
		t.Error("a page in its next use still looks final in the last")
	}
}

func TestPagesDoNotOverlap(t *testing.T) {
	s, err := OpenSegment(make([]byte, SegmentBytes(4, 64)), 4, 64)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint32(4) {
		copy(s.Page(i), bytes.Repeat([]byte{byte(i + 1)}, 64))
		s.Seal(i, 99)
	}
	for i := range uint32(4) {
		if !bytes.Equal(s.Page(i), bytes.Repeat([]byte{byte(i + 1)}, 64)) || !bytes.Equal(s.Page(i), s.Pages()[i*64:(i+1)*64]) {
			t.Errorf("page %d was written by another", i)
		}
	}
	if _, err := OpenSegment(make([]byte, 100), 4, 64); err == nil {
		t.Error("a segment in too little memory")
	}
}

func TestDigestBindsBytesPlaceAndAttempt(t *testing.T) {
	page := bytes.Repeat([]byte("kv"), 300)
	d := Digest(1, 2, 3, page)
	other := bytes.Clone(page)
	other[599] ^= 1
	for name, got := range map[string]uint64{
		"another byte": Digest(1, 2, 3, other), "another attempt": Digest(2, 2, 3, page),
		"another unit": Digest(1, 1, 3, page), "another place": Digest(1, 2, 4, page),
	} {
		if got == d {
			t.Errorf("%s: the same digest", name)
		}
	}
	if Digest(1, 2, 3, bytes.Clone(page)) != d {
		t.Error("the same page: another digest")
	}
}

func TestBoardColumnBelongsToOneAttempt(t *testing.T) {
	b, err := OpenBoard(make([]byte, BoardBytes(2, 3, 5)), 2, 3, 5)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := b.Published(1, 2, 9); ok {
		t.Error("nobody's column is somebody's")
	}
	b.Claim(1, 2, 9)
	b.Publish(1, 2, 100)
	b.Publish(1, 2, 101)
	if n, ok := b.Published(1, 2, 9); n != 2 || !ok || b.DigestOf(1, 2, 1) != 101 {
		t.Errorf("published %d %v", n, ok)
	}
	if n, ok := b.Published(1, 1, 9); ok || n != 0 {
		t.Error("another unit's column answers")
	}
	b.Claim(1, 2, 10)
	if _, ok := b.Published(1, 2, 9); ok {
		t.Error("the column still answers for the attempt before")
	}
	if n, ok := b.Published(1, 2, 10); n != 0 || !ok {
		t.Error("a new attempt starts with pages published")
	}
}
