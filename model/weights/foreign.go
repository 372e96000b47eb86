package weights

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

const magic = "GGUF"

// foreign reports a file that is not GGUF, and what it seems to be: people who
// point at the wrong file learn most from that.
func (f *File) foreign() error {
	data := f.data
	if bytes.HasPrefix(data, []byte(magic)) {
		return nil
	}
	if len(data) > 0 && len(data) < len(magic) && bytes.HasPrefix([]byte(magic), data) {
		return f.errorf("", ErrNotGGUF, "truncated: the file has %d bytes of a GGUF file's first %d", len(data), len(magic))
	}
	seems := looksLike(data)
	if seems == "" {
		return f.errorf("", ErrNotGGUF, "not a GGUF file: it begins with %q", data[:min(len(data), 8)])
	}
	return f.errorf("", ErrNotGGUF, "not a GGUF file: %s", seems)
}

// looksLike says what other kind of file data begins, or nothing.
func looksLike(data []byte) string {
	text := bytes.ToLower(bytes.TrimLeft(bytes.TrimPrefix(data[:min(len(data), 512)], []byte("\xef\xbb\xbf")), " \t\r\n"))
	switch starts := func(s string) bool { return bytes.HasPrefix(data, []byte(s)) }; {
	case len(data) == 0:
		return "it is empty"
	case starts("PK\x03\x04"):
		return "it looks like a zip archive (a wheel, or PyTorch weights)"
	case starts("\x1f\x8b"):
		return "it looks like gzip-compressed data"
	case starts("\x28\xb5\x2f\xfd"):
		return "it looks like zstd-compressed data"
	case starts("\x80\x02") || starts("\x80\x04"):
		return "it looks like a Python pickle (old PyTorch weights)"
	case starts("version https://git-lfs.github.com/"):
		return "it is a Git LFS pointer; fetch the file itself, for example with `git lfs pull`"
	case starts("FUGG"):
		return "it looks like a GGUF file with its bytes swapped"
	case starts("lmgg"), starts("fmgg"), starts("tjgg"):
		return "it is of the GGML format that came before GGUF; convert it"
	case bytes.HasPrefix(text, []byte("<!doctype html")), bytes.HasPrefix(text, []byte("<html")):
		return "it looks like an HTML page, perhaps the answer to a failed download"
	case len(data) > 9 && data[8] == '{' && binary.LittleEndian.Uint64(data) <= 1<<30:
		return "it looks like a safetensors file"
	case bytes.HasPrefix(text, []byte("{")):
		return "it looks like JSON"
	case len(bytes.Trim(data[:min(len(data), 4096)], "\x00")) == 0:
		return fmt.Sprintf("its first %d bytes are zero, as in a download that never finished", min(len(data), 4096))
	}
	return ""
}
