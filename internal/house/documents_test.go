package house

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// documents lists the Markdown files of the module outside testdata, relative
// to its root.
func documents(t *testing.T) []string {
	var names []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() && (base == "testdata" || strings.HasPrefix(base, ".") && name != root) {
			return filepath.SkipDir
		}
		if strings.HasSuffix(base, ".md") {
			relative, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			names = append(names, filepath.ToSlash(relative))
		}
		return nil
	})
	require.NoError(t, err)
	return names
}

var (
	fences   = regexp.MustCompile("(?ms)^```.*?^```|^    [^\n]*$")
	links    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	headings = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	codes    = regexp.MustCompile("`([^`\n]+)`")
	testName = regexp.MustCompile(`^(?:Test|Fuzz|Example|Benchmark)[A-Z]\w*$`)
	goFile   = regexp.MustCompile(`^[\w./-]+/[\w.-]+\.(?:go|s|md|txt|py|json)$`)
	makeRule = regexp.MustCompile(`^make ([a-z]+)`)
)

// prose returns a document without its code blocks.
func prose(t *testing.T, name string) string {
	text, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return fences.ReplaceAllString(string(text), "")
}

// anchor returns the anchor of a heading in a rendered page.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(strings.ReplaceAll(heading, "`", "")))
}

// TestLinks follows the relative links of the documents, to files and to
// headings.
func TestLinks(t *testing.T) {
	checked := 0
	for _, name := range documents(t) {
		for _, match := range links.FindAllStringSubmatch(prose(t, name), -1) {
			target, fragment, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			checked++
			to := name
			if target != "" {
				to = path.Join(path.Dir(name), target)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s: link to %s, which does not exist", name, match[1])
				continue
			}
			if fragment == "" {
				continue
			}
			found := false
			for _, heading := range headings.FindAllStringSubmatch(prose(t, to), -1) {
				found = found || anchor(heading[1]) == fragment
			}
			if !found {
				t.Errorf("%s: link to %s, but no heading has that anchor", name, match[1])
			}
		}
	}
	require.Greater(t, checked, 10)
}

// TestDocumentsNameWhatExists looks up the files, tests and make rules that
// documents name in code spans. The changelog may name what no longer exists.
func TestDocumentsNameWhatExists(t *testing.T) {
	var tests strings.Builder
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, "_test.go") {
			text, err := os.ReadFile(name)
			tests.Write(text)
			return err
		}
		return err
	})
	require.NoError(t, err)
	rules, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	checked := 0
	for _, name := range documents(t) {
		if name == "CHANGELOG.md" {
			continue
		}
		for _, match := range codes.FindAllStringSubmatch(prose(t, name), -1) {
			code := match[1]
			switch {
			case testName.MatchString(code):
				if !strings.Contains(tests.String(), "\nfunc "+code+"(") {
					t.Errorf("%s: names the test %s, which does not exist", name, code)
				}
			case goFile.MatchString(code):
				_, here := os.Stat(filepath.Join(root, code))
				_, beside := os.Stat(filepath.Join(root, path.Dir(name), code))
				if here != nil && beside != nil {
					t.Errorf("%s: names the file %s, which does not exist", name, code)
				}
			case makeRule.MatchString(code):
				if rule := makeRule.FindStringSubmatch(code)[1]; !strings.Contains(string(rules), "\n"+rule+":") {
					t.Errorf("%s: names the rule %s, which the Makefile does not have", name, code)
				}
			default:
				continue
			}
			checked++
		}
	}
	require.Greater(t, checked, 20)
}

var bound = regexp.MustCompile("\\| `([\\w/]+)` `(\\w+) = ([^`]+)` \\|")

// TestBoundsAreDocumented compares the numbers in docs/security.md with the
// constants of the packages that it names.
func TestBoundsAreDocumented(t *testing.T) {
	rows := bound.FindAllStringSubmatch(prose(t, "docs/security.md"), -1)
	require.Greater(t, len(rows), 10)
	for _, row := range rows {
		folder, name, value := row[1], row[2], row[3]
		declaration := regexp.MustCompile(`(?m)^(?:const)?\s+` + name + `\s+= (.*?)\s*(?://.*)?$`)
		files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
		require.NoError(t, err)
		var values []string
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, declared := range declaration.FindAllSubmatch(text, -1) {
				values = append(values, string(declared[1]))
			}
		}
		if !slices.Contains(values, value) {
			t.Errorf("docs/security.md: %s of package %s is %q, the document says %s", name, folder, values, value)
		}
	}
}

// TestRobustnessNamesTests: every row of docs/robustness.md names tests that exist,
// each after its package.
func TestRobustnessNamesTests(t *testing.T) {
	code := regexp.MustCompile("`([^`]+)`")
	rows := 0
	for line := range strings.Lines(prose(t, "docs/robustness.md")) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "|") || len(cells) != 3 || strings.HasPrefix(line, "| ---") || strings.HasPrefix(line, "| now") {
			continue
		}
		rows++
		folder, tests := "", 0
		for _, at := range code.FindAllStringSubmatch(cells[2], -1) {
			if !strings.HasPrefix(at[1], "Test") {
				folder = at[1]
				continue
			}
			tests++
			files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
			require.NoError(t, err)
			found := slices.ContainsFunc(files, func(file string) bool {
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				return strings.Contains(string(text), "\nfunc "+at[1]+"(")
			})
			require.True(t, found, "docs/robustness.md: there is no %s in package %s", at[1], folder)
		}
		require.NotZero(t, tests, line)
	}
	require.Greater(t, rows, 40)
}

// TestWalksNameFunctions: every function that a document places in a file is declared there.
func TestWalksNameFunctions(t *testing.T) {
	placed := regexp.MustCompile("`(?:[A-Za-z]+\\.)?([A-Za-z]+)` \\(`([\\w./-]+\\.go)`\\)")
	found := 0
	for _, name := range documents(t) {
		for _, m := range placed.FindAllStringSubmatch(prose(t, name), -1) {
			text, err := os.ReadFile(filepath.Join(root, m[2]))
			require.NoError(t, err, name)
			require.Regexp(t, `(?m)^func (\([^)]*\) )?`+m[1]+`\b`, string(text), "%s: %s", name, m[0])
			found++
		}
	}
	require.Greater(t, found, 20, "docs/architecture.md has four walks")
}
