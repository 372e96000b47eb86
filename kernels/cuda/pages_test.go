package cuda_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"tandem/gpu/driver"
	"tandem/gpu/share"
	"tandem/kernels/cuda"
	"tandem/kernels/cuda/cudatest"
)

// card is the context of a device until the test ends.
func card(t testing.TB, ordinal int) driver.Context {
	t.Helper()
	ctx, err := cudatest.Driver(t).Open(ordinal)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ctx.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx
}

// put is memory of the card with these contents until the test ends.
func put(t testing.TB, ctx driver.Context, contents []byte) driver.Ptr {
	t.Helper()
	p, err := ctx.Alloc(int64(max(len(contents), 1)))
	if err == nil {
		t.Cleanup(func() {
			if err := ctx.Free(p); err != nil {
				t.Error(err)
			}
		})
		err = ctx.Write(p, contents)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func get(t testing.TB, ctx driver.Context, p driver.Ptr, n int) []byte {
	t.Helper()
	out := make([]byte, n)
	if err := ctx.Read(out, p); err != nil {
		t.Fatal(err)
	}
	return out
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func openPages(t *testing.T, ctx driver.Context, bytes int64, most int) *cuda.Pages {
	t.Helper()
	p, err := cuda.OpenPages(ctx, bytes, most)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestDigestIsThatOfShare(t *testing.T) {
	ctx := card(t, 0)
	r := rand.New(rand.NewPCG(1, 1))
	// A page of one stripe more than the shortest; around whole groups of 16 stripes,
	// whose last 64 bytes are hashed otherwise; and pages as they are.
	for _, bytes := range []int{256, 960, 1024, 1088, 2048, 2112, 8192, 30 * 2 * 64 * 64 * 2} {
		const pages = 5
		mem := randomBytes(r, pages*bytes)
		at := put(t, ctx, mem)
		p := openPages(t, ctx, int64(bytes), pages)
		list := []uint32{4, 0, 2, 2}
		attempts := []uint64{r.Uint64(), r.Uint64(), 0, r.Uint64()}
		var seeds, want []uint64
		for i, page := range list {
			seeds = append(seeds, share.Seed(attempts[i], i, 3*i))
			want = append(want, share.Digest(attempts[i], i, 3*i, mem[int(page)*bytes:(int(page)+1)*bytes]))
		}
		got, err := p.Digest(at, list, seeds)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("pages of %d bytes: the digest of page %d is %x, want %x", bytes, list[i], got[i], want[i])
			}
		}
	}
}

func TestPagesAreCopiedBetweenCards(t *testing.T) {
	if len(cudatest.Driver(t).Devices()) < 2 {
		t.Skip("there is one card")
	}
	a, b := card(t, 0), card(t, 1)
	if err := b.EnablePeer(a); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(2, 2))
	const bytes_, pages = 4160, 6
	from, to := randomBytes(r, pages*bytes_), randomBytes(r, pages*bytes_)
	moves := []cuda.Move{{5, 0}, {1, 4}, {2, 2}}
	src, dst := put(t, a, from), put(t, b, to)
	if err := openPages(t, b, bytes_, pages).Copy(dst, src, moves); err != nil {
		t.Fatal(err)
	}
	for _, m := range moves {
		copy(to[m.To*bytes_:(m.To+1)*bytes_], from[m.From*bytes_:])
	}
	if !bytes.Equal(get(t, b, dst, len(to)), to) {
		t.Error("the pages are not what they should be")
	}
	if !bytes.Equal(get(t, a, src, len(from)), from) {
		t.Error("the source has changed")
	}
}
