package tokenizer

import (
	"errors"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// TestUnicodeCategories counts the characters of each class and property: as many as
// DerivedGeneralCategory.txt and PropList.txt of Unicode 16 list.
func TestUnicodeCategories(t *testing.T) {
	const lu, ll, lt, lm, lo, marks, nd, nl, no, pc = 1858, 2258, 31, 404, 136477, 2501, 760, 236, 915, 10
	for name, want := range map[string]int{
		"L": lu + ll + lt + lm + lo, "Lu": lu, "Ll": ll, "Lt": lt, "Lm": lm, "Lo": lo, "M": marks, "N": nd + nl + no, "Nd": nd,
		"Mn": 2020, "Mc": 468, "Me": 13, "Nl": nl, "No": no,
		"P": 855, "Pc": pc, "Pd": 27, "Po": 640, "S": 8514, "Sc": 63, "Sk": 125, "Sm": 950, "So": 7376,
		"Z": 19, "Zs": 17, "Cf": 170, "Co": 137468, "Cn": unicode.MaxRune + 1 - 154998 - 137468 - 65 - 2048,
		"Han": 99030, "Latin": 1487, "Cyrillic": 508, "Arabic": 1373,
	} {
		p, err := compilePattern(`\p{` + name + `}`)
		require.NoError(t, err)
		set, got := p.code[0].set, 0
		for r := range rune(unicode.MaxRune + 1) {
			if set.has(r) {
				got++
			}
		}
		require.Equal(t, want, got, name)
	}
	var bits [8]int
	words := 0
	for r := range rune(unicode.MaxRune + 1) {
		class := classes().of(r)
		for i := range bits {
			bits[i] += int(class >> i & 1)
		}
		if isWord(r) {
			words++
		}
	}
	require.Equal(t, [8]int{
		lu + ll + lt + lm + lo, nd + nl + no, 25, 2, // letters, numbers, white space, line breaks
		lu + lt + lm + lo + marks, ll + lm + lo + marks,
	}, bits)
	const circled, joiners = 130, 2 // letters that are symbols by category; ZWNJ and ZWJ
	require.Equal(t, lu+ll+lt+lm+lo+marks+nd+nl+pc+circled+joiners, words)
}

// TestInexactProperties: a property that Go's tables cannot give as Unicode 16 has it
// is refused, under every name.
func TestInexactProperties(t *testing.T) {
	for _, name := range []string{"Common", "Balinese", "Letter", "letter", "LC", "l", "Any", "Assigned", "Kawi"} {
		_, err := compilePattern(`\p{` + name + `}+`)
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
		_, err = compilePattern(`[^\P{` + name + `}]`)
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
	}
}

// TestNewSymbols: a blank joins a symbol of Unicode 16 in the pattern of DeepSeek-V3.
func TestNewSymbols(t *testing.T) {
	m, err := newMatcher(`[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`)
	require.NoError(t, err)
	for _, symbol := range []string{"\U0001fae9", "\u31ef", "\U00010d6e", "\u1b4e"} {
		require.Equal(t, []piece{{0, 1}, {1, 2 + len(symbol)}}, findAll(m, "a "+symbol), "%+q", symbol)
	}
}

// TestFoldedClasses: (?i) applies to a class in brackets, but not to \p alone, as in
// Oniguruma.
func TestFoldedClasses(t *testing.T) {
	for pattern, want := range map[string]int{`(?i:\p{Lu})`: 1, `(?i:[\p{Lu}])`: 2, `(?i:\p{Ll})`: 1, `(?i:\P{Lu})`: 1, `(?i:[a])`: 2} {
		m, err := newMatcher(pattern)
		require.NoError(t, err)
		require.Len(t, findAll(m, "aA"), want, pattern)
	}
}

// TestBracketWord: a superscript digit is a word character outside brackets only, as in
// Oniguruma.
func TestBracketWord(t *testing.T) {
	for pattern, want := range map[string]int{
		`\w`: 2, `[\w]`: 1, `[^\W]`: 1, `\W`: 1, `[\W]`: 2, `[^\w]`: 2, `[^\w\s]+`: 1, `\w+|[^\w\s]+`: 2, `\b`: 2,
	} {
		m, err := newMatcher(pattern)
		require.NoError(t, err)
		require.Len(t, findAll(m, "-\u00b2a"), want, pattern)
	}
}

// TestClassAt: characters of every length, whole and truncated, and bytes that are not
// part of one.
func TestClassAt(t *testing.T) {
	table := classes()
	check := func(s string) {
		r, n := utf8.DecodeRuneInString(s)
		class, size := table.at(s, 0)
		require.Equal(t, table.of(r), class, "%q", s)
		require.Equal(t, n, size, "%q", s)
		class, size = table.at("x"+s, 1)
		require.Equal(t, table.of(r), class, "%q", s)
		require.Equal(t, n, size, "%q", s)
	}
	for first := range 256 {
		check(string([]byte{byte(first)}))
		for second := range 256 {
			check(string([]byte{byte(first), byte(second)}))
			if second%16 == 0 {
				check(string([]byte{byte(first), byte(second), 0x80}))
				check(string([]byte{byte(first), byte(second), 0xbf, 0x80}))
				check(string([]byte{byte(first), byte(second), 'a'}))
			}
		}
	}
	class, n := table.at("x", 1)
	require.Zero(t, class)
	require.Zero(t, n)
}
