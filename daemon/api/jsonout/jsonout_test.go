package jsonout

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func check(t *testing.T, s string) {
	t.Helper()
	got := AppendString([]byte("x"), s)[1:]
	if b := AppendString(nil, []byte(s)); string(b) != string(got) {
		t.Fatalf("%q: bytes give %s, string gives %s", s, b, got)
	}
	if !utf8.Valid(got) {
		t.Fatalf("%q: %q is not UTF-8", s, got)
	}
	var back string
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatalf("%q: %s: %v", s, got, err)
	}
	// encoding/json replaces invalid bytes one by one, and so do we.
	enc, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var want string
	if err := json.Unmarshal(enc, &want); err != nil {
		t.Fatal(err)
	}
	if back != want {
		t.Fatalf("%q: reads back as %q, want %q", s, back, want)
	}
	for _, c := range []string{"\n", "\r", "\u2028", "\u2029"} {
		if strings.Contains(string(got), c) {
			t.Fatalf("%q: %q holds a line end", s, got)
		}
	}
}

func TestStrings(t *testing.T) {
	for _, s := range []string{"", "plain", "a\"b\\c/d", "\x00\x01\x1f\x7f\n\r\t", "é€😀", "\u2028\u2029", "\xff", "a\xc3", "\xed\xa0\x80", "x\xf0\x9f\x98", "<script>&"} {
		check(t, s)
	}
}

func FuzzAppendString(f *testing.F) {
	for _, s := range []string{"", "a\"\\\n", "\xff\xc3é", "\u2028"} {
		f.Add(s)
	}
	f.Fuzz(check)
}

func BenchmarkAppendString(b *testing.B) {
	buf := make([]byte, 0, 256)
	for b.Loop() {
		buf = AppendString(buf[:0], " token")
	}
}
