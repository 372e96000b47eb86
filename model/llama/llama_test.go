package llama

import (
	"math"
	"slices"
	"sync"
	"testing"

	"tandem/gpu/hostmem"
	"tandem/kernels"
	"tandem/kernels/cpu"
	"tandem/model/golden"
	"tandem/model/weights"
	"tandem/model/weights/weighttest"
)

// team is a replica of the network in one process: ranks are goroutines over
// shared memory.
type team struct {
	tb    testing.TB
	shape kernels.Shape
	ranks []*Network
}

type teamOptions struct {
	set     string
	ranks   int
	maxRows int
	maxOut  int
	context int
	pages   int
	isa     string
}

// image packs a model once for all tests of a process that want it.
func image(tb testing.TB, f *weights.File, context int) (*Config, *weights.Image) {
	tb.Helper()
	c, err := Open(f)
	if err != nil {
		tb.Fatal(err)
	}
	plan, err := c.Plan(cpu.NewPacker(), context)
	if err != nil {
		tb.Fatal(err)
	}
	mem := memory(tb, plan.Bytes())
	key := [32]byte{1}
	if err := plan.Write(mem, key, nil); err != nil {
		tb.Fatal(err)
	}
	img, err := weights.OpenImage(mem, key)
	if err != nil {
		tb.Fatal(err)
	}
	return c, img
}

func memory(tb testing.TB, bytes int64) []byte {
	tb.Helper()
	r, err := hostmem.Create("test", bytes)
	if err != nil {
		tb.Fatal(err)
	}
	r.Huge()
	tb.Cleanup(func() { r.Close() })
	return r.Bytes()
}

func newTeam(tb testing.TB, c *Config, img *weights.Image, o teamOptions) *team {
	tb.Helper()
	t := &team{tb: tb, shape: c.Info().Shape}
	t.shape.MaxRows, t.shape.MaxOut, t.shape.Context = o.maxRows, o.maxOut, o.context
	rope, err := Rope(img)
	if err != nil {
		tb.Fatal(err)
	}
	l := c.Layout(cpu.ElemBytes(o.set))
	units := make([][]byte, l.Units)
	for u := range units {
		units[u] = memory(tb, int64(o.pages)*l.UnitPageBytes)
	}
	opts := cpu.Options{Set: o.set, ISA: o.isa, Shape: t.shape, Rope: rope[:o.context*t.shape.HeadDim]}
	opts.Team.Size, opts.Team.Crowded = o.ranks, true
	shared := memory(tb, cpu.SharedBytes(opts))
	for r := range o.ranks {
		opts.Team.Rank, opts.Team.Shared = r, shared
		b, err := cpu.New(opts)
		if err != nil {
			tb.Fatal(err)
		}
		if err := b.OpenKV(kernels.HostUnits(units)); err != nil {
			tb.Fatal(err)
		}
		n, err := New(c, img, b)
		if err != nil {
			tb.Fatal(err)
		}
		t.ranks = append(t.ranks, n)
	}
	return t
}

// forward runs one pass on every rank and returns what rank 0 got.
func (t *team) forward(b kernels.Batch) kernels.Logits {
	t.tb.Helper()
	var wg sync.WaitGroup
	out := make([]kernels.Logits, len(t.ranks))
	errs := make([]error, len(t.ranks))
	for i, n := range t.ranks {
		own := b
		wg.Add(1)
		go func() {
			defer wg.Done()
			out[i], errs[i] = n.Forward(&own)
		}()
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.tb.Fatalf("rank %d: %v", i, err)
		}
	}
	return out[0]
}

// seq is a sequence's place in the pool.
type seq struct {
	pages []uint32
	have  int
}

func newSeq(pages ...uint32) *seq { return &seq{pages: pages} }

func pagesFrom(first, n int) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = uint32(first + i)
	}
	return p
}

// append computes tokens of one sequence in chunks and calls each with the logits
// of every position, in order.
func (t *team) append(s *seq, tokens []int32, chunk int, each func(pos int, row []float32)) {
	t.tb.Helper()
	for len(tokens) > 0 {
		n := min(chunk, len(tokens))
		var b kernels.Batch
		for i, tok := range tokens[:n] {
			b.Tokens, b.Pos, b.Seq = append(b.Tokens, tok), append(b.Pos, int32(s.have+i)), append(b.Seq, 0)
			if each != nil {
				b.Out = append(b.Out, int32(i))
			}
		}
		b.Pages = [][]uint32{s.pages[:(s.have+n+PageTokens-1)/PageTokens]}
		l := t.forward(b)
		if each != nil {
			for i := range n {
				each(s.have+i, l.Row(i))
			}
		}
		s.have += n
		tokens = tokens[n:]
	}
}

func demo(tb testing.TB) (*Config, *weights.Image) {
	return image(tb, golden.Demo(tb), 1024)
}

// The exact kernels give the reference's logits, every one that the golden file
// holds, within 1e-3: float32 sums in another order, no more.
func TestFloat32MatchesTheReference(t *testing.T) {
	c, img := demo(t)
	tm := newTeam(t, c, img, teamOptions{set: cpu.Float32, ranks: 2, maxRows: 64, maxOut: 64, context: 1024, pages: 16})
	worst := 0.0
	for _, p := range golden.Logits(t) {
		compared := 0
		check := func(pos int, id int32, got, want float32) {
			compared++
			d := math.Abs(float64(got) - float64(want))
			worst = max(worst, d)
			if !(d <= 1e-3) {
				t.Fatalf("%s: position %d, token %d: logit %v, reference %v", p.Name, pos, id, got, want)
			}
		}
		tm.append(newSeq(pagesFrom(0, 16)...), p.Tokens, 64, func(pos int, row []float32) {
			if pos == len(p.Tokens)-1 {
				for id, want := range p.Last {
					check(pos, int32(id), row[id], want)
				}
				return
			}
			at := p.At[pos]
			for i, id := range at.Top {
				check(pos, id, row[id], at.TopLogits[i])
			}
			for i, id := range at.Sample {
				check(pos, id, row[id], at.SampleLogits[i])
			}
		})
		if compared < c.Vocab {
			t.Fatalf("%s: only %d logits compared", p.Name, compared)
		}
	}
	t.Logf("largest difference %.2g", worst)
}

// Greedy answers are the reference's. The quantised kernels may choose another
// token only where the reference itself was nearly undecided: the bound on the
// margin is what the best other implementation of such kernels needs, 0.5.
func TestGreedyAnswers(t *testing.T) {
	c, img := demo(t)
	answers, _ := golden.Greedy(t)
	for _, set := range []struct {
		name   string
		excuse float64
	}{{cpu.Float32, 2e-3}, {cpu.Fine, 0.02}, {cpu.Fast, 0.5}} {
		t.Run(set.name, func(t *testing.T) {
			tm := newTeam(t, c, img, teamOptions{set: set.name, ranks: 2, maxRows: 256, maxOut: 1, context: 1024, pages: 16})
			same, flips := 0, 0
			for _, a := range answers {
				// Each step is given the reference's tokens so far, so that one flip does
				// not spoil the rest.
				all := append(slices.Clone(a.Prompt), a.Tokens...)
				s := newSeq(pagesFrom(0, 16)...)
				tm.append(s, all[:len(a.Prompt)-1], 256, nil)
				for i, want := range a.Tokens {
					tm.append(s, all[s.have:len(a.Prompt)+i], 1, func(_ int, row []float32) {
						got := int32(0)
						for id, v := range row {
							if v > row[got] {
								got = int32(id)
							}
						}
						if got == want {
							same++
							return
						}
						flips++
						if a.Margins[i] >= set.excuse {
							t.Errorf("%q: step %d: token %d instead of %d, which led by %.3f", a.Messages[len(a.Messages)-1].Content, i, got, want, a.Margins[i])
						}
					})
				}
			}
			if same < 12*64*9/10 {
				t.Errorf("only %d of %d tokens agree", same, same+flips)
			}
			t.Logf("%d tokens agree, %d differ where the margin excuses it", same, flips)
		})
	}
}

// logitsOf is the logits of every position, copied.
func logitsOf(tm *team, s *seq, tokens []int32, chunk int) [][]float32 {
	var out [][]float32
	tm.append(s, tokens, chunk, func(_ int, row []float32) { out = append(out, slices.Clone(row)) })
	return out
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// One prompt, one answer: the same bits for every chunk size, number of ranks,
// place of the pages and company in the batch.
func TestSameBitsWhateverHappensAround(t *testing.T) {
	c, img := demo(t)
	prompt := golden.Logits(t)
	text := slices.MaxFunc(prompt, func(a, b golden.Prompt) int { return len(a.Tokens) - len(b.Tokens) }).Tokens
	if len(text) < 150 {
		t.Fatalf("the longest golden prompt has %d tokens", len(text))
	}
	text = text[:150] // three pages, the last one in part
	other := prompt[1].Tokens
	for _, set := range []string{cpu.Fine, cpu.Fast, cpu.Float32} {
		t.Run(set, func(t *testing.T) {
			o := teamOptions{set: set, ranks: 1, maxRows: 512, maxOut: 512, context: 1024, pages: 24}
			want := logitsOf(newTeam(t, c, img, o), newSeq(0, 1, 2), text, 512)
			check := func(what string, got [][]float32) {
				t.Helper()
				for i := range want {
					if !sameBits(got[i], want[i]) {
						t.Fatalf("%s: the logits of position %d differ", what, i)
					}
				}
			}
			chunks := []int{1, 7, 64}
			if set != cpu.Fine {
				chunks = []int{7}
			}
			tm := newTeam(t, c, img, o)
			for _, chunk := range chunks {
				check("chunks", logitsOf(tm, newSeq(5, 3, 9), text, chunk))
			}
			for _, ranks := range []int{2, 3, 4} {
				o.ranks = ranks
				check("ranks", logitsOf(newTeam(t, c, img, o), newSeq(0, 1, 2), text, 150))
			}

			// In company: another sequence's prompt and tokens in the same passes.
			s, comp := newSeq(7, 2, 11), newSeq(20, 21)
			var got [][]float32
			for s.have < len(text) {
				n := min(13, len(text)-s.have)
				var b kernels.Batch
				if k := min(3, len(other)-comp.have); k > 0 {
					for i := range k {
						b.Tokens, b.Pos, b.Seq = append(b.Tokens, other[comp.have+i]), append(b.Pos, int32(comp.have+i)), append(b.Seq, 0)
					}
					comp.have += k
				}
				b.Pages = [][]uint32{comp.pages, s.pages}
				for i := range n {
					b.Out = append(b.Out, int32(len(b.Tokens)))
					b.Tokens, b.Pos, b.Seq = append(b.Tokens, text[s.have+i]), append(b.Pos, int32(s.have+i)), append(b.Seq, 1)
				}
				s.have += n
				l := tm.forward(b)
				for i := range n {
					got = append(got, slices.Clone(l.Row(i)))
				}
			}
			check("company", got)
		})
	}
}

// A lost, stale or misplaced byte of the cache changes the logits: this is what
// lets the tests of the whole appliance compare texts.
func TestEveryCachedByteMatters(t *testing.T) {
	c, img := image(t, tiny(t), 256)
	o := teamOptions{set: cpu.Fast, ranks: 1, maxRows: 128, maxOut: 1, context: 256, pages: 4}
	tm := newTeam(t, c, img, o)
	text := make([]int32, 70)
	for i := range text {
		text[i] = int32(weighttest.FirstByte + 'a' + i%26)
	}
	last := func() []float32 {
		s := newSeq(0, 1)
		s.have = len(text) - 1
		return logitsOf(tm, s, text[len(text)-1:], 1)[0]
	}
	tm.append(newSeq(0, 1), text[:len(text)-1], 128, nil)
	want := last()
	if !sameBits(last(), want) {
		t.Fatal("computing the same again differs")
	}
	// The cache is the only state: swap its pages.
	s := newSeq(1, 0)
	s.have = len(text) - 1
	if sameBits(logitsOf(tm, s, text[len(text)-1:], 1)[0], want) {
		t.Error("swapped pages give the same logits")
	}
}

func tiny(tb testing.TB) *weights.File {
	tb.Helper()
	f, err := weights.Parse("tiny", weighttest.TinyLlama(weighttest.Llama{}))
	if err != nil {
		tb.Fatal(err)
	}
	return f
}
