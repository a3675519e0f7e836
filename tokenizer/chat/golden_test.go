package chat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testgz"
)

// goldenEnv names a folder with features.json and real/NAME/{template.jinja,
// cases.json}; without it the cases in testdata run.
const goldenEnv = "LUKV_GOLDEN_TEMPLATES"

// licensed are templates that this repository does not carry, since they
// are not freely licensed. They run if a folder with them is found.
var licensed = []string{"llama-3-8b-instruct", "llama-3.1-8b-instruct"}

// goldenTime is what strftime_now formats in the cases.
func goldenTime() time.Time { return time.Date(2024, 7, 26, 13, 5, 9, 0, time.UTC) }

type goldenCase struct {
	name, template, tier string
	context              *Object
	output, failure      string
	kind                 string // "" for an output, else "raised", "engine" or "any"
}

func text(o *Object, key string) string {
	v, _ := o.Get(key)
	s, _ := v.(string)
	return s
}

func readCases(t testing.TB, file string) []goldenCase {
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var doc Object
	require.NoError(t, doc.UnmarshalJSON(data), file)
	list, _ := doc.Get("cases")
	var out []goldenCase
	for _, e := range list.([]any) {
		o := e.(*Object)
		c := goldenCase{
			name: text(o, "name"), template: text(o, "template"), tier: text(o, "tier"),
			output: text(o, "output"), failure: text(o, "error"), kind: text(o, "error_kind"),
		}
		v, _ := o.Get("context")
		c.context = v.(*Object)
		out = append(out, c)
	}
	return out
}

// goldenFolders returns the file of feature cases and the folders of real
// templates, by name.
func goldenFolders(t testing.TB) (features string, real map[string]string) {
	root := os.Getenv(goldenEnv)
	if root == "" {
		root = "testdata"
	}
	real = map[string]string{}
	folders, err := filepath.Glob(filepath.Join(root, "real", "*"))
	require.NoError(t, err)
	for _, f := range folders {
		real[filepath.Base(f)] = f
	}
	return filepath.Join(root, "features.json"), real
}

// check runs one case and reports what is wrong with it, or "".
func (c *goldenCase) check(t *Template, parseErr error) string {
	var got string
	err := parseErr
	if err == nil {
		var p Prompt
		p, err = t.render(context.Background(), c.context, Options{Now: goldenTime})
		got = p.Text
	}
	var raised *RaisedError
	switch {
	case c.kind == "" && err != nil:
		return fmt.Sprintf("failed: %v", err)
	case c.kind == "" && got != c.output:
		return fmt.Sprintf("\nwant %q\ngot  %q", c.output, got)
	case c.kind != "" && err == nil:
		return fmt.Sprintf("rendered %q, expected the error %q", got, c.failure)
	case c.kind == "raised" && !errors.As(err, &raised):
		return fmt.Sprintf("failed: %v, expected the template to raise %q", err, c.failure)
	case c.kind == "raised" && raised.Message != c.failure:
		return fmt.Sprintf("raised %q, expected %q", raised.Message, c.failure)
	case c.kind == "engine" && errors.As(err, &raised):
		return fmt.Sprintf("raised %q, expected a failure of the engine", raised.Message)
	}
	return ""
}

// TestGolden renders every case. A feature of the extra tier may be missing if
// the error names it and says that it is unsupported.
func TestGolden(t *testing.T) {
	features, real := goldenFolders(t)
	checks, skipped := 0, 0
	for _, c := range readCases(t, features) {
		t.Run("feature/"+c.name, func(t *testing.T) {
			tmpl, err := Parse(c.name, c.template)
			if problem := c.check(tmpl, err); problem != "" {
				if c.tier == "extra" {
					if err == nil {
						_, err = tmpl.render(context.Background(), c.context, Options{Now: goldenTime})
					}
					if errors.Is(err, ErrUnsupported) {
						skipped++
						t.Skip(err)
					}
				}
				t.Errorf("template %q: %s", c.template, problem)
			}
			checks++
		})
	}
	for name, folder := range real {
		source, err := os.ReadFile(filepath.Join(folder, "template.jinja"))
		require.NoError(t, err)
		tmpl, err := Parse(name, string(source))
		for _, c := range readCases(t, filepath.Join(folder, "cases.json")) {
			t.Run(name+"/"+c.name, func(t *testing.T) {
				checks++
				if problem := c.check(tmpl, err); problem != "" {
					t.Error(problem)
				}
			})
		}
	}
	for _, name := range licensed {
		if real[name] == "" {
			t.Run(name, func(t *testing.T) {
				t.Skipf("%s is not part of this repository; set %s to a folder that has it", name, goldenEnv)
			})
		}
	}
	require.NotZero(t, checks, "no cases found")
	line := fmt.Sprintf("golden templates: %d checks, %d skipped (feature not built)", checks, skipped)
	t.Log(line)
	fmt.Println(line)
}

// maxRefused is the maximum number of reference templates that need
// unsupported features.
const maxRefused = 480

// TestReference renders templates, most of them made at random, whose results
// were recorded from Python's Jinja2. Where Python fails, this package must
// fail; unsupported features are refused by name, never rendered differently.
func TestReference(t *testing.T) {
	data, err := testgz.ReadFile(filepath.Join("testdata", "jinja.json"))
	require.NoError(t, err)
	var doc Object
	require.NoError(t, doc.UnmarshalJSON(data))
	vars, _ := doc.Get("context")
	list, _ := doc.Get("cases")
	require.NotEmpty(t, list)
	refused := 0
	for i, e := range list.([]any) {
		source := text(e.(*Object), "template")
		c := goldenCase{context: vars.(*Object), output: text(e.(*Object), "output"), failure: text(e.(*Object), "error")}
		if c.failure != "" {
			c.kind = "any" // raised or engine
		}
		tmpl, err := Parse("reference", source)
		problem := c.check(tmpl, err)
		if problem == "" {
			continue
		}
		if err == nil {
			_, err = tmpl.render(context.Background(), c.context, Options{Now: goldenTime})
		}
		if errors.Is(err, ErrUnsupported) {
			refused++
			continue
		}
		t.Errorf("case %d: template %q: %s", i, source, problem)
	}
	t.Logf("%d templates, %d of them need what the language leaves out", len(list.([]any)), refused)
	require.LessOrEqual(t, refused, maxRefused)
}
