package jinja

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// marked returns a result with its data in « ».
func marked(t require.TestingT, r Result) string {
	var b strings.Builder
	at := 0
	for _, d := range r.Data {
		require.True(t, at <= d.Start && d.Start < d.End && d.End <= len(r.Text) && (at == 0 || at < d.Start), "%v of %d bytes", r.Data, len(r.Text))
		b.WriteString(r.Text[at:d.Start] + "«" + r.Text[d.Start:d.End] + "»")
		at = d.End
	}
	b.WriteString(r.Text[at:])
	return b.String()
}

// TestOrigin: however a template handles a text from the input, the text stays
// known as such, and what the template adds is the template's.
func TestOrigin(t *testing.T) {
	vars := object{
		"x", "ab", "p", " ab ", "think", "<t>why</t>so", "html", "<b>", "nl", "a\nb", "bos", Trusted("<s>"),
		"d", object{"k", "v", "n", 1}, "l", []string{"q", "r"}, "wide", "äß",
		"m", []any{object{"role", "user", "content", "hi"}, object{"role", "tool", "content", "yo"}},
	}
	for _, c := range []struct{ source, want string }{
		{"{{ x }}", "«ab»"},
		{"A{{ x }}B{{ bos }}", "A«ab»B<s>"},
		{"{{ 'A' + x + 'B' + x + x }}", "A«ab»B«abab»"},
		{"{{ 'A' ~ x ~ 1 ~ d.n }}", "A«ab»11"},
		{"{{ ('<' + x + '>')[1:] }}{{ ('<' + x + '>')[::-1] }}{{ ('<' + x)[1] }}", "«ab»>>«ba»<«a»"},
		{"{{ ('  ' + p + '  ')|trim }}|{{ (' |' + p).strip() }}|{{ p.rstrip() }}", "«ab»||« ab»|« ab»"},
		{"{{ ('A' + x)|upper }}{{ ('A' + x)|lower }}{{ ('a' + x)|title }}{{ ('a' + x)|capitalize }}", "A«AB»a«ab»A«ab»A«ab»"},
		{"{{ ('ö' + wide)|upper }}", "Ö«ÄSS»"},
		{"{{ x|replace('a', 'A') }}{{ 'zaz'|replace('a', x) }}{{ 'xax'|replace('a', 'y') }}", "A«b»z«ab»zxyx"},
		{"{{ x.replace('', '-') }}", "-«a»-«b»-"},
		{"{{ think.split('</t>')[-1] }}{{ think.split('</t>')[0].split('<t>')[-1] }}", "«sowhy»"},
		{"{{ ('u,' + x + ',v').split(',') }}", "['u', '«ab»', 'v']"},
		{"{{ l|join('-') }}{{ ', '.join(l) }}{{ m|join(x, attribute='role') }}", "«q»-«rq», «ruserabtool»"},
		{"{{ d|tojson }}{{ l }}", `{"«k»": "«v»", "«n»": 1}['«q»', '«r»']`},
		{"{{ html|tojson }}{{ nl|tojson }}{{ [nl] }}{{ html|e }}", `"«<b>»""«a\nb»"['«a\nb»']«&lt;b&gt;»`},
		{"{{ nl|indent(2) }}|{{ nl|indent(x) }}|{{ nl.splitlines() }}", "«a»\n  «b»|«a»\n«abb»|['«a»', '«b»']"},
		{"{{ x * 2 }}{{ '-' * 2 }}", "«abab»--"},
		{"{% for c in 'A' + x %}{{ c }}.{% endfor %}{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", "A.«a».«b».«k»=«vn»=1"},
		{"{% set y %}A{{ x }}{% endset %}{{ y }}{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(x) }}{{ f(y)|upper }}", "A«ab»<«ab»><A«AB»>"},
		{"{% set ns = namespace(s='') %}{% for e in m %}{% set ns.s = ns.s + e.role + ':' %}{% endfor %}{{ ns.s }}", "«user»:«tool»:"},
		{"{{ l|first }}{{ l|last }}{{ x|first }}{{ x|last }}{{ l|reverse|list }}{{ x|reverse }}", "«qrab»['«r»', '«q»']«ba»"},
		{"{{ l|map('upper')|list }}{{ m|map(attribute='role')|list }}{{ l|sort|unique|list|max }}", "['«Q»', '«R»']['«user»', '«tool»']«r»"},
		{"{{ none|default(x) }}{{ nope|default(x) }}{{ {'user': '<|user|>'}[m[0].role] }}", "None«ab»<|user|>"},
		{"{{ dict(a=x, b='y') }}{{ {x: 'z'} }}{{ (x, 'z') }}{{ x|string }}{{ x|safe }}{{ x|list }}", "{'a': '«ab»', 'b': 'y'}{'«ab»': 'z'}('«ab»', 'z')«abab»['«a»', '«b»']"},
		{"{{ strftime_now(x) }}{{ strftime_now('%Y') }}{{ x.removeprefix('a') }}{{ ('a' + x).removesuffix('b') }}", "«ab»2024«b»a«a»"},
		{"{{ x == 'ab' }}{{ x|length }}{{ 'a' in x }}{{ x.find('b') }}", "True2True1"},
	} {
		t.Run(c.source, func(t *testing.T) {
			got, err := render(c.source, vars, Limits{})
			require.NoError(t, err)
			assert.Equal(t, c.want, marked(t, got))
		})
	}
}

// TestOriginLetters runs random chains of filters over texts whose letters tell
// where they came from: template letters are in a-m, the input's in n-z. The marks
// must agree with the letters.
func TestOriginLetters(t *testing.T) {
	steps := []string{
		"|trim", "|upper", "|lower", "|title", "|capitalize", "|replace('a', 'bc')", "|replace('p', 'k')", "|replace('', 'a')", "|reverse",
		"|indent(1)", "[1:]", "[:-1]", "[::2]", ".strip('nab ')", ".split(' ')|join(' ')", ".splitlines()|join('d')",
		"|list|join", "|tojson(ensure_ascii=true)", "|string", "|list|string", "|e", "|safe + 'h '", " ~ p", " + q + 'e\\n'", " * 2", ".rsplit('b', 1)|join('q'|replace('q', p))",
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[n-z \né'"<]{0,6}`)
		source := "(p + 'Ab c' + q)"
		for _, s := range rapid.SliceOfN(rapid.SampledFrom(steps), 0, 6).Draw(t, "steps") {
			source = "(" + source + s + ")"
		}
		p, q := text.Draw(t, "p"), text.Draw(t, "q")
		result, err := render("{{ "+source+" }}", object{"p", p, "q", q}, Limits{})
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		marked(t, result)
		// Escapes add letters of their own.
		escaped := strings.ContainsAny(p+q, `'"<`) && (strings.Contains(source, "|e") || strings.Contains(source, "|safe"))
		if escaped || strings.Contains(source, "tojson") || strings.Contains(source, "string") {
			return
		}
		inData := make([]bool, len(result.Text))
		for _, d := range result.Data {
			for i := d.Start; i < d.End; i++ {
				inData[i] = true
			}
		}
		for i, c := range strings.ToLower(result.Text) {
			if 'a' <= c && c <= 'm' && inData[i] || 'n' <= c && c <= 'z' && !inData[i] {
				t.Fatalf("%s: byte %d of %q has the wrong mark: %v", source, i, result.Text, result.Data)
			}
		}
	})
}
