package jsonin

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func decoder(t *testing.T, body string) *Decoder {
	t.Helper()
	d, err := New([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A value is read through the field-by-field calls, as callers do.
func value(d *Decoder) (any, error) {
	switch d.Next() {
	case Null:
		_, err := d.Null()
		return nil, err
	case Bool:
		return d.Bool()
	case Number:
		return d.Float("a number")
	case String:
		return d.String("a string")
	case Array:
		a := []any{}
		err := d.Array("an array", func(int) error {
			v, err := value(d)
			a = append(a, v)
			return err
		})
		return a, err
	case Object:
		m := map[string]any{}
		err := d.Object("an object", func(k string) error {
			v, err := value(d)
			m[k] = v
			return err
		})
		return m, err
	}
	return nil, d.Want("a value")
}

func TestReadsWhatEncodingJSONReads(t *testing.T) {
	for _, body := range []string{
		`{}`, `[]`, `[[],{}]`, `null`, ` true `, `"x"`, `-0`, `1.5e-3`, `[1,2,3]`,
		`{"a":{"b":[1,{"c":null}]},"a":2}`,
		`"\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac"`,
		`"😀 raw and \ud83d\ude00 escaped"`,
		`"lone \ud800 high, \udc00 low, \ud800A then a letter, \ud800\ud83d\ude00 then a pair"`,
		`"\u0000"`,
		"\"\u2028\"",
	} {
		var want any
		if err := json.Unmarshal([]byte(body), &want); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		d := decoder(t, body)
		got, err := value(d)
		if err == nil {
			err = d.End()
		}
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-encoding/json +ours)\n%s", body, diff)
		}
	}
}

func TestSyntaxErrorsGiveTheByte(t *testing.T) {
	for _, c := range []struct {
		body   string
		offset int
		says   string
	}{
		{``, 0, "want a value, got the end"},
		{`{`, 1, "object key"},
		{`{"a"}`, 4, "':'"},
		{`{"a":1,}`, 7, "object key"},
		{`{"a":1 "b":2}`, 7, "',' or '}'"},
		{`[1,]`, 3, "a value"},
		{`[1 2]`, 3, "',' or ']'"},
		{`{"a":tru}`, 5, "true"},
		{`"abc`, 4, "the end of a string"},
		{"\"a\nb\"", 2, "control character"},
		{`"\x"`, 2, "an escape that JSON knows"},
		{`"\u12g4"`, 5, "hexadecimal"},
		{`01`, 1, "the end of the body"},
		{`1.`, 2, "a digit"},
		{`1e+`, 3, "a digit"},
		{`-`, 1, "a value"},
		{`{} {}`, 3, "the end of the body"},
		{`'x'`, 0, "a value"},
	} {
		for name, read := range map[string]func(*Decoder) error{
			"value": func(d *Decoder) error { _, err := value(d); return err },
			"skip":  (*Decoder).Skip,
		} {
			d := decoder(t, c.body)
			err := read(d)
			if err == nil {
				err = d.End()
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Errorf("%s %q: no error", name, c.body)
				continue
			}
			if e.Offset != c.offset || !strings.Contains(e.Msg, c.says) {
				t.Errorf("%s %q: byte %d, %q; want byte %d and %q", name, c.body, e.Offset, e.Msg, c.offset, c.says)
			}
		}
	}
}

func TestNotUTF8IsRefusedWithItsOffset(t *testing.T) {
	for body, at := range map[string]int{"\xff\xfe": 0, "\"ab\xc3\"": 3, "\"\xed\xa0\x80\"": 1, "\"é\xff\"": 3} {
		_, err := New([]byte(body))
		var e *Error
		if !errors.As(err, &e) || e.Offset != at {
			t.Errorf("%q: %v; want offset %d", body, err, at)
		}
	}
}

func TestByteOrderMarkIsSkipped(t *testing.T) {
	d := decoder(t, "\ufeff{}")
	if err := d.Skip(); err != nil {
		t.Error(err)
	}
}

func TestDepthIsBounded(t *testing.T) {
	for name, read := range map[string]func(*Decoder) error{
		"value": func(d *Decoder) error { _, err := value(d); return err },
		"skip":  (*Decoder).Skip,
	} {
		for _, open := range []string{"[", `{"a":`} {
			if err := read(decoder(t, strings.Repeat(open, 50000))); err == nil || !strings.Contains(err.Error(), "nested deeper") {
				t.Errorf("%s of 50000 %q: %v", name, open, err)
			}
		}
		ok := strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth)
		if err := read(decoder(t, ok)); err != nil {
			t.Errorf("%s of %d levels: %v", name, MaxDepth, err)
		}
		if err := read(decoder(t, "["+ok+"]")); err == nil {
			t.Errorf("%s of %d levels passes", name, MaxDepth+1)
		}
	}
}

func TestErrorsNameTheField(t *testing.T) {
	d := decoder(t, `{"messages":[{"content":"x"},{"content":[{"te\u0078t":"hot"}]}]}`)
	err := d.Object("an object", func(string) error {
		return d.Array("an array", func(int) error {
			return d.Object("an object", func(string) error {
				if d.Next() == String {
					return d.Skip()
				}
				return d.Array("an array", func(int) error {
					return d.Object("an object", func(string) error {
						_, err := d.Float("a number from 0 to 2")
						return err
					})
				})
			})
		})
	})
	want := `messages[1].content[0].text: want a number from 0 to 2, got "hot"`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestGotIsClippedBetweenCharacters(t *testing.T) {
	d := decoder(t, `"`+strings.Repeat("é", 1000)+`"`)
	_, err := d.Bool()
	if err == nil || !utf8.ValidString(err.Error()) || len(err.Error()) > 120 {
		t.Errorf("%v", err)
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		body string
		want int64
		ok   bool
	}{
		{"4", 4, true}, {"4.0", 4, true}, {"4e0", 4, true}, {"-5", -5, true}, {"1e3", 1000, true},
		{"9223372036854775807", math.MaxInt64, true},
		{"18446744073709551615", -1, true}, // two's complement, for seeds
		{"18446744073709551616", 0, false}, {"1e99", 0, false}, {"4.5", 0, false}, {"1e999", 0, false}, {`"4"`, 0, false},
	} {
		v, err := decoder(t, c.body).Int("a whole number")
		if (err == nil) != c.ok || v != c.want {
			t.Errorf("Int(%s) = %d, %v", c.body, v, err)
		}
	}
	if _, err := decoder(t, "18446744073709551615").Range("x", -2, 2); err == nil {
		t.Error("a number above 2^63 passes for -1")
	}
	if v, err := decoder(t, "-1").Range("x", -2, 2); err != nil || v != -1 {
		t.Errorf("Range(-1) = %d, %v", v, err)
	}
	if _, err := decoder(t, "1e999").Float("x"); err == nil {
		t.Error("infinity passes for a number")
	}
}

func FuzzAgreesWithEncodingJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,-2.5e3,"x\u0041\ud83d\ude00\ud800",null,true,{}]}`, `[`, `"`, `01`, `{"a":1,}`, "\"\x00\"", `[[[[]]]]`, "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		body = bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))
		d, err := New(body)
		if err != nil {
			if utf8.Valid(body) {
				t.Fatalf("refuses UTF-8: %v", err)
			}
			return
		}
		var want any
		wantErr := json.Unmarshal(body, &want)
		got, err := value(d)
		if err == nil {
			err = d.End()
		}
		s := &Decoder{data: body}
		skipErr := s.Skip()
		if skipErr == nil {
			skipErr = s.End()
		}
		if err != nil && strings.Contains(err.Error(), "nested deeper") || wantErr != nil && strings.Contains(wantErr.Error(), "cannot unmarshal number") {
			return // limits that the two do not share
		}
		if (err == nil) != (wantErr == nil) || (skipErr == nil) != (wantErr == nil) {
			t.Fatalf("value: %v; skip: %v; encoding/json: %v", err, skipErr, wantErr)
		}
		if err == nil && !cmp.Equal(want, got) {
			t.Fatal(cmp.Diff(want, got))
		}
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Offset > len(body)) {
			t.Fatalf("offset beyond the body: %v", err)
		}
	})
}

func BenchmarkDecodeChat(b *testing.B) {
	body := []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("some prose with a line\\n", 2000) + `"}]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		d, err := New(body)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := value(d); err != nil {
			b.Fatal(err)
		}
	}
}
