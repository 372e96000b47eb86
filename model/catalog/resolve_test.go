package catalog

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func put(t *testing.T, path string, size int64) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil { // sparse
		t.Fatal(err)
	}
	return path
}

func TestResolveFindsFilesAndNames(t *testing.T) {
	demo, _ := Find("smollm2-135m")
	user, system, empty := t.TempDir(), t.TempDir(), t.TempDir()
	demoFile := put(t, filepath.Join(system, "smollm2-135m.gguf"), demo.Bytes)
	own := put(t, filepath.Join(user, "mine.Q8.gguf"), 10)
	for _, c := range []struct {
		path       string
		dirs       []string
		file, name string
	}{
		{"smollm2-135m", []string{user, system}, demoFile, "smollm2-135m"},
		{"mine.Q8", []string{user, system}, own, "mine.Q8"},
		{own, nil, own, "mine.Q8"},
		{demoFile, nil, demoFile, "smollm2-135m"},
	} {
		file, name, err := Resolve(c.path, c.dirs...)
		if err != nil || file != c.file || name != c.name {
			t.Errorf("%s: %q, %q, %v; want %q, %q", c.path, file, name, err, c.file, c.name)
		}
	}

	for _, c := range []struct {
		path   string
		dirs   []string
		want   string
		absent bool
	}{
		{"smollm2-135m", []string{empty}, `smollm2-135m (looked in ` + empty + `); bring it with "tandem model pull smollm2-135m"`, true},
		{"smollm2-135m", []string{filepath.Dir(put(t, filepath.Join(t.TempDir(), "smollm2-135m.gguf"), 5))}, `has 5 bytes, the model smollm2-135m has 98362432`, true},
		{"smollm", []string{empty}, `no model is called "smollm" (looked in ` + empty + `; the catalogue has smollm2-135m); a file is named by its path, as ./smollm.gguf`, false},
		{"/nowhere/x.gguf", nil, `the model file /nowhere/x.gguf does not exist`, false},
		{empty, nil, "is a folder; this version serves GGUF files only", false},
		{"/dev/null", nil, "is not a regular file", false},
		{"a b", nil, `"a b" is no name of a model`, false},
		{"", nil, "no model is named", false},
	} {
		_, _, err := Resolve(c.path, c.dirs...)
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrAbsent) != c.absent {
			t.Errorf("%s: %v; want %q in it, absent %v", c.path, err, c.want, c.absent)
		}
	}
}

func TestListShowsModelsOnly(t *testing.T) {
	demo, _ := Find("smollm2-135m")
	dir := t.TempDir()
	put(t, filepath.Join(dir, "smollm2-135m.gguf"), demo.Bytes)
	put(t, filepath.Join(dir, "b.GGUF"), 7)
	put(t, filepath.Join(dir, ".b.gguf.part"), 3)
	put(t, filepath.Join(dir, "notes.txt"), 3)
	put(t, filepath.Join(dir, "folder.gguf", "x"), 3)
	got, err := List(dir)
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if got[0] != (File{Name: "b", Path: filepath.Join(dir, "b.GGUF"), Bytes: 7}) || got[1] != (File{Name: "smollm2-135m", Path: filepath.Join(dir, "smollm2-135m.gguf"), Bytes: demo.Bytes, Known: true}) {
		t.Errorf("%+v", got)
	}
	put(t, filepath.Join(dir, "smollm2-135m.gguf"), 9)
	if got, _ := List(dir); !got[1].Unwanted || got[1].Known {
		t.Errorf("a file of the wrong size: %+v", got[1])
	}
	if got, err := List(filepath.Join(dir, "absent")); err != nil || got != nil {
		t.Errorf("a folder that is not there: %v, %v", got, err)
	}
}

func TestMeterOnATerminalAndElsewhere(t *testing.T) {
	now := time.Unix(0, 0)
	run := func(terminal bool) string {
		var b bytes.Buffer
		m := &Meter{w: &b, terminal: terminal, width: 60, now: func() time.Time { return now }}
		for i := range 101 {
			now = now.Add(50 * time.Millisecond)
			m.Update(Progress{Phase: "fetching", Done: int64(i) << 20, Total: 100 << 20})
		}
		m.Update(Progress{Phase: "waiting", Note: "the connection was cut"})
		m.Done()
		return b.String()
	}
	text := run(false)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "fetching   0 %  0.0 of 100.0 MiB") || lines[1] != "fetching 100 %  100.0 of 100.0 MiB  20.0 MiB/s" || lines[2] != "waiting: the connection was cut" || strings.Contains(text, "\r") {
		t.Errorf("off a terminal: %q", lines)
	}
	text = run(true)
	if strings.Count(text, "\n") != 2 || strings.Count(text, "\r") < 40 || !strings.Contains(text, " left\x1b[K") {
		t.Errorf("on a terminal: %q", text)
	}
	for _, l := range strings.Split(text, "\r") {
		if len([]rune(strings.TrimSuffix(strings.SplitN(l, "\n", 2)[0], "\x1b[K"))) > 59 {
			t.Errorf("line too wide: %q", l)
		}
	}
}

// The real model, where somebody fetched it before: its size and digest are the
// catalogue's.
func TestCatalogueDescribesTheRealFile(t *testing.T) {
	e, _ := Find("smollm2-135m")
	for _, dir := range []string{os.Getenv("TANDEM_MODELS"), filepath.Join(os.Getenv("XDG_DATA_HOME"), "tandem/models"), filepath.Join(os.Getenv("HOME"), ".local/share/tandem/models")} {
		path := filepath.Join(dir, e.File)
		if info, err := os.Stat(path); err != nil || info.Size() != e.Bytes {
			continue
		}
		if got, _, err := sum(context.Background(), path, func(Progress) {}); err != nil || got != e.SHA256 {
			t.Errorf("%s: %s, %v", path, got, err)
		}
		return
	}
	t.Skip("the model is not on this machine: \"tandem model pull smollm2-135m\" brings it")
}
