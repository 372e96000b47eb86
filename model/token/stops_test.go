package token

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// cut is what Stops promises, said plainly: the stop string that is complete
// first, and of those the longest, ends the text.
func cut(text string, stops []string) (string, int) {
	found, start, end := -1, 0, len(text)+1
	for i, s := range stops {
		if at := strings.Index(text, s); at >= 0 {
			if e := at + len(s); e < end || e == end && at < start {
				found, start, end = i, at, e
			}
		}
	}
	if found < 0 {
		return text, -1
	}
	return text[:start], found
}

func run(t interface{ Fatalf(string, ...any) }, stops []string, parts []string) (string, int) {
	s, err := NewStops(stops)
	if err != nil {
		t.Fatalf("%v", err)
	}
	longest := 0
	for _, text := range stops {
		longest = max(longest, len(text))
	}
	var out strings.Builder
	found := -1
	for _, p := range parts {
		visible, stop := s.Push(p)
		if found >= 0 && (visible != "" || stop != found) {
			t.Fatalf("%q after stop %d was met, then %d", visible, found, stop)
		}
		found = stop
		out.WriteString(visible)
		if s.Held() > 0 && s.Held() >= longest {
			t.Fatalf("%d bytes held back for stop strings of %d", s.Held(), longest)
		}
	}
	out.WriteString(s.Flush())
	return out.String(), found
}

func TestStopStrings(t *testing.T) {
	for _, c := range []struct {
		stops  []string
		parts  []string
		want   string
		wantAt int
	}{
		{nil, []string{"any", "thing"}, "anything", -1},
		{[]string{"own fox"}, []string{"the br", "ow", "n", " ", "fo", "x jumps"}, "the br", 0},
		{[]string{"own fox"}, []string{"the br", "own f", "og"}, "the brown fog", -1},
		{[]string{"\n\n"}, []string{"a\n", "b\n", "\nc"}, "a\nb", 0},
		{[]string{"abcd", "bc"}, []string{"xabcd"}, "xa", 1},
		{[]string{"c", "abc"}, []string{"xab", "c"}, "x", 1},
		{[]string{"aab"}, []string{"aaaa", "ab"}, "aaa", 0},
		{[]string{"é!"}, []string{"caf", "é", "?", "é", "!"}, "café?", 0},
		{[]string{"x", "x"}, []string{"ax"}, "a", 0},
	} {
		if got, at := run(t, c.stops, c.parts); got != c.want || at != c.wantAt {
			t.Errorf("%q in %q: got %q, stop %d; want %q, stop %d", c.stops, c.parts, got, at, c.want, c.wantAt)
		}
	}
}

func TestStopsAreLimited(t *testing.T) {
	for _, stops := range [][]string{
		{""}, {"a", ""}, {"\xff"}, {strings.Repeat("x", MaxStopBytes+1)}, make([]string, MaxStops+1),
	} {
		if _, err := NewStops(stops); err == nil {
			t.Errorf("%d strings were accepted", len(stops))
		}
	}
	if _, err := NewStops([]string{strings.Repeat("x", MaxStopBytes)}); err != nil {
		t.Error(err)
	}
}

// chunks divides text at random places.
func chunks(t *rapid.T, text string) []string {
	var parts []string
	for text != "" {
		n := rapid.IntRange(1, min(len(text), 5)).Draw(t, "part")
		parts = append(parts, text[:n])
		text = text[n:]
	}
	return parts
}

func TestAnyChunkingShowsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stops := rapid.SliceOfN(rapid.StringMatching(`[abé]{1,5}`), 0, 5).Draw(t, "stops")
		text := rapid.StringMatching(`[abcé]{0,40}`).Draw(t, "text")
		want, wantAt := cut(text, stops)
		got, at := run(t, stops, chunks(t, text))
		if at < 0 && wantAt < 0 && got == want {
			return
		}
		if got != want || at < 0 || stops[at] != stops[wantAt] {
			t.Fatalf("%q in %q: got %q, stop %d; want %q, stop %d", stops, text, got, at, want, wantAt)
		}
	})
}

// Many stop strings that all but match must not slow the search: quadratic, this
// would take 4 billion comparisons a stop string.
func TestStopsTakeLinearTime(t *testing.T) {
	var stops []string
	for i := range MaxStops {
		stops = append(stops, strings.Repeat("a", MaxStopBytes-i-1)+"b")
	}
	text := strings.Repeat("a", 4<<20)
	if got, at := run(t, stops, []string{text}); got != text || at != -1 {
		t.Errorf("%d bytes shown, stop %d", len(got), at)
	}
}

func FuzzStops(f *testing.F) {
	f.Add("a\nb", "xxab", uint8(2))
	f.Add("own fox", "the brown fox", uint8(1))
	f.Add("aab\nab", "aaaaab", uint8(3))
	f.Add("é\nè", "caf\xc3é", uint8(1))
	f.Fuzz(func(t *testing.T, list, text string, size uint8) {
		stops := strings.Split(list, "\n")
		if _, err := NewStops(stops); err != nil {
			return
		}
		var parts []string
		for rest := text; rest != ""; {
			n := min(len(rest), int(size)+1)
			parts = append(parts, rest[:n])
			rest = rest[n:]
		}
		want, wantAt := cut(text, stops)
		got, at := run(t, stops, parts)
		if got != want || (at < 0) != (wantAt < 0) || at >= 0 && stops[at] != stops[wantAt] {
			t.Fatalf("%q in %q: got %q, stop %d; want %q, stop %d", stops, text, got, at, want, wantAt)
		}
	})
}

func BenchmarkStops(b *testing.B) {
	s, err := NewStops([]string{"\n\nUser:", "</answer>", "STOP"})
	if err != nil {
		b.Fatal(err)
	}
	text := strings.Repeat("The quick brown fox <b>jumps</b> over\nthe lazy dog. ", 100)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		s.Push(text)
	}
}
