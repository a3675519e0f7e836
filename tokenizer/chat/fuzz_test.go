package chat

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
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
		"{% call(a) f(1) %}{{ a }}{% endcall %}", "{% for x in t recursive %}{{ loop(x.c) }}{% endfor %}",
		"{% filter upper|replace('a', 'b') %}x{% endfilter %}", "{% with a = 1 %}{{ a }}{% endwith %}",
		"{% set x | trim %} y {% endset %}", "{{ '%5.2f %s' % (1.5, 'a') }}", "{{ '{:>8,.2f} {a[b]!r}'.format(1, a={'b': 2}) }}",
		"{{ x[1:2:3] }}{{ 0x1F + 1_0.5e1 }}", "{{ f(*a, **b) }}", "{{ xs|batch(2)|map('first')|list }}{{ xs|groupby('a') }}",
		"{{ strftime_now('%-d %B %Y %%') }}", "{%- raw -%} {{ x }} {%- endraw +%}", "{{ d|dictsort(false, 'value')|tojson(indent=2) }}",
	} {
		add(s, `{"x": "héllo", "xs": [{"a": 1}], "t": [{"c": []}], "d": {"b": 1.5, "a": null}, "a": [1], "b": {}}`)
	}
}

// FuzzParse: every source parses or gives an *Error with a line, in a short time.
func FuzzParse(f *testing.F) {
	addSeeds(f, func(template, _ string) { f.Add(template) })
	f.Fuzz(func(t *testing.T, source string) {
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

// FuzzRender: every template over every variables renders or gives an *Error,
// twice the same, within its limits.
func FuzzRender(f *testing.F) {
	addSeeds(f, func(template, vars string) { f.Add(template, vars) })
	f.Fuzz(func(t *testing.T, source, vars string) {
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

// FuzzDecodeJSON: what decodes can be encoded and decodes to the same again.
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
		v, err := decodeJSON([]byte(data))
		if err != nil {
			return
		}
		back, err := decodeJSON([]byte(render(t, encode, v)))
		if text := render(t, show, v); err == nil && render(t, show, back) != text { // infinity is no JSON
			t.Errorf("%s became %s", text, render(t, show, back))
		}
	})
}
