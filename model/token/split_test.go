package token_test

import (
	"slices"
	"testing"

	"tandem/model/golden"
	"tandem/model/token"
)

// The scanners must cut as the regular expressions do that they stand for.
func TestPiecesAreThoseOfTheRegularExpressions(t *testing.T) {
	texts, lengths := golden.Pieces(t)
	names := token.PreTokenizers()
	if len(names) != len(lengths) {
		t.Errorf("%d pre-tokenizers, %d in the golden file", len(names), len(lengths))
	}
	for _, name := range names {
		wrong := 0
		for i, text := range texts {
			got, err := token.Split(name, text)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, lengths[name][i]) {
				if wrong++; wrong <= 5 {
					t.Errorf("%s: %q: got %v, want %v", name, text, got, lengths[name][i])
				}
			}
		}
		if wrong > 0 {
			t.Errorf("%s: %d of %d texts differ", name, wrong, len(texts))
		}
	}
}

func TestEverySplitGoesOnAndEnds(t *testing.T) {
	cases, _ := golden.Tokens(t)
	for _, name := range token.PreTokenizers() {
		for _, c := range cases {
			sum := 0
			got, _ := token.Split(name, c.Text)
			for _, n := range got {
				if n <= 0 {
					t.Fatalf("%s: %q: a piece of %d bytes", name, c.Text, n)
				}
				sum += n
			}
			if sum != len(c.Text) {
				t.Fatalf("%s: %q: pieces of %d bytes", name, c.Text, sum)
			}
		}
	}
}
