package token

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/google/go-cmp/cmp"
)

// tiny is a vocabulary of all bytes, a few merges, and tokens of every kind.
func tiny() Vocab {
	v := Vocab{Pre: "gpt-2", Bos: -1, Eos: -1, Eot: -1, Unk: -1, Pad: -1}
	add := func(text string, kind int32) {
		v.Tokens = append(v.Tokens, text)
		v.Types = append(v.Types, kind)
	}
	for b := range 256 {
		add(string(spelled[b]), Normal)
	}
	for _, m := range []string{"a b", "ab c", "b c", "Ġ a", "a a", "aa aa", "aaaa aaaa", "Ã ©"} {
		v.Merges = append(v.Merges, m)
		add(strings.ReplaceAll(m, " ", ""), Normal)
	}
	add("<s>", Control)
	add("<s>>", Control)
	add("<tool>", UserDefined)
	add("<unk>", Unknown)
	v.Bos = slices.Index(v.Tokens, "<s>")
	v.Eos = v.Bos
	return v
}

func mustNew(t testing.TB, v Vocab) *Tokenizer {
	t.Helper()
	tok, err := New(v)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestMergesGoByRankThenFromTheLeft(t *testing.T) {
	tok := mustNew(t, tiny())
	for text, want := range map[string][]string{
		"abc":     {"abc"},
		"bc":      {"bc"},
		"bab":     {"b", "ab"},
		"aaa":     {"aa", "a"},
		"aaaaaaa": {"aaaa", "aa", "a"},
		" a":      {"Ġa"},
		" ab":     {"Ġ", "ab"},
		"é":       {"Ã©"},
		"":        nil,
	} {
		var got []string
		for _, id := range tok.Encode(text, false) {
			got = append(got, tok.vocab.Tokens[id])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

func TestWholeTextTokens(t *testing.T) {
	tok := mustNew(t, tiny())
	text := "a<s>>b<s><tool><unk>"
	show := func(special bool) (out []string) {
		for _, id := range tok.Encode(text, special) {
			out = append(out, tok.vocab.Tokens[id])
		}
		return out
	}
	if got, want := show(true), []string{"a", "<s>>", "b", "<s>", "<tool>", "<unk>"}; !slices.Equal(got, want) {
		t.Errorf("parsed: %q", got)
	}
	plain := show(false)
	if slices.Contains(plain, "<s>") || slices.Contains(plain, "<unk>") || !slices.Contains(plain, "<tool>") {
		t.Errorf("as plain text: %q", plain)
	}
}

// Each entry of the table is the tiny vocabulary with one thing wrong.
func TestVocabulariesThatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Vocab)
		want   string
	}{
		"no tokens":        {func(v *Vocab) { v.Tokens = nil }, "no tokens"},
		"too many tokens":  {func(v *Vocab) { v.Tokens = make([]string, MaxTokens+1) }, "1048577 tokens"},
		"types":            {func(v *Vocab) { v.Types = v.Types[:5] }, "5 token types"},
		"type":             {func(v *Vocab) { v.Types[9] = 9 }, "token 9 has type 9"},
		"byte":             {func(v *Vocab) { v.Types[7] = Byte }, "token 7"},
		"bos":              {func(v *Vocab) { v.Bos = len(v.Tokens) }, "bos token id"},
		"eos":              {func(v *Vocab) { v.Eos = -2 }, "eos token id -2"},
		"add bos":          {func(v *Vocab) { v.AddBos, v.Bos = true, -1 }, "bos"},
		"pre-tokenizer":    {func(v *Vocab) { v.Pre = "tekken" }, `"tekken" is not known; known are gpt-2, llama-bpe, qwen2, smollm`},
		"no pre-tokenizer": {func(v *Vocab) { v.Pre = "" }, "known are"},
		"long token":       {func(v *Vocab) { v.Tokens[3] = strings.Repeat("x", MaxTokenBytes+1) }, "token 3 has 4097 bytes"},
		"merge of one":     {func(v *Vocab) { v.Merges[2] = "ab" }, `merge 2 "ab" is not two parts`},
		"empty merge":      {func(v *Vocab) { v.Merges[2] = "" }, "merge 2"},
		"merge of nothing": {func(v *Vocab) { v.Merges[2] = " b" }, "merge 2"},
		"merge part":       {func(v *Vocab) { v.Merges[2] = "a €" }, `merge 2 "a €": a part`},
		"merge result":     {func(v *Vocab) { v.Merges[2] = "z z" }, `merge 2 "z z": the result`},
	} {
		v := tiny()
		c.change(&v)
		if _, err := New(v); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
}

// The heap and the simple loop must agree on every word.
func TestLongAndShortMergesAgree(t *testing.T) {
	v := tiny()
	// A missing byte, to be found in the words too.
	v.Types['b'] = Unused
	tok := mustNew(t, v)
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.StringMatching(`[abcé ]{2,24}`).Draw(t, "word")
		if len(w) > shortWord || len(w) < 2 {
			t.Skip()
		}
		short, long := tok.mergeShort(nil, w), tok.mergeLong(nil, w)
		if !slices.Equal(short, long) {
			t.Fatalf("%q: short %v, long %v", w, short, long)
		}
	})
}

func TestCacheGivesWhatMergingGives(t *testing.T) {
	tok := mustNew(t, tiny())
	for range 2 {
		for _, w := range []string{"abcabc", "aab", "cab"} {
			if got, want := tok.word(nil, w), tok.mergeShort(nil, w); !slices.Equal(got, want) {
				t.Errorf("%q: %v, want %v", w, got, want)
			}
		}
	}
}

// One long word of one letter must not take quadratic time or memory: 1 MB of
// it in a quadratic tokenizer would run for many minutes.
func TestLongWordsEnd(t *testing.T) {
	tok := mustNew(t, tiny())
	for _, unit := range []string{"a", " ", "é", "ab", "<", "\x00"} {
		text := strings.Repeat(unit, 1<<20/len(unit))
		if got := tok.Decode(tok.Encode(text, true), true); string(got) != text {
			t.Errorf("%q repeated does not come back", unit)
		}
	}
}

func TestWordThatIsATokenIsTakenWhole(t *testing.T) {
	v := tiny()
	v.Pre = "llama-bpe"
	v.Tokens = append(v.Tokens, "cab") // no merge leads there
	v.Types = append(v.Types, Normal)
	tok := mustNew(t, v)
	if got := tok.Encode("cab", false); !slices.Equal(got, []int32{int32(len(v.Tokens) - 1)}) {
		t.Errorf("llama-bpe: %v", got)
	}
	v.Pre = "qwen2"
	if got := mustNew(t, v).Encode("cab", false); len(got) != 2 {
		t.Errorf("qwen2: %v", got)
	}
}

func FuzzVocab(f *testing.F) {
	f.Add("a\nb\nab", "a b", 0)
	f.Add("a\n<0x0A>\nab\n\n", "a b\na  b", 6)
	f.Add("\xff\n€", " \n", 4)
	f.Fuzz(func(t *testing.T, tokens, merges string, kind int) {
		v := Vocab{Tokens: strings.Split(tokens, "\n"), Merges: strings.Split(merges, "\n"), Pre: "qwen2", Bos: -1, Eos: 0, Eot: -1, Unk: -1, Pad: -1}
		v.Types = make([]int32, len(v.Tokens))
		for i := range v.Types {
			v.Types[i] = int32((kind + i) % 8)
		}
		tok, err := New(v)
		if err != nil {
			return
		}
		tok.Text(tok.Encode(tokens+merges, true), true)
	})
}
