package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// render parses and runs a template over variables in JSON.
func render(t testing.TB, source, vars string, opt Options) (string, error) {
	t.Helper()
	tmpl, err := Parse("test", source)
	if err != nil {
		return "", err
	}
	var o Object
	require.NoError(t, o.UnmarshalJSON([]byte(vars)))
	return tmpl.Execute(context.Background(), &o, opt)
}

// TestLanguage pins results of Jinja2 3.1 that the golden cases leave out.
func TestLanguage(t *testing.T) {
	const vars = `{"d": {"b": 2, "a": 1}, "xs": [3, 1, 2], "big": 123456789012345678901234567890,
		"tree": [{"v": 1, "c": [{"v": 2}, {"v": 3, "c": [{"v": 4}]}]}, {"v": 5}]}`
	for _, c := range []struct{ source, want string }{
		{"{% for x in tree recursive %}{{ x.v }}@{{ loop.depth }}{% if x.c %}({{ loop(x.c) }}){% endif %}{% endfor %}", "1@1(2@23@2(4@3))5@1"},
		{"{% macro f(a) %}[{{ caller(a) }}{{ varargs }}{{ kwargs }}]{% endmacro %}{% call(p, q=3) f(1, 2, k=4) %}{{ p }}{{ q }}{% endcall %}", "[13(2,){'k': 4}]"},
		{"{% macro f() %}{{ x }}{% endmacro %}{% set x = 7 %}{{ f() }}", "7"},
		{"{% for i in [1,2] %}{{ y is defined }}{% set y = i %}{% endfor %}", "FalseFalse"},
		{"{% for i in [1,2,3] %}{% break %}{% else %}E{% endfor %}", "E"},
		{"{% for i in [1,2,3] %}{% continue %}{% else %}E{% endfor %}", "E"},
		{"{% for i in [1,2] %}{% filter upper %}a{% break %}{% endfilter %}{% endfor %}Z", "Z"},
		{"{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "12False"},
		{"{% set y | trim | upper %} a {% endset %}[{{ y }}]", "[A]"},
		{"{% filter replace('a', 'b') %}banana{% endfilter %}", "bbnbnb"},
		{"{% set ns = namespace(n=1) %}{% set ns.n, ns.m = 3, 4 %}{{ ns.n }}{{ ns.m }}{{ ns }}", "34<Namespace {'n': 3, 'm': 4}>"},
		{"{% set it = [1,2,3]|select('odd') %}{{ it|list }}{{ it|list }}", "[1, 3][]"},
		{"{{ [1]|select and 'yes' }}", "yes"},
		{"{{ big + 1 }} {{ 2 ** 100 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7.5 // -2 }} {{ 1e22 }} {{ 0.1 + 0.2 }} {{ 10 / 5 }}", "123456789012345678901234567891 1267650600228229401496703205376 -4 2 -4.0 1e+22 0.30000000000000004 2.0"},
		{"{{ 9223372036854775807 + 1 }} {{ 9223372036854775807 * 2 }} {{ -9223372036854775807 - 2 }}", "9223372036854775808 18446744073709551614 -9223372036854775809"},
		{"{{ d.items }}", "<function items>"},
		{"{{ {1: 'a', 1.0: 'b', true: 'c'} }}", "{1: 'c'}"},
		{"{{ d|tojson(indent=2, separators=(',', ':')) }}", "{\n  \"b\":2,\n  \"a\":1\n}"},
		{"{{ 'é😀'|tojson(ensure_ascii=true) }}{{ d|tojson(sort_keys=true) }}", `"\u00e9\ud83d\ude00"{"a": 1, "b": 2}`},
		{"{{ '%s|%5.2f|%-4d|%05d|%x' % ('a', 2.5, 7, 42, 255) }}", "a| 2.50|7   |00042|ff"},
		{"{{ '{0}{a[b]:>4}{1!r:*^7}{:,}'.format(1, 'x', a={'b': 2}) if false else '{:,}'.format(1234567) }}", "1,234,567"},
		{"{{ '{:>5}|{!r}|{:.2e}'.format('é', 'q', 12345.678) }}", "    é|'q'|1.23e+04"},
		{"{{ ('<b>'|safe) + '<i>' }}{{ '<'|e }}{{ '<b>x</b>  y'|striptags }}", "<b>&lt;i&gt;&lt;x y"},
		{"{{ 'ß'|upper }}{{ 'ΑΣ'|lower }}{{ \"they're\".title() }}{{ \"they're\"|title }}", "SSαςThey'ReThey're"},
		{"{{ xs|sort|join(',') }}{{ d|dictsort }}{{ ['b','A']|sort }}", "1,2,3[('a', 1), ('b', 2)]['A', 'b']"},
		{"{{ 42.55|round(1) }}{{ 2.5|round }}{{ 25|round(-1) }}{{ 2.5|round(0, 'ceil') }}", "42.52.0203.0"},
		{"{{ \"it's\" ~ [\"it's\", '\"', '\\n\\x00é'] }}", `it's["it's", '"', '\n\x00é']`},
		{"{{ 'x' if false }}|{{ ('x' if false) is defined }}", "|False"},
		{"{{ strftime_now('%-d %e %j %I %p %A %Z|%% %Q') }}", "26 26 208 01 PM Friday |% %Q"},
		{"{{ joiner is defined }}{% set j = joiner('; ') %}{{ j() }}a{{ j() }}b", "Truea; b"},
		{"{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "aba"},
		{"{{ range(10)[2:8:3]|list }}{{ range(3) }}{{ 'héllo'[1:3] }}{{ 'héllo'[::-2] }}", "[2, 5]range(0, 3)élolh"},
		{"{% for g, l in [{'k': 'b'}, {'k': 'a'}, {'k': 'B'}]|groupby('k') %}{{ g }}{{ l|length }}{% endfor %}", "a1b2"},
		{"{% if false %}{{ x|nofilter }}{% endif %}ok", "ok"},
		{"{% if false %}{{ 1 is notest }}{% endif %}{{ 2 if true else (1|nofilter) }}", "2"},
		{"{% raw -%} {{ x }} {%- endraw %}", "{{ x }}"},
		{"{% block a %}{{ d.a }}{% endblock %}", "1"},
		{"{% autoescape false %}<{% endautoescape %}", "<"},
	} {
		t.Run(c.source, func(t *testing.T) {
			got, err := render(t, c.source, vars, Options{Now: goldenTime})
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
}

// TestErrors checks cause, line and wording of failures.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name, source string
		line         int
		want         string // part of the message
		is           error
	}{
		{"unknown tag", "a\n{% frob %}", 2, "unknown tag 'frob'", nil},
		{"unclosed if", "{% if x %}\n\n", 2, "end of template", nil},
		{"unclosed comment", "a\n\n{# x", 3, "missing end '#}'", nil},
		{"unclosed raw", "{% raw %} x", 1, "missing end", nil},
		{"bad bracket", "\n{{ (x] }}", 2, "unexpected ']', expected ')'", nil},
		{"bad character", "{{ x ? y }}", 1, "unexpected character '?'", nil},
		{"missing expression", "{{ }}", 1, "expected an expression", nil},
		{"break outside", "{% break %}", 1, "outside of a loop", nil},
		{"break in macro", "{% for i in x %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}", 1, "outside of a loop", nil},
		{"assign constant", "{% set none = 1 %}", 1, "cannot assign to 'none'", nil},
		{"assign loop", "{% for i in x %}\n{% set loop = 1 %}{% endfor %}", 2, "'loop'", nil},
		{"unknown filter", "\n\n{{ x|frob }}", 3, "no filter named 'frob'", nil},
		{"unknown test", "{{ x is frob }}", 1, "no test named 'frob'", nil},
		{"undefined name", "{{ 1 }}\n{{ nope.x }}", 2, "'nope' is undefined", nil},
		{"undefined key", "{% set m = {} %}\n{{ m.content + 'x' }}", 2, "'dict object' has no attribute 'content'", nil},
		{"undefined element", "{{ [1][5] + 1 }}", 1, "list object has no element 5", nil},
		{"types", "{{ 1 }}\n\n{{ 'a' + 1 }}", 3, "unsupported operands for +: 'str' and 'int'", nil},
		{"order", "{{ 1 < 'a' }}", 1, "'<' not supported between 'int' and 'str'", nil},
		{"call", "{{ 'a'() }}", 1, "'str' object is not callable", nil},
		{"arguments", "{{ 'a'|upper(1) }}", 1, "upper() takes at most 1 arguments", nil},
		{"named argument", "{{ 'a'|trim(foo=1) }}", 1, "trim() has no argument named 'foo'", nil},
		{"missing argument", "{{ 'a'|replace('b') }}", 1, "missing argument 'new'", nil},
		{"macro argument", "{% macro f(a) %}{% endmacro %}{{ f(b=1) }}", 1, "macro 'f' takes no argument named 'b'", nil},
		{"mutation", "{{ [1].append(2) }}", 1, "has no attribute 'append'", nil},
		{"private", "{{ ''.__class__.__mro__ }}", 1, "has no attribute '__class__'", nil},
		{"unpack", "{% set a, b = [1] %}", 1, "not enough values to unpack", nil},
		{"division", "{{ 1 // 0 }}", 1, "division by zero", nil},
		{"json", "{{ nope|tojson }}", 1, "'nope' is undefined", nil},
		{"include", "{% include 'x' %}", 1, "tag 'include'", ErrUnsupported},
		{"extends", "{% extends 'x' %}", 1, "tag 'extends'", ErrUnsupported},
		{"import", "{% import 'x' as y %}", 1, "tag 'import'", ErrUnsupported},
		{"autoescape", "{% autoescape true %}{% endautoescape %}", 1, "tag 'autoescape'", ErrUnsupported},
		{"wordwrap", "{{ 'a'|wordwrap }}", 1, "filter 'wordwrap'", ErrUnsupported},
		{"lipsum", "{{ lipsum() }}", 1, "'lipsum'", ErrUnsupported},
		{"encode", "{{ 'a'.encode() }}", 1, "str.encode", ErrUnsupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := render(t, c.source, "{}", Options{})
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, "test", e.Template)
			assert.Equal(t, c.line, e.Line, err.Error())
			assert.Contains(t, err.Error(), c.want)
			if c.is != nil {
				assert.ErrorIs(t, err, c.is)
			} else {
				assert.NotErrorIs(t, err, ErrUnsupported)
				assert.NotErrorIs(t, err, ErrLimit)
			}
		})
	}
}

func TestRaise(t *testing.T) {
	_, err := render(t, "\n{{ raise_exception('no ' ~ 1) }}", "{}", Options{})
	var raised *RaisedError
	require.ErrorAs(t, err, &raised)
	assert.Equal(t, "no 1", raised.Message)
	assert.Equal(t, "chat template test: line 2: raised by the template: no 1", err.Error())
}

// TestLimits runs hostile templates: each must end by its limit, and soon.
func TestLimits(t *testing.T) {
	small := Limits{Output: 1 << 16, Memory: 1 << 20, Steps: 200_000, Depth: 200, Range: 1000}
	doubling := "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(900) %}{% set ns.s = ns.s OP %}{% endfor %}"
	for name, source := range map[string]string{
		"repetition":        "{{ 'x' * 1000000000000 }}",
		"list repetition":   "{{ [1] * 1000000000000 }}",
		"huge repetition":   "{{ 'x' * 10 ** 30 }}",
		"doubling":          strings.ReplaceAll(doubling, "OP", "+ ns.s"),
		"doubling concat":   strings.ReplaceAll(doubling, "OP", "~ ns.s"),
		"doubling replace":  strings.ReplaceAll(doubling, "OP", "|replace('x', 'xx')"),
		"doubling join":     "{% set ns = namespace(s='x') %}{% for i in range(900) %}{% set ns.s = [ns.s, ns.s]|join %}{% endfor %}",
		"doubling list":     "{% set ns = namespace(s=[1]) %}{% for i in range(900) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"range":             "{{ range(1001)|length }}",
		"range overflow":    "{{ range(-9223372036854775807, 9223372036854775807) }}",
		"loops":             "{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}",
		"loop product":      "{% for a in range(999) %}{{ range(999)|list|length }}{% endfor %}",
		"recursion":         "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"mutual recursion":  "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
		"loop recursion":    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"exponential":       "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(30) }}",
		"output":            "{% for a in range(999) %}{{ 'x' * 100 }}{% endfor %}",
		"power":             "{{ 9 ** 9 ** 9 ** 9 ** 9 }}",
		"big product":       "{% set ns = namespace(s=3) %}{% for i in range(900) %}{% set ns.s = ns.s * ns.s %}{% endfor %}",
		"center":            "{{ 'x'|center(1000000000000) }}",
		"zfill":             "{{ 'x'.zfill(1000000000000) }}",
		"indent":            "{{ 'x'|indent(1000000000000) }}",
		"tabs":              "{{ '\t'.expandtabs(1000000000000) }}",
		"percent width":     "{{ '%1000000000000d' % 1 }}",
		"percent star":      "{{ '%*d' % (1000000000000, 1) }}",
		"percent precision": "{{ '%.1000000000f' % 1.5 }}",
		"format width":      "{{ '{:1000000000}'.format(1) }}",
		"format nested":     "{{ '{:{}}'.format(1, 10000000000) }}",
		"tojson indent":     "{{ [[1]]|tojson(indent=1000000000000) }}",
		"batch fill":        "{{ [1]|batch(1000000000000, 0)|list }}",
		"slice":             "{{ [1]|slice(1000000000000)|list }}",
		"deep value":        "{% set ns = namespace(s=[]) %}{% for i in range(900) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
		"deep equality":     "{% set ns = namespace(s=[], t=[]) %}{% for i in range(900) %}{% set ns.s = [ns.s] %}{% set ns.t = [ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
		"deep tojson":       "{% set ns = namespace(s=[]) %}{% for i in range(900) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s|tojson }}",
		"wide chain":        "{{ 1" + strings.Repeat(" + 1", 1000) + " }}",
		"filter chain":      "{{ 1" + strings.Repeat("|string", 1000) + " }}",
		"deep parentheses":  "{{ " + strings.Repeat("(", 100000),
		"deep not":          "{{ " + strings.Repeat("not ", 100000) + "x }}",
		"deep minus":        "{{ " + strings.Repeat("-", 100000) + "1 }}",
		"deep lists":        "{{ " + strings.Repeat("[", 100000),
		"deep blocks":       strings.Repeat("{% if x %}", 100000),
		"deep targets":      "{% set " + strings.Repeat("(", 100000),
		"long literal":      "{{ 1" + strings.Repeat("0", 100000) + " }}",
		"long source":       strings.Repeat("x", maxSource+1),
		"lazy chain":        "{% set ns = namespace(s=[1]) %}{% for i in range(900) %}{% set ns.s = ns.s|map('string') %}{% endfor %}{{ ns.s|list }}",
		"hashed tuple":      "{% set ns = namespace(s=()) %}{% for i in range(900) %}{% set ns.s = (ns.s, ns.s) %}{% endfor %}{{ {ns.s: 1} }}",
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := render(t, source, "{}", Options{Limits: small})
			assert.ErrorIs(t, err, ErrLimit)
			assert.Less(t, time.Since(start), 5*time.Second)
		})
	}
}

// TestLimitsDefault shows that what real prompts need is far within the limits.
func TestLimitsDefault(t *testing.T) {
	tmpl := parseFile(t, "qwen2.5-7b-instruct")
	content := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB, about a million tokens
	text, err := tmpl.Render(context.Background(), Input{Messages: []*Object{NewMessage("user", content)}})
	require.NoError(t, err)
	assert.Contains(t, text, content)

	var long []*Object
	for range 2000 {
		long = append(long, NewMessage("user", "question"), NewMessage("assistant", "answer"))
	}
	_, err = parseFile(t, "mistral-nemo-instruct-2407").Render(context.Background(), Input{Messages: long, EOSToken: "</s>", BOSToken: "<s>"})
	require.NoError(t, err)
}

func TestCancel(t *testing.T) {
	tmpl, err := Parse("loop", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = tmpl.Execute(ctx, nil, Options{Limits: Limits{Steps: math.MaxInt}})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel = context.WithCancel(context.Background())
	cancel()
	_, err = tmpl.Execute(ctx, nil, Options{})
	assert.ErrorIs(t, err, context.Canceled)
}

func parseFile(t testing.TB, name string) *Template {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", "real", name, "template.jinja"))
	require.NoError(t, err)
	tmpl, err := Parse(name, string(source))
	require.NoError(t, err)
	return tmpl
}

func TestConcurrent(t *testing.T) {
	tmpl := parseFile(t, "mistral-nemo-instruct-2407")
	in := Input{
		Messages:            []*Object{NewMessage("system", "be brief"), NewMessage("user", "hi")},
		Tools:               []*Object{},
		AddGenerationPrompt: true, BOSToken: "<s>", EOSToken: "</s>",
	}
	want, err := tmpl.Render(context.Background(), in)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				got, err := tmpl.Render(context.Background(), in)
				assert.NoError(t, err)
				assert.Equal(t, want, got)
			}
		})
	}
	wg.Wait()
}

func TestInput(t *testing.T) {
	tmpl, err := Parse("t", "{{ bos_token is defined }} {{ eos_token }} {{ tools }} {{ documents }} {{ add_generation_prompt }} {{ messages }} {{ mode }}")
	require.NoError(t, err)
	got, err := tmpl.Render(context.Background(), Input{EOSToken: "</s>", Extra: new(Object).Set("mode", "x")})
	require.NoError(t, err)
	assert.Equal(t, "False </s> None None False [] x", got)

	got, err = tmpl.Render(context.Background(), Input{
		Messages: []*Object{NewMessage("user", "q").Set("n", 1).Set("f", float32(0.5)).Set("l", []string{"a"}).
			Set("j", json.RawMessage(`{"z":1,"a":[1.0]}`)).Set("u", uint64(math.MaxUint64)).Set("none", (*Object)(nil))},
		Tools: []*Object{}, BOSToken: "<s>", AddGenerationPrompt: true,
		Extra: new(Object).Set("bos_token", "B").Set("eos_token", nil).Set("mode", json.Number("12")),
	})
	require.NoError(t, err)
	assert.Equal(t, "True None [] None True [{'role': 'user', 'content': 'q', 'n': 1, 'f': 0.5, 'l': ['a'], "+
		"'j': {'z': 1, 'a': [1.0]}, 'u': 18446744073709551615, 'none': None}] 12", got)

	for name, v := range map[string]any{
		"expected a *chat.Object":    map[string]any{"a": 1},
		"found a Go value of type s": struct{}{},
		"messages[0].tool[1]: found": []any{1, make(chan int)},
	} {
		_, err := tmpl.Render(context.Background(), Input{Messages: []*Object{new(Object).Set("tool", v)}})
		assert.ErrorContains(t, err, name)
	}
	loop := []any{nil}
	loop[0] = loop
	_, err = tmpl.Render(context.Background(), Input{Extra: new(Object).Set("x", loop)})
	assert.ErrorIs(t, err, ErrLimit)
}

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		template, content, prefix, suffix string
	}{
		{"mistral-7b-instruct-v0.3", "some context\n", "<s> [INST] some context\n", " [/INST]"},
		{"qwen2.5-7b-instruct", " ctx ", "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n<|im_start|>user\n ctx ", "<|im_end|>\n<|im_start|>assistant\n"},
		{"zephyr-tinyllama", "has EndOfContent0Mark and EndOfContent1 inside", "<|user|>\nhas EndOfContent0Mark and EndOfContent1 inside", "</s>\n<|assistant|>\n"},
	} {
		prefix, suffix, err := parseFile(t, c.template).Split(context.Background(),
			Input{AddGenerationPrompt: true, BOSToken: "<s>", EOSToken: "</s>"}, c.content)
		require.NoError(t, err)
		assert.Equal(t, c.prefix, prefix)
		assert.Equal(t, c.suffix, suffix)
	}
	for source, want := range map[string]string{
		"{{ messages[0].content|upper }}":                    "printed 0 times",
		"{{ messages[0].content }}{{ messages[0].content }}": "printed 2 times",
		"{{ raise_exception('no') }}":                        "raised by the template: no",
	} {
		tmpl, err := Parse("t", source)
		require.NoError(t, err)
		_, _, err = tmpl.Split(context.Background(), Input{}, "x")
		assert.ErrorContains(t, err, want)
	}
}

// TestSplitAnyContent: prefix and suffix are those of the whole render, whatever
// the content holds.
func TestSplitAnyContent(t *testing.T) {
	tmpl := parseFile(t, "mixtral-8x7b-instruct-v0.1")
	rapid.Check(t, func(t *rapid.T) {
		piece := rapid.SampledFrom([]string{"EndOfContent", "0", "1", "2", "Mark", "x", "[INST]", "é"})
		content := strings.Join(rapid.SliceOf(piece).Draw(t, "content"), "")
		prefix, suffix, err := tmpl.Split(context.Background(), Input{BOSToken: "<s>"}, content)
		if err != nil {
			t.Fatal(err)
		}
		if prefix != "<s>[INST] "+content || suffix != " [/INST]" {
			t.Fatalf("split %q into %q and %q", content, prefix, suffix)
		}
	})
}

func TestDecodeJSON(t *testing.T) {
	v, err := DecodeJSON([]byte(` {"z": [1, 1.0, 1e2, -0, 12345678901234567890, true, null, "\u00e9\ud83d\ude00"], "a": {}, "z2": 0, "a": {"b": 1e999}} `))
	require.NoError(t, err)
	r := &run{ctx: context.Background(), limits: Limits{}.withDefaults()}
	assert.Equal(t, "{'z': [1, 1.0, 100.0, 0, 12345678901234567890, True, None, 'é😀'], 'a': {'b': inf}, 'z2': 0}", r.repr(v))

	for in, want := range map[string]string{
		"":                                   "unexpected EOF",
		"{":                                  "EOF",
		"[1,":                                "EOF",
		`{"a" 1}`:                            "invalid character",
		"[1] 2":                              "found more after the value",
		"[1]]":                               "found more after the value",
		"nan":                                "invalid character",
		strings.Repeat("[", 1000):            "nested deeper than",
		"1" + strings.Repeat("0", maxDigits): "integer of",
	} {
		_, err := DecodeJSON([]byte(in))
		assert.ErrorContains(t, err, want, "%.20s", in)
	}
	var o Object
	assert.ErrorContains(t, o.UnmarshalJSON([]byte("[]")), "found an array, expected an object")
}

// TestObjectModel runs an Object against a slice of pairs.
func TestObjectModel(t *testing.T) {
	type pair struct {
		key   string
		value int
	}
	rapid.Check(t, func(t *rapid.T) {
		var o Object
		var model []pair
		for range rapid.IntRange(0, 40).Draw(t, "n") {
			p := pair{rapid.StringMatching("[ab]{0,2}").Draw(t, "key"), rapid.Int().Draw(t, "value")}
			o.Set(p.key, p.value)
			found := false
			for i := range model {
				if model[i].key == p.key {
					model[i], found = p, true
				}
			}
			if !found {
				model = append(model, p)
			}
		}
		if o.Len() != len(model) {
			t.Fatalf("length %d, want %d", o.Len(), len(model))
		}
		i := 0
		for key, v := range o.All() {
			if (pair{key, v.(int)}) != model[i] {
				t.Fatalf("entry %d: found %s=%v, want %v", i, key, v, model[i])
			}
			i++
		}
		data, err := json.Marshal(&o)
		if err != nil {
			t.Fatal(err)
		}
		var back Object
		if err := back.UnmarshalJSON(data); err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(&back)
		if err != nil || string(again) != string(data) {
			t.Fatalf("read back %s (%v), want %s", again, err, data)
		}
	})
	var none *Object
	_, ok := none.Get("a")
	assert.False(t, ok)
	assert.Zero(t, none.Len())
	for range none.All() {
		t.Error("a nil object has entries")
	}
	data, err := json.Marshal(none)
	require.NoError(t, err)
	assert.Equal(t, "null", string(data))
}

func TestLoad(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	list := `{"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}`
	for _, c := range []struct {
		name  string
		files fstest.MapFS
		ask   string
		want  string // rendered text, or part of the error
		is    error
		fails bool
	}{
		{name: "string", files: fstest.MapFS{configFile: file(`{"chat_template": "S{{ 1 }}"}`)}, want: "S1"},
		{name: "file wins", files: fstest.MapFS{configFile: file(`{"chat_template": "S"}`), templateFile: file("F\n")}, want: "F"},
		{name: "list", files: fstest.MapFS{configFile: file(list)}, want: "D"},
		{name: "list by name", files: fstest.MapFS{configFile: file(list)}, ask: "tool_use", want: "T"},
		{name: "folder by name", files: fstest.MapFS{templateFile: file("F"), "additional_chat_templates/rag.jinja": file("R")}, ask: "rag", want: "R"},
		{name: "list without the name", files: fstest.MapFS{configFile: file(list)}, ask: "rag", want: "[default tool_use]", is: ErrNoTemplate, fails: true},
		{name: "no path in a name", files: fstest.MapFS{"x.jinja": file("X")}, ask: "../x", is: ErrNoTemplate, fails: true},
		{name: "nothing there", files: fstest.MapFS{}, is: ErrNoTemplate, fails: true},
		{name: "no template", files: fstest.MapFS{configFile: file(`{"bos_token": "x"}`)}, is: ErrNoTemplate, fails: true},
		{name: "null template", files: fstest.MapFS{configFile: file(`{"chat_template": null}`)}, is: ErrNoTemplate, fails: true},
		{name: "number", files: fstest.MapFS{configFile: file(`{"chat_template": 3}`)}, want: "found a number, expected a string or an array", fails: true},
		{name: "bad entry", files: fstest.MapFS{configFile: file(`{"chat_template": [{"name": 1}]}`)}, want: "chat_template[0]", fails: true},
		{name: "entry null", files: fstest.MapFS{configFile: file(`{"chat_template": [null]}`)}, want: "chat_template[0]", fails: true},
		{name: "broken json", files: fstest.MapFS{configFile: file(`{"chat_template": `)}, want: "tokenizer_config.json: decode json", fails: true},
		{name: "broken template", files: fstest.MapFS{templateFile: file("\n{% if %}")}, want: "chat_template.jinja: line 2", fails: true},
		{name: "too long", files: fstest.MapFS{templateFile: file(strings.Repeat("x", maxSource+1))}, want: "longer than", fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.ask == "" {
				c.ask = defaultName
			}
			tmpl, err := LoadNamed(c.files, c.ask)
			if c.ask == defaultName {
				tmpl, err = Load(c.files)
			}
			if c.fails {
				require.ErrorContains(t, err, c.want)
				if c.is != nil {
					assert.ErrorIs(t, err, c.is)
				} else {
					assert.NotErrorIs(t, err, ErrNoTemplate)
				}
				return
			}
			require.NoError(t, err)
			got, err := tmpl.Execute(context.Background(), nil, Options{})
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
}

func TestSpecialTokens(t *testing.T) {
	files := fstest.MapFS{
		configFile: {Data: []byte(`{"bos_token": null, "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": "<pad>"}`)},
		tokensFile: {Data: []byte(`{"bos_token": "<s>", "eos_token": "<other>", "unk_token": {"content": "<unk>"}}`)},
	}
	tokens, err := SpecialTokens(files)
	require.NoError(t, err)
	data, err := json.Marshal(tokens)
	require.NoError(t, err)
	assert.JSONEq(t, `{"eos_token": "</s>", "pad_token": "<pad>", "bos_token": "<s>", "unk_token": "<unk>"}`, string(data))

	tokens, err = SpecialTokens(fstest.MapFS{})
	require.NoError(t, err)
	assert.Zero(t, tokens.Len())
	_, err = SpecialTokens(fstest.MapFS{configFile: {Data: []byte(`{"bos_token": 5}`)}})
	assert.ErrorContains(t, err, "tokenizer_config.json: bos_token: found a number")
	_, err = SpecialTokens(brokenFS{})
	assert.ErrorIs(t, err, fs.ErrPermission)
}

type brokenFS struct{}

func (brokenFS) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
}

func TestLoadUnreadable(t *testing.T) {
	_, err := Load(brokenFS{})
	require.ErrorIs(t, err, fs.ErrPermission)
	assert.False(t, errors.Is(err, ErrNoTemplate))
}

func ExampleTemplate_Render() {
	tmpl, err := Parse("example", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := tmpl.Render(context.Background(), Input{
		Messages:            []*Object{NewMessage("system", "Be brief."), NewMessage("user", "Hello!")},
		AddGenerationPrompt: true,
	})
	fmt.Println(text, err)
	// Output: <system>Be brief.<user>Hello!<assistant> <nil>
}

func BenchmarkRender(b *testing.B) {
	tmpl := parseFile(b, "mistral-nemo-instruct-2407")
	for _, turns := range []int{1, 100} {
		b.Run(fmt.Sprintf("turns=%d", turns), func(b *testing.B) {
			in := Input{BOSToken: "<s>", EOSToken: "</s>"}
			for range turns {
				in.Messages = append(in.Messages, NewMessage("user", "a question of some length"), NewMessage("assistant", "an answer"))
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tmpl.Render(context.Background(), in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
