package command

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/lukv/lukv/kernels"
)

type versionCmd struct {
	JSON bool `help:"Print one JSON object."`
}

func (versionCmd) Help() string {
	return "Print the version and revision, the Go version and build tags, the system, and the instruction set in use (LUKV_CPU narrows it).\n\nExamples:\n\n  lukv version\n\n  lukv version --json"
}

// versionInfo identifies this program.
type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the source, followed by "+changes" if it was modified
	Go       string `json:"go"`
	Tags     string `json:"tags,omitempty"`
	System   string `json:"system"`
	CPU      string `json:"cpu"`
}

// version and revision are set by the linker in releases (scripts/release); other builds
// take them from the build information.
var version, revision string

// modulePath is the module that this package belongs to.
const modulePath = "github.com/lukv/lukv"

func readVersion() versionInfo {
	v := versionInfo{
		Version: "unknown", Go: runtime.Version(),
		System: runtime.GOOS + "/" + runtime.GOARCH, CPU: kernels.Detect().String(),
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	of := info.Main
	if i := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == modulePath }); i >= 0 { // of another program
		of, info = *info.Deps[i], &debug.BuildInfo{}
	}
	v.Version = cmp.Or(of.Version, v.Version)
	changed := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			changed = s.Value == "true"
		case "-tags":
			v.Tags = s.Value
		}
	}
	if changed {
		v.Revision += "+changes"
	}
	v.Version, v.Revision = cmp.Or(version, v.Version), cmp.Or(revision, v.Revision)
	return v
}

func (v versionInfo) String() string {
	s := "lukv " + v.Version
	if v.Revision != "" {
		s += " (" + v.Revision + ")"
	}
	return s
}

func (c versionCmd) Run(e *env) error {
	v := readVersion()
	if c.JSON {
		return e.writeJSON("lukv version 1", v)
	}
	text := fmt.Sprintln(v) + fmt.Sprintln("go     ", v.Go) + fmt.Sprintln("system ", v.System) + fmt.Sprintln("cpu    ", v.CPU)
	if v.Tags != "" {
		text += fmt.Sprintln("tags   ", v.Tags)
	}
	_, err := io.WriteString(e.out, text)
	return err
}

// versionFlag is --version.
type versionFlag bool

func (versionFlag) BeforeReset(k *kong.Kong) error {
	_, err := fmt.Fprintln(k.Stdout, readVersion())
	if err == nil {
		k.Exit(exitOK)
	}
	return err
}

// compact returns v as JSON on one line, for hashing and for names.
func compact(v any) string {
	data, err := json.Marshal(v)
	if err != nil { // a number is not finite; nothing of ours holds any
		panic(err)
	}
	return string(data)
}
