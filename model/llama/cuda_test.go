package llama

import (
	"math"
	"slices"
	"testing"

	"tandem/gpu/driver"
	"tandem/kernels"
	"tandem/kernels/cpu"
	"tandem/kernels/cuda"
	"tandem/kernels/cuda/cudatest"
	"tandem/model/golden"
	"tandem/model/weights"
	"tandem/model/weights/weighttest"
)

// A lens is a backend that notes, whenever something was added to the residual
// stream, what the logits would be if that was the end.
type lens struct {
	kernels.Backend
	n     *Network
	batch *kernels.Batch
	seen  [][]float32 // of each addition and row
}

func (l *lens) LinearAdd(x kernels.Buffer, m kernels.Matrix, a kernels.Act, rows int) error {
	if err := l.Backend.LinearAdd(x, m, a, rows); err != nil {
		return err
	}
	b := *l.batch
	b.Out = nil
	for r := range rows {
		b.Out = append(b.Out, int32(r))
	}
	out, err := l.Logits(x, l.n.norm, l.n.c.Eps, l.n.head, &b)
	if err != nil {
		return err
	}
	for r := range rows {
		l.seen = append(l.seen, slices.Clone(out.Row(r)))
	}
	return nil
}

// alone is a network on one rank of a backend.
type alone struct {
	*Network
	*lens
}

const aloneRows = 16

// onBackend makes a network of f on the backend that open makes, with pages pages.
func onBackend(t *testing.T, f *weights.File, p kernels.Packer, elem, context, pages int,
	open func(s kernels.Shape, rope []float32) (kernels.Backend, []kernels.Mem)) alone {
	t.Helper()
	c, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := c.Plan(p, context)
	if err != nil {
		t.Fatal(err)
	}
	mem := memory(t, plan.Bytes())
	key := [32]byte{1}
	if err := plan.Write(mem, key, nil); err != nil {
		t.Fatal(err)
	}
	img, err := weights.OpenImage(mem, key)
	if err != nil {
		t.Fatal(err)
	}
	rope, err := Rope(img)
	if err != nil {
		t.Fatal(err)
	}
	s := c.Info().Shape
	s.MaxRows, s.MaxOut, s.Context = aloneRows, aloneRows, context
	b, units := open(s, rope[:context*s.HeadDim])
	if err := b.OpenKV(units); err != nil {
		t.Fatal(err)
	}
	l := &lens{Backend: b}
	n, err := New(c, img, l)
	if err != nil {
		t.Fatal(err)
	}
	l.n = n
	return alone{n, l}
}

// onBoth makes the same network on the CPU, in float32, and on a card.
func onBoth(t *testing.T, f *weights.File, context, pages int) (host, card alone) {
	t.Helper()
	host = onBackend(t, f, cpu.NewPacker(), cpu.ElemBytes(cpu.Float32), context, pages, func(s kernels.Shape, rope []float32) (kernels.Backend, []kernels.Mem) {
		b, err := cpu.New(cpu.Options{Set: cpu.Float32, Shape: s, Rope: rope, Team: kernels.Team{Size: 1}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		units := make([]kernels.Mem, s.Units)
		for u := range units {
			units[u] = kernels.Host(memory(t, int64(pages)*s.UnitPageBytes(cpu.ElemBytes(cpu.Float32))))
		}
		return b, units
	})
	d := cudatest.Driver(t)
	card = onBackend(t, f, cuda.NewPacker(), cuda.ElemBytes, context, pages, func(s kernels.Shape, rope []float32) (kernels.Backend, []kernels.Mem) {
		b, err := cuda.New(cuda.Options{Driver: d, Shape: s, Rope: rope, Team: kernels.Team{Size: 1}})
		if err != nil {
			t.Fatal(err)
		}
		var lent []driver.Ptr
		t.Cleanup(func() {
			for _, p := range lent {
				b.Context().Free(p)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		units := make([]kernels.Mem, s.Units)
		for u := range units {
			bytes := int64(pages) * s.UnitPageBytes(cuda.ElemBytes)
			p, err := b.Context().Alloc(bytes)
			if err != nil {
				t.Fatal(err)
			}
			lent = append(lent, p)
			units[u] = cuda.Mem{At: p, Bytes: bytes}
		}
		return b, units
	})
	return host, card
}

// batchOf is tokens from position at on, and asks for the last one's logits.
func batchOf(tokens []int32, at, pages int) *kernels.Batch {
	b := &kernels.Batch{Pages: [][]uint32{pagesFrom(0, pages)}, Out: []int32{int32(len(tokens) - 1)}}
	for i, t := range tokens {
		b.Tokens, b.Pos, b.Seq = append(b.Tokens, t), append(b.Pos, int32(at+i)), append(b.Seq, 0)
	}
	return b
}

// A card computes, layer by layer, what the CPU computes in float32. Both sum in
// float32 in orders of their own, so they differ by roundings.
func TestCardComputesWhatTheCPUDoes(t *testing.T) {
	for name, formats := range map[string]map[string]kernels.Type{
		"float32": nil,
		"all formats": {
			"token_embd": kernels.Q6_K, "attn_q": kernels.Q8_0, "attn_k": kernels.Q4_0, "attn_v": kernels.F16,
			"attn_output": kernels.BF16, "ffn_gate": kernels.Q4_1, "ffn_up": kernels.Q4_0, "ffn_down": kernels.Q6_K,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := weights.Open(weighttest.Write(t, weighttest.TinyLlama(weighttest.Llama{Layers: 3, Width: 256, Hidden: 256, Types: formats})))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			const pages = 3
			host, card := onBoth(t, f, pages*PageTokens, pages)
			tokens := make([]int32, 90)
			for i := range tokens {
				tokens[i] = int32(weighttest.FirstByte + i*37%256)
			}
			next := func(n alone, b *kernels.Batch) int32 {
				n.batch = b
				out, err := n.Forward(b)
				if err != nil {
					t.Fatal(err)
				}
				return out.Best(0)
			}
			for at := 0; at < len(tokens); { // across pages, and blocks of attention
				n := min(aloneRows, len(tokens)-at)
				if at == 16 {
					n = 1
				}
				b := batchOf(tokens[at:at+n], at, pages)
				next(host, b)
				next(card, b)
				at += n
			}
			worst := 0.0
			for i, want := range host.seen {
				var size float64
				for _, x := range want {
					size = max(size, math.Abs(float64(x)))
				}
				for c := range want {
					e := math.Abs(float64(card.seen[i][c])-float64(want[c])) / size
					if worst = max(worst, e); !(e < 1e-4) {
						t.Fatalf("after addition %d: logit %d is %v on the card, %v on the CPU, of at most %v", i, c, card.seen[i][c], want[c], size)
					}
				}
			}
			if len(host.seen) != len(card.seen) || len(host.seen) != 2*3*len(tokens) {
				t.Errorf("%d and %d notes, want %d", len(host.seen), len(card.seen), 2*3*len(tokens))
			}
			t.Logf("the largest difference is %.2g of the largest logit", worst)
			// And the greedy text is the same.
			h, c := tokens[len(tokens)-1], tokens[len(tokens)-1]
			for at := len(tokens); at < len(tokens)+40; at++ {
				h, c = next(host, batchOf([]int32{h}, at, pages)), next(card, batchOf([]int32{c}, at, pages))
				if h != c {
					t.Fatalf("token %d of the text is %d on the card, %d on the CPU", at, c, h)
				}
			}
		})
	}
}

// The demo model's first tokens are those of the independent implementation. On the
// simulated driver a token takes seconds.
func TestCardAnswersAsTheReference(t *testing.T) {
	if testing.Short() {
		t.Skip("not in short mode: a simulated card is slow")
	}
	f := golden.Demo(t)
	answers, _ := golden.Greedy(t)
	shortest := slices.MinFunc(answers, func(a, b golden.Answer) int { return len(a.Prompt) - len(b.Prompt) })
	const pages, steps = 4, 3
	d := cudatest.Driver(t)
	_, card := onBoth(t, f, pages*PageTokens, pages)
	card.Network.b = card.lens.Backend // no notes
	if len(shortest.Prompt)+steps > pages*PageTokens {
		t.Fatalf("a prompt of %d tokens is too long for this test", len(shortest.Prompt))
	}
	var got []int32
	all := append(slices.Clone(shortest.Prompt), shortest.Tokens[:steps]...)
	for at := 0; at < len(shortest.Prompt)+steps-1; {
		n := min(aloneRows, max(1, len(shortest.Prompt)-at))
		out, err := card.Forward(batchOf(all[at:at+n], at, pages))
		if err != nil {
			t.Fatal(err)
		}
		if at += n; at >= len(shortest.Prompt) {
			got = append(got, out.Best(0))
		}
	}
	if want := shortest.Tokens[:steps]; !slices.Equal(got, want) {
		t.Errorf("tokens %v, want %v (margins %.3f)", got, want, shortest.Margins[:steps])
	}
	t.Logf("%s: %d tokens of prompt, %v", d.Devices()[0].Name, len(shortest.Prompt), got)
}
