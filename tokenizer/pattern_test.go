package tokenizer

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// findAll returns the matches of a pattern in text.
func findAll(m matcher, text string) []piece {
	s := new(scratch)
	s.begin(context.Background(), math.MaxInt)
	return m.find(s, nil, text)
}

// findCarefully is findAll with notes from the first byte on.
func findCarefully(p *pattern, text string) []piece {
	s := new(scratch)
	s.begin(context.Background(), math.MaxInt)
	e := &patternSearch{p: p, text: text}
	e.takeNotes(0)
	return e.all(s, nil)
}

// publishedPatterns are the patterns of published tokenizers, with or without a
// scanner, and those of the test data.
var publishedPatterns = append(slices.Sorted(maps.Keys(knownPatterns)),
	`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s`,
	"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
	`[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`+"`"+`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	` ?[^(\s|[.,!?…。，、।۔،])]+`,
	`[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?`+
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?`+
		`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	"[一-龥\u3040-ゟ゠-ヿ]+", `[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, `[\s.,]`, `\s{2,}`, `\p{L}+|\p{N}+`,
)

// patternTexts returns texts that put every kind of character next to every other.
func patternTexts() []string {
	units := []string{"a", "A", "é", "\u0301", "ʰ", "ǅ", "漢", "7", "٣", "½", " ", "\t", "\n", "\r\n", "\u00a0", "\u2028", "'s", "'S", "'ſ", "'ll", "'", "!", "/", "🙂", "\xff", "\x00"}
	var out []string
	for _, a := range units {
		for _, b := range units {
			out = append(out, a+b, a+a+b+b, a+b+a, " "+a+b, a+"  "+b, a+" \n "+b)
		}
	}
	return append(out, "I'll say: \"it's 12345 o'clock\", don't\n\n\tfoo(bar) // baz  ", strings.Join(units, ""), strings.Join(units, " "))
}

func TestPublishedPatterns(t *testing.T) {
	checks, judgedAny := 0, false
	for _, text := range publishedPatterns {
		p, err := compilePattern(text)
		require.NoError(t, err)
		m, err := newMatcher(text)
		require.NoError(t, err)
		for i, s := range patternTexts() {
			want := findAll(p, s)
			require.Equal(t, want, findAll(m, s), "scanner and engine differ: %q in %+q", text, s)
			if i%16 == 0 {
				judged, ok := judge(text, s)
				if !ok { // a machine too busy for its time limit
					continue
				}
				judgedAny = true
				require.Equal(t, judged, want, "judge and engine differ: %q in %+q", text, s)
			}
			checks++
		}
	}
	require.True(t, judgedAny, "nothing was judged")
	t.Logf("%d checks of %d patterns", checks, len(publishedPatterns))
}

// genPattern draws a pattern of the supported syntax.
func genPattern(t *rapid.T, depth int) string {
	atom := rapid.SampledFrom([]string{"a", "b", "ab", ".", `\s`, `\S`, `\p{L}`, `[^a]`, `[ab]`, " ", `\n`, "é", `(?i:aB)`}).Draw(t, "atom")
	if depth == 0 {
		return atom
	}
	sub := func() string { return genPattern(t, depth-1) }
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0, 1:
		return sub() + sub()
	case 2, 3:
		return "(?:" + sub() + "|" + sub() + ")"
	case 4:
		return "(?:" + sub() + rapid.SampledFrom([]string{")*", ")+", ")?", "){2}", "){1,3}", "){2,}", ")*?", ")+?", ")??", "){0,2}?"}).Draw(t, "repeat")
	case 5:
		return rapid.SampledFrom([]string{"a", `\s`, `\S`, `[^b]`, "."}).Draw(t, "char") +
			rapid.SampledFrom([]string{"*", "+", "?", "{1,2}", "{2,}", "*?", "+?", "*+", "++", "?+"}).Draw(t, "repeat")
	case 6:
		return rapid.SampledFrom([]string{"(?=", "(?!"}).Draw(t, "look") + sub() + ")"
	case 7:
		return rapid.SampledFrom([]string{`(?<=a)`, `(?<!\s)`, `\b`, `\B`, "$", `\A`, `\z`}).Draw(t, "assert")
	case 8:
		return "(?>" + rapid.SampledFrom([]string{"a*", `\s+`, `[ab]{1,2}`}).Draw(t, "atomic") + ")"
	}
	return atom
}

// TestPatternsAgainstJudge compares random patterns with another engine, with and
// without notes.
func TestPatternsAgainstJudge(t *testing.T) {
	compared := 0
	rapid.Check(t, func(rt *rapid.T) {
		text := genPattern(rt, 4)
		p, err := compilePattern(text)
		if errors.Is(err, errors.ErrUnsupported) {
			rt.Skip(err)
		}
		require.NoError(rt, err, "%q", text)
		s := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "a", "b", "A", "é", " ", "\n", "1", "🙂"}), 0, 12).Draw(rt, "text"), "")
		want, ok := judge(text, s)
		if !ok {
			rt.Skip("no judge")
		}
		compared++
		require.Equal(rt, want, findAll(p, s), "%q in %q", text, s)
		require.Equal(rt, want, findCarefully(p, s), "%q in %q with notes", text, s)
	})
	require.NotZero(t, compared)
}

// TestPatternTime checks that the steps of a search grow only with the text, where
// plain backtracking takes quadratic or exponential time.
func TestPatternTime(t *testing.T) {
	n := 1 << 15
	for _, tt := range []struct{ pattern, text string }{
		{`a*b|a`, strings.Repeat("a", n)},
		{`a*b`, strings.Repeat("a", n) + "cab"},
		{`a+b|a`, strings.Repeat("a", n)},
		{`(?:a|aa)+b|a`, strings.Repeat("a", n)},
		{`(?:a+){2,9}b|a`, strings.Repeat("a", n)},
		{`a{0,9}a{0,9}a{0,9}a{0,9}b|a`, strings.Repeat("a", n)},
		{`.*x|.`, strings.Repeat("a", n)},
		{`(?=a*b)a|a`, strings.Repeat("a", n)},
		{`(?=a*b)a|a`, strings.Repeat("a", n) + "b"},
		{`(?=(?:aa)+b)a|a`, strings.Repeat("a", n) + "b"},
		{`(?!a*b)a|a`, strings.Repeat("a", n) + "b"},
		{`a++b|a`, strings.Repeat("a", n)},
		{`a{1,3}+b|a`, strings.Repeat("a", n)},
		{`(?:a++ )*x|a| `, strings.Repeat("aaaaaaaaaaaaaaaa ", n/16)},
		{`(?:a+ |.+ )*z|.`, strings.Repeat("aaaaaaaaaaaaaaaa ", n/16)},
		{`\s+(?!\S)|\s`, strings.Repeat(" ", n) + "x"},
		{`(?:\p{L}+?\s?)+?!|.`, strings.Repeat("ab ", n/3)},
	} {
		p, err := compilePattern(tt.pattern)
		require.NoError(t, err)
		s := new(scratch)
		s.begin(context.Background(), math.MaxInt)
		found := p.find(s, nil, tt.text)
		require.NotEmpty(t, found)
		require.Less(t, s.search.steps, (stepsPerByte+100)*len(tt.text), "%q", tt.pattern)
	}
}

func TestPatternRefusals(t *testing.T) {
	for pattern, want := range map[string]string{
		`(a)\1`: `\1`, `(?<name>a)`: "(?<na", `(?:a*)*`: "may be empty", `(?:a|)+`: "may be empty",
		`a**`: "repetition of a repetition", `(?<=ab)c`: "a lookbehind", `(?<=a+)c`: "a lookbehind",
		`(?>ab|a)`: "atomic", `(?:ab)++`: "possessive", `[a-[b]]`: "a range that ends in brackets",
		`[[:alpha:]]`: "[:alpha:]", `[a[:b]]`: "[:b]", `[^[^[:^ascii:]\w]]`: "a negated class inside",
		`\G`: `\G`, `\h`: `\h`, `a{0,2}+`: "may be empty", `a{1,2}++`: "repetition of a repetition", `(?>a{2}+)`: "atomic", `{,3}`: "", `a{,3}`: "lower bound", `\pL`: "braces",
		`a(?i)b`: "(?i)", `(?#x)`: "(?#x",
		strings.Repeat("(?:a|b)", 65): "choices", strings.Repeat("(?:ab){1000}", 5): "instructions",
	} {
		_, err := compilePattern(pattern)
		if want == "" {
			require.NoError(t, err, pattern)
			continue
		}
		require.ErrorContains(t, err, want, pattern)
		require.ErrorIs(t, err, errors.ErrUnsupported, pattern)
	}
	for pattern, want := range map[string]string{
		`(a`: "not closed", `a)`: "without an opening", `[a`: "not closed", `[a-`: "not closed", `[]`: "not closed", `*a`: "nothing to repeat",
		`a\`: "backslash", `[z-a]`: "range", `[a-\d]`: "range", `\p{Nonsense}`: "Nonsense", `a{3,2}`: "bounds",
		`a{1001}`: "bounds", `a{99999999999999999999}`: "bounds", `\x{110000}`: "is not a character", `\u12`: "cut off", "\xff": "UTF-8",
		`[a[b]`: "not closed", `[a[]]`: "not closed", `[a&&`: "not closed", strings.Repeat("[", 1000): "nested",
		strings.Repeat("(", 1000) + strings.Repeat(")", 1000): "nested", strings.Repeat("a", maxPatternLen+1): "bytes",
	} {
		_, err := compilePattern(pattern)
		require.ErrorContains(t, err, want, pattern)
	}
}

// TestClassesInBrackets: brackets inside brackets add their characters, && intersects, and
// ^ and (?i) apply to the whole. Expected values: Hugging Face tokenizers 0.23.3.
func TestClassesInBrackets(t *testing.T) {
	const all = "abcABKks é²漢.([|]-&:1\n"
	for pattern, want := range map[string]string{
		`[^(\s|[.,!?…。，、।۔،])]`:                       "abcABKksé²漢[]-&:1",
		`[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]`: "ABK",
		`[a[bc]]`:                "abc",
		`[^a[bc]]`:               "ABKks é²漢.([|]-&:1\n",
		`[a[^b]]`:                "acABKks é²漢.([|]-&:1\n",
		`[^é[^b]]`:               "b",
		`[[]a]]`:                 "a]",
		`[[^]]]`:                 "abcABKks é²漢.([|-&:1\n",
		`[[^[^a]]]`:              "a",
		`[a[b]-k]`:               "abk-",
		`[[b]-k]`:                "bk-",
		`[abc&&bcA]`:             "bc",
		`[^abc&&bcA]`:            "aABKks é²漢.([|]-&:1\n",
		`[abk&&bk&&k]`:           "k",
		`[abc&&]`:                "",
		`[&&a]`:                  "",
		`[^&&]`:                  "abcABKks é²漢.([|]-&:1\n",
		`[a&&&b]`:                "",
		`[a-c&&^b]`:              "b",
		`[a-&&A-]`:               "-",
		`[a-c&&b-k[A]]`:          "bc",
		`[[ab]A&&[bc]A]`:         "bA",
		`[[^\w\W]a]`:             "a",
		`[[:digit:][:space:]]`:   " 1\n",
		`[^[:punct:]]`:           "abcABKks é²漢1\n",
		`[[:word:]&&[:^ascii:]]`: "é漢",
		`[:a:]`:                  "a:",
		`(?i)[a[^B]]`:            "abcABKks é²漢.([|]-&:1\n",
		`(?i)[a-c&&[^B]]`:        "abcAB",
		`(?i)[a-c&&B]`:           "",
		`(?i)[^b&&[^B]]`:         "acAKks é²漢.([|]-&:1\n",
	} {
		p, err := compilePattern(pattern)
		require.NoError(t, err, pattern)
		got := ""
		for _, c := range all {
			if len(findAll(p, string(c))) > 0 {
				got += string(c)
			}
		}
		require.Equal(t, want, got, pattern)
	}
}

func TestPatternAnchors(t *testing.T) {
	for _, tt := range []struct {
		pattern, text string
		want          []piece
	}{
		{"^a", "a\na b\n", []piece{{0, 1}, {2, 3}}},
		{"^", "a\nb\n", []piece{{0, 0}, {2, 2}}}, // not after a line break at the end
		{"a$", "a\nba", []piece{{0, 1}, {3, 4}}},
		{`\Aa`, "a\na", []piece{{0, 1}}},
		{`a\z`, "a\na", []piece{{2, 3}}},
		{`(?i)ks`, "KS \u212aſ", []piece{{0, 2}, {3, 8}}},
		{`[^\S\n]+`, " \n ", []piece{{0, 1}, {2, 3}}},
		{`[]a]+`, "a]b", []piece{{0, 2}}},
		{`[\W]`, "a!", []piece{{1, 2}}},
		{`a{`, "a{", []piece{{0, 2}}},
		{`(?=a{1,2}ac).`, "aaac", []piece{{0, 1}, {1, 2}}},
		{`(?>[ab]{1,2})`, "aab", []piece{{0, 2}, {2, 3}}},
		{`(?>[ab]{2,3}).`, "abab", []piece{{0, 4}}},
		{`(?<=a)b`, "abcb", []piece{{1, 2}}},
		{`(?<!a)b`, "abcb", []piece{{3, 4}}},
		// Two ways lead to the same place and to the notes made there.
		{`(?:a|aa)(?=bc)b|a`, "aab", []piece{{0, 1}, {1, 2}}},
		{`(?:a|aa)(?=bc)b|a`, "aabc", []piece{{0, 3}}},
		{`(?:a|aa)(?!bc)b|a`, "aabc", []piece{{0, 1}, {1, 2}}},
		{`(?:a|aa)(?!bc)b|a`, "aab", []piece{{0, 3}}},
		{`(?:a*)?b`, "aab", []piece{{0, 3}}}, // may be empty, but not again and again
		// A plus after braces repeats once more. Expected values: Hugging Face tokenizers 0.23.3.
		{`\p{N}{1,3}+`, "a1234567b", []piece{{1, 8}}},
		{`a{2}+`, "aaaaaxaaa", []piece{{0, 4}, {6, 8}}},
		{`a{1,3}+ab`, "aaaaab", []piece{{0, 6}}}, // and gives back
		{`x*`, "axb", []piece{{0, 0}, {1, 2}, {3, 3}}},
	} {
		p, err := compilePattern(tt.pattern)
		require.NoError(t, err, tt.pattern)
		require.Equal(t, tt.want, findAll(p, tt.text), "%q in %q", tt.pattern, tt.text)
		require.Equal(t, tt.want, findCarefully(p, tt.text), "%q in %q", tt.pattern, tt.text)
	}
}
