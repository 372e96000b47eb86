package llama

import (
	"flag"
	"math"
	"slices"
	"testing"

	"tandem/kernels/cpu"
	"tandem/model/golden"
)

var positions = flag.Int("positions", 1024, "positions of the essay on which TestQuality compares the quantised kernels with float32")

// Quality of the shipped kernels, over windows of technical English: how far
// their distributions are from float32's. The bar for the fast set is a little
// above what the best other implementation of 8-bit activations loses on such a
// text; the fine set must be a hundred times better.
func TestQuality(t *testing.T) {
	for _, bar := range []struct {
		set             string
		mean, p99, top1 float64
	}{{cpu.Fine, 3e-5, 3e-4, 0.995}, {cpu.Fast, 0.0035, 0.016, 0.965}} {
		t.Run(bar.set, func(t *testing.T) {
			mean, p99, top1 := quality(t, bar.set)
			if !(mean <= bar.mean) || !(p99 <= bar.p99) || !(top1 >= bar.top1) {
				t.Errorf("the bar is KL mean %g, p99 %g, top-1 %g %%", bar.mean, bar.p99, 100*bar.top1)
			}
		})
	}
}

func quality(t *testing.T, set string) (mean, p99, top1 float64) {
	essay := golden.Essay(t)
	c, img := image(t, golden.Demo(t), essay.Window)
	o := teamOptions{ranks: 1, maxRows: 64, maxOut: 64, context: essay.Window, pages: essay.Window / PageTokens}
	o.set = cpu.Float32
	exact := newTeam(t, c, img, o)
	o.set = set
	quant := newTeam(t, c, img, o)

	var kl []float64
	var nllExact, nllQuant float64
	agree, flipped := 0, 0.0
	predicted := 0
	for from := 0; from+essay.Window <= len(essay.Tokens) && len(kl) < *positions; from += essay.Window {
		window := essay.Tokens[from : from+essay.Window]
		want := logitsOf(exact, newSeq(pagesFrom(0, o.pages)...), window, 64)
		got := logitsOf(quant, newSeq(pagesFrom(0, o.pages)...), window, 64)
		for i := range window {
			p, q := softmax(want[i]), softmax(got[i])
			d := 0.0
			for k := range p {
				d += math.Exp(p[k]) * (p[k] - q[k])
			}
			kl = append(kl, max(d, 0))
			a, b := best(want[i]), best(got[i])
			if a == b {
				agree++
			} else {
				flipped = max(flipped, float64(want[i][a]-want[i][b]))
			}
			if i+1 < len(window) {
				nllExact -= p[window[i+1]]
				nllQuant -= q[window[i+1]]
				predicted++
			}
		}
	}
	if len(kl) < *positions {
		t.Fatalf("the essay has only %d positions", len(kl))
	}
	for _, d := range kl {
		mean += d / float64(len(kl))
	}
	slices.Sort(kl)
	p99 = kl[len(kl)*99/100]
	top1 = float64(agree) / float64(len(kl))
	t.Logf("%d positions: perplexity %.3f against %.3f in float32, KL mean %.2g, p99 %.2g, top-1 agreement %.2f %%, largest margin flipped %.2f",
		len(kl), math.Exp(nllQuant/float64(predicted)), math.Exp(nllExact/float64(predicted)), mean, p99, 100*top1, flipped)
	return mean, p99, top1
}

// softmax gives log-probabilities, in float64.
func softmax(logits []float32) []float64 {
	m := float64(slices.Max(logits))
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l) - m)
	}
	norm := m + math.Log(sum)
	out := make([]float64, len(logits))
	for i, l := range logits {
		out[i] = float64(l) - norm
	}
	return out
}

func best(row []float32) int {
	b := 0
	for i, v := range row {
		if v > row[b] {
			b = i
		}
	}
	return b
}
