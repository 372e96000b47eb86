package weights

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"tandem/model/weights/weighttest"
)

func TestDigestTellsItsProgress(t *testing.T) {
	data := make([]byte, 3<<20+17)
	for i := range data {
		data[i] = byte(i * i >> 3)
	}
	sum := sha256.Sum256(data)
	var last, calls int64
	got, err := Digest(weighttest.Write(t, data), func(done, total int64) {
		if done <= last || done > total || total != int64(len(data)) {
			t.Errorf("%d of %d after %d", done, total, last)
		}
		last = done
		calls++
	})
	if err != nil || got != hex.EncodeToString(sum[:]) {
		t.Errorf("digest %s, %v; want %x", got, err, sum)
	}
	if last != int64(len(data)) || calls < 4 {
		t.Errorf("%d calls, the last at %d", calls, last)
	}
}

func TestDigestOfNothing(t *testing.T) {
	got, err := Digest(weighttest.Write(t, nil), nil)
	if want := "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"; err != nil || got != want {
		t.Errorf("digest %s, %v; want %s", got, err, want)
	}
}
