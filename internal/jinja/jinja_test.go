package jinja

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// object is a Mapping given as alternating keys and values.
type object []any

func (o object) All() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for i := 0; i+1 < len(o); i += 2 {
			if !yield(o[i].(string), o[i+1]) {
				return
			}
		}
	}
}

// goldenTime is what strftime_now formats in tests.
func goldenTime() time.Time { return time.Date(2024, 7, 26, 13, 5, 9, 0, time.UTC) }

func render(source string, vars Mapping, limits Limits) (Result, error) {
	t, err := Parse("test", source)
	if err != nil {
		return Result{}, err
	}
	return t.Render(context.Background(), vars, Options{Limits: limits, Now: goldenTime})
}

// TestLanguage pins results of Jinja2 3.1 that the golden cases leave out.
func TestLanguage(t *testing.T) {
	vars := object{"d", object{"b", 2, "a", 1}, "xs", []any{3, 1, 2}, "e", []string{},
		"big", json.Number("123456789012345678901234567890"), "bigger", json.Number("1123456789012345678901234567890"),
		"small", json.Number("-123456789012345678901234567890"), "smaller", json.Number("-223456789012345678901234567890")}
	for _, c := range []struct{ source, want string }{
		{"{% macro f() %}{{ x }}{% endmacro %}{% set x = 7 %}{{ f() }}", "7"},
		{"{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3) }}", "11123"},
		{"{% for i in [1,2] %}{{ y is defined }}{% set y = i %}{% endfor %}", "FalseFalse"},
		{"{% for i in [1,2,3] %}{% break %}{% else %}E{% endfor %}", "E"},
		{"{% for i in [1,2,3] %}{% continue %}{% else %}E{% endfor %}", "E"},
		{"{% for i in [1,2] %}{% set x %}a{% break %}{% endset %}{% endfor %}Z", "Z"},
		{"{% for (k, v), n in [((1, 2), 3)] %}{{ k }}{{ v }}{{ n }}{% endfor %}", "123"},
		{"{% set ns = namespace(go=true) %}{% for i in [1,2,3] if ns.go %}{{ i }}{% set ns.go = false %}{% endfor %}", "1"},
		{"{% for i in [1,2,3] if i > 1 %}{{ loop.index }}{{ loop.last }}{{ loop.length }};{% endfor %}", "1False2;2True2;"},
		{"{% set ns = namespace(n=1) %}{% set ns.n, ns.m = 3, 4 %}{{ ns.n }}{{ ns.m }}{{ ns }}", "34<Namespace {'n': 3, 'm': 4}>"},
		{"{% set it = [1,2,3]|select('odd') %}{{ it|list }}{{ it|list }}", "[1, 3][]"},
		{"{{ [1]|select and 'yes' }}", "yes"},
		{"{{ d.items()|sort }} {{ [[2, 'b'], [1, 'c'], [1]]|sort }} {{ [1] < [1, 0] }} {{ (2, 1) <= (1, 3) }}", "[('a', 1), ('b', 2)] [[1], [1, 'c'], [2, 'b']] True False"},
		{"{{ '1_000'|int }} {{ '-1_0'|int }} {{ '_1'|int }} {{ '1__0'|int }} {{ '1_'|int }} {{ '+_1'|int }}", "1000 -10 0 0 0 0"},
		{"{{ '1_0.5'|float }} {{ '1_0.5'|int }} {{ '1e1_0'|float }} {{ '1_.5'|float }} {{ '٣'|int }} {{ '१_२'|int }} {{ '３.５'|float }} {{ '𝟗𝟎𝟙'|int }} {{ '²'|int }}", "10.5 10 10000000000.0 0.0 3 12 3.5 901 0"},
		{"{{ '²'.isdigit() }} {{ '①٣'.isdigit() }} {{ '½'.isdigit() }} {{ '⑩'.isdigit() }}", "True True False False"},
		{"{{ big }} {{ [big]|tojson }} {{ big == big }} {{ big > 1 }} {{ big is integer }}", "123456789012345678901234567890 [123456789012345678901234567890] True True True"},
		{"{{ big == bigger }} {{ big < bigger }} {{ big > small }} {{ small < smaller }} {{ [bigger, small, big, smaller, 1]|sort }}", "False True True False [-223456789012345678901234567890, -123456789012345678901234567890, 1, 123456789012345678901234567890, 1123456789012345678901234567890]"},
		{"{{ 4611686018427387904 * -2 }} {{ -2 ** 63 }} {{ (-2) ** 63 }}", "-9223372036854775808 -9223372036854775808 -9223372036854775808"},
		{"{{ -7 // 2 }} {{ -7 % 3 }} {{ 7.5 // -2 }} {{ 1e22 }} {{ 0.1 + 0.2 }} {{ 10 / 5 }} {{ 2 ** -1 }} {{ (-1) ** 3 }}", "-4 2 -4.0 1e+22 0.30000000000000004 2.0 0.5 -1"},
		{"{{ 1.0 // 0.1 }} {{ 6 // 0.1 }} {{ -1.0 // 0.1 }} {{ 0.0 // -1 }} {{ 5 % -0.5 }} {{ -5.0 % 5 }} {{ 7 // -2.5 }} {{ 5 // 1e400 }} {{ -5 // 1e400 }} {{ -5 % 1e400 }}", "9.0 59.0 -10.0 -0.0 -0.0 0.0 -3.0 0.0 -1.0 inf"},
		{"{{ 9007199254740993 / 3 }} {{ 2147483648 / 9007199254740993 }} {{ 0 / -5 }} {{ 3 / (-9223372036854775807 - 1) }} {{ 0 / (-9223372036854775807 - 1) }}", "3002399751580331.0 2.3841857910156247e-07 -0.0 -3.2526065174565133e-19 -0.0"},
		{"{{ 9007199254740993 == 9007199254740992.0 }} {{ 9007199254740993 > 9007199254740992.0 }} {{ 9223372036854775808.0 > 9223372036854775807 }} {{ 2 ** 62 == 4611686018427387904.0 }} {{ true == 1.0 }}", "False True True True True"},
		{"{{ {1: 'a', 1.0: 'b', true: 'c'} }}", "{1: 'c'}"},
		{"{{ d|tojson(indent=2, separators=(',', ':')) }}", "{\n  \"b\":2,\n  \"a\":1\n}"},
		{"{{ 'é😀'|tojson(ensure_ascii=true) }}{{ d|tojson(sort_keys=true) }}", `"\u00e9\ud83d\ude00"{"a": 1, "b": 2}`},
		{"{{ ('<b>'|safe) + '<i>' }}{{ '<'|e }}{{ ('<'|safe) ~ '<' }}{{ ('<'|safe)|trim + '>' }}", "<b>&lt;i&gt;&lt;<<<&gt;"},
		{"{% set a = d|tojson|safe if d is mapping else x %}{{ a }}{{ '<v>' ~ a ~ '</v>' }}", `{"b": 2, "a": 1}<v>{"b": 2, "a": 1}</v>`},
		{"{% set m = '<b>'|safe %}{{ m.replace('b', '<') }}{{ m|replace('b', '<') }}{{ m.join(['<', m, 1]) }}{{ '<'.join([m, m]) + '<' }}", "<&lt;><<>&lt;<b><b><b>1<b><<b><"},
		{"{% set m = '<b>'|safe %}{{ [m[::-1], m[5:], m * 2, m * 0, m|title, m.title(), m|string, m|upper, m.split('b')] }}{{ m is escaped }}",
			"[Markup('>b<'), Markup(''), Markup('<b><b>'), Markup(''), '<B>', Markup('<B>'), Markup('<b>'), Markup('<B>'), [Markup('<'), Markup('>')]]True"},
		{"{{ 'ß a'|title }}{{ 'ß'.title() }}{{ 'ß'|capitalize }}", "SS ASsSs"},
		{"{% if e %}{{ xs.append(1) }}{% endif %}{{ xs.append is defined }}{{ d.update is defined }}", "FalseFalse"},
		{"{{ 'ß'|upper }}{{ 'Ä'|lower }}{{ \"they're\".title() }}{{ \"they're\"|title }}", "SSäThey'ReThey're"},
		{"{{ 'İA'|lower }}{{ 'aİ'.title() }}{{ 'İb'|capitalize }} {{ 'ªb ⅷ ⓐb'.title() }} {{ 'ª' is lower }}{{ 'Ⓐ' is upper }}{{ 'ⅷA' is upper }}", "i\u0307aAi\u0307İb ªb Ⅷ Ⓐb TrueTrueFalse"},
		{"{{ xs|sort|join(',') }}{{ d|dictsort }}{{ ['b','A']|sort }}", "1,2,3[('a', 1), ('b', 2)]['A', 'b']"},
		{"{{ 42.55|round(1) }} {{ 2.5|round }} {{ 2.5|round(0, 'ceil') }} {{ 7|round }} {{ -0.04|round(1, 'ceil') }} {{ -0.04|round(1) }}", "42.5 2.0 3.0 7 0.0 -0.0"},
		{"{{ \"it's\" ~ [\"it's\", '\"', '\\n\\x00é'] }}", `it's["it's", '"', '\n\x00é']`},
		{"{{ 'x' if false }}|{{ ('x' if false) is defined }}", "|False"},
		{"{{ strftime_now('%-d %e %j %I %p %A|%% %F %T') }}", "26 26 208 01 PM Friday|% 2024-07-26 13:05:09"},
		{"{{ range(3) }}{{ range(5, 1, -2)|list }}{{ 'héllo'[1:3] }}{{ 'héllo'[::-2] }}", "range(0, 3)[5, 3]élolh"},
		{"{{ range(5)[::-1] }}{{ range(1, 10, 3)[2::-1]|list }}{{ range(5)[::2] }}{{ range(5)[9:] }}{{ range(0)[::-1]|length }}{% for i in range(3)[1:] %}{{ i }}{{ loop.last }}{% endfor %}",
			"range(4, -1, -1)[7, 4, 1]range(0, 5, 2)range(5, 5)01False2True"},
		{"{{ 'a b  c'.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ ''.split(',') }}", "['a', 'b', 'c']['a', 'b,c']['a,b', 'c']['']"},
		{"{{ 'aXbX'.replace('X', '') }}{{ 'ab'.replace('', '-') }}{{ 'aaa'|replace('a', 'b', 2) }}", "ab-a-b-bba"},
		{"{{ 'héllo'.find('l') }}{{ 'x'.find('y') }}{{ 'aba'.rfind('a') }}", "2-12"},
		{"{{ e|first is defined }}{{ [1,2]|last }}{{ 'añ'|last }}", "False2ñ"},
		{"{{ a }}{% set b %}{% endset %}[{{ b }}]", "[]"},
		{"{{ 'a' 'b' \"c\" }}{{ 'tab\\tquote\\'u\\u00e9\\q' }}", "abctab\tquote'ué\\q"},
		{"{{- 1 -}}  x  {#- c -#}  y {%- if true +%}\nz{% endif %}", "1xy\nz"},
	} {
		t.Run(c.source, func(t *testing.T) {
			got, err := render(c.source, vars, Limits{})
			require.NoError(t, err)
			assert.Equal(t, c.want, got.Text)
		})
	}
}

// TestErrors checks the cause, position and wording of failures.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name, source string
		line, column int
		want         string // part of the message
	}{
		{"unclosed if", "{% if x %}\n\n", 2, 1, "found end of template, expected tag 'endif'"},
		{"unclosed comment", "a\n\n{# x", 3, 1, "missing end '#}'"},
		{"bad bracket", "\n{{ (x] }}", 2, 6, "unexpected ']', expected ')'"},
		{"bad character", "{{ x ? y }}", 1, 6, "unexpected character '?'"},
		{"bad string", "é {{ 'x }}", 1, 6, "missing end quote"},
		{"missing expression", "{{ }}", 1, 4, "expected an expression"},
		{"break outside", "{% break %}", 1, 4, "outside of a loop"},
		{"break in macro", "{% for i in x %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}", 1, 35, "outside of a loop"},
		{"assign constant", "{% set none = 1 %}", 1, 13, "cannot assign to 'none'"},
		{"assign loop", "{% for i in x %}\n{% set loop = 1 %}{% endfor %}", 2, 13, "'loop'"},
		{"undefined name", "{{ 1 }}\n{{ nope.x }}", 2, 9, "'nope' is undefined"},
		{"undefined key", "{% set m = {} %}\n{{ m.content + 'x' }}", 2, 14, "'dict object' has no attribute 'content'"},
		{"undefined element", "{{ [1][5] + 1 }}", 1, 11, "list object has no element 5"},
		{"types", "{{ 1 }}\n\n{{ 'a' + 1 }}", 3, 8, "unsupported operands for +: 'str' and 'int'"},
		{"order", "{{ 1 < 'a' }}", 1, 4, "'<' not supported between 'int' and 'str'"},
		{"call", "{{ 'a'() }}", 1, 7, "'str' object is not callable"},
		{"method that changes", "{{ [1].append(2) }}", 1, 8, "'list object' has no attribute 'append'"},
		{"missing argument", "{{ 'a'|replace('b') }}", 1, 8, "missing argument 'new'"},
		{"macro argument", "{% macro f(a) %}{% endmacro %}{{ f(b=1) }}", 1, 34, "macro 'f' takes no argument named 'b'"},
		{"unpack", "{% set a, b = [1] %}", 1, 4, "not enough values to unpack"},
		{"division", "{{ 1 // 0 }}", 1, 6, "division by zero"},
		{"json", "{{ nope|tojson }}", 1, 9, "'nope' is undefined"},
		{"private", "{{ ''.__class__.x }}", 1, 17, "has no attribute '__class__'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := render(c.source, nil, Limits{})
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, "test", e.Template)
			assert.Equal(t, [2]int{c.line, c.column}, [2]int{e.Line, e.Column}, err.Error())
			assert.ErrorContains(t, err, c.want)
			assert.NotErrorIs(t, err, ErrUnsupported)
			assert.NotErrorIs(t, err, ErrLimit)
		})
	}
}

// TestRefused: unsupported features are refused when a template is parsed, by
// name and position, even where they would never be reached.
func TestRefused(t *testing.T) {
	for source, want := range map[string]string{
		"{% include 'x' %}":                            "3: tag 'include'",
		"{% frob %}":                                   "3: tag 'frob'",
		"{% block a %}{% endblock %}":                  "3: tag 'block'",
		"{% raw %}{% endraw %}":                        "3: tag 'raw'",
		"{% with a = 1 %}":                             "3: tag 'with'",
		"{% autoescape true %}":                        "3: tag 'autoescape'",
		"{% for x in t recursive %}":                   "14: 'recursive' in a loop",
		"{% for x in t %}{{ loop(1) }}{% endfor %}":    "19: a call of 'loop'",
		"{% for x in t %}{{ loop.depth }}{% endfor %}": "24: 'loop.depth'",
		"{% macro f() %}{{ varargs }}{% endmacro %}":   "18: 'varargs' in a macro",
		"{{ x|wordwrap }}":                             "5: filter 'wordwrap'",
		"{{ x|map('frob') }}":                          "5: filter 'frob'",
		"{{ x|select('frob') }}":                       "5: test 'frob'",
		"{{ x|rejectattr('a', 'frob') }}":              "5: test 'frob'",
		"{{ x|upper(1) }}":                             "5: argument 1 of filter 'upper'",
		"{{ x|trim(foo=1) }}":                          "5: argument 'foo' of filter 'trim'",
		"{{ x is frob }}":                              "8: test 'frob'",
		"{{ x is sameas y }}":                          "8: test 'sameas'",
		"{{ x is odd(1) }}":                            "8: argument 1 of test 'odd'",
		"{{ '{}'.format(1) }}":                         "8: method 'format'",
		"{{ x.swapcase() }}":                           "5: method 'swapcase'",
		"{{ x.startswith('a', 2) }}":                   "5: argument 2 of method 'startswith'",
		"{{ x.strip(a=2) }}":                           "5: argument 'a' of method 'strip'",
		"{{ '%d' % 1 }}":                               "8: text formatting with '%'",
		"{{ lipsum() }}":                               "3: function 'lipsum'",
		"{{ cycler(1) }}":                              "3: function 'cycler'",
		"{{ self.x }}":                                 "3: 'self'",
		"{{ strftime_now('%d %Q') }}":                  "3: strftime_now directive '%Q'",
		"{{ strftime_now('%-B') }}":                    "3: strftime_now directive '%-B'",
		"{{ 0x1f }}":                                   "3: number written as 0x1f",
		"{{ 1_000 }}":                                  "3: number written as 1_000",
		"{{ 123456789012345678901234567890 }}":         "3: integer 123456789012345678901234567890 beyond 64 bits",
		`{{ '\N{DASH}' }}`:                             `3: string escape "\\N"`,
		`{{ '\101' }}`:                                 `3: string escape "\\1"`,
		"{% if false %}{{ 2 if true else x|frob }}{% endif %}": "34: filter 'frob'",
	} {
		t.Run(source, func(t *testing.T) {
			_, err := Parse("test", "é\n"+source)
			require.ErrorIs(t, err, ErrUnsupported)
			at, name, _ := strings.Cut(want, ": ")
			// The columns above count from 0.
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, 2, e.Line)
			column := 0
			require.NoError(t, json.Unmarshal([]byte(at), &column))
			assert.Equal(t, column+1, e.Column, err.Error())
			assert.ErrorContains(t, err, ": "+name)
		})
	}
}

// TestRefusedRunning: what names and literals do not show is refused by name when
// it is reached, and never rendered differently.
func TestRefusedRunning(t *testing.T) {
	vars := object{"x", "text", "n", 5, "big", json.Number("123456789012345678901234567890")}
	for source, want := range map[string]string{
		"{{ [x]|map(x) }}":                            "filter 'text'",
		"{{ [x]|select(x) }}":                         "test 'text'",
		"{{ x % 1 }}":                                 "text formatting with '%'",
		"{{ x.upper }}":                               "printing of 'function'",
		"{{ (1, 2) + (3,) }}":                         "calculation with tuples",
		"{{ x.zfill }}":                               "attribute 'zfill' of 'str'",
		"{{ n.real }}":                                "attribute 'real' of 'int'",
		"{{ strftime_now(x ~ '%Q') }}":                "strftime_now directive '%Q'",
		"{{ {(1, 2): 3} }}":                           "a tuple as a key",
		"{{ [1]|sort(attribute='a,b') }}":             "sort by several attributes",
		"{{ 15|round(-1) }}":                          "round with the precision -1",
		"{{ range(3) == range(3) }}":                  "comparison of ranges",
		"{% for i in x %}{{ loop|list }}{% endfor %}": "iteration over 'loop'",
		"{{ big + 1 }}":                               "integer beyond 64 bits",
		"{{ 9223372036854775807 + 1 }}":               "integer beyond 64 bits",
		"{{ 3 ** 99 }}":                               "integer beyond 64 bits",
		"{{ '99999999999999999999'|int }}":            "integer beyond 64 bits",
	} {
		t.Run(source, func(t *testing.T) {
			_, err := render(source, vars, Limits{})
			require.ErrorIs(t, err, ErrUnsupported)
			assert.ErrorContains(t, err, want)
		})
	}
}

// TestBlocksAndArguments: expected values are those of Jinja2 3.1.
func TestBlocksAndArguments(t *testing.T) {
	vars := object{"xs", []any{1, 2}, "d", object{"b", 3}, "j", `{"b": [1, 2.0, null, true, "x\u00e9"], "a": {"k": -7}}`}
	for source, want := range map[string]string{
		// Filter blocks, and filters on blocks that are set.
		"{% filter upper %}a{% for x in xs %}b{{ x }}{% endfor %}{% endfilter %}":              "AB1B2",
		"{% filter trim|replace('b', 'c') %}  abc {% endfilter %}":                             "acc",
		"{% set y | trim | upper %} a{{ xs[0] }} {% endset %}[{{ y }}]":                        "[A1]",
		"{% for x in xs %}{% filter upper %}a{% break %}{% endfilter %}b{% endfor %}Z":         "Z",
		"{% for x in xs %}{% set v | upper %}a{% continue %}{% endset %}b{% endfor %}Z{{ v }}": "Z",
		// Call blocks.
		"{% macro m(a) %}<{{ a }}{{ caller() }}>{% endmacro %}{% call m(1) %}x{{ d.b }}{% endcall %}":                                                           "<1x3>",
		"{% macro m(l) %}{% for e in l %}{{ caller(e, loop.index0) }}{% endfor %}{% endmacro %}{% call(e, i) m(xs) %}[{{ i }}={{ e }}]{% endcall %}":            "[0=1][1=2]",
		"{% macro m() %}{{ caller(1) }}{{ caller(1, b=5) }}{% endmacro %}{% call(a, b=2) m() %}{{ a }}-{{ b }};{% endcall %}":                                   "1-2;1-5;",
		"{% macro m() %}{% if caller is defined %}{{ caller() }}{% else %}none{% endif %}{% endmacro %}{{ m() }}{% call m() %}some{% endcall %}":                "nonesome",
		"{% macro i() %}({{ caller() }}){% endmacro %}{% macro o() %}[{% call i() %}in{% endcall %}{{ caller() }}]{% endmacro %}{% call o() %}out{% endcall %}": "[(in)out]",
		// Arguments from lists and objects.
		"{% macro m(a, b, c=0) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*xs) }} {{ m(0, *xs) }} {{ m(7, **d) }} {{ m(*xs, c=9) }}": "120 012 730 129",
		"{{ range(*xs)|list }} {{ dict(**d) }} {{ dict(a=1, **d) }}":                                                                "[1] {'b': 3} {'a': 1, 'b': 3}",
		"{{ 'a-b-c'.split(*['-', 1]) }}": "['a', 'b-c']",
		// Splitting at blanks.
		"{{ '  a b  c '.split() }}{{ '  a b  c '.split(none, 1) }}{{ ' a b  c '.split(maxsplit=5) }}{{ ' a b'.split(none, 0) }}": "['a', 'b', 'c']['a', 'b  c ']['a', 'b', 'c']['a b']",
		"{{ '  a b  c '.rsplit() }}{{ '  a b  c '.rsplit(none, 1) }}{{ ' \t '.split(none, 1) }}{{ ''.rsplit() }}":                "['a', 'b', 'c']['  a b', 'c'][][]",
		// Equal keys need no order.
		"{{ [none, none]|sort }}{{ [{'a': none}, {'a': none}]|sort(attribute='a') }}": "[None, None][{'a': None}, {'a': None}]",
		// JSON.
		"{{ j|from_json }}":                     "{'b': [1, 2.0, None, True, 'xé'], 'a': {'k': -7}}",
		"{{ (j|from_json).a.k + 1 }}":           "-6",
		"{{ '[1e2, \"s\"]'|from_json|tojson }}": `[100.0, "s"]`,
	} {
		got, err := render(source, vars, Limits{})
		require.NoError(t, err, source)
		assert.Equal(t, want, got.Text, source)
	}
	for source, want := range map[string]string{
		"{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}": "macro 'm' takes no argument named 'caller'",
		"{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}":       "not called by a call block",
		"{% call x %}{% endcall %}":                                  "expected the call of a macro",
		"{% macro m(caller) %}{{ caller }}{% endmacro %}":            "parameter 'caller' needs a default",
		"{{ range(*xs, 1) }}":                                        "positional argument after",
		"{{ dict(**d, a=1) }}":                                       "another argument after one with '**'",
		"{{ dict(b=1, **d) }}":                                       "argument 'b' is given twice",
		"{{ dict(**xs) }}":                                           "expected an object",
		"{{ range(*1) }}":                                            "not iterable",
		"{{ '{'|from_json }}":                                        "from_json: JSON at byte 1",
		"{{ [none, 1]|sort }}":                                       "'<' not supported",
		"{{ {'a': none, 'b': none}|dictsort(by='value') }}":          "'<' not supported",
	} {
		_, err := render(source, vars, Limits{})
		assert.ErrorContains(t, err, want, source)
	}
	// What is read from the input's JSON stays the input's.
	tmpl, err := Parse("marks", "{{ (j|from_json).b[4] }}|{{ ('{\"a\":\"t\"}'|from_json).a }}")
	require.NoError(t, err)
	out, err := tmpl.Render(t.Context(), vars, Options{})
	require.NoError(t, err)
	require.Equal(t, "xé|t", out.Text)
	require.Equal(t, []Span{{0, 3}}, out.Data)
}

func TestRaise(t *testing.T) {
	_, err := render("\n{{ raise_exception('no ' ~ 1) }}", nil, Limits{})
	var raised *RaisedError
	require.ErrorAs(t, err, &raised)
	assert.Equal(t, "no 1", raised.Message)
	assert.Equal(t, "template test: line 2, column 4: raised by the template: no 1", err.Error())
}

func TestCancel(t *testing.T) {
	tmpl, err := Parse("loop", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = tmpl.Render(ctx, nil, Options{Limits: Limits{Steps: math.MaxInt, Memory: math.MaxInt}})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel = context.WithCancel(context.Background())
	cancel()
	_, err = tmpl.Render(ctx, nil, Options{})
	assert.ErrorIs(t, err, context.Canceled)
	assert.False(t, errors.Is(err, ErrLimit))
}

// TestInput: what a caller may supply, and what not.
func TestInput(t *testing.T) {
	got, err := render("{{ m }}", object{"m", object{"n", 1, "f", float32(0.5), "l", []string{"a"}, "u", uint64(math.MaxUint64),
		"none", nil, "num", json.Number("12"), "exp", json.Number("1e2"), "b", true, "own", Trusted("t"), "o", []object{{"z", 1}}}}, Limits{})
	require.NoError(t, err)
	assert.Equal(t, "{'n': 1, 'f': 0.5, 'l': ['a'], 'u': 18446744073709551615, 'none': None, 'num': 12, 'exp': 100.0, 'b': True, 'own': 't', 'o': [{'z': 1}]}", got.Text)
	for want, v := range map[string]any{
		"m.a[1]: found a Go map":                 object{"a", []any{1, map[string]any{"x": 1}}},
		"m.a: found a Go value of type chan int": object{"a", make(chan int)},
		"m[0]: found the number \"1x\"":          []any{json.Number("1x")},
		"m[0]: found an integer of 4301 digits":  []any{json.Number("-" + strings.Repeat("9", 4301))},
	} {
		_, err := render("", object{"m", v}, Limits{})
		assert.ErrorContains(t, err, want)
	}
	loop := []any{nil}
	loop[0] = loop
	_, err = render("", object{"m", loop}, Limits{})
	assert.ErrorIs(t, err, ErrLimit)
}
