package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestDefaultsSpanTheCores(t *testing.T) {
	for _, c := range []struct {
		cores   int
		devices []string
	}{
		{0, []string{"cpu:0"}},
		{1, []string{"cpu:0"}},
		{2, []string{"cpu:0", "cpu:1"}},
		{3, []string{"cpu:0", "cpu:1", "cpu:2"}},
		{64, []string{"cpu:0", "cpu:1", "cpu:2", "cpu:3"}},
	} {
		d := Defaults()
		r, err := d.Resolve(Machine{Cores: c.cores})
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range [][]string{r.Prefill.Devices, r.Decode.Devices} {
			if !slices.Equal(got, c.devices) {
				t.Errorf("%d cores: devices %v, want %v", c.cores, got, c.devices)
			}
		}
		if n := len(c.devices); r.Prefill.TensorParallel != n || r.Decode.TensorParallel != n {
			t.Errorf("%d cores: degrees %d and %d, want %d", c.cores, r.Prefill.TensorParallel, r.Decode.TensorParallel, n)
		}
		if r.Backend.Kind != "cpu" || r.KV.Transport != "handover" || r.KV.CPUBytes != 2<<30 {
			t.Errorf("%d cores: %+v %+v", c.cores, r.Backend, r.KV)
		}
		if got := r.Origin("decode.devices").String(); got != "this machine" {
			t.Errorf("origin %q", got)
		}
		if len(d.Prefill.Devices) != 0 || d.KV.CPUBytes != Auto {
			t.Error("Resolve changed its receiver")
		}
	}
}

func TestResolveKeepsWhatTheUserSaid(t *testing.T) {
	for _, c := range []struct {
		name    string
		sets    []string
		cores   int
		prefill string
		degree  int
	}{
		{"degree divides the default", []string{"prefill.tensor_parallel=1"}, 2, "cpu:0 cpu:1", 1},
		{"degree trims the default", []string{"prefill.tensor_parallel=3"}, 8, "cpu:0 cpu:1 cpu:2", 3},
		{"degree above the cap", []string{"prefill.tensor_parallel=6"}, 8, "cpu:0 cpu:1 cpu:2 cpu:3 cpu:4 cpu:5", 6},
		{"unpinned ranks outnumber cores", []string{`prefill.devices=["cpu","cpu","cpu"]`}, 2, "cpu cpu cpu", 3},
		{"replicas", []string{`prefill.devices=["cpu:0","cpu:1"]`, "prefill.tensor_parallel=1"}, 2, "cpu:0 cpu:1", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := Load("", c.sets)
			if err != nil {
				t.Fatal(err)
			}
			r, err := cfg.Resolve(Machine{Cores: c.cores})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(r.Prefill.Devices, " "); got != c.prefill || r.Prefill.TensorParallel != c.degree {
				t.Errorf("devices %q, degree %d; want %q, %d", got, r.Prefill.TensorParallel, c.prefill, c.degree)
			}
			if _, err := Parse("/t.toml", r.TOML(), nil); err != nil {
				t.Errorf("the resolved configuration does not load: %v", err)
			}
		})
	}
}

func TestResolveRefusesWhatTheMachineLacks(t *testing.T) {
	for _, c := range []struct {
		name, file, want string
	}{
		{"cuda", "[backend]\nkind = \"cuda\"", `t.toml:2:1: [backend] kind: the CUDA backend is not in this build; use the CPU`},
		{"cards", "[prefill]\ndevices = [\"cuda:0\"]\n[decode]\ndevices = [\"cuda:1\"]", `t.toml:2:1: [prefill] devices: the CUDA backend is not in this build; use the CPU`},
		{"degree", "[decode]\ntensor_parallel = 3", `t.toml:2:1: [decode] tensor_parallel: 3 ranks do not fit the 2 cores of this machine; name the devices in [decode] if it is meant`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := Parse("t.toml", c.file, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = cfg.Resolve(Machine{Cores: 2})
			wantLines(t, problemsOf(t, err), c.want)
		})
	}
}

func TestKVMemoryFollowsTheMachine(t *testing.T) {
	for memory, want := range map[Size]Size{0: 2 << 30, 1 << 30: 256 << 20, 64 << 30: 2 << 30, 1000: 1 << 20} {
		r, err := Defaults().Resolve(Machine{Cores: 1, Memory: memory})
		if err != nil || r.KV.CPUBytes != want {
			t.Errorf("memory %v: KV %v, %v; want %v", memory, r.KV.CPUBytes, err, want)
		}
	}
	cfg, err := Load("", []string{"kv.cpu_bytes=64MiB"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := cfg.Resolve(Machine{Cores: 1, Memory: 1 << 20}); err != nil || r.KV.CPUBytes != 64<<20 {
		t.Errorf("KV %v, %v; the user said 64MiB", r.KV.CPUBytes, err)
	}
}

func TestControlGroupLimitIsTheSmallestOnTheWayUp(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "cg")
	if err := os.MkdirAll(filepath.Join(root, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "self"), "12:cpu:/x\n0::/a/b\n")
	write(t, filepath.Join(root, "a/b/memory.max"), "max\n")
	write(t, filepath.Join(root, "a/memory.max"), "1048576\n")
	if got := cgroupLimit(filepath.Join(dir, "self"), root); got != 1<<20 {
		t.Errorf("limit %v", got)
	}
	write(t, filepath.Join(dir, "meminfo"), "MemFree: 3 kB\nMemTotal:       2048 kB\n")
	if got := memTotal(filepath.Join(dir, "meminfo")); got != 2<<20 {
		t.Errorf("memory %v", got)
	}
	if m := ThisMachine(); m.Cores < 1 || m.Memory <= 0 {
		t.Errorf("this machine: %+v", m)
	}
}

func env(pairs ...string) Env {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(k string) string { return m[k] }
}

func TestFolders(t *testing.T) {
	plain := Defaults()
	set, err := Load("", []string{"server.state_dir=/s", "admin.socket=/a.sock"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name          string
		c             *Config
		env           Env
		state, models string
		sockets       []string
	}{
		{"user", plain, env("HOME", "/h"), "/h/.local/state/tandem", "/h/.local/share/tandem/models",
			[]string{"/h/.local/state/tandem/admin.sock", "/run/tandem/admin.sock"}},
		{"user with XDG", plain, env("HOME", "/h", "XDG_STATE_HOME", "/xs", "XDG_DATA_HOME", "/xd", "XDG_RUNTIME_DIR", "/xr"), "/xs/tandem", "/xd/tandem/models",
			[]string{"/xr/tandem/admin.sock", "/xs/tandem/admin.sock", "/run/tandem/admin.sock"}},
		{"service", plain, env("STATE_DIRECTORY", "/var/lib/tandem:/other", "RUNTIME_DIRECTORY", "/run/tandem", "HOME", "/h"), "/var/lib/tandem", "/var/lib/tandem/models",
			[]string{"/run/tandem/admin.sock", "/var/lib/tandem/admin.sock"}},
		{"relative folders count as not set", plain, env("HOME", "/h", "XDG_STATE_HOME", "xs", "STATE_DIRECTORY", "x", "XDG_RUNTIME_DIR", "r"), "/h/.local/state/tandem", "/h/.local/share/tandem/models",
			[]string{"/h/.local/state/tandem/admin.sock", "/run/tandem/admin.sock"}},
		{"config", set, env("HOME", "/h"), "/s", "/h/.local/share/tandem/models", []string{"/a.sock"}},
		{"path too long for a socket", plain, env("HOME", "/"+strings.Repeat("h", 100)), "/" + strings.Repeat("h", 100) + "/.local/state/tandem",
			"/" + strings.Repeat("h", 100) + "/.local/share/tandem/models", []string{"/run/tandem/admin.sock"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			state, err := c.c.StateDir(c.env)
			if err != nil || state != c.state {
				t.Errorf("state %q, %v; want %q", state, err, c.state)
			}
			models, err := ModelsDirs(c.env)
			if err != nil || models[0] != c.models || models[len(models)-1] != "/var/lib/tandem/models" {
				t.Errorf("models %q, %v; want %q", models, err, c.models)
			}
			if got := c.c.AdminSockets(c.env); !slices.Equal(got, c.sockets) {
				t.Errorf("sockets %q, want %q", got, c.sockets)
			}
		})
	}
	if _, err := plain.StateDir(env()); err == nil {
		t.Error("no home: want an error")
	}
	if _, err := ModelsDirs(env()); err == nil {
		t.Error("no home: want an error")
	}
}

func TestAPIKeys(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "keys")
	if err := os.WriteFile(path, []byte("# agents\nsk-first-key\n\n  second-key-9  \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]Env{path: env(), "credential:keys": env("CREDENTIALS_DIRECTORY", dir)} {
		k, err := ReadAPIKeys(name, e)
		if err != nil {
			t.Fatal(err)
		}
		if k.Len() != 2 || !k.Allow("sk-first-key") || !k.Allow("second-key-9") || k.Allow("# agents") || k.Allow("") || k.Allow("sk-first-ke") || k.Exposed() {
			t.Errorf("%s: %v", name, k)
		}
		if got := fmt.Sprintf("%v %+v %s", k, k, k.List()); !strings.HasPrefix(got, "2 API keys 2 API keys [sk-first-key") {
			t.Errorf("%s: %s", name, got)
		}
	}
	if k, err := ReadAPIKeys("", env()); err != nil || k != nil || !k.Allow("anything") || k.Len() != 0 {
		t.Errorf("no file: %v, %v; want that all is allowed", k, err)
	}
	for text, want := range map[string]string{
		"short\n":                                "keys:1: a key of 5 characters; keys have 8 to 256",
		"# only\n":                               "keys: it holds no key",
		"abcdefgh two\n":                         "keys:1: a key may hold visible ASCII",
		"\n" + strings.Repeat("x", 300):          "keys:2: a key of 300 characters",
		strings.Repeat("abcdefgh\n", 1001):       "keys:1001: more than 1000 keys",
		strings.Repeat("#", 64<<10+1):            "at most 65536 are allowed",
		"äöüäöüäöü\n":                            "visible ASCII",
		"\x00\x01\x02\x03\x04\x05\x06\x07\x08\n": "visible ASCII",
	} {
		write(t, path, text)
		if _, err := ReadAPIKeys(path, env()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: error %v; want %q in it", text, err, want)
		}
	}
	if _, err := ReadAPIKeys("credential:keys", env()); err == nil || !strings.Contains(err.Error(), "LoadCredential=keys:/etc/tandem/keys") {
		t.Errorf("without $CREDENTIALS_DIRECTORY: %v", err)
	}
	if _, err := ReadAPIKeys(filepath.Join(dir, "absent"), env()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
}

func TestUnits(t *testing.T) {
	for text, want := range map[string]Size{"24GiB": 24 << 30, "512 MiB": 512 << 20, "1.5GB": 1.5e9, "0B": 0, "100kB": 1e5, "auto": Auto} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "12", "GiB", "-1GiB", "1e3MiB", "NaNGiB", "InfB", "99999999999TiB", "1.5.5MiB", "1gib", "0x1MiB", "9e99MiB", "99999999999.5TiB"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q is read as %d", text, got)
		}
	}
	for text, want := range map[string]string{"30s": "30s", "90m": "1h30m", "60m": "1h", "1h0m30s": "1h0m30s", "250ms": "250ms", "0s": "0s", "10m": "10m"} {
		if got, err := parseDuration(text); err != nil || got.String() != want {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "30", "1d", "-1s", "s", "1 s", "1e9"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}
