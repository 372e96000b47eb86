package sample

import "math"

// weightBits says how finely probabilities are told apart: the most likely token
// weighs 2^weightBits.
const weightBits = 44

// pow2[i] is 2^(weightBits + i/steps).
const steps = 512

var pow2 = func() (t [steps]float64) {
	for i := range t {
		t[i] = math.Exp2(weightBits + float64(i)/steps)
	}
	return t
}()

// stretch is the factor that makes a logit's distance from the best one an
// exponent of 2^(1/steps).
func stretch(temperature float64) float64 { return steps / (math.Ln2 * temperature) }

// lightest is the least exponent for which a weight is not 0.
const lightest = -weightBits * steps

// weight is ⌊2^(44 + y/steps)⌋ for lightest ≤ y ≤ 0, but for a relative error
// below 2⁻⁴⁵; k is y rounded. It is the same on every processor: the conversions
// forbid that products and sums are fused.
func weight(y float64) (w uint64, k int64) {
	// With y = k + f, |f| ≤ ½, 2^(f/steps) is a cubic: the first term left out is
	// (ln2/1024)⁴/24 < 2⁻⁴⁶.
	const (
		c1 = math.Ln2 / steps
		c2 = c1 * c1 / 2
		c3 = c1 * c1 * c1 / 6
	)
	k = int64(y - 0.5)
	f := y - float64(k)
	p := 1 + float64(f*(c1+float64(f*(c2+float64(f*c3)))))
	return uint64(int64(pow2[k&(steps-1)]*p)) >> (uint(-(k >> 9)) & 63), k
}
