package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// Load reads the file at path, applies overrides of the form "key=value" and
// checks the result. An empty path means defaults; a path that is given must
// exist. Values in sets are TOML values, and a bare word is a string; a later
// one wins. Relative paths in the file are relative to its folder, those in
// sets to the working directory; all paths in the result are absolute.
//
// The error is an *Error with everything that is wrong.
func Load(path string, sets []string) (*Config, error) {
	l := newLoading()
	if path != "" {
		if abs, err := filepath.Abs(path); err == nil {
			l.c.file = abs
		}
		l.shown = path
		text, err := readFile(path)
		if err != nil {
			return nil, &Error{Problems: []Problem{{File: path, Message: err.Error()}}}
		}
		l.read(text)
	}
	for _, s := range sets {
		l.override(s)
	}
	return l.finish()
}

// Parse is Load for text that is not in a file; name stands for the file in
// messages and its folder for the place of relative paths.
func Parse(name, text string, sets []string) (*Config, error) {
	l := newLoading()
	l.c.file, l.shown = name, name
	if int64(len(text)) > maxFileBytes {
		return nil, &Error{Problems: []Problem{{File: name, Message: fmt.Sprintf("has more than %d bytes", maxFileBytes)}}}
	}
	l.read(text)
	for _, s := range sets {
		l.override(s)
	}
	return l.finish()
}

// Defaults is the configuration that nobody changed.
func Defaults() *Config { return newLoading().c }

// loading is a configuration in the making.
type loading struct {
	c        *Config
	shown    string // the file as the user named it
	problems []Problem
	places   int             // positions looked up so far
	bad      map[string]bool // keys that have a problem already
}

func newLoading() *loading {
	l := &loading{c: &Config{origins: map[string]Origin{}}, bad: map[string]bool{}}
	for _, k := range keys.keys {
		v, err := k.fromWord(k.Default)
		if err != nil {
			panic("config: default of " + k.Name + ": " + err.Error())
		}
		k.set(l.c, v)
	}
	return l
}

// read takes over the values of a file's text.
func (l *loading) read(text string) {
	doc, problem := parseDocument(text)
	if problem != nil {
		problem.File = l.shown
		l.problems = append(l.problems, *problem)
		return
	}
	for _, name := range sortedKeys(doc.root) {
		v := doc.root[name]
		table, isTable := doc.table(v)
		known := slices.ContainsFunc(keys.sections, func(s section) bool { return s.name == name })
		switch {
		case !known && !isTable:
			l.unknown(doc, "", name, v, placeOfLeaf(name))
		case !known:
			l.unknown(doc, "", name, v, suggestSection(name))
		case !isTable:
			l.wrong(doc, name, "", v, fmt.Sprintf("%s where a table is wanted: write [%s] on a line of its own, its keys below", describe(doc.value(v)), name))
		default:
			l.readSection(doc, name, table)
		}
	}
}

func (l *loading) readSection(doc *document, name string, table map[string]toml.Primitive) {
	for _, leaf := range sortedKeys(table) {
		v := table[leaf]
		k := keys.byName[name+"."+leaf]
		if k == nil {
			l.unknown(doc, name, leaf, v, suggestLeaf(name, leaf))
			continue
		}
		line := doc.place(v).Line
		l.places++
		if err := l.accept(k, doc.value(v), Origin{File: l.shown, Line: line}); err != nil {
			l.wrong(doc, name, leaf, v, err.Error())
		}
	}
}

// accept stores a value of the file or of --set.
func (l *loading) accept(k *Key, raw any, o Origin) error {
	v, err := k.fromTOML(raw)
	if err == nil {
		err = k.allowed(v)
	}
	if err != nil {
		l.bad[k.Name] = true
		return err
	}
	k.set(l.c, v)
	l.c.origins[k.Name] = o
	return nil
}

// unknown reports a key that does not exist.
func (l *loading) unknown(doc *document, sectionName, leaf string, v toml.Primitive, hint string) {
	what := "unknown key"
	if _, isTable := doc.table(v); isTable && sectionName == "" {
		what = "unknown table"
	}
	p := Problem{File: l.shown, Section: sectionName, Key: clip(leaf), Message: what + hint}
	if l.places < maxPlaces {
		l.places++
		p.Line, p.Col = doc.keyPlace(leaf, doc.place(v))
	}
	l.problems = append(l.problems, p)
}

// wrong reports a value that its key cannot take.
func (l *loading) wrong(doc *document, sectionName, leaf string, v toml.Primitive, msg string) {
	p := Problem{File: l.shown, Section: sectionName, Key: leaf, Message: msg}
	switch doc.value(v).(type) {
	case map[string]any, []map[string]any:
		p.Line, p.Col = doc.keyPlace(cmp.Or(leaf, sectionName), doc.place(v))
	default:
		p.Line, p.Col = doc.valuePlace(doc.place(v))
	}
	l.problems = append(l.problems, p)
}

// override applies one --set.
func (l *loading) override(set string) {
	fail := func(name, msg string) {
		sec, leaf, ok := strings.Cut(name, ".")
		if !ok {
			sec, leaf = "", name
		}
		l.problems = append(l.problems, Problem{Set: true, Section: clip(sec), Key: clip(leaf), Message: msg})
	}
	name, text, ok := strings.Cut(set, "=")
	name = strings.TrimSpace(name)
	if !ok {
		fail(name, "has no value; write --set key=value")
		return
	}
	k := keys.byName[name]
	if k == nil {
		fail(name, "unknown key"+suggestName(name))
		return
	}
	v, err := k.fromWord(strings.TrimSpace(text))
	if err == nil {
		err = k.allowed(v)
	}
	if err != nil {
		l.bad[k.Name] = true
		fail(name, err.Error())
		return
	}
	k.set(l.c, v)
	l.c.origins[k.Name] = Origin{Set: true}
}

// finish checks what tags cannot say, makes paths absolute and hands the value out.
func (l *loading) finish() (*Config, error) {
	l.c.absolutePaths()
	check(l.c, func(key, msg string) {
		if !l.bad[key] {
			l.problems = append(l.problems, l.c.problem(key, msg))
		}
	})
	if err := asError(l.problems); err != nil {
		return nil, err
	}
	return l.c, nil
}

// problem places a message at the key that caused it.
func (c *Config) problem(key, msg string) Problem {
	k, o := keys.byName[key], c.origins[key]
	p := Problem{Section: k.Section, Key: k.Leaf, Message: msg, Set: o.Set, File: o.File, Line: o.Line}
	if p.File != "" {
		p.Col = 1
	}
	return p
}

// Origin says where the effective value of a key came from.
func (c *Config) Origin(key string) Origin { return c.origins[key] }

// Setting is one effective value, for `tandem config show`.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"` // as TOML
	Origin string `json:"origin"`
	Unit   string `json:"unit,omitempty"`
	Where  string `json:"enforced"`
}

// Settings lists every effective value in the order of the example file.
func (c *Config) Settings() []Setting {
	out := make([]Setting, len(keys.keys))
	for i, k := range keys.keys {
		out[i] = Setting{Key: k.Name, Value: render(k.value(c)), Origin: c.origins[k.Name].String(), Unit: k.Unit, Where: k.Where}
	}
	return out
}

// TOML writes every effective value as a file that Load reads back to the same values.
func (c *Config) TOML() string {
	var b strings.Builder
	for i, s := range keys.sections {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "[%s]\n", s.name)
		for _, k := range keys.keys {
			if k.Section == s.name {
				fmt.Fprintf(&b, "%s = %s\n", k.Leaf, render(k.value(c)))
			}
		}
	}
	return b.String()
}

// Digest names the effective values: two processes with the same digest have
// the same settings. It is 16 hexadecimal digits of a SHA-256.
func (c *Config) Digest() string {
	sum := sha256.Sum256([]byte(c.TOML()))
	return hex.EncodeToString(sum[:8])
}

// clone copies c with its own lists and origins.
func (c *Config) clone() *Config {
	d := *c
	d.origins = make(map[string]Origin, len(c.origins))
	for k, v := range c.origins {
		d.origins[k] = v
	}
	for _, k := range keys.keys {
		if k.kind == typeStrings {
			k.set(&d, slices.Clone(k.value(c).([]string)))
		}
	}
	return &d
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// suggestLeaf says what an unknown key of a table may have meant.
func suggestLeaf(sectionName, leaf string) string {
	var siblings []string
	for _, k := range keys.keys {
		if k.Section == sectionName {
			siblings = append(siblings, k.Leaf)
		}
	}
	for _, s := range siblings {
		if strings.EqualFold(s, leaf) {
			return fmt.Sprintf("; did you mean %q? keys are in lower case", s)
		}
	}
	if near := nearest(leaf, siblings); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return placeOfLeaf(leaf)
}

// placeOfLeaf says in which table a key belongs that stands in a wrong one.
func placeOfLeaf(leaf string) string {
	var all, homes []string
	for _, k := range keys.keys {
		all = append(all, k.Leaf)
	}
	name := leaf
	if !slices.Contains(all, leaf) {
		if name = nearest(leaf, all); name == "" {
			return ""
		}
	}
	for _, k := range keys.keys {
		if k.Leaf == name {
			homes = append(homes, "["+k.Section+"]")
		}
	}
	if name == leaf {
		return fmt.Sprintf("; %q belongs in %s", name, strings.Join(homes, " or "))
	}
	return fmt.Sprintf("; did you mean %q in %s?", name, strings.Join(homes, " or "))
}

func suggestSection(name string) string {
	var names []string
	for _, s := range keys.sections {
		names = append(names, s.name)
	}
	if near := nearest(name, names); near != "" {
		return fmt.Sprintf("; did you mean [%s]?", near)
	}
	return ""
}

// suggestName is for --set, which names section and key together.
func suggestName(name string) string {
	sec, leaf, ok := strings.Cut(name, ".")
	if !ok {
		return placeOfLeaf(name)
	}
	if keys.hasSection(sec) {
		var siblings []string
		for _, k := range keys.keys {
			if k.Section == sec {
				siblings = append(siblings, k.Leaf)
			}
		}
		if near := nearest(leaf, siblings); near != "" {
			return fmt.Sprintf("; did you mean %q?", sec+"."+near)
		}
		return placeOfLeaf(leaf)
	}
	var names []string
	for _, k := range keys.keys {
		names = append(names, k.Name)
	}
	if near := nearest(name, names); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	if hint := suggestSection(sec); hint != "" {
		return hint
	}
	return placeOfLeaf(leaf)
}

func (s schema) hasSection(name string) bool {
	return slices.ContainsFunc(s.sections, func(x section) bool { return x.name == name })
}
