package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// HANDOFF.md says which test has which failure. Each row has a test or a reason, and
// each test exists.
func TestHandoffTableIsTrue(t *testing.T) {
	text, err := os.ReadFile("HANDOFF.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{} // of a package's tests
	exists := func(pkg, name string) bool {
		if _, read := sources[pkg]; !read {
			files, _ := filepath.Glob(filepath.Join("..", pkg, "*_test.go"))
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				sources[pkg] += string(b)
			}
		}
		return strings.Contains(sources[pkg], "\nfunc "+name+"(")
	}
	named := regexp.MustCompile(`([a-z/]+)\.((?:Test|Fuzz)\w+)`)
	rows := map[string]bool{}
	for l := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(l), "|")
		if len(cells) != 7 || !regexp.MustCompile(`^ \d+ $`).MatchString(cells[1]) {
			continue
		}
		n := strings.TrimSpace(cells[1])
		if rows[n] {
			t.Errorf("row %s is there twice", n)
		}
		rows[n] = true
		tests := named.FindAllStringSubmatch(cells[4], -1)
		if len(tests) == 0 && !strings.Contains(cells[4], "needs GPUs: ") {
			t.Errorf("row %s has no test", n)
		}
		for _, m := range tests {
			if !exists(m[1], m[2]) {
				t.Errorf("row %s: there is no %s in %s", n, m[2], m[1])
			}
		}
	}
	for _, n := range strings.Fields("1 3 4 5 7 8 9 11 12 13 15 16 17 19 20 21 23 24 25 27 28 29 31 32 33 35 36 37 39 40 41 43 44 45 47 48 49 51 52 53 55 56 57 59 60 61 63 64 65 67 68") {
		if !rows[n] {
			t.Errorf("row %s is missing", n)
		}
	}
}

// What decides is told the time, and never asks for it: no limit depends on a clock on
// the wall, or on a worker's.
func TestPurePackagesReadNoClock(t *testing.T) {
	clock := regexp.MustCompile(`\btime\.(Now|Since|Until|After|AfterFunc|NewTimer|NewTicker|Tick|Sleep)\b`)
	for _, pkg := range pure {
		files, err := filepath.Glob(filepath.Join("..", pkg, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pkg, err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if at := clock.FindString(string(b)); at != "" {
				t.Errorf("%s uses %s", f, at)
			}
		}
	}
}
