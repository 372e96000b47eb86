package sample

import (
	"fmt"
	"math"
)

// MaxBias is the number of entries that Params.Bias may have.
const MaxBias = 1024

// Check reports the first field with a value that means nothing. The error names
// the field as clients know it.
func (p Params) Check() error {
	for _, f := range [...]struct {
		name   string
		value  float64
		lo, hi float64
	}{
		{"temperature", p.Temperature, 0, 2},
		{"top_p", p.TopP, 0, 1},
		{"min_p", p.MinP, 0, 1},
		{"presence_penalty", p.Presence, -2, 2},
		{"frequency_penalty", p.Frequency, -2, 2},
		{"repetition_penalty", p.Repetition, 0, 10},
	} {
		if !(f.value >= f.lo && f.value <= f.hi) {
			return fmt.Errorf("%s must be between %v and %v, not %v", f.name, f.lo, f.hi, f.value)
		}
	}
	if p.TopK < -1 {
		return fmt.Errorf("top_k must be -1, 0 or positive, not %d", p.TopK)
	}
	if len(p.Bias) > MaxBias {
		return fmt.Errorf("logit_bias has %d entries, at most %d are allowed", len(p.Bias), MaxBias)
	}
	for _, b := range p.Bias {
		if b.Token < 0 {
			return fmt.Errorf("logit_bias: token %d does not exist", b.Token)
		}
		if v := float64(b.Value); math.IsNaN(v) || v < -100 || v > 100 {
			return fmt.Errorf("logit_bias of token %d must be between -100 and 100, not %v", b.Token, b.Value)
		}
	}
	return nil
}

// NeedsHistory reports whether choices depend on the tokens so far. If not, Next
// takes a nil History.
func (p Params) NeedsHistory() bool {
	return p.Presence != 0 || p.Frequency != 0 || p.repeats()
}

func (p Params) repeats() bool { return p.Repetition != 0 && p.Repetition != 1 }

func (p Params) topP() bool { return p.TopP > 0 && p.TopP < 1 }
