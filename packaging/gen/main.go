// Command gen writes what a package ships besides the binary and is made from
// the code: the man pages, the completions of shells and the journal's catalogue.
// It runs when the package is built; the daemon does not contain it.
//
//	gen man DIR            tandem.8 and tandem.toml.5
//	gen completions DIR    for bash, zsh and fish
//	gen catalog FILE       packaging/catalog/tandem.catalog
//
// The date on the pages is $SOURCE_DATE_EPOCH, so that two builds of one revision
// are the same.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"tandem/daemon/cli"
	"tandem/daemon/observe"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: gen man DIR | completions DIR | catalog FILE")
	}
	switch what, where := args[0], args[1]; what {
	case "man":
		date, err := pageDate()
		if err != nil {
			return err
		}
		return write(where, map[string][]byte{"tandem.8": programPage(cli.Command(), date), "tandem.toml.5": configPage(date)})
	case "completions":
		files, err := completions()
		if err != nil {
			return err
		}
		return write(where, files)
	case "catalog":
		return write(filepath.Dir(where), map[string][]byte{filepath.Base(where): []byte(observe.Catalog())})
	default:
		return fmt.Errorf("%q is none of man, completions and catalog", what)
	}
}

// pageDate is the date that the pages bear.
func pageDate() (time.Time, error) {
	s := os.Getenv("SOURCE_DATE_EPOCH")
	if s == "" {
		return time.Now().UTC(), nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("$SOURCE_DATE_EPOCH is %q, not seconds since 1970", s)
	}
	return time.Unix(n, 0).UTC(), nil
}

// completions are the scripts of the shells, under the names these look for.
func completions() (map[string][]byte, error) {
	root := cli.Command()
	var bash, zsh, fish bytes.Buffer
	if err := root.GenBashCompletionV2(&bash, true); err != nil {
		return nil, err
	}
	if err := root.GenZshCompletion(&zsh); err != nil {
		return nil, err
	}
	if err := root.GenFishCompletion(&fish, true); err != nil {
		return nil, err
	}
	return map[string][]byte{"tandem": bash.Bytes(), "_tandem": zsh.Bytes(), "tandem.fish": fish.Bytes()}, nil
}

func write(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}
