package jinja

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hostile are templates that would take unbounded time or memory without
// limits; x is a long text.
var hostile = map[string]string{
	"repetition":       "{{ 'x' * 1000000000000 }}",
	"list repetition":  "{{ [1] * 1000000000000 }}",
	"doubling":         doubling("+ ns.s"),
	"doubling concat":  doubling("~ ns.s"),
	"doubling replace": doubling("|replace('x', 'xx')"),
	"doubling list":    "{% set ns = namespace(s=[1]) %}{% for i in range(900) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
	"doubling join":    "{% set ns = namespace(s='x') %}{% for i in range(900) %}{% set ns.s = [ns.s, ns.s]|join %}{% endfor %}",
	"doubling escape":  "{% set ns = namespace(s='&') %}{% for i in range(900) %}{% set ns.s = ns.s|forceescape %}{% endfor %}" + doubling("|e * 9"),
	"doubling tojson":  "{% set ns = namespace(s='\"') %}{% for i in range(900) %}{% set ns.s = ns.s|tojson %}{% endfor %}",
	"doubling repr":    "{% set ns = namespace(s='\\\\') %}{% for i in range(900) %}{% set ns.s = [ns.s]|string %}{% endfor %}",
	"replace bomb":     "{{ x|replace('', x) }}",
	"join bomb":        "{{ (x|list)|join(x) }}",
	"indent bomb":      "{{ ('a\\n' * 100000)|indent(x) }}",
	"tojson indent":    "{{ [[1]]|tojson(indent=1000000000000) }}",
	"tojson separator": "{{ range(9999)|list|tojson(separators=(x, x)) }}",
	"quadratic concat": "{% set ns = namespace(s='') %}{% for i in range(99999) %}{% set ns.s = ns.s + 'xxxxxxxx' %}{% endfor %}",
	"quadratic list":   "{% set ns = namespace(s=[]) %}{% for i in range(99999) %}{% set ns.s = ns.s + [i] %}{% endfor %}",
	"quadratic slice":  "{% for i in range(99999) %}{{ x[i:]|length }}{% endfor %}",
	"quadratic search": "{% for i in range(99999) %}{{ 'z' in x }}{% endfor %}",
	"quadratic index":  "{% for i in range(99999) %}{{ x[-i] }}{% endfor %}",
	"quadratic equal":  "{% set y = x[1:] %}{% set z = (x ~ '')[1:] %}{% for i in range(99999) %}{{ y == z }}{% endfor %}",
	"quadratic length": "{% for i in range(99999) %}{% for c in x %}{{ loop.length }}{% break %}{% endfor %}{% endfor %}",
	"quadratic strip":  "{{ x.strip(x) }}{% for i in range(99999) %}{{ x.strip('x')|length }}{% endfor %}",
	"quadratic affix":  "{% for i in range(99999) %}{{ x.startswith(x) }}{% endfor %}",
	"quadratic key":    "{% set d = {x: 1} %}{% for i in range(99999) %}{{ d[x] }}{% endfor %}",
	"quadratic sort":   "{% for i in range(99999) %}{{ (x|list)|sort|first }}{% endfor %}",
	"quadratic upper":  "{% for i in range(99999) %}{{ x|title|first }}{% endfor %}",
	"names":            "{% set a0 = 1 %}" + numbered(20000, "{%% set b%d = 1 %%}") + "{% for i in range(99999) %}{{ a0 }}{{ nope }}{% endfor %}",
	"wide macro":       "{% macro f(" + strings.TrimSuffix(numbered(9000, "p%d,"), ",") + ") %}{{ f(p0) }}{% endmacro %}{{ f(1) }}",
	"arguments":        "{% macro f() %}{{ [" + strings.Repeat("1,", 9000) + "f()] }}{% endmacro %}{{ f() }}",
	"kept sequences":   "{% set ns = namespace(l=x) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.l = ns.l|select %}{% endfor %}{% endfor %}",
	"kept loops":       "{% set ns = namespace(l=()) %}{% for i in range(99999) %}{% for j in x %}{% set ns.l = (ns.l, loop) %}{% break %}{% endfor %}{% endfor %}",
	"kept scopes":      "{% set ns = namespace(l=()) %}{% for i in range(99999) %}{% macro f() %}{% endmacro %}{% set ns.l = (ns.l, f) %}{% endfor %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
	"range":            "{{ range(100001)|length }}",
	"range overflow":   "{{ range(-9223372036854775807, 9223372036854775807) }}",
	"loops":            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
	"loop product":     "{% for a in range(99999) %}{{ range(99999)|list|length }}{% endfor %}",
	"recursion":        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
	"mutual recursion": "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
	"exponential":      "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
	"output":           "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
	"spans":            "{% set ns = namespace(s='') %}{% for c in x %}{% set ns.s = ns.s ~ c ~ '-' %}{% endfor %}",
	"spans cut":        "{% set y = x|replace('', '-') %}{% for i in range(99999) %}{{ y[1:]|length }}{% endfor %}",
	"deep value":       deepValue + "{{ ns.s }}",
	"deep tojson":      deepValue + "{{ ns.s|tojson }}",
	"deep equality":    deepValue + "{% set a = ns.s %}" + deepValue + "{{ ns.s == a }}",
	"lazy chain":       "{% set ns = namespace(s=[1]) %}{% for i in range(2000) %}{% set ns.s = ns.s|map('string') %}{% endfor %}{{ ns.s|list }}",
	"product chain":    "{{ 1" + strings.Repeat(" * 1", 2000) + " }}",
	"filter chain":     "{{ 1" + strings.Repeat("|string", 2000) + " }}",
	"attribute chain":  "{{ x" + strings.Repeat(".upper().lower()", 5000) + " }}",
	"deep parentheses": "{{ " + strings.Repeat("(", 100000),
	"deep not":         "{{ " + strings.Repeat("not ", 60000) + "x }}",
	"deep minus":       "{{ " + strings.Repeat("-", 100000) + "1 }}",
	"deep lists":       "{{ " + strings.Repeat("[", 100000),
	"deep blocks":      strings.Repeat("{% if x %}", 20000),
	"deep targets":     "{% set " + strings.Repeat("(", 100000),
	"long name":        "{{ " + strings.Repeat("a", 100000) + " }}",
	"long source":      strings.Repeat("x", MaxSource+1),
}

const deepValue = "{% set ns = namespace(s=[]) %}{% for i in range(2000) %}{% set ns.s = [ns.s] %}{% endfor %}"

func doubling(op string) string {
	return "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(900) %}{% set ns.s = ns.s " + op + " %}{% endfor %}"
}

func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		if b.Len() > MaxSource/2 {
			break
		}
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// longText is what hostile templates get as x.
var longText = object{"x", strings.Repeat("x", 1<<18)}

// TestLimits: every hostile template is ended by a limit, and what it has made
// until then is bounded. The limits are an eighth of the defaults.
func TestLimits(t *testing.T) {
	for name, source := range hostile {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := render(source, longText, Limits{Memory: defaultMemory / 8, Steps: defaultSteps / 8})
			runtime.ReadMemStats(&after)
			assert.ErrorIs(t, err, ErrLimit)
			// All that was ever made, whether collected meanwhile or not: far more
			// than is held at once, but no bomb stays below it.
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<27))
		})
	}
}

// TestCharges: an operation that looks at n bytes of text counts at least n/16
// steps, and one that makes n bytes counts at least as much memory.
func TestCharges(t *testing.T) {
	const n = 1 << 16
	for _, c := range []struct {
		source string
		made   int
	}{
		{"x|upper", n}, {"x|lower", n}, {"x|title", n}, {"x|capitalize", n}, {"x|trim", 0}, {"x.strip('x')", 0},
		{"x|replace('a', '')", 0}, {"x|replace('x', 'yy')", 2 * n}, {"x|replace('', '-')", 2 * n}, {"x|tojson", n}, {"[x]|string", n}, {"x|e", 0},
		{"x|indent(2)", n}, {"x|length", 0}, {"x|reverse", n}, {"x|list", 16 * n}, {"x|int", 0}, {"x|float", 0}, {"[x]|unique|list", 0}, {"[x, y]|sort", 0},
		{"[x, y]|max", n}, {"x == y", 0}, {"x < y", 0}, {"'z' in x", 0}, {"x in [y]", 0}, {"{x: 1}", 0}, {"d[x]", 0}, {"x[5]", 0}, {"x[1:]", 0}, {"x[::2]", n / 2},
		{"x.split('z')", 0}, {"x.split('x')", 16 * n}, {"x.split()", 0}, {"x.rsplit('z')", 0}, {"x.splitlines()", 0}, {"x.find('z')", 0}, {"x.rfind('z')", 0},
		{"x.count('z')", 0}, {"x.startswith(y)", 0}, {"x.endswith(y)", 0}, {"x.isalpha()", 0}, {"x.removeprefix('z')", 0}, {"x is lower", 0}, {"x is upper", 0},
		{"x is eq y", 0}, {"x is in y", 0}, {"strftime_now(x)", n}, {"[1]|map(attribute=x)|list", 0},
	} {
		t.Run(c.source, func(t *testing.T) {
			tmpl, err := Parse("test", "{% set v = "+c.source+" %}")
			require.NoError(t, err)
			r := newRun(context.Background(), Options{Limits: Limits{Memory: 1 << 30}, Now: goldenTime})
			x := strings.Repeat("x", n)
			r.setVars(object{"x", x, "y", strings.Clone(x), "d", object{}})
			steps, mem := r.steps, r.mem
			r.exec(tmpl.body, new(scope))
			assert.GreaterOrEqual(t, r.steps-steps, n/scannedPerStep)
			assert.GreaterOrEqual(t, r.mem-mem, c.made)
		})
	}
}

// TestRealSizes shows that the needs of real prompts are far within the limits.
func TestRealSizes(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB, about a million tokens
	const turns = "{{ bos }}{% for m in messages %}{% set content = m['content']|trim %}{{ '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>' + '\\n' }}{% endfor %}"
	got, err := render(turns, object{"messages", []any{object{"role", "user", "content", long}}}, Limits{})
	require.NoError(t, err)
	assert.Contains(t, got.Text, long)
	var many []any
	for range 10000 {
		many = append(many, object{"role", "user", "content", "a question"}, object{"role", "assistant", "content", "an answer"})
	}
	_, err = render(turns, object{"messages", many}, Limits{})
	require.NoError(t, err)
}
