package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// An event is a line of "go test -json"; see "go doc test2json".
type event struct {
	Action, Package, ImportPath, Test, Output string
}

// A summary prints the output of go test, and collects skipped tests and numbers of checks.
type summary struct {
	out     io.Writer
	verbose bool
	output  map[string]*strings.Builder // of running tests, by package, NUL and test
	skipped map[string]*skip            // by reason
	checks  []string                    // lines that say how many checks a test made
}

// A skip counts the tests skipped for one reason, and lists their packages.
type skip struct {
	tests    int
	packages []string
}

func newSummary(out io.Writer, verbose bool) *summary {
	return &summary{out: out, verbose: verbose, output: map[string]*strings.Builder{}, skipped: map[string]*skip{}}
}

func (s *summary) add(e event) {
	key := e.Package + "\x00" + e.Test
	switch e.Action {
	case "output", "build-output":
		switch {
		case s.verbose || e.Action == "build-output" || e.Test == "" && !noise(e.Output):
			io.WriteString(s.out, e.Output)
		case e.Test != "":
			if s.output[key] == nil {
				s.output[key] = &strings.Builder{}
			}
			s.output[key].WriteString(e.Output)
		}
	case "fail":
		if printed := s.output[key]; printed != nil {
			io.WriteString(s.out, printed.String())
			delete(s.output, key)
		}
	case "pass":
		if printed := s.output[key]; printed != nil {
			s.count(e.Package, printed.String())
			delete(s.output, key)
		}
	case "skip":
		if e.Test != "" {
			s.skip(e.Package, s.output[key])
			delete(s.output, key)
		}
	}
}

// noise reports whether a line of a package's output is left out unless tests are
// shown one by one.
func noise(line string) bool {
	return line == "PASS\n" || strings.HasSuffix(line, "[no test files]\n")
}

// position is the prefix of messages from the testing package.
var position = regexp.MustCompile(`^\s+[\w./-]+\.go:\d+: `)

// count records how many checks a test says that it made.
func (s *summary) count(pkg, printed string) {
	for line := range strings.Lines(printed) {
		if at := position.FindString(line); at != "" && checks.MatchString(line) {
			s.checks = append(s.checks, fmt.Sprintf("checks: %s: %s", folder(pkg), strings.TrimSpace(line[len(at):])))
		}
	}
}

// checks is the number in a message about checks.
var checks = regexp.MustCompile(`\b\d+ checks\b`)

func folder(pkg string) string { return strings.TrimPrefix(pkg, "github.com/lukv/lukv/") }

// skip records a skipped test under the last message that it printed.
func (s *summary) skip(pkg string, printed *strings.Builder) {
	reason := ""
	if printed != nil {
		for line := range strings.Lines(printed.String()) {
			if at := position.FindString(line); at != "" {
				reason = strings.TrimSpace(line[len(at):])
			}
		}
	}
	reason = cmp.Or(reason, "no reason given")
	if s.skipped[reason] == nil {
		s.skipped[reason] = &skip{}
	}
	s.skipped[reason].tests++
	if !slices.Contains(s.skipped[reason].packages, pkg) {
		s.skipped[reason].packages = append(s.skipped[reason].packages, pkg)
	}
}

// close prints which tests were still running when the events ended (a crash or a
// timeout), how many checks conformance tests made, and why tests were skipped, the most
// frequent reason first.
func (s *summary) close() {
	for _, key := range slices.Sorted(maps.Keys(s.output)) {
		pkg, test, _ := strings.Cut(key, "\x00")
		fmt.Fprintf(s.out, "unfinished: %s of %s, which printed\n%s", test, pkg, s.output[key])
	}
	slices.Sort(s.checks)
	for _, line := range slices.Compact(s.checks) {
		fmt.Fprintln(s.out, line)
	}
	if len(s.skipped) == 0 {
		fmt.Fprintln(s.out, "skipped: nothing")
		return
	}
	reasons := slices.Collect(maps.Keys(s.skipped))
	slices.SortFunc(reasons, func(a, b string) int {
		return cmp.Or(s.skipped[b].tests-s.skipped[a].tests, strings.Compare(a, b))
	})
	total := 0
	for _, reason := range reasons {
		total += s.skipped[reason].tests
	}
	fmt.Fprintf(s.out, "skipped: %d tests, for %d reasons\n", total, len(reasons))
	for _, reason := range reasons {
		folders := make([]string, len(s.skipped[reason].packages))
		for i, pkg := range s.skipped[reason].packages {
			folders[i] = folder(pkg)
		}
		slices.Sort(folders)
		fmt.Fprintf(s.out, "skipped: %4d: %s (%s)\n", s.skipped[reason].tests, reason, strings.Join(folders, ", "))
	}
}
