package main

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tandem/daemon/observe"
)

// checkout is the folder of the module.
func checkout(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// build builds the program of a checkout as `make build` does, whatever $GOFLAGS
// says.
func build(t *testing.T, checkout, binary string) {
	t.Helper()
	c := exec.Command("go", "build", "-buildvcs=true", "-trimpath", "-o", binary, "./daemon")
	c.Dir = checkout
	c.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
}

// TestBuildSaysWhatItWasBuiltFrom builds the last commit, untouched and changed: a
// binary names its revision and whether it holds something else.
func TestBuildSaysWhatItWasBuiltFrom(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the program twice")
	}
	git := func(dir string, args ...string) string {
		t.Helper()
		out, err := exec.Command("git", append([]string{"-c", "safe.directory=*", "-C", dir}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git: apt-get install git")
	}
	if err := exec.Command("git", "-c", "safe.directory=*", "-C", checkout(t), "rev-parse", "--verify", "HEAD").Run(); err != nil {
		t.Skip("this is no git checkout with a commit: nothing can be stamped")
	}
	t.Setenv("GOFLAGS", "-buildvcs=false") // as on machines where a stamp was once a nuisance

	tree := filepath.Join(t.TempDir(), "tandem")
	git(".", "clone", "--quiet", checkout(t), tree)
	revision := git(tree, "rev-parse", "HEAD")

	stamp := func(binary string) (observe.BuildInfo, string) {
		t.Helper()
		bi, err := buildinfo.ReadFile(binary)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range bi.Settings {
			if s.Key == "vcs.revision" && s.Value == revision {
				out, err := exec.Command(binary, "version", "--json").Output()
				if err != nil {
					t.Fatal(err)
				}
				var b observe.BuildInfo
				if err := json.Unmarshal(out, &b); err != nil {
					t.Fatal(err)
				}
				line, err := exec.Command(binary, "version").Output()
				if err != nil {
					t.Fatal(err)
				}
				return b, string(line)
			}
		}
		t.Fatalf("the binary is not stamped with vcs.revision=%s: %v", revision, bi.Settings)
		panic("not reached")
	}

	clean := filepath.Join(t.TempDir(), "tandem")
	build(t, tree, clean)
	if b, line := stamp(clean); b.Dirty || b.Revision != revision || strings.Contains(line, "DIRTY") || !strings.Contains(line, revision[:12]) {
		t.Errorf("a clean build says %s%+v", line, b)
	}

	f, err := os.OpenFile(filepath.Join(tree, "daemon", "main.go"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("\n// changed\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	dirty := filepath.Join(t.TempDir(), "tandem")
	build(t, tree, dirty)
	if b, line := stamp(dirty); !b.Dirty || b.Revision != revision || !strings.Contains(line, "DIRTY") {
		t.Errorf("a build of a changed tree says %s%+v", line, b)
	}
}
