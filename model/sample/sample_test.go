package sample

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"syscall"
	"testing"
)

// plain chooses as doc.go says, step by step, sorting everything and adding with
// big integers. It shares weight and Random with the sampler, nothing else.
func plain(p Params, logits []float32, prompt, output []int32, position int) int32 {
	n := len(logits)
	l := make([]float64, n)
	for i, x := range logits {
		l[i] = float64(x)
	}
	for _, b := range p.Bias {
		if int(b.Token) < n {
			l[b.Token] += float64(b.Value)
		}
	}
	produced := map[int32]int{}
	seen := map[int32]bool{}
	for _, t := range prompt {
		seen[t] = true
	}
	for _, t := range output {
		seen[t] = true
		produced[t]++
	}
	if p.Repetition != 0 {
		for t := range seen {
			if int(t) < n {
				if l[t] > 0 {
					l[t] /= p.Repetition
				} else {
					l[t] *= p.Repetition
				}
			}
		}
	}
	for t, times := range produced {
		if int(t) < n {
			l[t] -= p.Presence + float64(times)*p.Frequency
		}
	}
	for i, x := range l {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			l[i] = math.Inf(-1)
		}
	}
	ids := make([]int, n)
	for i := range ids {
		ids[i] = i
	}
	sort.SliceStable(ids, func(a, b int) bool { return l[ids[a]] > l[ids[b]] })
	most := l[ids[0]]
	if math.IsInf(most, -1) {
		return -1
	}
	if p.Temperature == 0 {
		return int32(ids[0])
	}
	if p.TopK > 0 && p.TopK < n {
		ids = ids[:p.TopK]
	}
	w := func(id int) uint64 { return weightOf((l[id] - most) * stretch(p.Temperature)) }
	sum := func(ids []int) *big.Int {
		total := new(big.Int)
		for _, id := range ids {
			total.Add(total, new(big.Int).SetUint64(w(id)))
		}
		return total
	}
	if p.TopP > 0 && p.TopP < 1 {
		target := new(big.Rat).SetInt(sum(ids))
		target.Mul(target, new(big.Rat).SetFloat64(p.TopP))
		running := new(big.Int)
		for i, id := range ids {
			running.Add(running, new(big.Int).SetUint64(w(id)))
			if new(big.Rat).SetInt(running).Cmp(target) >= 0 {
				ids = ids[:i+1]
				break
			}
		}
	}
	if p.MinP > 0 {
		ids = slices.DeleteFunc(slices.Clone(ids), func(id int) bool {
			have, want := new(big.Rat).SetInt(new(big.Int).SetUint64(w(id))), new(big.Rat).SetFloat64(p.MinP)
			return have.Cmp(want.Mul(want, new(big.Rat).SetInt(big.NewInt(1<<weightBits)))) < 0
		})
	}
	sort.Ints(ids)
	r := new(big.Int).Mul(sum(ids), new(big.Int).SetUint64(Random(p.Seed, position)))
	r.Rsh(r, 64)
	running := new(big.Int)
	for _, id := range ids {
		running.Add(running, new(big.Int).SetUint64(w(id)))
		if running.Cmp(r) > 0 {
			return int32(id)
		}
	}
	return -1
}

func weightOf(y float64) uint64 {
	if !(y >= lightest) {
		return 0
	}
	w, _ := weight(y)
	return w
}

// peaked imitates a network's logits: most far below a few.
func peaked(r *rand.Rand, n int) []float32 {
	l := make([]float32, n)
	for i := range l {
		l[i] = float32(r.NormFloat64() * 2.5)
	}
	for range 1 + r.IntN(20) {
		l[r.IntN(n)] = float32(6 + 8*r.Float64())
	}
	return l
}

// cases draws logits of very different kinds.
func logitsOf(r *rand.Rand) []float32 {
	n := 1 + r.IntN(1000)
	l := peaked(r, n)
	switch r.IntN(8) {
	case 0: // few different values: many ties
		for i := range l {
			l[i] = float32(r.IntN(3))
		}
	case 1: // all equal
		for i := range l {
			l[i] = -1.5
		}
	case 2: // what must never be chosen
		for range 1 + r.IntN(n) {
			l[r.IntN(n)] = []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}[r.IntN(3)]
		}
	case 3: // extreme
		for i := range l {
			l[i] *= 1e30
		}
	case 4: // nearly equal
		for i := range l {
			l[i] = 1 + float32(r.IntN(4))*1e-7
		}
	case 5: // zeros of both signs
		for i := range l {
			l[i] = float32(math.Copysign(0, float64(r.IntN(2))-0.5))
		}
	}
	return l
}

func paramsOf(r *rand.Rand, n int) Params {
	pick := func(of ...float64) float64 { return of[r.IntN(len(of))] }
	p := Params{
		Temperature: pick(0, 0.01, 0.7, 1, 2, 2*r.Float64()),
		TopP:        pick(0, 1, 0.9, 0.5, 1e-9, 0.999999, 1-0x1p-42, 1-0x1p-53, r.Float64()),
		TopK:        []int{0, -1, 1, 2, 40, n, n + 1, 1 + r.IntN(n), min(n, 600)}[r.IntN(9)],
		MinP:        pick(0, 0, 0.05, 1, 1e-13, r.Float64()),
		Seed:        r.Uint64(),
	}
	if r.IntN(2) == 0 {
		p.Presence, p.Frequency, p.Repetition = pick(0, -2, 0.5), pick(0, 2, 0.1), pick(0, 1, 1.3, 0.5)
	}
	for range r.IntN(4) {
		p.Bias = append(p.Bias, Bias{Token: int32(r.IntN(n + 2)), Value: float32(pick(100, -100, 0.25))})
	}
	return p
}

func TestChoicesAreThoseOfTheDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	chosen := map[int32]bool{}
	for i := range 5000 {
		logits := logitsOf(r)
		n := len(logits)
		p := paramsOf(r, n)
		if err := p.Check(); err != nil {
			t.Fatal(err)
		}
		var prompt, output []int32
		for range r.IntN(20) {
			prompt = append(prompt, int32(r.IntN(n+2)))
		}
		h := NewHistory(prompt)
		for range r.IntN(20) {
			output = append(output, int32(r.IntN(n+2)))
			h.Accept(output[len(output)-1])
		}
		position := r.IntN(5000)
		before := slices.Clone(logits)
		got, err := New(p).Next(logits, h, position)
		want := plain(p, logits, prompt, output, position)
		if got != want || (err != nil) != (want < 0) {
			t.Fatalf("case %d: %+v at %d, %d logits: got %d (%v), want %d", i, p, position, n, got, err, want)
		}
		if slices.CompareFunc(before, logits, func(a, b float32) int { return int(math.Float32bits(a)) - int(math.Float32bits(b)) }) != 0 {
			t.Fatalf("case %d: the logits were changed", i)
		}
		if want >= 0 {
			chosen[want] = true
		}
	}
	if len(chosen) < 200 {
		t.Errorf("only %d different tokens were ever chosen", len(chosen))
	}
}

// The same at the size of a real vocabulary, with a sampler that is used again.
func TestChoicesAtFullSize(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	s := New(Params{})
	for i := range 16 {
		n := []int{49152, 129280}[i%2]
		logits := peaked(r, n)
		p := paramsOf(r, n)
		prompt := []int32{1, 2, 3, int32(r.IntN(n))}
		s.Reset(p)
		got, err := s.Next(logits, NewHistory(prompt), i)
		if want := plain(p, logits, prompt, nil, i); got != want {
			t.Fatalf("case %d: %+v: got %d (%v), want %d", i, p, got, err, want)
		}
	}
}

// Over many positions tokens are chosen as often as their probabilities say.
// The bound on chi-square, six standard deviations above its mean, is passed by
// chance once in more than 10⁷ runs; seeds are fixed, so it passes always or never.
func TestFrequenciesAreTheProbabilities(t *testing.T) {
	logits := []float32{2, 1, 0.5, 0, 0, -0.5, -1, -2, float32(math.Inf(-1)), -3}
	for name, c := range map[string]struct {
		p    Params
		kept []int
	}{
		"temperature 1":   {Params{Temperature: 1, Seed: 1}, []int{0, 1, 2, 3, 4, 5, 6, 7, 9}},
		"temperature 0.5": {Params{Temperature: 0.5, Seed: 2}, []int{0, 1, 2, 3, 4, 5, 6, 7, 9}},
		"top_k 4":         {Params{Temperature: 1, TopK: 4, Seed: 3}, []int{0, 1, 2, 3}},
		"top_p 0.7":       {Params{Temperature: 1, TopP: 0.7, Seed: 4}, []int{0, 1, 2}},
		"min_p 0.1":       {Params{Temperature: 1, MinP: 0.1, Seed: 5}, []int{0, 1, 2, 3, 4}},
	} {
		const draws = 200000
		count := make([]float64, len(logits))
		s := New(c.p)
		for pos := range draws {
			id, err := s.Next(logits, nil, pos)
			if err != nil {
				t.Fatal(err)
			}
			count[id]++
		}
		total := 0.0
		for _, id := range c.kept {
			total += math.Exp(float64(logits[id]) / c.p.Temperature)
		}
		chi, drawn := 0.0, 0.0
		for _, id := range c.kept {
			want := draws * math.Exp(float64(logits[id])/c.p.Temperature) / total
			chi += (count[id] - want) * (count[id] - want) / want
			drawn += count[id]
		}
		free := float64(len(c.kept) - 1)
		if drawn != draws || chi > free+6*math.Sqrt(2*free) {
			t.Errorf("%s: chi-square %.1f for %v degrees of freedom; %v of %d draws among those kept: %v", name, chi, free, drawn, draws, count)
		}
	}
}

// Neighbouring seeds and positions share nothing.
func TestRandomNumbers(t *testing.T) {
	// Frozen: a change would change every sampled answer.
	for _, c := range []struct {
		seed uint64
		pos  int
		want uint64
	}{{0, 0, 0xe220a8397b1dcdaf}, {0, 1, 0x6e789e6aa1b965f4}, {1, 0, 0xbfef8030ddc2d772}} {
		if got := Random(c.seed, c.pos); got != c.want {
			t.Errorf("Random(%d, %d) = %#x, want %#x", c.seed, c.pos, got, c.want)
		}
	}
	seen := map[uint64]bool{}
	ones := 0
	for seed := range uint64(100) {
		for pos := range 100 {
			x := Random(seed, pos)
			if seen[x] {
				t.Fatalf("seed %d, position %d: again %#x", seed, pos, x)
			}
			seen[x] = true
			for ; x != 0; x &= x - 1 {
				ones++
			}
		}
	}
	// 640,000 bits: the standard deviation is 400.
	if ones < 318000 || ones > 322000 {
		t.Errorf("%d of 640000 bits are set", ones)
	}
}

// A sequence that is taken up again at any position goes on as it would have.
func TestResumedSequenceGoesOnTheSame(t *testing.T) {
	p := Params{Temperature: 0.9, TopP: 0.95, TopK: 50, Seed: 42, Presence: 0.3, Frequency: 0.2, Repetition: 1.1}
	prompt := []int32{5, 6, 7}
	logits := func(pos int) []float32 { return peaked(rand.New(rand.NewPCG(9, uint64(pos))), 500) }
	run := func(done []int32) []int32 {
		h := NewHistory(prompt)
		for _, t := range done {
			h.Accept(t)
		}
		s, out := New(p), slices.Clone(done)
		for len(out) < 40 {
			pos := len(prompt) + len(out)
			id, err := s.Next(logits(pos), h, pos)
			if err != nil {
				t.Fatal(err)
			}
			h.Accept(id)
			out = append(out, id)
		}
		return out
	}
	want := run(nil)
	for n := range want {
		if got := run(want[:n]); !slices.Equal(got, want) {
			t.Fatalf("resumed after %d: %v, want %v", n, got, want)
		}
	}
}

func TestGreedy(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		logits []float32
		want   int32
	}{
		{[]float32{1, 3, 3, 2}, 1},
		{[]float32{nan, -5, nan, -4}, 3},
		{[]float32{inf, 1, -inf}, 1},
		{[]float32{-inf, nan, inf}, -1},
		{nil, -1},
		{[]float32{-math.MaxFloat32}, 0},
	} {
		if got := Greedy(c.logits); got != c.want {
			t.Errorf("%v: got %d, want %d", c.logits, got, c.want)
		}
		for _, p := range []Params{{}, {Temperature: 1}, {Bias: []Bias{{Token: 0}}}} {
			got, err := New(p).Next(c.logits, nil, 0)
			if c.want < 0 && err != ErrNoLogit || c.want >= 0 && err != nil {
				t.Errorf("%v with %+v: %d, %v", c.logits, p, got, err)
			}
			if p.Temperature == 0 && got != c.want {
				t.Errorf("%v with %+v: got %d, want %d", c.logits, p, got, c.want)
			}
		}
	}
}

func TestPenalties(t *testing.T) {
	logits := []float32{3, 2.9, -1}
	h := NewHistory([]int32{0})
	choose := func(p Params) int32 {
		id, err := New(p).Next(logits, h, 1)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	if got := choose(Params{Presence: 2, Frequency: 2}); got != 0 {
		t.Errorf("a prompt token was penalised as if produced: %d", got)
	}
	if got := choose(Params{Repetition: 1.2}); got != 1 {
		t.Errorf("a prompt token was not penalised as repeated: %d", got)
	}
	h.Accept(0)
	if got := choose(Params{Presence: 0.2}); got != 1 {
		t.Errorf("presence: %d", got)
	}
	if got := choose(Params{Frequency: 0.06}); got != 0 {
		t.Errorf("frequency after one: %d", got)
	}
	h.Accept(0)
	if got := choose(Params{Frequency: 0.06}); got != 1 {
		t.Errorf("frequency after two: %d", got)
	}
	if got := choose(Params{Bias: []Bias{{2, 2}, {2, 3}}}); got != 2 {
		t.Errorf("two biases: %d", got)
	}
}

func TestWeightIsExp(t *testing.T) {
	if w := weightOf(0); w != 1<<weightBits {
		t.Errorf("the largest weight is %d", w)
	}
	last := uint64(0)
	for x := -31.0; x <= 0; x += 1.0 / 4096 {
		got, want := weightOf(x*stretch(1)), math.Exp(x)*(1<<weightBits)
		// Rounding down costs up to 1, the cubic up to 2⁻⁴⁶ of the whole.
		if d := want - float64(got); d < -want*0x1p-45 || d > 1+want*0x1p-45 {
			t.Fatalf("weight of exp(%v) is %d, want %v", x, got, want)
		}
		if got < last {
			t.Fatalf("weight of exp(%v) is %d, less than before", x, got)
		}
		last = got
	}
	if w := weightOf(lightest); w != 1 {
		t.Errorf("the smallest weight is %d", w)
	}
}

func TestShareIsExact(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 20000 {
		p := r.Float64()
		switch r.IntN(4) {
		case 0:
			p = math.Ldexp(p+0.5, -r.IntN(200))
		case 1:
			p = 1 - math.Ldexp(1, -1-r.IntN(53))
		}
		if p <= 0 || p >= 1 {
			continue
		}
		total := r.Uint64()>>uint(r.IntN(63)) + 1
		want := new(big.Rat).SetFloat64(p)
		want.Mul(want, new(big.Rat).SetInt(new(big.Int).SetUint64(total)))
		q, rest := new(big.Int).QuoRem(want.Num(), want.Denom(), new(big.Int))
		if rest.Sign() > 0 {
			q.Add(q, big.NewInt(1))
		}
		if got := share(p, total); got != max(q.Uint64(), 1) {
			t.Fatalf("share(%v, %d) = %d, want %v", p, total, got, q)
		}
	}
}

func TestParamsThatMeanNothing(t *testing.T) {
	nan := math.NaN()
	for name, p := range map[string]Params{
		"temperature":        {Temperature: -0.1},
		"temperature ":       {Temperature: 2.1},
		"temperature  ":      {Temperature: nan},
		"top_p":              {TopP: 1.01},
		"top_k":              {TopK: -2},
		"min_p":              {MinP: -1},
		"presence_penalty":   {Presence: 2.5},
		"frequency_penalty":  {Frequency: -2.5},
		"repetition_penalty": {Repetition: 11},
		"logit_bias":         {Bias: []Bias{{Token: -1}}},
		"logit_bias ":        {Bias: []Bias{{Token: 1, Value: 101}}},
		"logit_bias  ":       {Bias: []Bias{{Token: 1, Value: float32(nan)}}},
		"logit_bias   ":      {Bias: make([]Bias, MaxBias+1)},
	} {
		if err := p.Check(); err == nil || !strings.HasPrefix(err.Error(), strings.TrimSpace(name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, p := range []Params{{}, {Temperature: 2, TopP: 1, TopK: -1, MinP: 1, Presence: -2, Frequency: 2, Repetition: 10}} {
		if err := p.Check(); err != nil {
			t.Error(err)
		}
	}
}

func benchmark(b *testing.B, n int, p Params, flat bool) {
	r := rand.New(rand.NewPCG(1, 1))
	logits := peaked(r, n)
	if flat {
		for i := range logits {
			logits[i] = float32(r.NormFloat64() * 0.1)
		}
	}
	prompt := make([]int32, 2000)
	for i := range prompt {
		prompt[i] = int32(r.IntN(n))
	}
	h := NewHistory(prompt)
	for range 200 {
		h.Accept(int32(r.IntN(n)))
	}
	s := New(p)
	pos := 0
	start := cpuTime(b)
	for b.Loop() {
		if _, err := s.Next(logits, h, pos); err != nil {
			b.Fatal(err)
		}
		pos++
	}
	b.ReportMetric(float64(cpuTime(b)-start)/float64(b.N), "cpu-ns/op")
}

// cpuTime is the processor time of this process so far: unlike the clock it
// does not count what other processes take.
func cpuTime(b *testing.B) int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}

func BenchmarkNext(b *testing.B) {
	penalties := Params{Presence: 0.5, Frequency: 0.2, Repetition: 1.1}
	nucleus := Params{Temperature: 0.8, TopP: 0.95}
	topK := Params{Temperature: 0.8, TopK: 40}
	all := Params{Temperature: 0.8, TopP: 0.95, TopK: 40, MinP: 0.05, Presence: 0.5, Repetition: 1.1}
	for _, c := range []struct {
		name string
		p    Params
		flat bool
	}{
		{"greedy", Params{}, false},
		{"greedy-penalties", penalties, false},
		{"temperature", Params{Temperature: 1}, false},
		{"top_p", nucleus, false},
		{"top_p-flat", nucleus, true},
		{"top_k", topK, false},
		{"top_k-flat", Params{Temperature: 0.8, TopK: 20000}, true},
		{"min_p", Params{Temperature: 0.8, MinP: 0.05}, false},
		{"all", all, false},
	} {
		for _, n := range []int{49152, 129280} {
			b.Run(c.name+"/"+map[int]string{49152: "49k", 129280: "129k"}[n], func(b *testing.B) { benchmark(b, n, c.p, c.flat) })
		}
	}
}
