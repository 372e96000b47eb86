package token_test

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"tandem/model/golden"
	"tandem/model/token"
)

func TestGoldenTexts(t *testing.T) {
	tok := golden.Tokenizer(t)
	cases, missing := golden.Tokens(t)
	wrong := 0
	for i, c := range cases {
		got := tok.Encode(c.Text, false)
		if !slices.Equal(got, c.IDs) {
			if wrong++; wrong <= 10 {
				t.Errorf("text %d %q:\n got %v\nwant %v", i, c.Text, got, c.IDs)
			}
		}
		// What comes back is the text less the bytes that have no token.
		want := slices.DeleteFunc([]byte(c.Text), func(b byte) bool { return bytes.IndexByte(missing, b) >= 0 })
		if back := tok.Decode(got, true); !bytes.Equal(back, want) {
			t.Errorf("text %d %q decodes to %q", i, c.Text, back)
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d texts differ", wrong, len(cases))
	}
}

func TestGoldenPrompts(t *testing.T) {
	tok := golden.Tokenizer(t)
	for _, p := range golden.Logits(t) {
		if got := tok.Encode(p.Text, true); !slices.Equal(got, p.Tokens) {
			t.Errorf("%s: got %v, want %v", p.Name, got, p.Tokens)
		}
	}
	q := golden.Essay(t)
	if got := tok.Encode(q.Text, false); !slices.Equal(got, q.Tokens) {
		t.Error("the essay's tokens differ")
	}
}

func TestControlTokensOfTheDemoModel(t *testing.T) {
	tok := golden.Tokenizer(t)
	if tok.Len() != 49152 || tok.Bos() != 1 || tok.Eos() != 2 || tok.AddBos() {
		t.Errorf("%d tokens, bos %d, eos %d, add bos %v", tok.Len(), tok.Bos(), tok.Eos(), tok.AddBos())
	}
	if got := tok.Ends(); !slices.Equal(got, []int32{2, 0}) {
		t.Errorf("answers end with %v", got)
	}
	texts := tok.ControlTexts()
	if len(texts) != 17 {
		t.Fatalf("%d control tokens: %q", len(texts), texts)
	}
	for i, text := range texts {
		id := int32(i)
		if got, ok := tok.Lookup(text); !ok || got != id || !tok.IsControl(id) {
			t.Errorf("%q is token %d", text, got)
		}
		in := "a " + text + text + "b"
		if got := tok.Encode(in, true); !slices.Equal(got, slices.Concat(tok.Encode("a ", false), []int32{id, id}, tok.Encode("b", false))) {
			t.Errorf("%q parsed: %v", in, got)
		}
		for _, got := range tok.Encode(in, false) {
			if tok.IsControl(got) {
				t.Errorf("%q as plain text gives control token %d", in, got)
			}
		}
		if got := tok.Decode(tok.Encode(in, false), false); string(got) != in {
			t.Errorf("%q as plain text decodes to %q", in, got)
		}
		if tok.Piece(id, false) != nil || string(tok.Piece(id, true)) != text {
			t.Errorf("pieces of %q: %q, %q", text, tok.Piece(id, false), tok.Piece(id, true))
		}
	}
	if tok.IsControl(17) || tok.IsControl(-1) || tok.IsControl(49152) || tok.Piece(-1, true) != nil || tok.Piece(49152, true) != nil {
		t.Error("ids outside the control tokens")
	}
}

// A byte without a token vanishes after merging: it keeps its neighbours apart.
func TestMissingByteDoesNotJoinItsNeighbours(t *testing.T) {
	tok := golden.Tokenizer(t)
	one := tok.Encode("((", false)
	if len(one) != 1 {
		t.Fatalf("(( is %v", one)
	}
	paren := tok.Encode("(", false)
	if got := tok.Encode("(\x04(", false); !slices.Equal(got, slices.Concat(paren, paren)) {
		t.Errorf("got %v, want %v twice", got, paren)
	}
}

func TestStreamOfTheDemoModel(t *testing.T) {
	tok := golden.Tokenizer(t)
	for _, text := range []string{
		strings.Repeat("한국어 텍스트는 여러 바이트로 나뉜다. 😀👩‍👩‍👧‍👦🇩🇪 ", 30),
		"naïve café — ½ ✓ 𝔘𝔫𝔦",
	} {
		s := tok.NewStream(false)
		var out strings.Builder
		for _, id := range tok.Encode(text, false) {
			part := s.Next(id)
			if !utf8.ValidString(part) || strings.ContainsRune(part, utf8.RuneError) {
				t.Fatalf("token %d gave %q", id, part)
			}
			if s.Held() > 3 {
				t.Fatalf("%d bytes held back", s.Held())
			}
			out.WriteString(part)
		}
		out.WriteString(s.Flush())
		if out.String() != text {
			t.Errorf("got %q, want %q", out.String(), text)
		}
	}
}

// Run with -race: the cache of words is the only thing that changes.
func TestManyGoroutinesEncode(t *testing.T) {
	tok := golden.Tokenizer(t)
	cases, _ := golden.Tokens(t)
	var wait sync.WaitGroup
	for g := range 8 {
		wait.Go(func() {
			for i := range cases {
				c := cases[(i*7+g*311)%len(cases)]
				if got := tok.Encode(c.Text, false); !slices.Equal(got, c.IDs) {
					t.Errorf("%q: got %v, want %v", c.Text, got, c.IDs)
					return
				}
			}
		})
	}
	wait.Wait()
}

func FuzzEncode(f *testing.F) {
	tok := golden.Tokenizer(f)
	cases, missing := golden.Tokens(f)
	for i := 0; i < len(cases); i += 40 {
		f.Add(cases[i].Text)
	}
	f.Add("<|im_start|>user\nhi<|im_end|>")
	f.Fuzz(func(t *testing.T, text string) {
		want := []byte(text)
		want = slices.DeleteFunc(want, func(b byte) bool { return bytes.IndexByte(missing, b) >= 0 })
		for _, special := range []bool{false, true} {
			ids := tok.Encode(text, special)
			if got := tok.Decode(ids, true); !bytes.Equal(got, want) {
				t.Fatalf("special %v: %q decodes to %q", special, text, got)
			}
			if !special && slices.ContainsFunc(ids, tok.IsControl) {
				t.Fatalf("%q holds a control token: %v", text, ids)
			}
			s := tok.NewStream(true)
			var out strings.Builder
			for _, id := range ids {
				out.WriteString(s.Next(id))
			}
			out.WriteString(s.Flush())
			if got := tok.Text(ids, true); out.String() != got || !utf8.ValidString(got) {
				t.Fatalf("streamed %q, in one %q", out.String(), got)
			}
		}
	})
}

func benchmarkEncode(b *testing.B, text string) {
	tok := golden.Tokenizer(b)
	ids := tok.Encode(text, false)
	b.SetBytes(int64(len(text)))
	b.ReportMetric(float64(len(text))/float64(len(ids)), "bytes/token")
	b.ReportAllocs()
	for b.Loop() {
		ids = tok.EncodeTo(ids[:0], text, false)
	}
}

func BenchmarkEncodeEnglish(b *testing.B) { benchmarkEncode(b, golden.Essay(b).Text) }

func BenchmarkEncodeCode(b *testing.B) {
	code := `
// Release gives the pages of a lease back. It is an error to do so twice.
func (p *Pool) Release(l *Lease) error {
	if l.state != held {
		return fmt.Errorf("pool: lease %d: %w", l.id, errNotHeld)
	}
	for i, page := range l.pages {
		p.free[page>>6] |= 1 << (page & 63) // i-th page
		p.stats.freed[i%len(p.stats.freed)]++
	}
	l.state, l.pages = released, nil
	return nil
}
`
	benchmarkEncode(b, strings.Repeat(code, 40))
}

// Mostly words that no cache has seen.
func BenchmarkEncodeNewWords(b *testing.B) {
	var text strings.Builder
	x := uint64(1)
	for text.Len() < 1<<20 {
		for range 3 + x%7 {
			x = x*6364136223846793005 + 1442695040888963407
			text.WriteByte('a' + byte(x>>33%26))
		}
		text.WriteByte(' ')
	}
	benchmarkEncode(b, text.String())
}

func BenchmarkEncodeOneLetter(b *testing.B) { benchmarkEncode(b, strings.Repeat("a", 1<<20)) }
func BenchmarkEncodeSpaces(b *testing.B)    { benchmarkEncode(b, strings.Repeat(" ", 1<<20)) }
func BenchmarkEncodeOneEmoji(b *testing.B)  { benchmarkEncode(b, strings.Repeat("😀", 1<<18)) }
func BenchmarkEncodeAngles(b *testing.B)    { benchmarkEncode(b, strings.Repeat("<|im_start|", 1<<17)) }

var sink *token.Tokenizer

func BenchmarkNew(b *testing.B) {
	v := golden.Vocab(b)
	for b.Loop() {
		t, err := token.New(v)
		if err != nil {
			b.Fatal(err)
		}
		sink = t
	}
}
