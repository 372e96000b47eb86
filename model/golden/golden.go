// Package golden gives tests the golden files of model/testdata/golden: what an
// independent implementation computed from the demo model. The README there
// says how each was made and what it holds. Nothing but tests imports it.
package golden

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"tandem/model/modeltest"
	"tandem/model/token"
	"tandem/model/weights"
)

// Demo is the demo model's file; the test is skipped if it is absent. It is
// closed when the test ends.
func Demo(tb testing.TB) *weights.File {
	tb.Helper()
	f, err := weights.Open(modeltest.Path(tb))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { f.Close() })
	return f
}

// Vocab is the demo model's vocabulary; the test is skipped if it is absent.
func Vocab(tb testing.TB) token.Vocab {
	tb.Helper()
	v, err := token.ReadVocab(Demo(tb))
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// Tokenizer is the demo model's tokenizer; the test is skipped if it is absent.
func Tokenizer(tb testing.TB) *token.Tokenizer {
	tb.Helper()
	t, err := token.New(Vocab(tb))
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// dir finds the golden files from wherever in the module the test runs.
func dir(tb testing.TB) string {
	tb.Helper()
	at, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return filepath.Join(at, "model", "testdata", "golden")
		}
		up := filepath.Dir(at)
		if up == at {
			tb.Fatal("golden: the test runs outside the module")
		}
		at = up
	}
}

func read(tb testing.TB, name string) []byte {
	tb.Helper()
	f, err := os.Open(filepath.Join(dir(tb), name))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatalf("golden: %s: %v", name, err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		tb.Fatalf("golden: %s: %v", name, err)
	}
	return data
}

func decode(tb testing.TB, name string, v any) {
	tb.Helper()
	if err := json.Unmarshal(read(tb, name), v); err != nil {
		tb.Fatalf("golden: %s: %v", name, err)
	}
}

// Prompt is one pass of the float32 network over a text.
type Prompt struct {
	Name   string
	Text   string // control tokens written out
	Tokens []int32
	// At holds some logits of every position but the last.
	At []Position
	// Last holds all logits of the last position.
	Last []float32
}

// Position holds some logits of one position.
type Position struct {
	Top          []int32 // the tokens with the largest logits, best first
	TopLogits    []float32
	Sample       []int32 // others, spread over the vocabulary
	SampleLogits []float32
}

// Logits gives six prompts of 1 to about 300 tokens.
func Logits(tb testing.TB) []Prompt {
	tb.Helper()
	const name = "logits.bin.gz"
	data := read(tb, name)
	line := bytes.IndexByte(data, '\n')
	var head struct {
		Vocab, Top, Sample, StridePos, Stride int
		Prompts                               []struct {
			Name, Text string
			Tokens     []int32
		}
	}
	if line < 0 {
		tb.Fatalf("golden: %s: no header", name)
	}
	if err := json.Unmarshal(data[:line], &head); err != nil {
		tb.Fatalf("golden: %s: %v", name, err)
	}
	data = data[line+1:]
	word := func() uint32 {
		if len(data) < 4 {
			tb.Fatalf("golden: %s: too short", name)
		}
		w := binary.LittleEndian.Uint32(data)
		data = data[4:]
		return w
	}
	floats := func(n int) []float32 {
		out := make([]float32, n)
		for i := range out {
			out[i] = math.Float32frombits(word())
		}
		return out
	}
	var out []Prompt
	for _, h := range head.Prompts {
		p := Prompt{Name: h.Name, Text: h.Text, Tokens: h.Tokens}
		for pos := range len(h.Tokens) - 1 {
			at := Position{Top: make([]int32, head.Top), Sample: make([]int32, head.Sample)}
			for i := range at.Top {
				at.Top[i] = int32(word())
			}
			at.TopLogits = floats(head.Top)
			for i := range at.Sample {
				at.Sample[i] = int32((head.StridePos*pos + head.Stride*i) % head.Vocab)
			}
			at.SampleLogits = floats(head.Sample)
			p.At = append(p.At, at)
		}
		p.Last = floats(head.Vocab)
		out = append(out, p)
	}
	if len(data) != 0 || len(out) == 0 {
		tb.Fatalf("golden: %s: %d bytes left over after %d prompts", name, len(data), len(out))
	}
	return out
}

// Answer is what the float32 network answers greedily.
type Answer struct {
	Messages []struct{ Role, Content string }
	Prompt   []int32   // rendered and encoded, ending where the answer begins
	Tokens   []int32   // 64 tokens, whether or not one of them is the end
	Second   []int32   // the second best token at each step
	Margins  []float64 // its distance from the best, in logits
}

// Greedy gives the answers to chat prompts, and the token that ends an answer:
// the steps after it go on as if it had not.
func Greedy(tb testing.TB) (answers []Answer, eos int32) {
	tb.Helper()
	var v struct {
		Eos   int32
		Cases []Answer
	}
	decode(tb, "greedy.json.gz", &v)
	if len(v.Cases) == 0 {
		tb.Fatal("golden: no greedy answers")
	}
	return v.Cases, v.Eos
}

// Encoding is the token ids of one text, control tokens not parsed.
type Encoding struct {
	Text string // need not be valid UTF-8
	IDs  []int32
}

// Tokens gives the ids of 3,000 varied texts, and the bytes that have no token.
func Tokens(tb testing.TB) (cases []Encoding, missing []byte) {
	tb.Helper()
	var v struct {
		Missing []int
		Cases   []struct {
			S   string
			B   string
			IDs []int32
		}
	}
	decode(tb, "tokens.json.gz", &v)
	for _, c := range v.Cases {
		e := Encoding{Text: c.S, IDs: c.IDs}
		if c.B != "" {
			raw, err := base64.StdEncoding.DecodeString(c.B)
			if err != nil {
				tb.Fatalf("golden: tokens: %v", err)
			}
			e.Text = string(raw)
		}
		cases = append(cases, e)
	}
	if len(cases) == 0 {
		tb.Fatal("golden: no tokens")
	}
	for _, b := range v.Missing {
		missing = append(missing, byte(b))
	}
	return cases, missing
}

// Pieces gives texts and, by name of pre-tokenizer, the byte lengths of the
// pieces into which each text is cut.
func Pieces(tb testing.TB) (texts []string, lengths map[string][][]int) {
	tb.Helper()
	var v struct {
		Texts   []string
		Lengths map[string][][]int
	}
	decode(tb, "pieces.json.gz", &v)
	if len(v.Texts) == 0 || len(v.Lengths) == 0 {
		tb.Fatal("golden: no pieces")
	}
	return v.Texts, v.Lengths
}

// Chat is a conversation rendered by a template.
type Chat struct {
	Template string // its name; "" is the demo model's
	Source   string
	Name     string          // of the conversation
	Request  json.RawMessage // messages, and perhaps tools, kwargs, add_generation_prompt
	Text     string
	Error    string // if the template raised one; Text is empty then
}

// Chats gives conversations and what the reference engine makes of them. For
// all templates but the demo model's bos and eos are <s> and </s>.
func Chats(tb testing.TB) []Chat {
	tb.Helper()
	var v struct {
		Templates map[string]string
		Cases     []struct {
			Template, Text, Error string
			Chat                  json.RawMessage
		}
	}
	decode(tb, "chats.json.gz", &v)
	var out []Chat
	for _, c := range v.Cases {
		var named struct{ Name string }
		if err := json.Unmarshal(c.Chat, &named); err != nil {
			tb.Fatalf("golden: chats: %v", err)
		}
		out = append(out, Chat{Template: c.Template, Source: v.Templates[c.Template], Name: named.Name, Request: c.Chat, Text: c.Text, Error: c.Error})
	}
	if len(out) == 0 {
		tb.Fatal("golden: no chats")
	}
	return out
}

// Quality is a text for measuring quality, and the float32 network's measure of
// it: its tokens are cut into windows, each computed on its own, and what is left
// over at the end is not used. A window has Window-1 predictions.
type Quality struct {
	Text       string
	Tokens     []int32
	Window     int
	Windows    []float64 // perplexity of each window
	Perplexity float64   // of all
}

// Essay gives a text of technical English.
func Essay(tb testing.TB) Quality {
	tb.Helper()
	var q Quality
	decode(tb, "essay.json.gz", &q)
	text, err := os.ReadFile(filepath.Join(dir(tb), "essay.txt"))
	if err != nil {
		tb.Fatal(err)
	}
	q.Text = string(text)
	return q
}
