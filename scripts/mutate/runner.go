package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

type options struct {
	tests            []string       // other packages whose tests may notice
	run, skip, match *regexp.Regexp // nil: all, none, all
	slow             time.Duration
	verbose          bool
	known            map[string]bool // the reviewed list
}

// A runner tries faults in one package.
type runner struct {
	options
	dir string

	path, folder, name string   // the package's import path, its folder in the module, its name
	files              []string // full paths
	scratch            string
	programs           []*program // tests of the package and of the other packages; they can plant any fault of the sample
}

// load finds the package's files.
func (r *runner) load(ctx context.Context) error {
	list := exec.CommandContext(ctx, "go", "list", "-json=Dir,ImportPath,Name,GoFiles,Module", ".")
	list.Dir = r.dir
	output, err := list.Output()
	if err != nil {
		return fmt.Errorf("list package %s: %w", r.dir, err)
	}
	var pkg struct {
		Dir, ImportPath, Name string
		GoFiles               []string
		Module                struct{ Path string }
	}
	if err := json.Unmarshal(output, &pkg); err != nil {
		return err
	}
	r.dir, r.path, r.name = pkg.Dir, pkg.ImportPath, pkg.Name
	r.folder = strings.TrimPrefix(pkg.ImportPath, pkg.Module.Path+"/")
	for _, name := range pkg.GoFiles {
		r.files = append(r.files, filepath.Join(pkg.Dir, name))
	}
	r.scratch, err = os.MkdirTemp("", "mutate-*")
	return err
}

func (r *runner) close() {
	if r.scratch != "" {
		os.RemoveAll(r.scratch)
	}
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

// prepare builds the programs and runs each test once to measure its time and the
// code that it runs.
func (r *runner) prepare(ctx context.Context, faults []*fault) error {
	for _, dir := range append([]string{r.dir}, r.tests...) {
		p, err := newProgram(ctx, r, dir)
		if err != nil {
			return err
		}
		r.programs = append(r.programs, p)
	}
	overlay, err := r.plant(ctx, faults)
	if err != nil {
		return err
	}
	for i, p := range r.programs {
		if i > 0 {
			if out, err := p.build(ctx, p.file, "-overlay", overlay); err != nil {
				return fmt.Errorf("build tests of %s with faults: %w\n%s", p.dir, err, out)
			}
		}
		if err := p.check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// try plants a fault and runs the tests that run its position.
func (r *runner) try(ctx context.Context, f *fault) error {
	begun := time.Now()
	if r.known[r.folder+": "+f.key] {
		f.outcome = equivalent
	} else if f.outcome != broken {
		if err := r.test(ctx, f); err != nil {
			return err
		}
	}
	if r.verbose || f.outcome == survivor || f.outcome == uncovered {
		fmt.Printf("%s: line %d: %s: %s (%s %v)\n", f.outcome, f.line, r.folder, f.key, f.by, time.Since(begun).Round(10*time.Millisecond))
	}
	return nil
}

func (r *runner) test(ctx context.Context, f *fault) error {
	f.outcome = uncovered
	for i, p := range r.programs {
		tests := p.running(f)
		if len(tests) == 0 {
			continue
		}
		f.outcome = survivor
		file := p.file
		if f.number == 0 {
			overlay, err := r.plantAlone(f)
			if err != nil {
				return err
			}
			file = filepath.Join(r.scratch, fmt.Sprintf("alone%d", i))
			if _, err := p.build(ctx, file, "-overlay", overlay); err != nil {
				f.outcome = broken
				return ctx.Err()
			}
		}
		by, err := p.notices(ctx, file, f.number, tests)
		if ctx.Err() != nil {
			f.outcome = untried
			return nil
		}
		if err != nil {
			return err
		}
		if by != "" {
			f.outcome, f.by = killed, by
			return nil
		}
	}
	return nil
}
