package weights

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
)

// Digest is the SHA-256 of a file's bytes in lower-case hexadecimal. progress, if
// not nil, is told from time to time how many bytes of how many are done; total
// is the size that the file had at the start.
func Digest(path string, progress func(done, total int64)) (string, error) {
	file, err := openRegular(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	stat, err := file.Stat()
	if err != nil {
		return "", err
	}
	sum, buffer, done := sha256.New(), make([]byte, 1<<20), int64(0)
	for {
		n, err := file.Read(buffer)
		sum.Write(buffer[:n])
		done += int64(n)
		if progress != nil && n > 0 {
			progress(done, stat.Size())
		}
		if err == io.EOF {
			return hex.EncodeToString(sum.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
	}
}
