package weights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"tandem/kernels"
)

// mirror packs a matrix as its bytes in reverse, filled up to a multiple of 64
// with 0xEE. It has no kernel for F16.
type mirror struct {
	fails  string // the tensor that it fails to pack
	before func() // called before each Pack
}

func (mirror) PackedBytes(t kernels.Type, rows, cols int) (int64, error) {
	if t == kernels.F16 {
		return 0, fmt.Errorf("%v: %w", t, kernels.ErrUnsupported)
	}
	return roundUp(int64(rows)*t.RowBytes(cols), 64), nil
}

func (m mirror) Pack(dst []byte, src kernels.Tensor) error {
	if m.before != nil {
		m.before()
	}
	if src.Name == m.fails {
		return errors.New("out of luck")
	}
	if n, _ := m.PackedBytes(src.Type, src.Rows, src.Cols); int64(len(dst)) != n {
		return fmt.Errorf("%d bytes to pack into instead of %d", len(dst), n)
	}
	for i := range dst {
		dst[i] = 0xee
	}
	for i, b := range src.Data {
		dst[len(src.Data)-1-i] = b
	}
	return nil
}

func someTensors() []kernels.Tensor {
	list := []kernels.Tensor{
		{Name: "a", Type: kernels.F32, Rows: 3, Cols: 5},
		{Name: "a longer name", Type: kernels.Q4_1, Rows: 70, Cols: 96}, // more than a page
		{Name: "one element", Type: kernels.BF16, Rows: 1, Cols: 1},
		{Name: "full page", Type: kernels.F32, Rows: 1024, Cols: 1},
	}
	for i := range list {
		list[i].Data = make([]byte, int64(list[i].Rows)*list[i].Type.RowBytes(list[i].Cols))
		for j := range list[i].Data {
			list[i].Data[j] = byte(i + 31*j)
		}
	}
	return list
}

func somePlan(t testing.TB, packer kernels.Packer) *Plan {
	t.Helper()
	p, err := NewPlan(packer, someTensors())
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"rope": bytes.Repeat([]byte{1, 2, 3}, 5000)} {
		if err := p.AddBlob(name, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.AddBlob("nothing", nil); err != nil {
		t.Fatal(err)
	}
	return p
}

// pages is page-aligned memory with something in it.
func pages(n int64) []byte {
	all := bytes.Repeat([]byte{0xaa}, int(n)+imagePage)
	off := -uintptr(unsafe.Pointer(&all[0])) % imagePage
	return all[off : int64(off)+n : int64(off)+n]
}

func someImage(t testing.TB, key [32]byte) []byte {
	t.Helper()
	p := somePlan(t, mirror{})
	mem := pages(p.Bytes())
	if err := p.Write(mem, key, nil); err != nil {
		t.Fatal(err)
	}
	return mem
}

var someKey = [32]byte{1, 2, 3, 31: 99}

func checkSomeImage(t testing.TB, img *Image) {
	t.Helper()
	for _, src := range someTensors() {
		n, _ := mirror{}.PackedBytes(src.Type, src.Rows, src.Cols)
		want := kernels.Packed{Type: src.Type, Rows: src.Rows, Cols: src.Cols, Data: make([]byte, n)}
		if err := (mirror{}).Pack(want.Data, src); err != nil {
			t.Fatal(err)
		}
		got, err := img.Packed(src.Name)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", src.Name, d)
		}
		if uintptr(unsafe.Pointer(&got.Data[0]))%imagePage != 0 || cap(got.Data) != len(got.Data) {
			t.Errorf("%s: at %p with capacity %d for %d bytes", src.Name, got.Data, cap(got.Data), len(got.Data))
		}
	}
	if blob, err := img.Blob("rope"); err != nil || !bytes.Equal(blob, bytes.Repeat([]byte{1, 2, 3}, 5000)) {
		t.Errorf("blob: %d bytes, %v", len(blob), err)
	}
	if blob, err := img.Blob("nothing"); err != nil || len(blob) != 0 {
		t.Errorf("empty blob: %d bytes, %v", len(blob), err)
	}
	if _, err := img.Packed("rope"); !errors.Is(err, ErrMissing) {
		t.Errorf("a blob as a matrix: %v", err)
	}
	if _, err := img.Blob("a"); !errors.Is(err, ErrMissing) {
		t.Errorf("a matrix as a blob: %v", err)
	}
	if _, err := img.Packed("b"); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("a matrix that is not there: %v", err)
	}
}

// As the packer process and a rank do it: one descriptor, a writable mapping that
// goes away, a read-only one that stays.
func TestImageThroughSharedMemory(t *testing.T) {
	p := somePlan(t, mirror{})
	fd, err := unix.MemfdCreate("image", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	size := p.Bytes() + 2<<20 // as when it is rounded up to huge pages
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	ours, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(ours)
	if _, err := OpenImage(ours, someKey); !errors.Is(err, ErrIncomplete) {
		t.Errorf("before it was written: %v", err)
	}

	theirs, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	var steps []int64
	err = p.Write(theirs, someKey, func(done, total int64) {
		if _, err := OpenImage(ours, someKey); !errors.Is(err, ErrIncomplete) {
			t.Errorf("while it is written: %v", err)
		}
		steps = append(steps, done, total)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Munmap(theirs); err != nil {
		t.Fatal(err)
	}
	const a, b, c, d, blob = 64, 70*60 + 24, 64, 4096, 15000
	const total = a + b + c + d + blob
	if diff := cmp.Diff([]int64{a, total, a + b, total, a + b + c, total, a + b + c + d, total, total, total, total, total}, steps); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	img, err := OpenImage(ours, someKey)
	if err != nil {
		t.Fatal(err)
	}
	checkSomeImage(t, img)
}

// A rank that tries again and again sees nothing until it sees all. The race
// detector watches that the mark is what orders the two.
func TestRankSeesNothingBeforeItSeesAll(t *testing.T) {
	p := somePlan(t, mirror{before: runtime.Gosched})
	mem := pages(p.Bytes())
	var rank sync.WaitGroup
	rank.Go(func() {
		for {
			img, err := OpenImage(mem, someKey)
			if err == nil {
				checkSomeImage(t, img)
				return
			}
			if !errors.Is(err, ErrIncomplete) {
				t.Errorf("while it is written: %v", err)
				return
			}
			runtime.Gosched()
		}
	})
	if err := p.Write(mem, someKey, nil); err != nil {
		t.Error(err)
		binary.LittleEndian.PutUint32(mem[imageCompleteAt:], 1)
	}
	rank.Wait()
}

func TestImageIsTheSameWhateverWasInItsMemory(t *testing.T) {
	p := somePlan(t, mirror{})
	one, two := pages(p.Bytes()), pages(p.Bytes()+imagePage)
	clear(two)
	for _, mem := range [][]byte{one, two} {
		if err := p.Write(mem, someKey, nil); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one, two[:len(one)]) {
		t.Error("two images of the same weights differ")
	}
	if tail := two[len(one):]; len(bytes.Trim(tail, "\x00")) > 0 {
		t.Error("memory behind the image was written to")
	}
}

func TestPackingThatFailsLeavesNoImage(t *testing.T) {
	mem := someImage(t, someKey) // a good one from before
	err := somePlan(t, mirror{fails: "one element"}).Write(mem, someKey, nil)
	if err == nil || err.Error() != `image: tensor "one element": out of luck` {
		t.Errorf("packing: %v", err)
	}
	if _, err := OpenImage(mem, someKey); !errors.Is(err, ErrIncomplete) {
		t.Errorf("opening: %v", err)
	}
}

func TestImageOfAnotherKeyOrVersionIsRefused(t *testing.T) {
	mem := someImage(t, someKey)
	_, err := OpenImage(mem, [32]byte{9})
	if !errors.Is(err, ErrOtherImage) || err.Error() != "image: key 01020300… instead of 09000000…: another image" {
		t.Errorf("another key: %v", err)
	}
	binary.LittleEndian.PutUint32(mem[imageVersionAt:], 2)
	if _, err := OpenImage(mem, someKey); !errors.Is(err, ErrOtherImage) || !strings.Contains(err.Error(), "version 2 instead of 1") {
		t.Errorf("another version: %v", err)
	}
}

func TestPlansThatCannotBe(t *testing.T) {
	plan := func(list ...kernels.Tensor) error {
		_, err := NewPlan(mirror{}, list)
		return err
	}
	row := kernels.Tensor{Name: "t", Type: kernels.F32, Rows: 1, Cols: 1, Data: make([]byte, 4)}
	half := kernels.Tensor{Name: "h", Type: kernels.F16, Rows: 2, Cols: 3}
	if err := plan(half); !errors.Is(err, kernels.ErrUnsupported) || !strings.Contains(err.Error(), `tensor "h", 2 rows of 3 F16`) {
		t.Errorf("a format without a kernel: %v", err)
	}
	if err := plan(row, row); err == nil || err.Error() != `"t" comes twice` {
		t.Errorf("a tensor twice: %v", err)
	}
	if err := plan(kernels.Tensor{Name: "empty", Type: kernels.F32}); err == nil || !strings.Contains(err.Error(), `tensor "empty": a packed form of 0 bytes`) {
		t.Errorf("a tensor of nothing: %v", err)
	}
	p := somePlan(t, mirror{})
	if err := p.AddBlob("a", nil); err == nil || err.Error() != `"a" comes twice` {
		t.Errorf("a blob with a tensor's name: %v", err)
	}
	if err := p.AddBlob("", nil); err == nil {
		t.Error("a blob without a name is taken")
	}
	if err := p.Write(pages(p.Bytes() - 1)[:p.Bytes()-1], someKey, nil); err == nil || !strings.Contains(err.Error(), "bytes of memory for an image of") {
		t.Errorf("too little memory: %v", err)
	}
	if err := p.Write(pages(p.Bytes() + 64)[64:], someKey, nil); err == nil || !strings.Contains(err.Error(), "not page aligned") {
		t.Errorf("memory askew: %v", err)
	}
}

func TestLyingImagesAreRefused(t *testing.T) {
	good := someImage(t, someKey)
	le := binary.LittleEndian
	const first, second = imageHeaderBytes, imageHeaderBytes + imageEntryBytes + 8 // entries "a" and "a longer name"
	const size, huge, negative = imageBytesAt, uint64(math.MaxUint64), uint64(1) << 63
	for _, c := range []struct {
		name  string
		at    int
		value uint64
		want  string
	}{
		{"magic", 0, 0, "no image"},
		{"size huge", size, huge, "it says 18446744073709551615 bytes, the memory has"},
		{"size negative", size, negative, "it says 9223372036854775808 bytes"},
		{"size zero", size, 0, "a directory of"},
		{"size below the data", size, 8192, `entry 2 of 6: "a longer name": `},
		{"directory huge", imageDirectoryAt, huge, "a directory of 18446744073709551615 bytes"},
		{"directory zero", imageDirectoryAt, 0, "6 entries in a directory of 0 bytes"},
		{"directory cut", imageDirectoryAt, 300, "entry 6 of 6: cut short"},
		{"directory with a tail", imageDirectoryAt, 1000, "bytes of its directory belong to no entry"},
		{"entries huge", imageEntriesAt, huge, "18446744073709551615 entries in a directory of"},
		{"entries too many", imageEntriesAt, 7, "entry 7 of 7: cut short: 0 bytes of the directory are left"},
		{"entries too few", imageEntriesAt, 5, "bytes of its directory belong to no entry"},
		{"offset askew", first, 4097, `"a": bytes 4097`},
		{"offset in the directory", first, 0, `"a": bytes 0 and 64 more: not a place of its own`},
		{"offset huge", first, huge - 4095, `"a": bytes 18446744073709547520`},
		{"offset on the one before", second, 4096, `"a longer name": bytes 4096`},
		{"length huge", first + 8, huge, `"a": bytes 4096 and 18446744073709551615 more`},
		{"length over the next", first + 8, 5000, `entry 2 of 6: "a longer name": bytes 8192`},
		{"length zero", first + 8, 0, `"a": 3 rows of 5 in 0 bytes`},
		{"rows zero", first + 16, 0, `"a": 0 rows of 5 in 64 bytes`},
		{"rows more than bytes", first + 16, 100, `"a": 100 rows of 5 in 64 bytes`},
		{"rows huge", first + 16, huge, `"a": 18446744073709551615 rows`},
		{"rows that overflow", first + 16, 1 << 62, `"a": 4611686018427387904 rows`},
		{"columns zero", first + 24, 0, `"a": 3 rows of 0`},
		{"columns negative", first + 24, negative, `"a": 3 rows of 9223372036854775808`},
		{"type unknown", first + 32, 1<<32 | 8, `"a": type 8 is none`},
		{"type beyond a byte", first + 32, 1<<32 | 257, `"a": type 257 is none`},
		{"blob with rows", first + 32, 1 << 32, `"a": a blob with 3 rows of 5`},
		{"name of nothing", first + 32, 1, "entry 1 of 6: a name of 0 bytes"},
		{"name huge", first + 32, math.MaxUint32<<32 | 1, "a name of 4294967295 bytes"},
		{"name longer than the directory", first + 32, 900<<32 | 1, "entry 1 of 6: cut short: it takes 944 bytes"},
	} {
		mem := pages(int64(len(good)))
		copy(mem, good)
		le.PutUint64(mem[c.at:], c.value)
		_, err := OpenImage(mem, someKey)
		if err == nil || !strings.HasPrefix(err.Error(), "image: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %s", c.name, err, c.want)
		}
	}

	mem := pages(int64(len(good)))
	copy(mem, good)
	copy(mem[bytes.Index(mem, []byte("nothing")):], "rope\x00\x00\x00")
	le.PutUint32(mem[bytes.LastIndex(mem[:4096], []byte("rope"))-4:], 4)
	if _, err := OpenImage(mem, someKey); err == nil || !strings.Contains(err.Error(), `entry 6 of 6: "rope" comes twice`) {
		t.Errorf("a name twice: %v", err)
	}
	for n := range int64(imageHeaderBytes) {
		if _, err := OpenImage(good[:n], someKey); err == nil {
			t.Errorf("%d bytes of an image are taken", n)
		}
	}
	for n := int64(imageHeaderBytes); n < int64(len(good)); n += 64 {
		if _, err := OpenImage(good[:n], someKey); err == nil || !strings.Contains(err.Error(), "the memory has") {
			t.Errorf("%d bytes of an image: %v", n, err)
		}
	}
	if _, err := OpenImage(good, someKey); err != nil {
		t.Errorf("the image untouched: %v", err)
	}
}

func FuzzOpenImage(f *testing.F) {
	f.Add(someImage(f, someKey))
	p, err := NewPlan(mirror{}, nil)
	if err != nil {
		f.Fatal(err)
	}
	empty := pages(p.Bytes())
	if err := p.Write(empty, someKey, nil); err != nil {
		f.Fatal(err)
	}
	f.Add(empty)
	f.Add(empty[:100])
	f.Fuzz(func(t *testing.T, data []byte) {
		mem := pages(int64(len(data)))
		copy(mem, data)
		img, err := OpenImage(mem, someKey)
		if err != nil {
			return
		}
		for name := range img.byName {
			w, err := img.Packed(name)
			if err != nil {
				w.Data, err = img.Blob(name)
			} else if !w.Type.Valid() || w.Rows < 1 || w.Cols < 1 || w.Rows*w.Cols > 2*len(w.Data) {
				t.Errorf("%q: %d rows of %d %v in %d bytes", name, w.Rows, w.Cols, w.Type, len(w.Data))
			}
			if err != nil {
				t.Errorf("%q is neither matrix nor blob: %v", name, err)
			}
			for _, b := range w.Data { // all of it can be read
				_ = b
			}
		}
	})
}
