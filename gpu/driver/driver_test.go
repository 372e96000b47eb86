package driver

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
)

func TestArgsAreLaidOutAsC(t *testing.T) {
	// void k(u32, u64*, float, struct{u8[3]}, struct __align__(16){u64[2]}, i32)
	var a Args
	a.U32(1).Ptr(2).F32(1).Struct([]byte{7, 8, 9}, 1).Struct(bytes.Repeat([]byte{5}, 16), 16).I32(-1)
	want := []byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3f, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	want = append(want, bytes.Repeat([]byte{5}, 16)...)
	want = append(want, 0xff, 0xff, 0xff, 0xff)
	if !bytes.Equal(a.Bytes(), want) {
		t.Errorf("got  %v\nwant %v", a.Bytes(), want)
	}
	buf := &a.Reset().U32(1).Bytes()[0]
	if n := testing.AllocsPerRun(10, func() { a.Reset().Ptr(1).Ptr(2).I32(3).F32(4) }); n != 0 || buf != &a.Bytes()[0] {
		t.Errorf("arguments packed again allocate: %v times", n)
	}
}

func TestErrorsKeepTheirResult(t *testing.T) {
	err := fmt.Errorf("layer 3: %w", &Error{Call: "cuMemAlloc", Device: 2, Result: OutOfMemory, Detail: "4096 bytes"})
	if got, want := err.Error(), "layer 3: cuMemAlloc on gpu 2: out of memory (2): 4096 bytes"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !errors.Is(err, OutOfMemory) || ClassOf(err) != Memory {
		t.Errorf("class of %v is %v", err, ClassOf(err))
	}
	for r, want := range map[Result]Class{0: 0, Invalid: Refused, NotReady: Pending, ECC: Lost, IllegalAddress: Lost, Unknown: DeviceLost, 555: Refused} {
		if got := r.Class(); got != want {
			t.Errorf("class of %d is %v, want %v", int(r), got, want)
		}
	}
	if ClassOf(errors.New("other")) != 0 || ClassOf(nil) != 0 {
		t.Error("an error without a result has a class")
	}
}
