package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A runner tries faults in one package.
type runner struct {
	dir       string
	tests     []string // other packages whose tests may notice
	run, skip string
	verbose   bool
	known     map[string]bool

	path, folder string // the package's import path and its folder in the module
	files        []string
	covered      map[string]map[int]bool // by file: lines that some test runs
	limit        time.Duration
	scratch      string
	rapid        bool // its tests use property tests
}

// prepare runs the tests as they are, for their time and for the lines they run.
func (r *runner) prepare(ctx context.Context) error {
	list := exec.CommandContext(ctx, "go", "list", "-json=Dir,ImportPath,GoFiles,TestImports,XTestImports,Module", ".")
	list.Dir = r.dir
	output, err := list.Output()
	if err != nil {
		return fmt.Errorf("list package %s: %w", r.dir, err)
	}
	var pkg struct {
		Dir, ImportPath string
		GoFiles         []string
		TestImports     []string
		XTestImports    []string
		Module          struct{ Path string }
	}
	if err := json.Unmarshal(output, &pkg); err != nil {
		return err
	}
	r.path, r.folder = pkg.ImportPath, strings.TrimPrefix(pkg.ImportPath, pkg.Module.Path+"/")
	// Property tests leave no files behind for what is not a failure of the program.
	r.rapid = slices.Contains(append(pkg.TestImports, pkg.XTestImports...), "pgregory.net/rapid")
	for _, name := range pkg.GoFiles {
		r.files = append(r.files, filepath.Join(pkg.Dir, name))
	}
	if r.scratch, err = os.MkdirTemp("", "mutate-*"); err != nil {
		return err
	}
	profile := filepath.Join(r.scratch, "cover")
	if out, err := r.command(ctx, "-coverprofile="+profile, "-coverpkg="+r.path).CombinedOutput(); err != nil {
		return fmt.Errorf("tests of %s fail as they are: %w\n%s", r.path, err, out)
	}
	begun := time.Now()
	if out, err := r.command(ctx).CombinedOutput(); err != nil {
		return fmt.Errorf("tests of %s fail as they are: %w\n%s", r.path, err, out)
	}
	r.limit = 5*time.Since(begun) + 10*time.Second
	return r.cover(profile)
}

// command is go test on the package and on those beside it.
func (r *runner) command(ctx context.Context, flags ...string) *exec.Cmd {
	args := append([]string{"test", "-short", "-count=1", "-failfast", "-vet=off"}, flags...)
	if r.run != "" {
		args = append(args, "-run", r.run)
	}
	if r.skip != "" {
		args = append(args, "-skip", r.skip)
	}
	args = append(append(args, "."), r.tests...)
	if r.rapid && len(r.tests) == 0 {
		args = append(args, "-rapid.nofailfile")
	}
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = r.dir
	command.WaitDelay = time.Second
	return command
}

// cover reads a coverage profile: lines of "PATH/FILE.go:L.C,L.C STATEMENTS COUNT".
func (r *runner) cover(profile string) error {
	text, err := os.ReadFile(profile)
	if err != nil {
		return err
	}
	r.covered = map[string]map[int]bool{}
	for line := range strings.Lines(string(text)) {
		place, counts, ok := strings.Cut(strings.TrimSpace(line), " ")
		name, span, ok2 := strings.Cut(place, ":")
		if !ok || !ok2 || name == "mode" || strings.HasSuffix(counts, " 0") {
			continue
		}
		from, to, _ := strings.Cut(span, ",")
		first, err := strconv.Atoi(strings.Split(from, ".")[0])
		if err != nil {
			return fmt.Errorf("coverage profile: %q", line)
		}
		last, err := strconv.Atoi(strings.Split(to, ".")[0])
		if err != nil {
			return fmt.Errorf("coverage profile: %q", line)
		}
		name = filepath.Base(name)
		if r.covered[name] == nil {
			r.covered[name] = map[int]bool{}
		}
		for l := first; l <= last; l++ {
			r.covered[name][l] = true
		}
	}
	return nil
}

func (r *runner) faults() ([]*fault, error) {
	var out []*fault
	for _, path := range r.files {
		faults, err := faultsOf(path)
		if err != nil {
			return nil, err
		}
		out = append(out, faults...)
	}
	return out, nil
}

// try plants a fault and runs the tests.
func (r *runner) try(ctx context.Context, f *fault) error {
	switch {
	case r.known[r.folder+": "+f.key]:
		f.outcome = equivalent
	case !r.covered[f.file][f.line]:
		f.outcome = uncovered
	default:
		if err := r.test(ctx, f); err != nil {
			return err
		}
	}
	if r.verbose || f.outcome == survivor || f.outcome == uncovered {
		fmt.Printf("%s: line %d: %s: %s\n", f.outcome, f.line, r.folder, f.key)
	}
	return nil
}

func (r *runner) test(ctx context.Context, f *fault) error {
	var original string
	for _, path := range r.files {
		if filepath.Base(path) == f.file {
			original = path
		}
	}
	text, err := os.ReadFile(original)
	if err != nil {
		return err
	}
	faulty := filepath.Join(r.scratch, f.file)
	changed := string(text[:f.from]) + f.with + string(text[f.to:])
	if err := os.WriteFile(faulty, []byte(changed), 0o600); err != nil {
		return err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: faulty}})
	if err != nil {
		return err
	}
	name := filepath.Join(r.scratch, "overlay.json")
	if err := os.WriteFile(name, overlay, 0o600); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	out, err := r.command(limited, "-overlay", name, "-timeout", r.limit.String()).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		f.outcome = survivor
	case ctx.Err() != nil:
		f.outcome = untried
	case bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")):
		f.outcome = broken
	case errors.As(err, &exit) || limited.Err() != nil:
		f.outcome = killed
	default:
		return err
	}
	return nil
}
