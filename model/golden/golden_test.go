package golden

import (
	"math"
	"slices"
	"testing"
)

// The files must say what their readers rely on; that they are right is for the
// packages that use them to find out.
func TestGoldenFilesAreWhole(t *testing.T) {
	const vocab = 49152
	inVocab := func(ids []int32) bool {
		return !slices.ContainsFunc(ids, func(id int32) bool { return id < 0 || id >= vocab })
	}
	prompts := Logits(t)
	if len(prompts) < 6 {
		t.Errorf("%d prompts with logits", len(prompts))
	}
	for _, p := range prompts {
		if len(p.At) != len(p.Tokens)-1 || len(p.Last) != vocab || !inVocab(p.Tokens) {
			t.Errorf("%s: %d tokens, %d positions, %d logits", p.Name, len(p.Tokens), len(p.At), len(p.Last))
		}
		for pos, at := range p.At {
			if !inVocab(at.Top) || !inVocab(at.Sample) {
				t.Errorf("%s, position %d: token outside the vocabulary", p.Name, pos)
			}
			if !slices.IsSortedFunc(at.TopLogits, func(a, b float32) int { return int(math.Copysign(1, float64(b-a))) }) {
				t.Errorf("%s, position %d: top logits do not descend", p.Name, pos)
			}
			for i, id := range at.Sample {
				if j := slices.Index(at.Top, id); j >= 0 && at.TopLogits[j] != at.SampleLogits[i] {
					t.Errorf("%s, position %d: two logits for token %d", p.Name, pos, id)
				}
			}
		}
	}
	answers, eos := Greedy(t)
	if len(answers) < 12 || eos != 2 {
		t.Errorf("%d answers, eos %d", len(answers), eos)
	}
	for _, a := range answers {
		if len(a.Tokens) != 64 || len(a.Margins) != 64 || len(a.Second) != 64 || len(a.Prompt) == 0 || !inVocab(a.Tokens) {
			t.Errorf("%v: %d tokens, %d margins", a.Messages, len(a.Tokens), len(a.Margins))
		}
	}
	if cases, missing := Tokens(t); len(cases) != 3000 || len(missing) != 21 {
		t.Errorf("%d texts, %d missing bytes", len(cases), len(missing))
	}
	if texts, lengths := Pieces(t); len(texts) < 2000 || len(lengths) != 4 {
		t.Errorf("%d texts, %d pre-tokenizers", len(texts), len(lengths))
	}
	if chats := Chats(t); len(chats) < 100 {
		t.Errorf("%d chats", len(chats))
	}
	q := Essay(t)
	if n := len(q.Windows) * (q.Window - 1); n < 4096 {
		t.Errorf("the essay has %d predictions", n)
	}
	sum := 0.0
	for _, w := range q.Windows {
		sum += math.Log(w)
	}
	if p := math.Exp(sum / float64(len(q.Windows))); math.Abs(p/q.Perplexity-1) > 1e-5 {
		t.Errorf("windows say perplexity %v, the file %v", p, q.Perplexity)
	}
}
