package tokenizer

import (
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
