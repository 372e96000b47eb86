// Package sim builds and steers a simulated CUDA driver: a libcuda.so.1 of our own (lib/, see README.md) that
// the product loads as it loads the real one. It is for tests, and for machines without a card.
package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNoCompiler: there is no g++ to build with.
var ErrNoCompiler = errors.New("the simulated driver needs g++: apt-get install g++")

// Root is the folder of this module's go.mod, above the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "gpu", "sim", "lib", "kernel.h")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not in the source tree, which the simulated driver is built from", dir)
		}
	}
}

// Library builds the driver, if it is not there already, and returns its path. Its name is libcuda.so.1, so
// that its folder can go into LD_LIBRARY_PATH.
func Library() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	lib := filepath.Join(root, "gpu", "sim", "lib")
	sources, err := filepath.Glob(filepath.Join(lib, "*.cc"))
	if err != nil {
		return "", err
	}
	headers, _ := filepath.Glob(filepath.Join(lib, "*.h"))
	headers = append(headers, filepath.Join(root, "gpu", "driver", "nvidia", "abi.h"))
	return build("libcuda.so.1", sources, headers, "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1")
}

// Kernels builds a library of host kernels (lib/kernel.h) for CUSIM_KERNELS out of C++ sources, and returns
// its path. Headers are only looked at for changes.
func Kernels(name string, sources, headers []string, flags ...string) (string, error) {
	return build(name, sources, headers, flags...)
}

// build compiles sources into out/sim/DIGEST/name, where DIGEST is of everything that the result depends on.
// Several processes may do that at once.
func build(name string, sources, headers []string, flags ...string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	flags = append([]string{"-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-Wall", "-Wextra",
		"-I" + filepath.Join(root, "gpu", "sim", "lib")}, flags...)
	slices.Sort(sources)
	digest := sha256.New()
	fmt.Fprintln(digest, flags)
	for _, f := range append(slices.Clone(sources), headers...) {
		text, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(digest, f, len(text))
		digest.Write(text)
	}
	dir := filepath.Join(root, "out", "sim", hex.EncodeToString(digest.Sum(nil)[:8]))
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	gxx, err := exec.LookPath("g++")
	if err != nil {
		return "", ErrNoCompiler
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.CreateTemp(dir, name+".*")
	if err != nil {
		return "", err
	}
	tmp.Close()
	defer os.Remove(tmp.Name())
	var args []string
	args = append(args, flags...)
	for _, s := range sources {
		args = append(args, "-x", "c++", s)
	}
	args = append(args, "-x", "none", "-o", tmp.Name(), "-ldl")
	if said, err := exec.Command(gxx, args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("g++ for %s: %w\n%s", name, err, strings.TrimSpace(string(said)))
	}
	if err := os.Chmod(tmp.Name(), 0o755); err != nil {
		return "", err
	}
	return path, os.Rename(tmp.Name(), path)
}
