package token

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// What the Encoding Standard's decoder makes of bytes: one U+FFFD for each
// longest beginning of a character.
func TestInvalidBytesAreReplaced(t *testing.T) {
	const x = "\ufffd"
	for in, want := range map[string]string{
		"":                         "",
		"abc":                      "abc",
		"\xc3\xa9":                 "é",
		"\xc3":                     x,
		"\xc3(":                    x + "(",
		"\xc3\xc3\xa9":             x + "é",
		"\xe2\x82":                 x,
		"\xe2\x82\xac":             "€",
		"\xe2\x82x":                x + "x",
		"\xe2\x28\xa1":             x + "(" + x,
		"\xf0\x9f\x98":             x,
		"\xf0\x9f\x98\x80":         "😀",
		"\xf0\x9f\xf0\x9f\x98\x80": x + "😀",
		"\xf0\x28\x8c\xbc":         x + "(" + x + x,
		"\xc0\xaf":                 x + x,
		"\xe0\x80\xaf":             x + x + x,
		"\xed\xa0\x80":             x + x + x,
		"\xf4\x90\x80\x80":         x + x + x + x,
		"\xf8\x88\x80":             x + x + x,
		"\x80\x80":                 x + x,
		"\xff\xfe":                 x + x,
		"a\xc2":                    "a" + x,
		"\xef\xbf\xbd":             x,
		"\x00":                     "\x00",
	} {
		var u repair
		if got := string(u.flush(u.write(nil, []byte(in)))); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestStreamedTokensGiveTheTextOfAll(t *testing.T) {
	v := tiny()
	v.Tokens = append(v.Tokens, "âĤ", "ðŁĺ", "ĢâĤ") // parts of characters
	v.Types = append(v.Types, Normal, Normal, Normal)
	tok := mustNew(t, v)
	rapid.Check(t, func(t *rapid.T) {
		// Continuation and leading bytes are as likely as all else together.
		id := rapid.OneOf(rapid.Int32Range(-1, int32(tok.Len())), rapid.Int32Range(0x80, 0xff), rapid.Int32Range(int32(tok.Len())-3, int32(tok.Len())-1))
		ids := rapid.SliceOf(id).Draw(t, "ids")
		control := rapid.Bool().Draw(t, "control")
		s := tok.NewStream(control)
		var out strings.Builder
		for _, id := range ids {
			part := s.Next(id)
			if !utf8.ValidString(part) {
				t.Fatalf("token %d gave %q", id, part)
			}
			if s.Held() > 3 {
				t.Fatalf("%d bytes held back", s.Held())
			}
			out.WriteString(part)
		}
		// Nothing complete is held back: the rest is one beginning at most.
		rest := s.Flush()
		if rest != "" && rest != "\ufffd" {
			t.Fatalf("flushed %q", rest)
		}
		out.WriteString(rest)
		if got, want := out.String(), tok.Text(ids, control); got != want {
			t.Fatalf("streamed %q, in one %q", got, want)
		}
		if raw := tok.Decode(ids, control); utf8.Valid(raw) && string(raw) != out.String() {
			t.Fatalf("valid %q became %q", raw, out.String())
		}
	})
}
