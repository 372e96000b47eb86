// Package token turns text into token ids and back, for vocabularies of
// byte-level BPE (what GGUF calls "gpt2"). It owns splitting, merging, the
// streaming of text out of tokens and the search for stop strings. It reads no
// files: weights gives it a Vocab. It knows no roles: chat says which control
// tokens a prompt has.
//
// # Encoding
//
// Text is first cut at the tokens that are found as whole texts: user-defined
// ones always, control tokens only if the caller asks. What lies between is cut
// into words by the vocabulary's pre-tokenizer, and the bytes of each word are
// merged pair by pair, lowest rank first and leftmost among equals.
//
// Where several whole-text tokens begin at one place the longest is taken, and
// the leftmost place comes first.
//
// A byte that has no token of its own vanishes, but only after merging: it
// keeps the bytes beside it apart. A byte that is not part of valid UTF-8
// counts as U+FFFD when words are cut and as itself when they are merged, so
// no byte changes on its way through a vocabulary that has all 256.
//
// # Concurrency
//
// A Tokenizer is immutable but for a cache of words, which is a fixed table of
// atomic pointers: every method may be called from any number of goroutines.
// Streams and Stops belong to one goroutine each.
package token

import (
	"errors"
	"fmt"
	"strings"
)

// The kinds of token, as GGUF numbers them.
const (
	Normal      int32 = 1
	Unknown     int32 = 2
	Control     int32 = 3
	UserDefined int32 = 4
	Unused      int32 = 5
	Byte        int32 = 6
)

// Limits on what New accepts; real vocabularies stay below a quarter of them.
const (
	MaxTokens     = 1 << 20
	MaxMerges     = 1 << 21
	MaxTokenBytes = 1 << 12
)

// Vocab is a vocabulary as its file states it. An id that the file does not
// give is -1.
type Vocab struct {
	Tokens []string // texts, normal ones with each byte spelled as one rune
	Types  []int32  // kinds; nil: all normal
	Merges []string // "left right", best first
	Pre    string   // name of the pre-tokenizer

	Bos, Eos, Eot, Unk, Pad int

	AddBos bool // a prompt that is plain text begins with Bos
}

// Tokenizer encodes and decodes with one vocabulary.
type Tokenizer struct {
	vocab  Vocab
	splits splitter
	whole  bool // a word that is a token is taken unmerged

	text   []byte   // the bytes of all tokens, one after another
	at     []uint32 // token i is text[at[i]:at[i+1]]
	types  []int32
	byText map[string]int32 // spelled text → lowest id
	words  map[string]int32 // raw bytes → lowest normal id; only if whole

	bytes [256]int32 // token of a single byte, -1 if there is none
	pairs pairTable
	cuts  [2]trie // whole-text tokens: [0] user-defined, [1] with control
	cache wordCache
}

// New checks a vocabulary and builds its tokenizer. It keeps v's slices, which
// must not change any more. Errors name the entry and what is wrong with it.
func New(v Vocab) (*Tokenizer, error) {
	n := len(v.Tokens)
	switch {
	case n == 0:
		return nil, errors.New("vocabulary: no tokens")
	case n > MaxTokens:
		return nil, fmt.Errorf("vocabulary: %d tokens, at most %d are supported", n, MaxTokens)
	case v.Types != nil && len(v.Types) != n:
		return nil, fmt.Errorf("vocabulary: %d token types for %d tokens", len(v.Types), n)
	case len(v.Merges) > MaxMerges:
		return nil, fmt.Errorf("vocabulary: %d merges, at most %d are supported", len(v.Merges), MaxMerges)
	}
	for _, id := range []struct {
		name string
		id   int
	}{{"bos", v.Bos}, {"eos", v.Eos}, {"eot", v.Eot}, {"unknown", v.Unk}, {"padding", v.Pad}} {
		if id.id < -1 || id.id >= n {
			return nil, fmt.Errorf("vocabulary: %s token id %d is outside 0…%d", id.name, id.id, n-1)
		}
	}
	if v.AddBos && v.Bos < 0 {
		return nil, errors.New("vocabulary: asks for a bos token but names none")
	}
	split, ok := splitters[v.Pre]
	if !ok {
		return nil, fmt.Errorf("vocabulary: pre-tokenizer %q is not known; known are %s", v.Pre, strings.Join(PreTokenizers(), ", "))
	}
	t := &Tokenizer{vocab: v, splits: split.next, whole: split.whole}
	if err := t.addTokens(); err != nil {
		return nil, err
	}
	if err := t.addMerges(); err != nil {
		return nil, err
	}
	t.vocab.Merges = nil // they live on in t.pairs
	t.cache.init()
	return t, nil
}

func (t *Tokenizer) addTokens() error {
	v := t.vocab
	size := 0
	for i, s := range v.Tokens {
		if len(s) > MaxTokenBytes {
			return fmt.Errorf("vocabulary: token %d has %d bytes, at most %d are supported", i, len(s), MaxTokenBytes)
		}
		size += len(s)
	}
	t.types = v.Types
	if t.types == nil {
		t.types = make([]int32, len(v.Tokens))
		for i := range t.types {
			t.types[i] = Normal
		}
	}
	t.text = make([]byte, 0, size)
	t.at = make([]uint32, 1, len(v.Tokens)+1)
	t.byText = make(map[string]int32, len(v.Tokens))
	if t.whole {
		t.words = make(map[string]int32, len(v.Tokens))
	}
	for i := range t.bytes {
		t.bytes[i] = -1
	}
	for i, s := range v.Tokens {
		id := int32(i)
		if _, twice := t.byText[s]; !twice {
			t.byText[s] = id
		}
		start := len(t.text)
		switch kind := t.types[i]; kind {
		case Normal, Unused:
			t.text = appendSpelled(t.text, s)
		case Byte:
			b, ok := byteToken(s)
			if !ok {
				return fmt.Errorf("vocabulary: token %d %q is marked as a byte but is not of the form <0x0A>", i, s)
			}
			t.text = append(t.text, b)
		case Unknown, Control, UserDefined:
			t.text = append(t.text, s...)
			if s == "" {
				break
			}
			t.cuts[1].add(s, id)
			if kind == UserDefined {
				t.cuts[0].add(s, id)
			}
		default:
			return fmt.Errorf("vocabulary: token %d has type %d, which is not known", i, kind)
		}
		t.at = append(t.at, uint32(len(t.text)))
		if raw := t.text[start:]; t.types[i] == Normal {
			if len(raw) == 1 && t.bytes[raw[0]] < 0 {
				t.bytes[raw[0]] = id
			}
			if t.whole {
				if _, twice := t.words[string(raw)]; !twice {
					t.words[string(raw)] = id
				}
			}
		}
	}
	return nil
}

func (t *Tokenizer) addMerges() error {
	t.pairs.init(len(t.vocab.Merges))
	for rank, m := range t.vocab.Merges {
		// A part has at least one byte, so a separator is never the first.
		cut := -1
		if len(m) > 1 {
			cut = strings.IndexByte(m[1:], ' ') + 1
		}
		if cut < 1 {
			return fmt.Errorf("vocabulary: merge %d %q is not two parts", rank, m)
		}
		left, right := m[:cut], m[cut+1:]
		l, okL := t.byText[left]
		r, okR := t.byText[right]
		if !okL || !okR {
			return fmt.Errorf("vocabulary: merge %d %q: a part is not a token", rank, m)
		}
		id, ok := t.byText[left+right]
		if !ok {
			return fmt.Errorf("vocabulary: merge %d %q: the result is not a token", rank, m)
		}
		t.pairs.add(l, r, merge{rank: uint32(rank), id: id})
	}
	return nil
}

// Len is the number of tokens.
func (t *Tokenizer) Len() int { return len(t.types) }

// Bos is the token that begins a text, or -1.
func (t *Tokenizer) Bos() int32 { return int32(t.vocab.Bos) }

// Eos is the token that ends a text, or -1.
func (t *Tokenizer) Eos() int32 { return int32(t.vocab.Eos) }

// AddBos reports whether a prompt that is plain text begins with Bos. Encode
// never adds it; a chat template places it itself.
func (t *Tokenizer) AddBos() bool { return t.vocab.AddBos }

// Ends lists the tokens after which an answer is complete: the file's eos and
// eot, and control tokens whose well-known texts say the same, since files often
// name only one of them.
func (t *Tokenizer) Ends() []int32 {
	var ends []int32
	add := func(id int32) {
		for _, e := range ends {
			if e == id {
				return
			}
		}
		ends = append(ends, id)
	}
	for _, id := range []int{t.vocab.Eos, t.vocab.Eot} {
		if id >= 0 {
			add(int32(id))
		}
	}
	for _, s := range [...]string{"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>"} {
		if id, ok := t.byText[s]; ok && t.types[id] == Control {
			add(id)
		}
	}
	return ends
}

// IsControl reports whether id is a control token: one that structures a prompt
// and is no part of anybody's text.
func (t *Tokenizer) IsControl(id int32) bool {
	return id >= 0 && int(id) < len(t.types) && (t.types[id] == Control || t.types[id] == Unknown)
}

// ControlTexts lists the texts of all control tokens, in order of their ids.
func (t *Tokenizer) ControlTexts() []string {
	var texts []string
	for i, s := range t.vocab.Tokens {
		if s != "" && t.IsControl(int32(i)) {
			texts = append(texts, s)
		}
	}
	return texts
}

// Lookup finds the token with this text, spelled as in the vocabulary: control
// and user-defined tokens as they are, others with each byte as one rune.
func (t *Tokenizer) Lookup(text string) (int32, bool) {
	id, ok := t.byText[text]
	return id, ok
}

// Piece is the bytes that a token stands for; they need not be valid UTF-8, and
// must not be changed. A control token gives its text if control is set, else
// nothing. An id outside the vocabulary gives nothing.
func (t *Tokenizer) Piece(id int32, control bool) []byte {
	if id < 0 || int(id) >= len(t.types) || !control && t.IsControl(id) {
		return nil
	}
	return t.text[t.at[id]:t.at[id+1]:t.at[id+1]]
}

// Decode joins the pieces of ids.
func (t *Tokenizer) Decode(ids []int32, control bool) []byte {
	var out []byte
	for _, id := range ids {
		out = append(out, t.Piece(id, control)...)
	}
	return out
}

// Encode is EncodeTo with a new slice.
func (t *Tokenizer) Encode(text string, special bool) []int32 {
	return t.EncodeTo(make([]int32, 0, len(text)/4+1), text, special)
}

// EncodeTo appends the tokens of text to dst. special says whether text that
// spells a control token becomes that token. It is false for everything that a
// client wrote: the same characters then are ordinary text.
func (t *Tokenizer) EncodeTo(dst []int32, text string, special bool) []int32 {
	cuts := &t.cuts[0]
	if special {
		cuts = &t.cuts[1]
	}
	for text != "" {
		start, end, id := cuts.find(text)
		if id < 0 {
			return t.plain(dst, text)
		}
		dst = append(t.plain(dst, text[:start]), id)
		text = text[end:]
	}
	return dst
}

// plain encodes text that holds no whole-text token.
func (t *Tokenizer) plain(dst []int32, text string) []int32 {
	for at := 0; at < len(text); {
		end := t.splits(text, at)
		dst = t.word(dst, text[at:end])
		at = end
	}
	return dst
}
