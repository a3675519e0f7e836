package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A program is the tests of one package.
type program struct {
	r     *runner
	dir   string
	file  string
	rapid bool   // it has property tests
	known []span // all code of the package under test
	tests []*testCase
}

// A testCase is a top-level test, the time it takes, and the code that it runs.
type testCase struct {
	name      string
	cpu, wall time.Duration
	covered   []span
}

// A span is part of a file, from one line and column up to another.
type span struct {
	file     string
	from, to [2]int
}

func (s span) holds(f *fault) bool {
	at := [2]int{f.line, f.column}
	return s.file == f.file && slices.Compare(s.from[:], at[:]) <= 0 && slices.Compare(at[:], s.to[:]) < 0
}

// newProgram builds the tests of a folder without faults, and runs them.
func newProgram(ctx context.Context, r *runner, dir string) (*program, error) {
	p := &program{r: r, dir: dir, file: filepath.Join(r.scratch, fmt.Sprintf("tests%d", len(r.programs)))}
	list := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}} {{join .TestImports \" \"}} {{join .XTestImports \" \"}}", ".")
	list.Dir = dir
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list package %s: %w", dir, err)
	}
	// Property tests must leave no files behind for failures caused by planted faults.
	p.rapid = slices.Contains(strings.Fields(string(out)), "pgregory.net/rapid")
	cover := p.file + ".cover"
	if out, err := p.build(ctx, cover, "-cover", "-coverpkg="+r.path); err != nil {
		return nil, fmt.Errorf("build tests of %s: %w\n%s", dir, err, out)
	}
	if out, err = exec.CommandContext(ctx, cover, "-test.list", ".").Output(); err != nil {
		return nil, fmt.Errorf("list tests of %s: %w", dir, err)
	}
	for name := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(name, "Benchmark") || r.run != nil && !r.run.MatchString(name) || r.skip != nil && r.skip.MatchString(name) {
			continue
		}
		t := &testCase{name: name}
		if err := p.cover(ctx, cover, t); ctx.Err() != nil {
			return nil, ctx.Err()
		} else if err != nil {
			fmt.Printf("left out: %s fails by itself: %v\n", name, err)
			continue
		}
		if t.cpu > r.slow {
			fmt.Printf("left out: %s computes for %v\n", name, t.cpu.Round(time.Second))
			continue
		}
		p.tests = append(p.tests, t)
	}
	slices.SortStableFunc(p.tests, func(a, b *testCase) int { return cmp.Compare(a.cpu, b.cpu) })
	return p, nil
}

func (p *program) build(ctx context.Context, to string, flags ...string) ([]byte, error) {
	// -e reports all errors; faults that do not compile are identified by line.
	args := append([]string{"test", "-c", "-vet=off", "-gcflags=-e", "-o", to}, flags...)
	build := exec.CommandContext(ctx, "go", append(args, ".")...)
	build.Dir = p.dir
	return build.CombinedOutput()
}

const addresses = 16 << 20 // kilobytes of address space that tests may take

// command returns a command that runs tests within a limit of CPU time rather than
// elapsed time, which depends on what else the machine does.
func (p *program) command(ctx context.Context, file string, cpu time.Duration, tests []*testCase, flags ...string) *exec.Cmd {
	var names []string
	for _, t := range tests {
		names = append(names, regexp.QuoteMeta(t.name))
	}
	limits := fmt.Sprintf("ulimit -t %d; ulimit -v %d; exec \"$@\"", int(math.Ceil(cpu.Seconds())), addresses)
	args := []string{"-c", limits, "sh", file, "-test.short", "-test.failfast", "-test.run", "^(" + strings.Join(names, "|") + ")$"}
	args = append(args, flags...)
	if p.rapid {
		args = append(args, "-rapid.nofailfile")
	}
	run := exec.CommandContext(ctx, "sh", args...)
	run.Dir = p.dir
	run.WaitDelay = time.Second
	return run
}

// cover runs one test by itself to measure its time and the code that it runs.
func (p *program) cover(ctx context.Context, file string, t *testCase) error {
	profile := p.file + ".profile"
	run := p.command(ctx, file, time.Hour, []*testCase{t}, "-test.coverprofile", profile)
	begun := time.Now()
	if err := run.Run(); err != nil {
		return err
	}
	t.wall = time.Since(begun)
	t.cpu = run.ProcessState.UserTime() + run.ProcessState.SystemTime()
	text, err := os.ReadFile(profile)
	if err != nil {
		return err
	}
	first := p.known == nil
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "mode:") {
			continue
		}
		s, err := readSpan(line)
		if err != nil {
			return err
		}
		if first {
			p.known = append(p.known, s)
		}
		if !strings.HasSuffix(strings.TrimSpace(line), " 0") {
			t.covered = append(t.covered, s)
		}
	}
	return nil
}

// readSpan reads "PATH/FILE.go:L.C,L.C STATEMENTS COUNT".
func readSpan(line string) (span, error) {
	var s span
	place, _, ok := strings.Cut(line, " ")
	name, numbers, ok2 := strings.Cut(place, ":")
	s.file = filepath.Base(name)
	n, err := fmt.Sscanf(numbers, "%d.%d,%d.%d", &s.from[0], &s.from[1], &s.to[0], &s.to[1])
	if !ok || !ok2 || n != 4 || err != nil {
		return s, fmt.Errorf("coverage profile: %q", line)
	}
	return s, nil
}

// check runs all tests with all faults built in and none planted.
func (p *program) check(ctx context.Context) error {
	if len(p.tests) == 0 {
		return nil
	}
	if out, err := p.command(ctx, p.file, time.Hour, p.tests).CombinedOutput(); err != nil {
		return fmt.Errorf("tests of %s fail with no fault planted: %w\n%s", p.dir, err, out)
	}
	return nil
}

// running returns the tests that run a fault's position, quickest first. For code that
// the profile does not cover, such as the condition of a case, these are the tests that
// run any part of the function; for code outside of functions, all tests.
func (p *program) running(f *fault) []*testCase {
	at := func(s span) bool { return s.holds(f) }
	if f.function == [2]int{} && !slices.ContainsFunc(p.known, at) {
		return p.tests
	}
	if !slices.ContainsFunc(p.known, at) {
		at = func(s span) bool {
			return s.file == f.file && f.function[0] <= s.from[0] && s.to[0] <= f.function[1]
		}
	}
	var out []*testCase
	for _, t := range p.tests {
		if slices.ContainsFunc(t.covered, at) {
			out = append(out, t)
		}
	}
	return out
}

var failed = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// notices returns which test fails with a fault planted, "" if none; a test that does not
// end or exhausts memory also counts. Tests run in batches, quick ones first, because a
// program runs its tests in its own order, up to the first that fails.
func (p *program) notices(ctx context.Context, file string, number int, tests []*testCase) (string, error) {
	for room := time.Second / 4; len(tests) > 0; room *= 3 {
		n := 0
		for took := time.Duration(0); n < len(tests) && (n == 0 || took < room); n++ {
			took += tests[n].cpu
		}
		var part []*testCase
		part, tests = tests[:n], tests[n:]
		var cpu, wall time.Duration
		for _, t := range part {
			cpu, wall = cpu+t.cpu, wall+t.wall
		}
		limited, cancel := context.WithTimeout(ctx, 10*wall+time.Minute)
		run := p.command(limited, file, 4*cpu+time.Second/2, part)
		run.Env = append(os.Environ(), environment+"="+strconv.Itoa(number))
		out, err := run.CombinedOutput()
		late := limited.Err() != nil
		cancel()
		var exit *exec.ExitError
		if errors.As(err, &exit) || late {
			if m := failed.FindSubmatch(out); m != nil {
				return string(m[1]), nil
			}
			return fmt.Sprint(err, ", late: ", late), nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", nil
}
