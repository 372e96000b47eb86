package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// problemsOf gives the lines of an error from Load, failing if there is none.
func problemsOf(t *testing.T, err error) []string {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || len(e.Problems) == 0 {
		t.Fatalf("error %v (%T); want an *Error with problems", err, err)
	}
	return strings.Split(e.Error(), "\n")
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("problems:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestEveryMistakeOfAFileIsReportedAtOnceWithItsPlace(t *testing.T) {
	_, err := Parse("t.toml", `
[server]
  drain_timout = "3s"
listne = ":80"
keepalive = 15
max_body = 33554432

[deadlines]
queue = "soon"
max_queued = 3

[prefil]
chunk_tokens = 7

[prefill]
chunk_tokens = 0
devices = "cpu:0"

[decode]
devices = ["cpu:0", 3]
max_batch = 300

[kv]
transport = "pul"
digest = "yes"
memory_fraction = 1.5
`, nil)
	wantLines(t, problemsOf(t, err),
		`t.toml:3:3: [server] drain_timout: unknown key`,
		`t.toml:4:1: [server] listne: unknown key; did you mean "listen"?`,
		`t.toml:5:13: [server] keepalive: 15 has no unit; write "15s"`,
		`t.toml:6:12: [server] max_body: 33554432 has no unit; write it like "33554432MiB" or "33554432GiB"`,
		`t.toml:9:9: [deadlines] queue: "soon" is not a duration; write it like "30s", "250ms" or "1h30m"`,
		`t.toml:10:1: [deadlines] max_queued: unknown key; "max_queued" belongs in [limits]`,
		`t.toml:12:2: prefil: unknown table; did you mean [prefill]?`,
		`t.toml:16:16: [prefill] chunk_tokens: 0 is out of range; allowed: 1 to 8192`,
		`t.toml:17:11: [prefill] devices: "cpu:0" where a list of strings, such as ["cpu:0", "cpu:1"] is wanted`,
		`t.toml:20:11: [decode] devices: element 2 is 3; want a list of strings, such as ["cpu:0", "cpu:1"]`,
		`t.toml:21:13: [decode] max_batch: 300 is out of range; allowed: 1 to 256`,
		`t.toml:24:13: [kv] transport: "pul" is not known; did you mean "pull"? allowed: "auto", "handover", "pull" or "push"`,
		`t.toml:25:10: [kv] digest: "yes" where true or false is wanted`,
		`t.toml:26:19: [kv] memory_fraction: 1.5 is out of range; allowed: 0.05 to 0.98`,
	)
}

func TestMistakesThatCrossKeys(t *testing.T) {
	for _, c := range []struct {
		name, file string
		want       []string
	}{
		{"degree", "[decode]\ndevices = [\"cpu:0\", \"cpu:1\", \"cpu\"]\ntensor_parallel = 2",
			[]string{`t.toml:3:1: [decode] tensor_parallel: 2 does not divide the number of devices, 3`}},
		{"device", `prefill.devices = ["cpu:0", "gpu:1"]`,
			[]string{`t.toml:1:1: [prefill] devices: "gpu:1" is not a device; write "cuda:N", "cpu:N" or "cpu"`}},
		{"leading zero", `prefill.devices = ["cpu:01"]`,
			[]string{`t.toml:1:1: [prefill] devices: "cpu:01" is not a device; write "cuda:N", "cpu:N" or "cpu"`}},
		{"card twice", `decode.devices = ["cuda:3", "cuda:3"]`,
			[]string{`t.toml:1:1: [decode] devices: "cuda:3" is there twice; a card serves one rank`}},
		{"mixed group", `decode.devices = ["cuda:3", "cpu"]`,
			[]string{`t.toml:1:1: [decode] devices: names cards and cores; a group is on one kind of device`}},
		{"mixed groups", "prefill.devices = [\"cpu\"]\ndecode.devices = [\"cuda:3\"]",
			[]string{`t.toml:2:1: [decode] devices: is on cuda while [prefill] is on cpu; both groups are on one kind of device`}},
		{"kind", "[backend]\nkind = \"cpu\"\n[prefill]\ndevices = [\"cuda:0\"]",
			[]string{`t.toml:4:1: [prefill] devices: names cuda devices while backend.kind is "cpu"`}},
		{"prefix cache", "[kv]\nprefix_cache = true",
			[]string{`t.toml:2:1: [kv] prefix_cache: this version has no prefix cache; leave the key out or write false`}},
		{"backoff", "[restart]\nbackoff_min = \"2s\"\nbackoff_max = \"1s\"",
			[]string{`t.toml:2:1: [restart] backoff_min: 2s is longer than backoff_max, 1s`}},
		{"listen", "[server]\nlisten = \"8000\"\ncors_origins = [\"https://a.example/\"]\nstate_dir = \"~/x\"",
			[]string{
				`t.toml:2:1: [server] listen: "8000" is not an address; write "127.0.0.1:8000", ":8000" for all addresses, or "unix:/path"`,
				`t.toml:3:1: [server] cors_origins: "https://a.example/" is not an origin; write "https://host" or "https://host:port" without a path, or "*"`,
				`t.toml:4:1: [server] state_dir: "~" is not expanded; write the whole path`,
			}},
		{"port", `server.listen = "localhost:99999"`,
			[]string{`t.toml:1:1: [server] listen: port "99999" is not a number from 0 to 65535; write "127.0.0.1:8000", ":8000" for all addresses, or "unix:/path"`}},
		{"aliases", "[model]\nname = \"m\"\naliases = [\"m\", \"\"]",
			[]string{`t.toml:3:1: [model] aliases: "m" is there twice`, `t.toml:3:1: [model] aliases: an alias is empty`}},
		{"no model", `model.path = ""`,
			[]string{`t.toml:1:1: [model] path: is empty; name a GGUF file or a catalogue name such as "smollm2-135m"`}},
		{"credential", `server.api_keys_file = "credential:../shadow"`,
			[]string{`t.toml:1:1: [server] api_keys_file: "../shadow" is not the name of a credential: letters, digits, '-', '_' and '.' only`}},
		{"auto where it is not allowed", `server.max_body = "auto"`,
			[]string{`t.toml:1:19: [server] max_body: "auto" is not allowed here; write it like "24GiB", "512MiB" or "100kB"`}},
		{"control character", `model.name = "a\u001b[31m"`,
			[]string{`t.toml:1:14: [model] name: contains a control character`}},
		{"not a table", `server = 3`,
			[]string{`t.toml:1:10: [server]: 3 where a table is wanted: write [server] on a line of its own, its keys below`}},
		{"list of tables", "[[server]]\nlisten = \":1\"",
			[]string{`t.toml:1:3: [server]: a list of tables where a table is wanted: write [server] on a line of its own, its keys below`}},
		{"key outside its table", `max_queued = 3`,
			[]string{`t.toml:1:1: max_queued: unknown key; "max_queued" belongs in [limits]`}},
		{"case", "[server]\nListen = \":1\"",
			[]string{`t.toml:2:1: [server] Listen: unknown key; did you mean "listen"? keys are in lower case`}},
		{"date", "[server]\nlisten = 2026-01-01",
			[]string{`t.toml:2:10: [server] listen: a date where a string is wanted`}},
		{"nested", "[server.listen]\nx = 1",
			[]string{`t.toml:1:9: [server] listen: a table where a string is wanted`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("t.toml", c.file, nil)
			got := problemsOf(t, err)
			wantLines(t, got, c.want...)
		})
	}
}

func TestSyntaxErrorHasAPlace(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{"no value", "[server]\nlisten =\n", "t.toml:2:"},
		{"unterminated", "[server]\nlisten = \"x\n", "t.toml:2:"},
		{"twice", "[log]\nlevel = \"info\"\nlevel = \"warn\"\n", "t.toml:3:"},
		{"bracket", "[server\n", "t.toml:1:"},
		{"end of file", "[server]\nlisten = [", "t.toml:2:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("t.toml", c.file, nil)
			got := problemsOf(t, err)
			if len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
				t.Errorf("problems %q; want one at %s", got, c.want)
			}
		})
	}
}

func TestSetTakesTOMLValuesAndBareWords(t *testing.T) {
	c, err := Load("", []string{
		"server.listen=127.0.0.1:0", `model.name="quoted name"`, "model.aliases=['a', \"b\"]", "limits.max_queued=7",
		"kv.digest=false", "deadlines.queue=2s", "kv.cpu_bytes=1.5GiB", "kv.memory_fraction=0.5", "model.path=smollm2-135m",
		"limits.max_queued=8", "prefill.devices=[\"cpu:0\",\"cpu:1\"]", "restart.budget=100000",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Server.Listen != "127.0.0.1:0" || c.Model.Name != "quoted name" || !slices.Equal(c.Model.Aliases, []string{"a", "b"}) ||
		c.Limits.MaxQueued != 8 || c.KV.Digest || c.Deadlines.Queue.D() != 2*time.Second || c.KV.CPUBytes != 3<<29 ||
		c.KV.MemoryFraction != 0.5 || len(c.Prefill.Devices) != 2 || c.Restart.Budget != 100000 {
		t.Errorf("got %+v", c)
	}
	if o := c.Origin("limits.max_queued").String(); o != "--set" {
		t.Errorf("origin of limits.max_queued: %q", o)
	}
	if o := c.Origin("limits.max_requests").String(); o != "default" {
		t.Errorf("origin of limits.max_requests: %q", o)
	}
}

func TestMistakesInSetNameTheKey(t *testing.T) {
	_, err := Load("", []string{
		"limits.max_request=3", "server.listen", "limit.max_queued=3", "max_queued=3", "limits.max_queued=many", "limits.max_queued=1\nx=2",
		"deadlines.queue=30", `model.name="half`, "prefill.devices=cpu:0", "kv.digest=1", "server.nonsense=1",
	})
	wantLines(t, problemsOf(t, err),
		`--set limits.max_request: unknown key; did you mean "limits.max_requests"?`,
		`--set server.listen: has no value; write --set key=value`,
		`--set limit.max_queued: unknown key; did you mean "limits.max_queued"?`,
		`--set max_queued: unknown key; "max_queued" belongs in [limits]`,
		`--set limits.max_queued: "many" where a whole number is wanted`,
		`--set limits.max_queued: "1\nx=2" where a whole number is wanted`,
		`--set deadlines.queue: 30 has no unit; write "30s"`,
		`--set model.name: "\"half" is not a TOML string`,
		`--set prefill.devices: "cpu:0" where a list of strings, such as ["cpu:0", "cpu:1"] is wanted`,
		`--set kv.digest: 1 where true or false is wanted`,
		`--set server.nonsense: unknown key`,
	)
}

func TestSetOverridesTheFileAndKnowsWhereEachValueCameFrom(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tandem.toml")
	write(t, path, "[server]\nlisten = \":1\"\nstate_dir = \"state\"\n[model]\npath = \"models/x.gguf\"\n[log]\nlevel = \"debug\"\n")
	c, err := Load(path, []string{"log.level=warn"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Server.StateDir != filepath.Join(dir, "state") || c.Model.Path != filepath.Join(dir, "models/x.gguf") {
		t.Errorf("paths %q, %q are not relative to the file's folder %s", c.Server.StateDir, c.Model.Path, dir)
	}
	for key, want := range map[string]string{"server.listen": path + ":2", "log.level": "--set", "log.format": "default"} {
		if got := c.Origin(key).String(); got != want {
			t.Errorf("origin of %s: %q, want %q", key, got, want)
		}
	}
	if c.Log.Level != "warn" {
		t.Errorf("log.level %q; --set did not win", c.Log.Level)
	}
	if c.File() != path {
		t.Errorf("file %q", c.File())
	}
	for _, s := range c.Settings() {
		if s.Where == "" || s.Origin == "" || s.Value == "" {
			t.Errorf("setting %+v is not complete", s)
		}
	}
}

func TestCatalogueNamesAndCredentialsAreNotPaths(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "t.toml")
	write(t, path, "[model]\npath = \"smollm2-135m\"\n[server]\napi_keys_file = \"credential:keys\"\nlisten = \"unix:run/api.sock\"\n")
	c, err := Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Model.Path != "smollm2-135m" || c.Server.APIKeysFile != "credential:keys" || c.Server.Listen != "unix:"+dir+"/run/api.sock" {
		t.Errorf("got %q, %q, %q", c.Model.Path, c.Server.APIKeysFile, c.Server.Listen)
	}
}

func TestMissingFileIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "absent.toml")
	_, err := Load(path, nil)
	wantLines(t, problemsOf(t, err), path+": cannot be read: no such file or directory")
}

func TestOddFilesAreRefusedBeforeTheyAreRead(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big.toml")
	f, err := os.Create(big)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(100 << 20); err != nil { // sparse: takes no disk
		t.Fatal(err)
	}
	f.Close()
	fifo := filepath.Join(dir, "fifo")
	mkfifo(t, fifo)
	for path, want := range map[string]string{
		big:         "has 104857600 bytes; at most 1048576 are allowed",
		dir:         "is a folder, not a file",
		fifo:        "is not a regular file",
		"/dev/zero": "is not a regular file",
	} {
		_, err := Load(path, nil)
		wantLines(t, problemsOf(t, err), path+": "+want)
	}
	if _, err := Load(os.DevNull, nil); err != nil {
		t.Errorf("the null device is an empty file; got %v", err)
	}
}

func TestHostileTextIsRefusedInBoundedTime(t *testing.T) {
	var manyKeys strings.Builder
	manyKeys.WriteString("[server]\n")
	for i := range 60000 {
		fmt.Fprintf(&manyKeys, "k%d = 1\n", i)
	}
	for name, text := range map[string]string{
		"brackets":       "v = " + strings.Repeat("[", 1<<20-10),
		"braces":         "v = " + strings.Repeat("{a=", 1<<18),
		"dotted key":     strings.Repeat("a.", 1<<18) + "a = 1",
		"dotted table":   "[" + strings.Repeat("a.", 1<<18) + "a]",
		"junk":           "\x7fELF\x02\x01\x01\x00\xff\xfe" + strings.Repeat("\x00\x90", 1000),
		"NUL":            "\x00\x00\x00\x00",
		"one long line":  "[server]\nlisten = \"" + strings.Repeat("a", 1<<19) + "\"",
		"many keys":      manyKeys.String(),
		"many tables":    strings.Repeat("[[x]]\n", 1<<17),
		"open string":    "a = \"\"\"" + strings.Repeat("x\n", 1<<18),
		"long list":      "[server]\ncors_origins = [" + strings.Repeat("\"*\",", 1<<17) + "]",
		"too many bytes": strings.Repeat("#", 1<<20+1),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("t.toml", text, nil)
			got := problemsOf(t, err)
			if len(got) > mostProblems+1 {
				t.Errorf("%d lines; want at most %d", len(got), mostProblems+1)
			}
			for _, l := range got {
				if len(l) > 400 || strings.ContainsFunc(l, func(r rune) bool { return r < 0x20 }) {
					t.Errorf("line of %d bytes, or with control characters: %.200q", len(l), l)
				}
			}
		})
	}
}

func TestWhatTOMLWritesLoadsBackTheSame(t *testing.T) {
	a, err := Load("", []string{"model.name=\"it's a \\\"name\\\" – ok\"", "deadlines.request=90m", "kv.cpu_bytes=1000MB", "kv.memory_fraction=0.5"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse("/t.toml", a.TOML(), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, a.TOML())
	}
	if a.Digest() != b.Digest() {
		t.Errorf("digests differ:\n%s\n%s", a.TOML(), b.TOML())
	}
	if a.Digest() == Defaults().Digest() || len(a.Digest()) != 16 {
		t.Errorf("digest %q does not tell this configuration from the defaults", a.Digest())
	}
}

func TestRanksBeyondTheCoresAreAllowedAndWarnedOf(t *testing.T) {
	c, err := Parse("t.toml", "[decode]\ndevices = [\"cpu:0\", \"cpu:2\"]", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Resolve(Machine{Cores: 2}); err != nil {
		t.Fatal(err)
	}
	want := `t.toml:2:1: [decode] devices: "cpu:2": this machine lets us use 2 cores, "cpu:0" to "cpu:1"; ranks beyond share them, which is slow`
	if got := c.Warnings(Machine{Cores: 2}); len(got) != 1 || got[0] != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := c.Warnings(Machine{Cores: 3}); len(got) != 0 {
		t.Errorf("with three cores: %q", got)
	}
}

func TestWarnings(t *testing.T) {
	c, err := Parse("/t.toml", "[server]\nlisten = \"0.0.0.0:1\"\ncors_origins = [\"*\"]\n[kv]\ndigest = false\n[deadlines]\nrequest = \"15s\"\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	got := c.Warnings(Machine{Cores: 2})
	if len(got) != 5 { // listen, cors, digest, and the two deadlines above 15 s
		t.Errorf("warnings %q", got)
	}
	if d := Defaults().Warnings(Machine{Cores: 1}); len(d) != 0 {
		t.Errorf("the defaults warn: %q", d)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestSizesForPeople(t *testing.T) {
	for size, want := range map[Size]string{0: "0B", 1023: "1023B", 1024: "1KiB", 1536 << 10: "1.5MiB", 188 << 20: "188MiB", 15 << 40: "15TiB", 2 << 30: "2GiB", 25<<30 + 300<<20: "25.3GiB", 1000<<20 + 1: "1000MiB"} {
		if got := size.Human(); got != want {
			t.Errorf("%d: %s, want %s", int64(size), got, want)
		}
	}
}

func TestTheSizeThatIsEnoughIsEnough(t *testing.T) {
	for _, size := range []Size{1, 1023, 1025, 188<<20 + 1, 1<<30 - 1, 25<<30 + 7, 15<<40 + 12345} {
		got, err := parseSize(size.Enough())
		if err != nil || got < size || float64(got) > 1.01*float64(size) {
			t.Errorf("%d: %s is %d (%v)", size, size.Enough(), got, err)
		}
	}
}
