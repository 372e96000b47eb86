// Package weights reads the files that models come in. It owns the GGUF format
// (this file says what it looks like), the digest of a file, and the image: the
// weights packed once for a backend in memory that all ranks map. What the keys
// and tensors of a file mean to a network is the business of that network's
// package; what the numbers in a tensor mean, of package kernels/quant.
//
// # Trust
//
// A file is input from outside: nothing in it is believed before it is checked
// against the bytes that are there, and reading its header takes memory in
// proportion to those bytes, whatever its counts and lengths say.
//
// # GGUF, versions 2 and 3, little endian
//
//	"GGUF", version u32, tensors u64, keys u64
//	each key:    name string, type u32, value
//	each tensor: name string, dimensions n u32 (1 to 4), n × u64 (elements of a
//	             row first), type u32, offset u64 from the start of the data
//	padding to the alignment
//	data
//
// A string is its length in bytes as u64, then the bytes. An array is the type of
// its elements as u32, their number as u64, then the elements; arrays of arrays
// are refused. The alignment is the key general.alignment, else 32; each tensor
// begins at a multiple of it. Version 3 differs from 2 in allowing big-endian
// files, which are refused.
package weights

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Limits on what a header may hold. Real files stay far below them; they bound
// the work and memory that a hostile file can cause.
const (
	// maxHeaderBytes bounds all before the data. A vocabulary of a million tokens
	// with its merges takes about 50 MiB.
	maxHeaderBytes = 256 << 20
	// maxKeys: files have some dozens of keys.
	maxKeys = 1 << 16
	// maxTensors: the largest mixtures of experts, not merged, have about 100,000.
	maxTensors = 1 << 20
	// maxKeyBytes is the format's own limit.
	maxKeyBytes = 1<<16 - 1
	// maxNameBytes is generous: the format says 64 for a tensor's name.
	maxNameBytes = 1 << 10
	// maxDims is the format's own limit.
	maxDims = 4
	// The alignment is a power of two within these. The format asks for a multiple
	// of 8; beyond 64 KiB no system has pages that would profit.
	minAlignment, maxAlignment, defaultAlignment = 8, 64 << 10, 32
)

var (
	// ErrMissing is wrapped by the error of asking for a key or tensor that the
	// file does not have.
	ErrMissing = errors.New("not in the file")
	// ErrWrongType is wrapped by the error of asking for a key's value as another
	// type than it has.
	ErrWrongType = errors.New("of another type")
	// ErrNotGGUF is wrapped by the error of opening a file of another format.
	ErrNotGGUF = errors.New("not a GGUF file")
)

// Error is what all functions of a File return: which file, what in it, and what
// is wrong with that.
type Error struct {
	File   string // as given to Open or Parse
	Item   string // as `key "general.alignment"` or `tensor "output.weight"`; may be empty
	Reason string
	Err    error // the kind, for errors.Is; may be nil. Reason says it already.
}

func (e *Error) Error() string {
	if e.Item == "" {
		return e.File + ": " + e.Reason
	}
	return e.File + ": " + e.Item + ": " + e.Reason
}

func (e *Error) Unwrap() error { return e.Err }

// A File is a GGUF file, checked whole when it was opened: every key's value and
// every tensor's place lies within it. The tensors' numbers are not looked at.
//
// Any number of goroutines may read a File. Close ends it and all memory borrowed
// from it, which is the Data of its tensors and nothing else: strings and arrays
// are copies.
//
// The memory is the file's pages themselves. Whoever truncates the file while it
// is open makes an access beyond its new end a SIGBUS, which ends the process;
// model files are replaced by renaming a new one over them, never rewritten.
type File struct {
	name    string
	data    []byte // nil once closed
	mapped  bool   // data is a mapping of ours
	size    int64
	version uint32

	alignment uint64
	dataAt    int64 // where the tensors' data begins
	keys      []key
	byKey     map[string]int
	tensors   []TensorInfo
	byName    map[string]int
}

// Open maps the file read-only and checks it. Errors of reading it are the
// system's, all others are *Error.
func Open(path string) (*File, error) {
	data, err := mapFile(path)
	if err != nil {
		return nil, err
	}
	f, err := Parse(path, data)
	if err != nil {
		if data != nil {
			unix.Munmap(data)
		}
		return nil, err
	}
	f.mapped = true
	return f, nil
}

// mapFile maps a regular file. An empty one gives nil, as nothing can be mapped.
func mapFile(path string) ([]byte, error) {
	file, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	stat, err := file.Stat()
	if err != nil {
		return nil, err
	}
	size := stat.Size()
	if size == 0 {
		return nil, nil
	}
	if int64(int(size)) != size {
		return nil, &Error{File: path, Reason: fmt.Sprintf("%d bytes are more than this machine can address", size)}
	}
	data, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: "mmap", Path: path, Err: err}
	}
	return data, nil
}

// openRegular opens a file for reading and refuses what is not a regular file,
// without waiting for the other end of a pipe.
func openRegular(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	stat, err := file.Stat()
	if err == nil && !stat.Mode().IsRegular() {
		err = &Error{File: path, Reason: "not a regular file but a " + kindOf(stat.Mode())}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func kindOf(mode os.FileMode) string {
	switch {
	case mode.IsDir():
		return "directory"
	case mode&os.ModeNamedPipe != 0:
		return "pipe"
	case mode&os.ModeDevice != 0:
		return "device"
	}
	return "special file"
}

// Parse checks data as Open does a file. The File borrows data until it is
// closed; name is what its errors call it.
func Parse(name string, data []byte) (*File, error) {
	f := &File{name: name, data: data, size: int64(len(data))}
	if err := f.parse(); err != nil {
		return nil, err
	}
	return f, nil
}

// Close unmaps the file. Tensors' Data must not be touched after it. Closing
// twice is harmless.
func (f *File) Close() error {
	data, mapped := f.data, f.mapped
	f.data, f.mapped = nil, false
	if !mapped {
		return nil
	}
	if err := unix.Munmap(data); err != nil {
		return &os.PathError{Op: "munmap", Path: f.name, Err: err}
	}
	return nil
}

// Name is what the file was opened as.
func (f *File) Name() string { return f.name }

// Size is the file's size in bytes.
func (f *File) Size() int64 { return f.size }

// Version is that of the GGUF format, 2 or 3.
func (f *File) Version() int { return int(f.version) }

// Alignment is what the offsets of tensors are multiples of, in bytes.
func (f *File) Alignment() int { return int(f.alignment) }

// DataOffset is where in the file the tensors' data begins.
func (f *File) DataOffset() int64 { return f.dataAt }

// errorf makes an *Error about an item of this file.
func (f *File) errorf(item string, kind error, format string, args ...any) error {
	return &Error{File: f.name, Item: item, Reason: fmt.Sprintf(format, args...), Err: kind}
}
