// Command release builds everything that a release consists of, in dist/:
//
//   - archives of the command for linux, darwin and windows on amd64 and arm64, and static
//     archives for linux without Vulkan, each with licence, README, changelog, manual page
//     and shell completions
//   - an SPDX document for each program
//   - SHA-256 sums of all archives
//   - a Homebrew formula and the definition of a container image from those archives
//
// The same commit and Go version give the same bytes, on any machine.
//
//	cd scripts/release && go run .             # the commit must be clean and have a tag
//	cd scripts/release && go run . --snapshot  # any clean commit, as VERSION-snapshot.COMMIT
//
// After go mod download, it needs no network.
package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"text/template"
	"time"
)

func main() {
	snapshot := flag.Bool("snapshot", false, "build an untagged commit")
	out := flag.String("o", "../../dist", "write to this folder, which is emptied first")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "release: found arguments %q, expected none\n", flag.Args())
		os.Exit(2)
	}
	if err := run("../..", *out, *snapshot); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// target is a system that an archive is for.
type target struct {
	OS, Arch string
	Static   bool // without Vulkan, which links dynamically
}

var targets = []target{
	{"linux", "amd64", false}, {"linux", "arm64", false}, {"linux", "amd64", true}, {"linux", "arm64", true},
	{"darwin", "amd64", false}, {"darwin", "arm64", false}, {"windows", "amd64", false}, {"windows", "arm64", false},
}

func (t target) String() string {
	s := t.OS + "_" + t.Arch
	if t.Static {
		s += "_static"
	}
	return s
}

// source is the commit that is released.
type source struct {
	root              string
	version, revision string
	time              time.Time // of the commit
}

func run(root, out string, snapshot bool) error {
	s, err := readSource(root, snapshot)
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o777)); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "lukv-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	common, err := s.commonFiles(work)
	if err != nil {
		return err
	}
	r := release{Version: s.version, Archives: map[string]archived{}}
	var sums bytes.Buffer
	for _, t := range targets {
		fmt.Println(t)
		name := "lukv_" + s.version + "_" + t.String()
		program := filepath.Join(work, name)
		if err := s.build(program, t); err != nil {
			return err
		}
		list, err := sbom(program, "lukv", s.version, s.time)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, name+".spdx.json"), list, 0o666); err != nil {
			return err
		}
		data, err := os.ReadFile(program)
		if err != nil {
			return err
		}
		pack, file, command := tarGzip, name+".tar.gz", "lukv"
		if t.OS == "windows" {
			pack, file, command = zipped, name+".zip", "lukv.exe"
		}
		archive, err := pack(append([]entry{{command, data, true}}, common...), s.time)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, file), archive, 0o666); err != nil {
			return err
		}
		sum := fmt.Sprintf("%x", sha256.Sum256(archive))
		fmt.Fprintf(&sums, "%s  %s\n", sum, file)
		r.Archives[t.String()] = archived{file, sum}
	}
	if err := os.WriteFile(filepath.Join(out, "checksums.txt"), sums.Bytes(), 0o666); err != nil {
		return err
	}
	return r.write(out)
}

// heading is that of the newest version in the changelog.
var heading = regexp.MustCompile(`(?m)^## (\d+\.\d+\.\d+)\b`)

// readSource returns the commit of a clean working tree. Its version is that of its tag,
// which must be the newest in the changelog.
func readSource(root string, snapshot bool) (*source, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	changed, err := git("status", "--porcelain")
	if err != nil {
		return nil, err
	}
	if changed != "" {
		return nil, fmt.Errorf("read the commit: found changes that are not committed, expected none:\n%s", changed)
	}
	changelog, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	newest := heading.FindSubmatch(changelog)
	if newest == nil {
		return nil, errors.New("read the version: found no heading of a version in CHANGELOG.md")
	}
	s := &source{root: root, version: string(newest[1])}
	if s.revision, err = git("rev-parse", "HEAD"); err != nil {
		return nil, err
	}
	seconds, err := git("show", "-s", "--format=%ct", "HEAD")
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("read the commit's time: %w", err)
	}
	s.time = time.Unix(n, 0).UTC()
	if snapshot {
		s.version += "-snapshot." + s.revision[:12]
		return s, nil
	}
	tags, err := git("tag", "--points-at", "HEAD")
	if err != nil {
		return nil, err
	}
	for tag := range strings.FieldsSeq(tags) {
		if tag == "v"+s.version {
			return s, nil
		}
	}
	return nil, fmt.Errorf("read the commit's tag: found %q, expected v%s, the newest version in CHANGELOG.md (or --snapshot)", tags, s.version)
}

// build builds the command for a target.
func (s *source) build(program string, t target) error {
	args := []string{
		"build", "-trimpath", "-buildvcs=false", "-o", program,
		"-ldflags", fmt.Sprintf("-s -w -buildid= -X %[3]s.version=%[1]s -X %[3]s.revision=%[2]s", s.version, s.revision, "github.com/lukv/lukv/command"),
	}
	if t.Static {
		args = append(args, "-tags", "novulkan")
	}
	build := exec.Command("go", append(args, "./cmd/lukv")...)
	build.Dir, build.Stderr = s.root, os.Stderr
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+t.OS, "GOARCH="+t.Arch, "GOFLAGS=-mod=readonly", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOWORK=off")
	if err := build.Run(); err != nil {
		return fmt.Errorf("build for %v: %w", t, err)
	}
	return nil
}

// commonFiles returns the files of every archive beside the program.
func (s *source) commonFiles(work string) ([]entry, error) {
	var out []entry
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		data, err := os.ReadFile(filepath.Join(s.root, name))
		if err != nil {
			return nil, err
		}
		out = append(out, entry{name, data, false})
	}
	// The program of this system prints them.
	program := filepath.Join(work, "host")
	if err := s.build(program, target{OS: runtime.GOOS, Arch: runtime.GOARCH, Static: true}); err != nil {
		return nil, err
	}
	for name, args := range map[string][]string{
		"man/lukv.1": {"man"}, "completions/lukv.bash": {"completion", "bash"},
		"completions/_lukv": {"completion", "zsh"}, "completions/lukv.fish": {"completion", "fish"},
	} {
		data, err := exec.Command(program, args...).Output()
		if err != nil {
			return nil, fmt.Errorf("lukv %s: %w", strings.Join(args, " "), err)
		}
		out = append(out, entry{name, data, false})
	}
	return out, nil
}

// release is the data of the templates.
type release struct {
	Version  string
	Archives map[string]archived // by target
}

type archived struct{ File, SHA256 string }

// URL returns the address that an archive is downloaded from.
func (r release) URL(target string) (string, error) {
	a, ok := r.Archives[target]
	if !ok {
		return "", fmt.Errorf("found no archive for %s", target)
	}
	return "https://github.com/lukv/lukv/releases/download/v" + r.Version + "/" + a.File, nil
}

// Sum returns the SHA-256 digest of an archive.
func (r release) Sum(target string) (string, error) {
	a, ok := r.Archives[target]
	if !ok {
		return "", fmt.Errorf("found no archive for %s", target)
	}
	return a.SHA256, nil
}

var (
	//go:embed lukv.rb.tmpl
	formula string
	//go:embed Containerfile.tmpl
	containerfile string
)

// write writes the files made from templates.
func (r release) write(out string) error {
	for name, text := range map[string]string{"lukv.rb": formula, "Containerfile": containerfile} {
		t, err := template.New(name).Option("missingkey=error").Parse(text)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := t.Execute(&b, r); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, name), b.Bytes(), 0o666); err != nil {
			return err
		}
	}
	return nil
}
