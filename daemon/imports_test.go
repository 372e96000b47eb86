package main

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// allowed says which of our packages each of our packages may import, beyond the
// rule that layers are imported downwards only: daemon, model, kernels, gpu. A
// package that is not here is new: give it a line, and a sentence in
// ARCHITECTURE.md.
var allowed = map[string]string{
	"gpu/hostmem":  "",
	"gpu/hostsync": "",
	"gpu/pagepool": "",
	"gpu/share":    "",

	"gpu/driver":            "",
	"gpu/driver/nvidia":     "gpu/driver",
	"gpu/driver/gorgonia":   "gpu/driver gpu/driver/nvidia",
	"gpu/driver/drivertest": "gpu/driver",
	"gpu/sim":               "",
	"gpu/nvml":              "",
	"gpu/nvml/gonvml":       "gpu/nvml",
	"gpu/nvml/nvmltest":     "gpu/nvml",

	"kernels":               "",
	"kernels/half":          "",
	"kernels/quant":         "kernels kernels/half",
	"kernels/ref":           "kernels kernels/half kernels/quant",
	"kernels/kerneltest":    "kernels kernels/half kernels/quant kernels/ref",
	"kernels/cpu":           "kernels kernels/half kernels/quant gpu/hostmem gpu/hostsync",
	"kernels/cpu/roof":      "",
	"kernels/cuda":          "kernels kernels/quant gpu/driver",
	"kernels/cuda/cudatest": "gpu/driver gpu/driver/nvidia gpu/sim",

	"model":                    "kernels",
	"model/token":              "",
	"model/chat":               "model/chat/jinja model/token",
	"model/chat/jinja":         "",
	"model/sample":             "",
	"model/weights":            "kernels kernels/quant kernels/half",
	"model/weights/weighttest": "kernels kernels/quant kernels/half",
	"model/llama":              "kernels model model/weights",
	"model/family":             "kernels model model/llama model/weights",
	"model/catalog":            "",
	"model/modeltest":          "",
	"model/golden":             "model/modeltest model/token model/weights",

	// Pure: no clock, lock, I/O or goroutine.
	"daemon/ident":    "",
	"daemon/fault":    "",
	"daemon/admit":    "",
	"daemon/batch":    "",
	"daemon/transfer": "",
	"daemon/request":  "daemon/fault daemon/ident model/sample",

	"daemon/config":      "",
	"daemon/observe":     "daemon/fault daemon/ident",
	"daemon/wire":        "daemon/fault daemon/ident gpu/pagepool model/sample",
	"daemon/spawn":       "daemon/ident daemon/transfer daemon/wire gpu/hostsync",
	"daemon/supervise":   "",
	"daemon/core":        "daemon/admit daemon/fault daemon/ident daemon/observe daemon/request daemon/supervise daemon/transfer daemon/wire gpu/pagepool model",
	"daemon/generation":  "daemon/core daemon/ident daemon/spawn daemon/transfer daemon/wire gpu/hostmem gpu/share model",
	"daemon/control":     "daemon/core daemon/fault daemon/generation daemon/ident daemon/observe daemon/request daemon/wire",
	"daemon/worker":      "daemon/batch daemon/fault daemon/ident daemon/request daemon/spawn daemon/transfer daemon/wire gpu/hostmem gpu/hostsync gpu/pagepool gpu/share kernels model model/family model/sample model/weights",
	"daemon/api":         "daemon/api/jsonin daemon/api/jsonout daemon/fault daemon/ident daemon/request model/chat model/sample model/token",
	"daemon/api/jsonin":  "",
	"daemon/api/jsonout": "",
	"daemon/statetest":   "",
	"daemon/api/apitest": "daemon/api daemon/fault daemon/ident daemon/request",
	"daemon/admin":       "daemon/control daemon/core daemon/fault daemon/ident daemon/observe",
	"daemon/cli":         "daemon/admin daemon/config daemon/core daemon/observe model model/catalog model/family model/weights",

	// The program: the only place that names concrete backends.
	"daemon":        "*",
	"packaging/gen": "daemon/cli daemon/config daemon/observe",
	"scripts/bench": "kernels/cpu/roof model/family",
	"scripts/sim":   "gpu/sim",
}

// pure packages may not import what would make their decisions depend on anything
// but their arguments.
var pure = strings.Fields("daemon/admit daemon/batch daemon/transfer daemon/request daemon/supervise daemon/core gpu/pagepool")

var impure = strings.Fields("os net sync sync/atomic io context log log/slog math/rand math/rand/v2 crypto/rand runtime unsafe syscall")

func TestImportsPointDownwards(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,GoFiles,CgoFiles", "tandem/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	seen := map[string]bool{}
	for {
		var p struct {
			ImportPath                 string
			Imports, GoFiles, CgoFiles []string
		}
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(p.ImportPath, "tandem/")
		if len(p.GoFiles)+len(p.CgoFiles) == 0 {
			continue // test files only
		}
		seen[name] = true
		rule, known := allowed[name]
		if !known {
			t.Errorf("package %s has no line in this table", name)
			continue
		}
		may := map[string]bool{}
		for _, f := range strings.Fields(rule) {
			may[f] = true
		}
		for _, i := range p.Imports {
			if ours, ok := strings.CutPrefix(i, "tandem/"); ok && !may[ours] && rule != "*" {
				t.Errorf("%s imports %s", name, ours)
			}
		}
		for _, q := range pure {
			if q != name {
				continue
			}
			for _, i := range p.Imports {
				for _, bad := range impure {
					if i == bad {
						t.Errorf("%s is pure and imports %s", name, i)
					}
				}
			}
		}
	}
	for name := range allowed {
		if !seen[name] {
			if _, err := os.Stat("../" + name); err != nil {
				t.Logf("the table has %s, which does not exist", name)
			}
		}
	}
	layers := map[string]int{"gpu": 0, "kernels": 1, "model": 2, "daemon": 3, "packaging": 4, "scripts": 4}
	for name, rule := range allowed {
		top, _, _ := strings.Cut(name, "/")
		for _, f := range strings.Fields(rule) {
			if f == "*" {
				continue
			}
			low, _, _ := strings.Cut(f, "/")
			if layers[low] > layers[top] {
				t.Errorf("the table lets %s import %s, which lies above it", name, f)
			}
		}
	}
}

// The project's documents do not forget a package.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	text, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range allowed {
		if !strings.Contains(string(text), name) {
			t.Errorf("ARCHITECTURE.md does not mention %s", name)
		}
	}
}
