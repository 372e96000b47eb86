package config

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// MaxRanks is the most devices a group may have.
const MaxRanks = 64

// maxSocketPath is what the kernel takes as the path of a unix socket.
const maxSocketPath = 107

// check finds what a key's own type and limits cannot: values that do not fit
// their meaning or one another.
func check(c *Config, report func(key, msg string)) {
	checkListen(c.Server.Listen, func(msg string) { report("server.listen", msg) })
	for _, o := range c.Server.CORSOrigins {
		if msg := checkOrigin(o); msg != "" {
			report("server.cors_origins", msg)
		}
	}
	for _, key := range []string{"server.state_dir", "server.api_keys_file", "model.path", "admin.socket"} {
		v := keys.byName[key].value(c).(string)
		if v == "~" || strings.HasPrefix(v, "~/") || strings.Contains(v, "/~/") {
			report(key, `"~" is not expanded; write the whole path`)
		}
	}
	if name, ok := strings.CutPrefix(c.Server.APIKeysFile, credentialPrefix); ok && !validCredential(name) {
		report("server.api_keys_file", clipQuote(name)+" is not the name of a credential: letters, digits, '-', '_' and '.' only")
	}
	if len(c.Admin.Socket) > maxSocketPath {
		report("admin.socket", fmt.Sprintf("has %d bytes; the path of a unix socket may have %d", len(c.Admin.Socket), maxSocketPath))
	}
	if c.Model.Path == "" {
		report("model.path", "is empty; name a GGUF file or a catalogue name such as \"smollm2-135m\"")
	}
	checkNames(c, report)
	checkGroup("prefill", c.Prefill.Devices, c.Prefill.TensorParallel, report)
	checkGroup("decode", c.Decode.Devices, c.Decode.TensorParallel, report)
	checkBackend(c, report)
	if c.KV.PrefixCache {
		report("kv.prefix_cache", "this version has no prefix cache; leave the key out or write false")
	}
	if c.Restart.BackoffMin > c.Restart.BackoffMax {
		report("restart.backoff_min", fmt.Sprintf("%s is longer than backoff_max, %s", c.Restart.BackoffMin, c.Restart.BackoffMax))
	}
}

func checkListen(listen string, report func(string)) {
	if path, ok := strings.CutPrefix(listen, "unix:"); ok {
		switch {
		case path == "":
			report(`"unix:" names no socket; write "unix:/run/tandem/api.sock"`)
		case len(path) > maxSocketPath:
			report(fmt.Sprintf("has a path of %d bytes; that of a unix socket may have %d", len(path), maxSocketPath))
		}
		return
	}
	const form = `write "127.0.0.1:8000", ":8000" for all addresses, or "unix:/path"`
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		report(clipQuote(listen) + " is not an address; " + form)
		return
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		report(fmt.Sprintf("port %s is not a number from 0 to 65535; %s", clipQuote(port), form))
	}
	if strings.ContainsAny(host, " /\\") {
		report(fmt.Sprintf("%s is not a host; %s", clipQuote(host), form))
	}
}

func checkOrigin(o string) string {
	if o == "*" {
		return ""
	}
	u, err := url.Parse(o)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || o != u.Scheme+"://"+u.Host {
		return fmt.Sprintf("%s is not an origin; write \"https://host\" or \"https://host:port\" without a path, or \"*\"", clipQuote(o))
	}
	return ""
}

func checkNames(c *Config, report func(key, msg string)) {
	seen := map[string]bool{}
	if c.Model.Name != "" {
		seen[c.Model.Name] = true
	}
	for _, a := range c.Model.Aliases {
		switch {
		case a == "":
			report("model.aliases", "an alias is empty")
		case seen[a]:
			report("model.aliases", clipQuote(a)+" is there twice")
		}
		seen[a] = true
	}
}

func checkGroup(group string, devices []string, degree int, report func(key, msg string)) {
	if len(devices) == 0 {
		return
	}
	key := group + ".devices"
	if len(devices) > MaxRanks {
		report(key, fmt.Sprintf("has %d devices; a group may have %d", len(devices), MaxRanks))
		return
	}
	kinds := map[string]bool{}
	cards := map[string]bool{}
	for _, text := range devices {
		d, err := ParseDevice(text)
		if err != nil {
			report(key, err.Error())
			return
		}
		kinds[d.Kind] = true
		if d.Kind == "cuda" {
			if cards[text] {
				report(key, fmt.Sprintf("%q is there twice; a card serves one rank", text))
			}
			cards[text] = true
		}
	}
	if len(kinds) > 1 {
		report(key, "names cards and cores; a group is on one kind of device")
	}
	if degree > 0 && len(devices)%degree != 0 {
		report(group+".tensor_parallel", fmt.Sprintf("%d does not divide the number of devices, %d", degree, len(devices)))
	}
}

// checkBackend compares backend.kind with the devices.
func checkBackend(c *Config, report func(key, msg string)) {
	p, d := c.deviceKind("prefill.devices"), c.deviceKind("decode.devices")
	if p != "" && d != "" && p != d {
		report("decode.devices", fmt.Sprintf("is on %s while [prefill] is on %s; both groups are on one kind of device", d, p))
		return
	}
	for _, key := range []string{"prefill.devices", "decode.devices"} {
		kind := c.deviceKind(key)
		if kind != "" && c.Backend.Kind != "auto" && kind != c.Backend.Kind {
			report(key, fmt.Sprintf("names %s devices while backend.kind is %q", kind, c.Backend.Kind))
		}
	}
}

// deviceKind is the kind of a list's first device, "" if there is none.
func (c *Config) deviceKind(key string) string {
	list := keys.byName[key].value(c).([]string)
	if len(list) == 0 {
		return ""
	}
	d, _ := ParseDevice(list[0])
	return d.Kind
}

// Device is what one rank computes on.
type Device struct {
	Kind  string // "cpu" or "cuda"
	Index int    // of the card or core; -1 is a rank that is pinned to no core
}

// ParseDevice reads "cpu", "cpu:N" or "cuda:N".
func ParseDevice(text string) (Device, error) {
	if text == "cpu" {
		return Device{Kind: "cpu", Index: -1}, nil
	}
	kind, num, _ := strings.Cut(text, ":")
	n, err := strconv.Atoi(num)
	if (kind != "cpu" && kind != "cuda") || err != nil || n < 0 || n > 4095 || strconv.Itoa(n) != num {
		return Device{}, fmt.Errorf(`%s is not a device; write "cuda:N", "cpu:N" or "cpu"`, clipQuote(text))
	}
	return Device{Kind: kind, Index: n}, nil
}

func (d Device) String() string {
	if d.Index < 0 {
		return d.Kind
	}
	return d.Kind + ":" + strconv.Itoa(d.Index)
}

// absolutePaths makes paths absolute: relative to the folder of the config file
// if they were written there, else to the working directory.
func (c *Config) absolutePaths() {
	abs := func(key, path string) string {
		if path == "" || filepath.IsAbs(path) || path[0] == '~' {
			return path
		}
		if o := c.origins[key]; o.File != "" {
			return filepath.Join(filepath.Dir(c.file), path)
		}
		if a, err := filepath.Abs(path); err == nil {
			return a
		}
		return path
	}
	for _, k := range keys.keys {
		if k.path {
			k.set(c, abs(k.Name, k.value(c).(string)))
		}
	}
	if IsPath(c.Model.Path) {
		c.Model.Path = abs("model.path", c.Model.Path)
	}
	if !strings.HasPrefix(c.Server.APIKeysFile, credentialPrefix) {
		c.Server.APIKeysFile = abs("server.api_keys_file", c.Server.APIKeysFile)
	}
	if path, ok := strings.CutPrefix(c.Server.Listen, "unix:"); ok {
		c.Server.Listen = "unix:" + abs("server.listen", path)
	}
}

// IsPath reports whether a model.path is the path of a file or folder rather
// than a catalogue name.
func IsPath(modelPath string) bool {
	return strings.Contains(modelPath, "/") || strings.HasSuffix(strings.ToLower(modelPath), ".gguf")
}

// Warnings are values that are allowed and probably not meant, on machine m. Each
// is one line.
func (c *Config) Warnings(m Machine) []string {
	var out []string
	warn := func(key, format string, args ...any) {
		out = append(out, c.problem(key, fmt.Sprintf(format, args...)).String())
	}
	if host, _, err := net.SplitHostPort(c.Server.Listen); err == nil && c.Server.APIKeysFile == "" {
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			warn("server.listen", "%q can be reached from other machines, and api_keys_file is not set: anybody there can use the endpoint", c.Server.Listen)
		}
	}
	if slices.Contains(c.Server.CORSOrigins, "*") && c.Server.APIKeysFile == "" {
		warn("server.cors_origins", `"*" without api_keys_file lets every web page use the endpoint`)
	}
	for _, g := range []struct {
		key     string
		devices []string
	}{{"prefill.devices", c.Prefill.Devices}, {"decode.devices", c.Decode.Devices}} {
		for _, text := range g.devices {
			if dev, err := ParseDevice(text); err == nil && dev.Kind == "cpu" && dev.Index >= m.Cores {
				warn(g.key, "%q: this machine lets us use %s, \"cpu:0\" to \"cpu:%d\"; ranks beyond share them, which is slow", text, count(m.Cores, "core"), m.Cores-1)
				break
			}
		}
	}
	if !c.KV.Digest {
		warn("kv.digest", "is off: KV that was damaged on its way would go unnoticed")
	}
	for _, k := range keys.keys {
		if k.Section == "deadlines" && k.Leaf != "request" && k.value(c).(Duration) > c.Deadlines.Request {
			warn(k.Name, "%s is longer than deadlines.request, %s, and has no effect", k.value(c), c.Deadlines.Request)
		}
	}
	return out
}
