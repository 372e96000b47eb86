package catalog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ErrAbsent is wrapped by Resolve's error if the model is known but its file is
// not on this machine: Pull can bring it.
var ErrAbsent = errors.New("the model is not on this machine")

// Resolve finds the file of a model. path is a file, or a name: of the
// catalogue, or of a file name.gguf in one of the folders, which are tried in
// turn. A value with a slash, or that ends in .gguf, is a file. The name that
// comes back is the catalogue's, else the file's without its ending.
func Resolve(path string, dirs ...string) (file, name string, err error) {
	if path == "" {
		return "", "", errors.New("no model is named")
	}
	if strings.Contains(path, "/") || isGGUF(path) {
		return resolveFile(path)
	}
	if !cleanName(path) {
		return "", "", fmt.Errorf("%q is no name of a model", path)
	}
	base := path + ".gguf"
	e, known := Find(path)
	if known {
		base = e.File
	}
	for _, d := range dirs {
		f := filepath.Join(d, base)
		info, err := os.Stat(f)
		switch {
		case err == nil && info.Mode().IsRegular():
			if known && info.Size() != e.Bytes {
				return "", "", fmt.Errorf("%s has %d bytes, the model %s has %d: %w; bring it anew with \"tandem model pull %s\"", f, info.Size(), path, e.Bytes, ErrAbsent, path)
			}
			return f, path, nil
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return "", "", fmt.Errorf("model %s: %w", path, err)
		}
	}
	where := "no folder was given"
	if len(dirs) > 0 {
		where = "looked in " + strings.Join(dirs, ", ")
	}
	if known {
		return "", "", fmt.Errorf("%w: %s (%s); bring it with \"tandem model pull %s\"", ErrAbsent, path, where, path)
	}
	return "", "", fmt.Errorf("no model is called %q (%s; the catalogue has %s); a file is named by its path, as ./%s", path, where, knownNames(), base)
}

func resolveFile(path string) (file, name string, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", "", fmt.Errorf("the model file %s does not exist; \"tandem model list\" shows what is there, and the catalogue has %s", path, knownNames())
	case err != nil:
		return "", "", fmt.Errorf("model file: %w", err)
	case info.IsDir():
		return "", "", fmt.Errorf("%s is a folder; this version serves GGUF files only", path)
	case !info.Mode().IsRegular():
		return "", "", fmt.Errorf("%s is not a regular file", path)
	}
	base := filepath.Base(path)
	if e, ok := byFile(base); ok && info.Size() == e.Bytes {
		return path, e.Name, nil
	}
	return path, strings.TrimSuffix(base, filepath.Ext(base)), nil
}

func isGGUF(path string) bool { return strings.EqualFold(filepath.Ext(path), ".gguf") }

// cleanName reports whether s can be the name of a file in the models folder.
func cleanName(s string) bool {
	return s != "" && len(s) <= 200 && s[0] != '.' && s[0] != '-' && !strings.ContainsFunc(s, func(r rune) bool { return !safeRune(r) })
}

func safeRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' || r == '+'
}

// File is a model in the models folder.
type File struct {
	Name     string // by which model.path finds it
	Path     string
	Bytes    int64
	Known    bool // the catalogue knows the name, and the size is right
	Unwanted bool // the catalogue knows the name, and the size is wrong
}

// List is the models in a folder, in the order of their names. A folder that
// does not exist holds none.
func List(dir string) ([]File, error) {
	items, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("models folder: %w", err)
	}
	var out []File
	for _, it := range items {
		base := it.Name()
		info, err := os.Stat(filepath.Join(dir, base))
		if err != nil || !info.Mode().IsRegular() || !isGGUF(base) || base[0] == '.' {
			continue
		}
		f := File{Name: strings.TrimSuffix(base, filepath.Ext(base)), Path: filepath.Join(dir, base), Bytes: info.Size()}
		if e, ok := byFile(base); ok {
			f.Name, f.Known, f.Unwanted = e.Name, info.Size() == e.Bytes, info.Size() != e.Bytes
		}
		out = append(out, f)
	}
	return out, nil
}
