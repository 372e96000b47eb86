package weights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"tandem/kernels"
)

// # The image
//
// One process packs the weights into shared memory; every rank maps that memory
// read-only and finds its matrices in it. An image never leaves its machine and
// is made anew rather than converted.
//
//	 0  magic "tdmimage"
//	 8  version u32
//	12  complete u32: imageComplete once everything else is written, 0 before
//	16  key, 32 bytes: what was packed and how, chosen by the caller
//	48  bytes of the image u64
//	56  bytes of the directory u64
//	64  entries u64
//	72  zero
//	80  directory; of each entry:
//	      offset, bytes, rows, columns, all u64; type u32 (of kernels; 0 for a
//	      blob, which has no rows and columns), bytes of the name u32, name,
//	      zeros up to a multiple of 8
//	    each entry's data, from a multiple of 4096 on, in the directory's order
//
// All little endian; the image's size is a multiple of 4096.
const (
	imageMagic    = "tdmimage"
	imageVersion  = 1
	imageComplete = 0x454e4f44 // "DONE"
	imagePage     = 4096

	imageVersionAt   = 8
	imageCompleteAt  = 12
	imageKeyAt       = 16
	imageBytesAt     = 48
	imageDirectoryAt = 56
	imageEntriesAt   = 64
	imageHeaderBytes = 80
	imageEntryBytes  = 40 // without the name

	// maxImageDirectoryBytes bounds the directory: the entries of maxTensors
	// tensors with names of common length.
	maxImageDirectoryBytes = 128 << 20
)

var (
	// ErrIncomplete is wrapped by the error of opening an image that is not yet,
	// or never was, written to the end.
	ErrIncomplete = errors.New("not complete")
	// ErrOtherImage is wrapped by the error of opening an image of another version
	// or key.
	ErrOtherImage = errors.New("another image")
)

// entry is one matrix or blob of an image.
type entry struct {
	name       string
	kind       kernels.Type // 0 for a blob
	rows, cols int
	at, bytes  int64
}

// A Plan lays out an image and then writes it. It borrows the tensors' data and
// the blobs until the last Write. It belongs to one goroutine.
type Plan struct {
	packer  kernels.Packer
	entries []entry // at is not set
	sources []kernels.Tensor
	byName  map[string]bool
}

// NewPlan asks the packer how large each tensor's packed form is. The error
// wraps kernels.ErrUnsupported if the packer's does.
func NewPlan(packer kernels.Packer, tensors []kernels.Tensor) (*Plan, error) {
	p := &Plan{packer: packer, byName: make(map[string]bool)}
	for _, t := range tensors {
		n, err := packer.PackedBytes(t.Type, t.Rows, t.Cols)
		if err != nil {
			return nil, fmt.Errorf("tensor %q, %d rows of %d %v: %w", t.Name, t.Rows, t.Cols, t.Type, err)
		}
		if n <= 0 || n%64 != 0 {
			return nil, fmt.Errorf("tensor %q: a packed form of %d bytes: a positive multiple of 64 is needed", t.Name, n)
		}
		if err := p.add(entry{name: t.Name, kind: t.Type, rows: t.Rows, cols: t.Cols, bytes: n}, t); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// AddBlob adds bytes that every rank shall read as they are.
func (p *Plan) AddBlob(name string, data []byte) error {
	return p.add(entry{name: name, bytes: int64(len(data))}, kernels.Tensor{Data: data})
}

func (p *Plan) add(e entry, source kernels.Tensor) error {
	if e.name == "" || len(e.name) > maxNameBytes {
		return fmt.Errorf("a name of %d bytes: 1 to %d are allowed", len(e.name), maxNameBytes)
	}
	if p.byName[e.name] {
		return fmt.Errorf("%q comes twice", e.name)
	}
	if len(p.entries) == maxTensors {
		return fmt.Errorf("%q is one entry more than %d", e.name, maxTensors)
	}
	p.byName[e.name] = true
	p.entries = append(p.entries, e)
	p.sources = append(p.sources, source)
	return nil
}

// directoryBytes is the size of the directory.
func (p *Plan) directoryBytes() int64 {
	var n int64
	for _, e := range p.entries {
		n += imageEntryBytes + roundUp(int64(len(e.name)), 8)
	}
	return n
}

// layout gives each entry's offset and the image's size.
func (p *Plan) layout() (offsets []int64, bytes int64) {
	at := roundUp(imageHeaderBytes+p.directoryBytes(), imagePage)
	for _, e := range p.entries {
		offsets = append(offsets, at)
		at = roundUp(at+e.bytes, imagePage)
	}
	return offsets, at
}

// Bytes is the size of the image.
func (p *Plan) Bytes() int64 {
	_, n := p.layout()
	return n
}

// Write writes the image to the beginning of dst, which is page aligned, has at
// least Bytes bytes and is usually memory that other processes map too: they may
// try OpenImage at any time and succeed once all is written. After an error the
// image stays incomplete. progress, if not nil, is told after each matrix how
// many packed bytes of how many are done.
func (p *Plan) Write(dst []byte, key [32]byte, progress func(done, total int64)) error {
	offsets, size := p.layout()
	if int64(len(dst)) < size {
		return fmt.Errorf("image: %d bytes of memory for an image of %d", len(dst), size)
	}
	mark, err := imageMark(dst)
	if err != nil {
		return err
	}
	directory := p.directoryBytes()
	if directory > maxImageDirectoryBytes {
		return fmt.Errorf("image: a directory of %d bytes: at most %d are allowed", directory, maxImageDirectoryBytes)
	}
	atomic.StoreUint32(mark, 0) // whatever was here is no image any more
	le, head := binary.LittleEndian, dst[:roundUp(imageHeaderBytes+directory, imagePage)]
	clear(head[imageKeyAt:])
	copy(head, imageMagic)
	le.PutUint32(head[imageVersionAt:], imageVersion)
	copy(head[imageKeyAt:], key[:])
	le.PutUint64(head[imageBytesAt:], uint64(size))
	le.PutUint64(head[imageDirectoryAt:], uint64(directory))
	le.PutUint64(head[imageEntriesAt:], uint64(len(p.entries)))
	var total, done int64
	at := int64(imageHeaderBytes)
	for i, e := range p.entries {
		b := head[at:]
		le.PutUint64(b, uint64(offsets[i]))
		le.PutUint64(b[8:], uint64(e.bytes))
		le.PutUint64(b[16:], uint64(e.rows))
		le.PutUint64(b[24:], uint64(e.cols))
		le.PutUint32(b[32:], uint32(e.kind))
		le.PutUint32(b[36:], uint32(len(e.name)))
		copy(b[imageEntryBytes:], e.name)
		at += imageEntryBytes + roundUp(int64(len(e.name)), 8)
		total += e.bytes
	}
	for i, e := range p.entries {
		end := offsets[i] + e.bytes
		data := dst[offsets[i]:end:end]
		if e.kind == 0 {
			copy(data, p.sources[i].Data)
		} else if err := p.packer.Pack(data, p.sources[i]); err != nil {
			return fmt.Errorf("image: tensor %q: %w", e.name, err)
		}
		clear(dst[end:roundUp(end, imagePage)])
		if done += e.bytes; progress != nil {
			progress(done, total)
		}
	}
	// Last of all and with release semantics: who sees the mark sees the rest.
	atomic.StoreUint32(mark, imageComplete)
	return nil
}

// imageMark is the word of mem that says that the image is complete.
func imageMark(mem []byte) (*uint32, error) {
	if len(mem) < imageHeaderBytes {
		return nil, fmt.Errorf("image: %d bytes of memory, fewer than its header has", len(mem))
	}
	if uintptr(unsafe.Pointer(&mem[0]))%imagePage != 0 {
		return nil, errors.New("image: its memory is not page aligned")
	}
	return (*uint32)(unsafe.Pointer(&mem[imageCompleteAt])), nil
}

// An Image is packed weights in memory that somebody else keeps mapped for as
// long as anything borrowed from the Image is in use. It may be read by any
// number of goroutines.
type Image struct {
	mem    []byte
	byName map[string]entry
}

// OpenImage reads the directory of the image at the beginning of mem, which is
// page aligned, and checks every entry against the memory there is. The error
// wraps ErrIncomplete if the image is not (yet) whole, and ErrOtherImage if it
// is of another version or key.
func OpenImage(mem []byte, key [32]byte) (*Image, error) {
	mark, err := imageMark(mem)
	if err != nil {
		return nil, err
	}
	// Nothing is looked at before the mark, and nothing twice: until the mark is
	// there another process may be writing.
	if n := atomic.LoadUint32(mark); n != imageComplete {
		return nil, fmt.Errorf("image: %w", ErrIncomplete)
	}
	le := binary.LittleEndian
	if string(mem[:len(imageMagic)]) != imageMagic {
		return nil, fmt.Errorf("image: it begins with %q: no image", mem[:len(imageMagic)])
	}
	if v := le.Uint32(mem[imageVersionAt:]); v != imageVersion {
		return nil, fmt.Errorf("image: version %d instead of %d: %w", v, imageVersion, ErrOtherImage)
	}
	if !bytes.Equal(mem[imageKeyAt:imageBytesAt], key[:]) {
		return nil, fmt.Errorf("image: key %.4x… instead of %.4x…: %w", mem[imageKeyAt:imageBytesAt], key[:], ErrOtherImage)
	}
	size, directory, entries := le.Uint64(mem[imageBytesAt:]), le.Uint64(mem[imageDirectoryAt:]), le.Uint64(mem[imageEntriesAt:])
	if size > uint64(len(mem)) {
		return nil, fmt.Errorf("image: it says %d bytes, the memory has %d", size, len(mem))
	}
	if directory > maxImageDirectoryBytes || imageHeaderBytes+directory > size {
		return nil, fmt.Errorf("image: a directory of %d bytes in an image of %d", directory, size)
	}
	if entries > directory/imageEntryBytes {
		return nil, fmt.Errorf("image: %d entries in a directory of %d bytes", entries, directory)
	}
	img := &Image{mem: mem[:size:size], byName: make(map[string]entry)}
	rest := mem[imageHeaderBytes : imageHeaderBytes+directory]
	free := uint64(roundUp(int64(imageHeaderBytes+directory), imagePage)) // data before it is taken
	for i := range entries {
		e, n, err := readEntry(rest, free, size)
		if err != nil {
			return nil, fmt.Errorf("image: entry %d of %d: %w", i+1, entries, err)
		}
		if _, twice := img.byName[e.name]; twice {
			return nil, fmt.Errorf("image: entry %d of %d: %.100q comes twice", i+1, entries, e.name)
		}
		img.byName[e.name] = e
		rest, free = rest[n:], uint64(e.at+e.bytes)
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("image: %d bytes of its directory belong to no entry", len(rest))
	}
	return img, nil
}

// readEntry reads the entry that b begins with, n bytes of it. Its data lies
// between free and size.
func readEntry(b []byte, free, size uint64) (e entry, n int, err error) {
	if len(b) < imageEntryBytes {
		return e, 0, fmt.Errorf("cut short: %d bytes of the directory are left", len(b))
	}
	le := binary.LittleEndian
	at, length, rows, cols := le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])
	kind, nameBytes := le.Uint32(b[32:]), le.Uint32(b[36:])
	if nameBytes == 0 || nameBytes > maxNameBytes {
		return e, 0, fmt.Errorf("a name of %d bytes: 1 to %d are allowed", nameBytes, maxNameBytes)
	}
	n = imageEntryBytes + int(roundUp(int64(nameBytes), 8))
	if n > len(b) {
		return e, 0, fmt.Errorf("cut short: it takes %d bytes, %d are left", n, len(b))
	}
	e.name = string(b[imageEntryBytes : imageEntryBytes+int(nameBytes)])
	if at%imagePage != 0 || at < free || at > size || length > size-at {
		return e, 0, fmt.Errorf("%.100q: bytes %d and %d more: not a place of its own between %d and %d", e.name, at, length, free, size)
	}
	if kind == 0 {
		if rows != 0 || cols != 0 {
			return e, 0, fmt.Errorf("%.100q: a blob with %d rows of %d", e.name, rows, cols)
		}
	} else {
		// What a packed form looks like is its packer's secret, but no format has
		// less than four bits an element.
		const most = 1 << 31
		if kind > 255 || !kernels.Type(kind).Valid() {
			return e, 0, fmt.Errorf("%.100q: type %d is none", e.name, kind)
		}
		if rows == 0 || cols == 0 || rows > most || cols > most || rows*cols > 2*length {
			return e, 0, fmt.Errorf("%.100q: %d rows of %d in %d bytes", e.name, rows, cols, length)
		}
	}
	e.kind, e.rows, e.cols, e.at, e.bytes = kernels.Type(kind), int(rows), int(cols), int64(at), int64(length)
	return e, n, nil
}

// Packed gives a packed matrix, whose Data is borrowed from the image's memory
// and aligned to 4096 bytes. The error wraps ErrMissing if there is none.
func (m *Image) Packed(name string) (kernels.Packed, error) {
	e, ok := m.byName[name]
	if !ok || e.kind == 0 {
		return kernels.Packed{}, fmt.Errorf("image: matrix %q: %w", name, ErrMissing)
	}
	return kernels.Packed{Type: e.kind, Rows: e.rows, Cols: e.cols, Data: m.data(e)}, nil
}

// Blob gives the bytes of a blob, borrowed from the image's memory and aligned to
// 4096 bytes. The error wraps ErrMissing if there is none.
func (m *Image) Blob(name string) ([]byte, error) {
	e, ok := m.byName[name]
	if !ok || e.kind != 0 {
		return nil, fmt.Errorf("image: blob %q: %w", name, ErrMissing)
	}
	return m.data(e), nil
}

func (m *Image) data(e entry) []byte {
	end := e.at + e.bytes
	return m.mem[e.at:end:end]
}
