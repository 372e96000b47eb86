package config

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// What a file of API keys may be.
const (
	maxKeysFile = 64 << 10
	maxAPIKeys  = 1000
	minAPIKey   = 8
	maxAPIKey   = 256
)

const credentialPrefix = "credential:"

// APIKeys are the keys that open the endpoint.
type APIKeys struct {
	keys    []string
	sums    [][sha256.Size]byte
	exposed bool
}

// ReadAPIKeys reads what server.api_keys_file names: a file, or
// "credential:NAME", which is the file NAME in $CREDENTIALS_DIRECTORY. One key
// a line; blank lines and lines that begin with # do not count. An empty name
// gives nil, which allows everything. Errors name file and line and never a key.
func ReadAPIKeys(name string, env Env) (*APIKeys, error) {
	if name == "" {
		return nil, nil
	}
	path := name
	if cred, ok := strings.CutPrefix(name, credentialPrefix); ok {
		dir := env("CREDENTIALS_DIRECTORY")
		switch {
		case !validCredential(cred):
			return nil, fmt.Errorf("server.api_keys_file: %s is not the name of a credential", clipQuote(cred))
		case dir == "":
			return nil, fmt.Errorf("server.api_keys_file: %s: systemd passed no credentials; add LoadCredential=%s:/etc/tandem/%s to the unit", name, cred, cred)
		}
		path = filepath.Join(dir, cred)
	}
	text, err := readBounded(path, maxKeysFile)
	if err != nil {
		return nil, fmt.Errorf("server.api_keys_file: %s: %w", path, err)
	}
	k, err := parseAPIKeys(text)
	if err != nil {
		return nil, fmt.Errorf("server.api_keys_file: %s:%w", path, err)
	}
	if info, err := os.Stat(path); err == nil {
		k.exposed = info.Mode().Perm()&0o004 != 0
	}
	return k, nil
}

func parseAPIKeys(text string) (*APIKeys, error) {
	k := &APIKeys{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		key := strings.TrimSpace(line)
		if key == "" || key[0] == '#' {
			continue
		}
		if len(key) < minAPIKey || len(key) > maxAPIKey {
			return nil, fmt.Errorf("%d: a key of %d characters; keys have %d to %d", n, len(key), minAPIKey, maxAPIKey)
		}
		if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, fmt.Errorf("%d: a key may hold visible ASCII characters only, and one line holds one key", n)
		}
		if len(k.sums) == maxAPIKeys {
			return nil, fmt.Errorf("%d: more than %d keys", n, maxAPIKeys)
		}
		k.keys = append(k.keys, key)
		k.sums = append(k.sums, sha256.Sum256([]byte(key)))
	}
	if len(k.sums) == 0 {
		return nil, errors.New(" it holds no key, so nobody could use the endpoint; leave server.api_keys_file empty to ask for none")
	}
	return k, nil
}

func validCredential(name string) bool {
	if name == "" || len(name) > 255 || name == "." || name == ".." {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
	})
}

// Len is the number of keys.
func (k *APIKeys) Len() int {
	if k == nil {
		return 0
	}
	return len(k.sums)
}

// List is the keys themselves, nil if none are asked for. It is for the
// endpoint; nothing may print it.
func (k *APIKeys) List() []string {
	if k == nil {
		return nil
	}
	return slices.Clone(k.keys)
}

// String says how many keys there are and none of them.
func (k *APIKeys) String() string { return fmt.Sprintf("%d API keys", k.Len()) }

// Exposed reports whether every user of the machine can read the file.
func (k *APIKeys) Exposed() bool { return k != nil && k.exposed }

// Allow reports whether key is one of the keys. It takes the same time for
// every key that is presented. With no keys at all (nil) everything is allowed.
func (k *APIKeys) Allow(key string) bool {
	if k == nil {
		return true
	}
	sum := sha256.Sum256([]byte(key))
	found := 0
	for i := range k.sums {
		found |= subtle.ConstantTimeCompare(sum[:], k.sums[i][:])
	}
	return found == 1
}
