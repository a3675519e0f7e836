package chat

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lukv/lukv/internal/testfuzz"
)

// fuzzLimits keep one run short, so that a slow one is a finding.
var fuzzLimits = Limits{Memory: 8 << 20, Steps: 100_000, Depth: 500, Range: 10_000}

// addSeeds calls add with every template of the golden cases and the variables
// of its first case.
func addSeeds(f *testing.F, add func(template, vars string)) {
	features, real := goldenFolders(f)
	for _, c := range readCases(f, features) {
		vars, err := c.context.MarshalJSON()
		if err != nil {
			f.Fatal(err)
		}
		add(c.template, string(vars))
	}
	for _, folder := range real {
		source, err := os.ReadFile(filepath.Join(folder, "template.jinja"))
		if err != nil {
			f.Fatal(err)
		}
		for _, c := range readCases(f, filepath.Join(folder, "cases.json")) {
			vars, err := c.context.MarshalJSON()
			if err != nil {
				f.Fatal(err)
			}
			add(string(source), string(vars))
		}
	}
	for _, s := range []string{
		"{% for k, v in d.items() if v %}{{ loop.nextitem }}{{ loop.last }}{% break %}{% else %}{{ loop }}{% endfor %}",
		"{% macro f(a, b='x') %}{{ a ~ b }}{{ f(a[1:]) if a }}{% endmacro %}{{ f(x, b=a) }}", "{% set ns = namespace(s=x) %}{% set ns.s = ns.s + x %}{{ ns.s * 3 }}",
		"{{ x[1:2:3] }}{{ -1.5e1 ** 2 // 3 % 2 }}{{ 1 < 2 != 3 in [1] is not none }}", "{{ xs|map(attribute='a')|select('odd')|list }}{{ xs|selectattr('a', 'in', [1])|first }}",
		"{{ strftime_now('%-d %B %Y %%') }}{{ x.split('l', 1)|join(x) }}{{ x|replace('l', x)|indent(2, true) }}", "{{ d|dictsort(false, 'value')|tojson(indent=2) }}{{ (x|safe) + '<' }}",
		"{{ x.strip(x) }}{{ x.rsplit('l') }}{{ x|title|reverse|unique|sort|list|max }}{{ [x, 'a']|string|tojson(ensure_ascii=true) }}",
		// Inputs that once took too long or too much memory.
		"{{ x|replace('', x)|replace('', x)|replace('', x) }}", "{{ (x * 100000).strip(x * 1000) }}", "{% set ns = namespace(s=[]) %}{% for i in range(999) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s|tojson }}",
		"{% for i in range(99999) %}{% set y = x ~ y %}{{ y|title }}{% endfor %}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ " + strings.Repeat("not ", 999) + "x" + strings.Repeat(".a", 999) + " }}",
	} {
		add(s, `{"x": "héllo", "xs": [{"a": 1}], "t": [{"c": []}], "d": {"b": 1.5, "a": null}, "a": [1], "b": {}}`)
	}
}

// FuzzParse: every source quickly parses or gives an *Error with a line.
func FuzzParse(f *testing.F) {
	addSeeds(f, func(template, _ string) { f.Add(template) })
	f.Fuzz(func(t *testing.T, source string) {
		defer testfuzz.Bound(t, len(source))()
		start := time.Now()
		_, err := Parse("fuzz", source)
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Line < 1) {
			t.Errorf("error without a line: %v", err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("parsing %d bytes took %v", len(source), d)
		}
	})
}

// FuzzRender: every template over any variables renders or gives an *Error,
// the same twice, within its limits.
func FuzzRender(f *testing.F) {
	addSeeds(f, func(template, vars string) { f.Add(template, vars) })
	f.Fuzz(func(t *testing.T, source, vars string) {
		defer testfuzz.Bound(t, len(source)+len(vars))()
		tmpl, err := Parse("fuzz", source)
		if err != nil {
			return
		}
		var o Object
		if o.UnmarshalJSON([]byte(vars)) != nil {
			return
		}
		start := time.Now()
		opt := Options{Limits: fuzzLimits, Now: goldenTime}
		prompt, err := tmpl.render(context.Background(), &o, opt)
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Errorf("found the error %v, expected an *Error", err)
		}
		if len(prompt.Text) > fuzzLimits.Memory {
			t.Errorf("%d bytes of output", len(prompt.Text))
		}
		end := 0
		for i, d := range prompt.Data {
			if d.Start < end || d.End <= d.Start || d.End > len(prompt.Text) || i > 0 && d.Start == end {
				t.Fatalf("data %v of %d bytes", prompt.Data, len(prompt.Text))
			}
			end = d.End
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("rendering took %v", d)
		}
		again, err2 := tmpl.render(context.Background(), &o, opt)
		if again.Text != prompt.Text || (err == nil) != (err2 == nil) || err != nil && err.Error() != err2.Error() {
			t.Errorf("first %q, %v; then %q, %v", prompt.Text, err, again.Text, err2)
		}
	})
}

// FuzzDecodeJSON: what decodes can be encoded and decodes to the same value again.
func FuzzDecodeJSON(f *testing.F) {
	addSeeds(f, func(_, vars string) { f.Add(vars) })
	f.Add(`[1e400, -0.0, 12345678901234567890, "\ud800", {"a": 1, "a": 2}]`)
	show, err := Parse("t", "{{ x }}")
	if err != nil {
		f.Fatal(err)
	}
	encode, err := Parse("t", "{{ x|tojson }}")
	if err != nil {
		f.Fatal(err)
	}
	render := func(t *testing.T, tmpl *Template, v any) string {
		p, err := tmpl.Render(context.Background(), Input{Extra: new(Object).Set("x", v)})
		if err != nil {
			t.Fatal(err)
		}
		return p.Text
	}
	f.Fuzz(func(t *testing.T, data string) {
		defer testfuzz.Bound(t, len(data))()
		v, err := decodeJSON([]byte(data))
		if err != nil {
			return
		}
		back, err := decodeJSON([]byte(render(t, encode, v)))
		if text := render(t, show, v); err == nil && render(t, show, back) != text { // infinity is not JSON
			t.Errorf("%s became %s", text, render(t, show, back))
		}
	})
}
