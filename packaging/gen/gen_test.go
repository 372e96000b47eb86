package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"tandem/daemon/cli"
	"tandem/daemon/config"
	"tandem/daemon/observe"
)

var day = time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)

// TestShippedCatalogIsTheCodes compares the catalogue that packages install with the
// table of events. UPDATE=1 writes it anew.
func TestShippedCatalogIsTheCodes(t *testing.T) {
	const path = "../catalog/tandem.catalog"
	if os.Getenv("UPDATE") != "" {
		if err := run([]string{"catalog", path}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(observe.Catalog(), string(got)); diff != "" {
		t.Errorf("%s is not what the events say; run this test with UPDATE=1 (-events, +file):\n%s", path, diff)
	}
}

func TestEveryCommandIsOnThePage(t *testing.T) {
	page := string(programPage(cli.Command(), day))
	n := 0
	each(cli.Command(), func(c *cobra.Command) {
		n++
		if !strings.Contains(page, text(strings.TrimPrefix(c.CommandPath(), "tandem "))) {
			t.Errorf("%q is not on the page", c.CommandPath())
		}
	})
	if n < 10 {
		t.Errorf("only %d commands were looked for", n)
	}
}

func TestEveryKeyIsOnThePage(t *testing.T) {
	page := string(configPage(day))
	if len(config.Keys()) < 20 {
		t.Fatalf("only %d keys to look for", len(config.Keys()))
	}
	for _, k := range config.Keys() {
		if !strings.Contains(page, `\fB`+text(k.Leaf)+`\fR`) || !strings.Contains(page, text("Default: "+k.Default)) {
			t.Errorf("%s is not on the page", k.Name)
		}
	}
}

// TestPagesAreTakenLiterally: nothing in a text may act as a macro or an escape.
func TestPagesAreTakenLiterally(t *testing.T) {
	r := newPage("x", 1, "y", day)
	r.paragraphs(".de is a line\n'so is this\nC:\\nul `a-b` -c")
	want := `\&.de is a line
\(aqso is this
C:\enul \fBa\-b\fR \-c
`
	if got := string(r.bytes()); !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s\nwant it to end in\n%s", got, want)
	}
}

func TestPagesPassTheLinter(t *testing.T) {
	mandoc, err := exec.LookPath("mandoc")
	if err != nil {
		t.Skip("no mandoc: apt-get install mandoc")
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1795910400")
	dir := t.TempDir()
	if err := run([]string{"man", dir}); err != nil {
		t.Fatal(err)
	}
	pages, _ := filepath.Glob(dir + "/*")
	if len(pages) != 2 {
		t.Fatalf("pages: %v", pages)
	}
	if out, err := exec.Command(mandoc, append([]string{"-T", "lint", "-W", "warning"}, pages...)...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestSameRevisionSameFiles: what is generated depends on the code and the given
// date alone.
func TestSameRevisionSameFiles(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1795910400")
	for _, what := range []string{"man", "completions"} {
		a, b := t.TempDir(), t.TempDir()
		for _, dir := range []string{a, b} {
			if err := run([]string{what, dir}); err != nil {
				t.Fatal(err)
			}
		}
		files, _ := os.ReadDir(a)
		if len(files) == 0 {
			t.Errorf("%s: nothing was written", what)
		}
		for _, f := range files {
			x, _ := os.ReadFile(filepath.Join(a, f.Name()))
			y, _ := os.ReadFile(filepath.Join(b, f.Name()))
			if len(x) == 0 || !bytes.Equal(x, y) {
				t.Errorf("%s: %d and %d bytes, not the same", f.Name(), len(x), len(y))
			}
		}
	}
}

// TestCompletionScriptsParse lets the shells that are there read them.
func TestCompletionScriptsParse(t *testing.T) {
	dir := t.TempDir()
	if err := run([]string{"completions", dir}); err != nil {
		t.Fatal(err)
	}
	read := 0
	for shell, file := range map[string]string{"bash": "tandem", "zsh": "_tandem", "fish": "tandem.fish"} {
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		read++
		if out, err := exec.Command(path, "-n", filepath.Join(dir, file)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
	if read == 0 {
		t.Skip("none of bash, zsh and fish is here")
	}
}

func TestWrongUsageIsSaid(t *testing.T) {
	for _, args := range [][]string{nil, {"man"}, {"moon", t.TempDir()}, {"man", "a", "b"}} {
		if err := run(args); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if err := run([]string{"man", t.TempDir()}); err == nil || !strings.Contains(err.Error(), "yesterday") {
		t.Errorf("a bad date: %v", err)
	}
}
