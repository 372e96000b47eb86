package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Where the packaged service keeps things; clients look there last.
const (
	SystemConfig = "/etc/tandem/tandem.toml"
	systemModels = "/var/lib/tandem/models"
	systemSocket = "/run/tandem/admin.sock"
)

// Env looks up an environment variable, as os.Getenv does.
type Env func(name string) string

// StateDir is the folder of the generation counter: server.state_dir, else
// $STATE_DIRECTORY, else $XDG_STATE_HOME/tandem, else ~/.local/state/tandem.
func (c *Config) StateDir(env Env) (string, error) {
	if c.Server.StateDir != "" {
		return c.Server.StateDir, nil
	}
	if d := firstOf(env("STATE_DIRECTORY")); d != "" {
		return d, nil
	}
	d := xdg(env, "XDG_STATE_HOME", ".local/state")
	if d == "" {
		return "", fmt.Errorf("no folder for the state: set server.state_dir, $XDG_STATE_HOME or $HOME")
	}
	return d, nil
}

// ModelsDirs are the folders in which models are looked for. The first is where
// `tandem model pull` puts them: $STATE_DIRECTORY/models in the service, else
// $XDG_DATA_HOME/tandem/models, else ~/.local/share/tandem/models. The service's
// own folder is read, too.
func ModelsDirs(env Env) ([]string, error) {
	var dirs []string
	if d := firstOf(env("STATE_DIRECTORY")); d != "" {
		dirs = append(dirs, filepath.Join(d, "models"))
	} else if d := xdg(env, "XDG_DATA_HOME", ".local/share"); d != "" {
		dirs = append(dirs, filepath.Join(d, "models"))
	} else {
		return nil, fmt.Errorf("no folder for models: set $XDG_DATA_HOME or $HOME")
	}
	if !slices.Contains(dirs, systemModels) {
		dirs = append(dirs, systemModels)
	}
	return dirs, nil
}

// AdminSockets are the paths at which the operator's socket may be: the first
// is where a daemon with this configuration and environment makes it, and a
// client tries them in turn. The order is admin.socket,
// $RUNTIME_DIRECTORY/admin.sock, $XDG_RUNTIME_DIR/tandem/admin.sock, admin.sock
// in the state folder, and the packaged service's. With admin.socket set there
// is no other.
func (c *Config) AdminSockets(env Env) []string {
	if c.Admin.Socket != "" {
		return []string{c.Admin.Socket}
	}
	var paths []string
	add := func(dir string, more ...string) {
		if !filepath.IsAbs(dir) {
			return
		}
		p := filepath.Join(append([]string{dir}, more...)...)
		if len(p) <= maxSocketPath && !slices.Contains(paths, p) {
			paths = append(paths, p)
		}
	}
	add(firstOf(env("RUNTIME_DIRECTORY")), "admin.sock")
	add(env("XDG_RUNTIME_DIR"), "tandem", "admin.sock")
	if d, err := c.StateDir(env); err == nil {
		add(d, "admin.sock")
	}
	add(systemSocket)
	return paths
}

// firstOf is the first of the folders that systemd lists with colons.
func firstOf(list string) string {
	d, _, _ := strings.Cut(list, ":")
	if !filepath.IsAbs(d) {
		return ""
	}
	return d
}

// xdg is tandem's folder below a base folder of the XDG rules: one that is not
// absolute counts as not set.
func xdg(env Env, name, underHome string) string {
	if d := env(name); filepath.IsAbs(d) {
		return filepath.Join(d, "tandem")
	}
	if h := env("HOME"); filepath.IsAbs(h) {
		return filepath.Join(h, underHome, "tandem")
	}
	return ""
}
