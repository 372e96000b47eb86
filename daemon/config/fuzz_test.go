package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzParse feeds the loader any file and any --set: it answers with a checked
// configuration that survives being written and read again, or with problems
// that have a place and fit on a line each.
func FuzzParse(f *testing.F) {
	seeds, _ := filepath.Glob("testdata/*.toml")
	for _, s := range seeds {
		b, err := os.ReadFile(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b), "log.level=warn")
	}
	f.Add(Example(), "prefill.devices=[\"cpu:0\"]")
	f.Add(strings.ReplaceAll(Example(), "\n#", "\n"), "kv.cpu_bytes=1GiB")
	f.Add(Defaults().TOML(), "deadlines.queue=3")
	f.Add("[[server]]\n[server.listen]\n'a b'.c = \"\"\"x\"\"\"\n", "a.b.c=[[[")
	f.Add("\xef\xbb\xbf[kv]\r\ncpu_bytes = 9e9\r\ndigest = 1979-05-27T07:32:00Z\r\n", "=")
	f.Add("x = {a = {b = [1, {c = 2}]}}", "server.listen='unix:x'")
	f.Fuzz(func(t *testing.T, text, set string) {
		c, err := Parse("/dir/t.toml", text, []string{set})
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || len(e.Problems) == 0 || len(e.Problems) > mostProblems+1 {
				t.Fatalf("error %T: %v", err, err)
			}
			for _, p := range e.Problems {
				line := p.String()
				if strings.ContainsAny(line, "\n\r\x1b") || p.Message == "" {
					t.Errorf("problem %q", line)
				}
				if p.File != "" && p.Line > strings.Count(text, "\n")+1 {
					t.Errorf("%q: the file has %d lines", line, strings.Count(text, "\n")+1)
				}
			}
			return
		}
		again, err := Parse("/dir/t.toml", c.TOML(), nil)
		if err != nil {
			t.Fatalf("what TOML writes does not load: %v\n%s", err, c.TOML())
		}
		if c.Digest() != again.Digest() {
			t.Fatalf("the values changed:\n%s\n%s", c.TOML(), again.TOML())
		}
		if r, err := c.Resolve(Machine{Cores: 2, Memory: 1 << 30}); err == nil && (len(r.Prefill.Devices)%r.Prefill.TensorParallel != 0 || len(r.Decode.Devices)%r.Decode.TensorParallel != 0) {
			t.Fatalf("%v does not divide into groups of %d", r.Prefill.Devices, r.Prefill.TensorParallel)
		}
	})
}

// FuzzAPIKeys: any bytes give keys that open the door or an error that repeats none of them.
func FuzzAPIKeys(f *testing.F) {
	f.Add("# comment\nabcdefgh\n\n  sk-12345678  \n")
	f.Add("short\n")
	f.Add("\x00\xff\n" + strings.Repeat("k", 300))
	f.Fuzz(func(t *testing.T, text string) {
		k, err := parseAPIKeys(text)
		if err != nil {
			for _, line := range strings.Fields(text) {
				if len(line) >= minAPIKey && strings.Contains(err.Error(), line) && !strings.Contains("server.api_keys_file visible ASCII characters", line) {
					t.Errorf("the error repeats %q", line)
				}
			}
			return
		}
		if k.Len() == 0 || k.Allow("") {
			t.Errorf("%d keys, and the empty one is allowed: %v", k.Len(), k.Allow(""))
		}
		for _, line := range strings.Split(text, "\n") {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' && !k.Allow(line) {
				t.Errorf("%q is not allowed", line)
			}
		}
	})
}

// FuzzSize and duration: what is read is written in a form that reads back the same.
func FuzzUnits(f *testing.F) {
	for _, s := range []string{"24GiB", "1.5GB", "0B", "auto", "9223372036854775807B", "8EiB", "1e3MiB", "1h30m", "0.5s", "-1s", "30", "NaNGiB", "0x10MiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := parseSize(s); err == nil {
			if w, err := parseSize(v.String()); err != nil || w != v || (v < 0 && v != Auto) {
				t.Errorf("size %q: %d, then %d, %v", s, v, w, err)
			}
		}
		if v, err := parseDuration(s); err == nil {
			if w, err := parseDuration(v.String()); err != nil || w != v || v < 0 {
				t.Errorf("duration %q: %d, then %d, %v", s, v, w, err)
			}
		}
	})
}
