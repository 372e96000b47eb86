package config

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is what Resolve must know of the machine.
type Machine struct {
	Cores  int  // cores that this process may run on, at least 1
	Memory Size // memory of the machine, 0 if unknown
}

// ThisMachine looks at the machine we run on: the cores of our affinity mask,
// and the machine's memory or, if smaller, the limit of our control group.
func ThisMachine() Machine {
	m := Machine{Cores: 1}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err == nil && set.Count() > 0 {
		m.Cores = set.Count()
	}
	m.Memory = memTotal("/proc/meminfo")
	if limit := cgroupLimit("/proc/self/cgroup", "/sys/fs/cgroup"); limit > 0 && (m.Memory == 0 || limit < m.Memory) {
		m.Memory = limit
	}
	return m
}

// memTotal reads the line "MemTotal: N kB".
func memTotal(path string) Size {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		w := strings.Fields(sc.Text())
		if len(w) >= 2 && w[0] == "MemTotal:" {
			n, _ := strconv.ParseInt(w[1], 10, 64)
			return Size(n << 10)
		}
	}
	return 0
}

// cgroupLimit is the smallest memory.max of our control group (version 2) and
// those above it, 0 if there is none.
func cgroupLimit(self, root string) Size {
	b, err := os.ReadFile(self)
	if err != nil {
		return 0
	}
	var smallest Size
	for line := range strings.Lines(string(b)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::/")
		if !ok {
			continue
		}
		for {
			if b, err := os.ReadFile(root + "/" + path + "/memory.max"); err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 && (smallest == 0 || Size(n) < smallest) {
					smallest = Size(n)
				}
			}
			if path == "" {
				break
			}
			path = path[:max(strings.LastIndexByte(path, '/'), 0)]
		}
	}
	return smallest
}

// MaxDefaultDegree bounds the ranks of a group whose devices nobody named. A
// token step waits for all ranks some hundred times, so a rank must save more
// than a wait costs. The work is dealt out in rows and KV heads: the demo model
// has three KV heads and streams under 100 MB a step, and four cores draw about
// all the memory bandwidth that one socket's worth of such a model can use. More
// cores are better spent on a second replica, which the user asks for by naming
// devices; until then they serve the endpoint.
const MaxDefaultDegree = 4

const defaultCPUBytes = 2 << 30

// Resolve fills in what depends on the machine: the backend, the devices and
// degrees of both groups, the KV memory and transport. The result has no empty
// list of devices, no degree 0 and no "auto" but backend.kernels and
// log.format. The receiver is not changed. The error is an *Error.
//
// Without devices both groups span the same first cores, at most
// MaxDefaultDegree of them, one rank a core: a single stream can then use every
// core in prefill and in decode, and the groups take turns.
func (c *Config) Resolve(m Machine) (*Config, error) {
	d := c.clone()
	var ps []Problem
	report := func(key, format string, args ...any) {
		ps = append(ps, c.problem(key, fmt.Sprintf(format, args...)))
	}
	choose := func(key string, v any) {
		keys.byName[key].set(d, v)
		if c.origins[key] == (Origin{}) {
			d.origins[key] = Origin{Machine: true}
		}
	}

	kind, why := c.Backend.Kind, "backend.kind"
	for _, key := range []string{"prefill.devices", "decode.devices"} {
		if k := c.deviceKind(key); kind == "auto" && k != "" {
			kind, why = k, key
		}
	}
	if kind == "cuda" {
		report(why, "the CUDA backend is not in this build; use the CPU")
		return nil, asError(ps)
	}
	if c.Backend.Kind == "auto" {
		choose("backend.kind", "cpu")
	}

	m.Cores = max(m.Cores, 1)
	for _, g := range []struct {
		name    string
		devices []string
		degree  int
	}{{"prefill", c.Prefill.Devices, c.Prefill.TensorParallel}, {"decode", c.Decode.Devices, c.Decode.TensorParallel}} {
		devices := g.devices
		if len(devices) == 0 {
			n := min(m.Cores, MaxDefaultDegree)
			if g.degree > 0 {
				if g.degree > m.Cores {
					report(g.name+".tensor_parallel", "%d ranks do not fit the %s of this machine; name the devices in [%s] if it is meant", g.degree, count(m.Cores, "core"), g.name)
					continue
				}
				n = max(n-n%g.degree, g.degree)
			}
			devices = make([]string, n)
			for i := range devices {
				devices[i] = Device{"cpu", i}.String()
			}
			choose(g.name+".devices", devices)
		}
		if g.degree == 0 {
			choose(g.name+".tensor_parallel", len(devices))
		}
	}

	if c.KV.CPUBytes == Auto {
		size := Size(defaultCPUBytes)
		if m.Memory > 0 {
			size = min(size, m.Memory/4)
		}
		choose("kv.cpu_bytes", max(size&^(1<<20-1), 1<<20))
	}
	if c.KV.Transport == "auto" {
		choose("kv.transport", "handover") // on the CPU all ranks share memory
	}
	if err := asError(ps); err != nil {
		return nil, err
	}
	return d, nil
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
