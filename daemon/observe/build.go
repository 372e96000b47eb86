package observe

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// version is set by the linker where a build has a name of its own:
// -ldflags "-X tandem/daemon/observe.version=1.2.3".
var version string

// BuildInfo says what this binary was made from.
type BuildInfo struct {
	Version  string            `json:"version"`            // "v0.3.0", a pseudo-version, or "devel"
	Revision string            `json:"revision,omitempty"` // of the version control, "" if not stamped
	Time     string            `json:"time,omitempty"`     // of the revision
	Dirty    bool              `json:"dirty"`              // built from code that is not in the revision, or not stamped at all
	Stamped  bool              `json:"stamped"`            // the binary says which revision it is
	Go       string            `json:"go"`
	Platform string            `json:"platform"` // "linux/amd64"
	CGO      bool              `json:"cgo"`
	Flags    map[string]string `json:"flags,omitempty"` // the build's settings
}

// Build reads what the linker stamped into this binary. A binary that does not
// say what it was built from counts as dirty: nobody can tell what it is.
func Build() BuildInfo {
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		bi = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	return buildInfo(bi, version)
}

func buildInfo(bi *debug.BuildInfo, linked string) BuildInfo {
	b := BuildInfo{
		Version: bi.Main.Version, Go: bi.GoVersion, Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Dirty: true, Flags: map[string]string{},
	}
	for _, s := range bi.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision, b.Stamped = s.Value, s.Value != ""
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Dirty = s.Value != "false"
		case "CGO_ENABLED":
			b.CGO = s.Value == "1"
			b.Flags[s.Key] = s.Value
		case "GOOS", "GOARCH":
		default:
			b.Flags[s.Key] = s.Value
		}
	}
	b.Dirty = b.Dirty || !b.Stamped
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = "devel"
	}
	if linked != "" {
		b.Version = linked
	}
	return b
}

// String is the build on one line: "tandem devel 1a2b3c4d5e6f DIRTY (go1.26.8, linux/amd64, cgo)".
func (b BuildInfo) String() string {
	parts := []string{"tandem", b.Version}
	switch {
	case !b.Stamped:
		parts = append(parts, "of unknown revision")
	default:
		parts = append(parts, b.Revision[:min(len(b.Revision), 12)])
		if b.Dirty {
			parts = append(parts, "DIRTY")
		}
	}
	cgo := "no cgo"
	if b.CGO {
		cgo = "cgo"
	}
	return strings.Join(parts, " ") + " (" + b.Go + ", " + b.Platform + ", " + cgo + ")"
}
