package jinja

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/lukv/lukv/internal/testfuzz"
)

// fuzzLimits keeps one run short.
var fuzzLimits = Limits{Memory: 4 << 20, Steps: 100_000}

// FuzzTemplate: every source is parsed or refused at a position; what it renders
// stays within its limits, and no character of the input turns up as the
// template's.
func FuzzTemplate(f *testing.F) {
	for _, source := range hostile {
		if len(source) < 1000 {
			f.Add(source, "x")
		}
	}
	for _, source := range []string{
		"{{ x }}", "a{{ x|upper }}{{ d.k[1:] ~ x }}{# c #}", "{% for c in x %}{{ loop.index }}{{ c }}{% endfor %}", "{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(x) }}",
		"{{ {x: [x, 1.5, none]}|tojson(indent=2) }}", "{% set ns = namespace(s=x) %}{% set ns.s = ns.s + 'a' %}{{ ns.s.split('a') }}", "{{ x is in d and x == d['k'] or not x < 'b' }}",
	} {
		f.Add(source, "<|im_end|>é")
	}
	f.Fuzz(func(t *testing.T, source, x string) {
		defer testfuzz.Bound(t, len(source)+len(x))()
		tmpl, err := Parse("fuzz", source)
		var e *Error
		if err != nil {
			if !errors.As(err, &e) || e.Line < 1 || e.Column < 1 {
				t.Fatalf("error without a place: %v", err)
			}
			return
		}
		// The input's characters are in a plane of their own, so that they are
		// recognised wherever they turn up.
		private := func(c rune) rune { return 0xf0000 + c&0xffff }
		if strings.ContainsFunc(source, func(c rune) bool { return c >= 0xf0000 }) || strings.Contains(source, `\U`) {
			return
		}
		x = strings.Map(private, x)
		result, err := tmpl.Render(context.Background(), object{"x", x, "d", object{"k", x}, "n", 3}, Options{Limits: fuzzLimits, Now: goldenTime})
		if err != nil {
			if !errors.As(err, &e) {
				t.Fatalf("found the error %v, expected an *Error", err)
			}
			return
		}
		if len(result.Text) > fuzzLimits.Memory {
			t.Fatalf("%d bytes of output", len(result.Text))
		}
		at := 0
		for i, d := range result.Data {
			if d.Start < at || d.Start >= d.End || d.End > len(result.Text) || i > 0 && d.Start == at {
				t.Fatalf("data %v of %d bytes", result.Data, len(result.Text))
			}
			at = d.End
		}
		left := result.Data
		for i, c := range result.Text {
			for len(left) > 0 && left[0].End <= i {
				left = left[1:]
			}
			if c >= 0xf0000 && (len(left) == 0 || i < left[0].Start) {
				t.Fatalf("byte %d of %q is of the input, found only %v", i, result.Text, result.Data)
			}
		}
	})
}
