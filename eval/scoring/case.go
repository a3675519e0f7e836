package scoring

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// lower is the lower case of the benchmarks' scripts, which is Python's: İ becomes two
// characters, and a sigma at the end of a word its final form. Package cases looks no
// further than its buffer of 128 bytes for the latter.
func lower(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for i, r := range s {
		switch r {
		case 'İ':
			b.WriteString("i\u0307")
		case 'Σ':
			if endsWord(s[:i], s[i+len("Σ"):]) {
				r = 'ς'
			} else {
				r = 'σ'
			}
			b.WriteRune(r)
		default:
			b.WriteRune(unicode.ToLower(r))
		}
	}
	return b.String()
}

// endsWord reports whether a letter with case stands before and none after, past
// characters such as accents and apostrophes.
func endsWord(before, after string) bool {
	last, _ := utf8.DecodeLastRuneInString(strings.TrimRightFunc(before, caseIgnorable))
	first, _ := utf8.DecodeRuneInString(strings.TrimLeftFunc(after, caseIgnorable))
	return cased(last) && !cased(first)
}

func cased(r rune) bool {
	return unicode.In(r, unicode.Lu, unicode.Ll, unicode.Lt, unicode.Other_Lowercase, unicode.Other_Uppercase)
}

// caseIgnorable is Unicode's property Case_Ignorable.
func caseIgnorable(r rune) bool {
	return unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk) || strings.ContainsRune("'.:·\u0387\u055f\u05f4‘’․‧︓﹒﹕＇．：", r)
}

// upper is Unicode's upper case, in which ß becomes SS.
func upper(s string) string { return cases.Upper(language.Und).String(s) }
