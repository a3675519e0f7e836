package tokenizer

import (
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Character classes of the split patterns, one bit each.
const (
	classL     = 1 << iota // \p{L}
	classN                 // \p{N}
	classSpace             // \s, which is White_Space
	classNL                // [\r\n]
	classUpper             // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
	classLower             // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
)

// classTable is a two-stage table over all code points: page[r>>8] selects a row
// of 256 classes. Equal rows are stored once.
type classTable struct {
	page  [(unicode.MaxRune + 1) >> 8]uint16
	rows  [][256]uint8
	bytes [256]uint8 // of bytes that are a character, or part of none
}

var classes = sync.OnceValue(func() *classTable {
	flat := make([]uint8, unicode.MaxRune+1)
	set := func(bits uint8, tables ...*unicode.RangeTable) {
		for _, t := range tables {
			for _, r := range t.R16 {
				for c := int(r.Lo); c <= int(r.Hi); c += int(r.Stride) {
					flat[c] |= bits
				}
			}
			for _, r := range t.R32 {
				for c := int(r.Lo); c <= int(r.Hi); c += int(r.Stride) {
					flat[c] |= bits
				}
			}
		}
	}
	set(classL, unicode.L)
	set(classN, unicode.N)
	set(classSpace, unicode.White_Space)
	set(classUpper, unicode.Lu, unicode.Lt, unicode.Lm, unicode.Lo, unicode.M)
	set(classLower, unicode.Ll, unicode.Lm, unicode.Lo, unicode.M)
	for category, bits := range map[string]uint8{
		"Lu": classL | classUpper, "Ll": classL | classLower, "Lm": classL | classUpper | classLower,
		"Lo": classL | classUpper | classLower, "Mn": classUpper | classLower, "Mc": classUpper | classLower, "Nd": classN,
	} {
		for _, r := range newer[category] {
			for c := r[0]; c <= r[1]; c++ {
				flat[c] |= bits
			}
		}
	}
	flat['\n'] |= classNL
	flat['\r'] |= classNL

	t := &classTable{}
	seen := make(map[[256]uint8]uint16)
	for p := range t.page {
		row := [256]uint8(flat[p<<8 : p<<8+256])
		k, ok := seen[row]
		if !ok {
			k = uint16(len(t.rows))
			seen[row] = k
			t.rows = append(t.rows, row)
		}
		t.page[p] = k
	}
	copy(t.bytes[:utf8.RuneSelf], t.rows[t.page[0]][:])
	return t
})

func (t *classTable) of(r rune) uint8 { return t.rows[t.page[r>>8]][r&0xff] }

// at returns the class and the length of the character at s[i:], and 0, 0 at the
// end. A byte that is not UTF-8 counts as a character of no class.
func (t *classTable) at(s string, i int) (class uint8, n int) {
	if i >= len(s) {
		return 0, 0
	}
	if c := s[i]; c < utf8.RuneSelf || i+1 == len(s) || leads[c] != s[i+1]>>6 {
		return t.bytes[c], 1
	}
	return t.wide(s, i)
}

// wide is at for the first byte of a multi-byte character.
func (t *classTable) wide(s string, i int) (class uint8, n int) {
	if c := s[i]; c < 0xe0 {
		return t.of(rune(c&0x1f)<<6 | rune(s[i+1]&0x3f)), 2
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return t.of(r), n
}

// leads tells which bytes begin a multi-byte character: leads[b] == c>>6 if and only if
// b may begin one and c may continue it. This takes one branch for everything that is
// not ASCII, and one that random bytes seldom take.
var leads = func() (leads [256]byte) {
	for b := range leads {
		leads[b] = 0xff
		if b >= 0xc2 && b <= 0xf4 {
			leads[b] = 0x80 >> 6
		}
	}
	return leads
}()

// isWord reports whether r is a word character of a Unicode regular expression:
// alphabetic, mark, decimal digit, connector or join control.
func isWord(r rune) bool {
	return classes().of(r)&(classL|classUpper) != 0 || // classUpper has the marks
		unicode.In(r, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control) ||
		slices.ContainsFunc(newer["Nd"], func(x [2]rune) bool { return x[0] <= r && r <= x[1] })
}

// badPrefix examines b, which does not start with a complete character. It
// returns the length of the longest prefix of b that begins a character (at
// least 1), and whether more bytes could still complete that character.
func badPrefix(b []byte) (n int, open bool) {
	lo, hi, need := byte(0x80), byte(0xbf), 0
	switch c := b[0]; {
	case c >= 0xc2 && c <= 0xdf:
		need = 2
	case c >= 0xe0 && c <= 0xef:
		need = 3
		if c == 0xe0 {
			lo = 0xa0
		} else if c == 0xed {
			hi = 0x9f
		}
	case c >= 0xf0 && c <= 0xf4:
		need = 4
		if c == 0xf0 {
			lo = 0x90
		} else if c == 0xf4 {
			hi = 0x8f
		}
	default:
		return 1, false
	}
	for n = 1; n < need; n++ {
		if n == len(b) {
			return n, true
		}
		if b[n] < lo || b[n] > hi {
			return n, false
		}
		lo, hi = 0x80, 0xbf
	}
	return n, false
}

// The byte-level alphabet of GPT-2: printable bytes stand for themselves; the
// other 68 take the code points from U+0100 on, in ascending order. charToByte
// holds -1 for characters that are not in the alphabet.
var byteToChar, charToByte = func() (fwd [256]rune, back [0x144]int16) {
	for i := range back {
		back[i] = -1
	}
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae) {
			r = next
			next++
		}
		fwd[b] = r
		back[r] = int16(b)
	}
	return fwd, back
}()

// appendByteLevel appends the bytes that a piece in the byte-level alphabet stands
// for; ok is false if a character is not in the alphabet.
func appendByteLevel(dst []byte, piece string) (_ []byte, ok bool) {
	for _, r := range piece {
		if int(r) >= len(charToByte) || charToByte[r] < 0 {
			return dst, false
		}
		dst = append(dst, byte(charToByte[r]))
	}
	return dst, true
}

func fromByteLevel(piece string) (raw string, ok bool) {
	b, ok := appendByteLevel(nil, piece)
	if !ok {
		return "", false
	}
	return string(b), true
}

func toByteLevel(raw string) string {
	b := make([]byte, 0, 2*len(raw))
	for i := range len(raw) {
		b = utf8.AppendRune(b, byteToChar[raw[i]])
	}
	return string(b)
}

// newer holds, by category or script, the characters of Unicode 16 that Go's tables
// (Unicode 15 up to Go 1.26) lack and the reference implementation knows.
var newer = map[string][][2]rune{
	"Lu": {{0x1c89, 0x1c89}, {0xa7cb, 0xa7cc}, {0xa7da, 0xa7da}, {0xa7dc, 0xa7dc}, {0x10d50, 0x10d65}},
	"Ll": {{0x1c8a, 0x1c8a}, {0xa7cd, 0xa7cd}, {0xa7db, 0xa7db}, {0x10d70, 0x10d85}},
	"Lm": {{0x10d4e, 0x10d4e}, {0x10d6f, 0x10d6f}, {0x16d40, 0x16d42}, {0x16d6b, 0x16d6c}},
	"Lo": {
		{0x105c0, 0x105f3}, {0x10d4a, 0x10d4d}, {0x10d4f, 0x10d4f}, {0x10ec2, 0x10ec4}, {0x11380, 0x11389},
		{0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x113b5}, {0x113b7, 0x113b7}, {0x113d1, 0x113d1},
		{0x113d3, 0x113d3}, {0x11bc0, 0x11be0}, {0x13460, 0x143fa}, {0x16100, 0x1611d}, {0x16d43, 0x16d6a},
		{0x18cff, 0x18cff}, {0x1e5d0, 0x1e5ed}, {0x1e5f0, 0x1e5f0}, {0x2ebf0, 0x2ee5d},
	},
	"Mn": {
		{0x897, 0x897}, {0x10d69, 0x10d6d}, {0x10efc, 0x10efc}, {0x113bb, 0x113c0}, {0x113ce, 0x113ce},
		{0x113d0, 0x113d0}, {0x113d2, 0x113d2}, {0x113e1, 0x113e2}, {0x11f5a, 0x11f5a}, {0x1611e, 0x16129},
		{0x1612d, 0x1612f}, {0x1e5ee, 0x1e5ef},
	},
	"Mc": {
		{0x113b8, 0x113ba}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5}, {0x113c7, 0x113ca}, {0x113cc, 0x113cd},
		{0x113cf, 0x113cf}, {0x1171e, 0x1171e}, {0x1612a, 0x1612c},
	},
	"Nd": {
		{0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9}, {0x16130, 0x16139}, {0x16d70, 0x16d79},
		{0x1ccf0, 0x1ccf9}, {0x1e5f1, 0x1e5fa},
	},
	"Pd": {{0x10d6e, 0x10d6e}},
	"Po": {
		{0x1b4e, 0x1b4f}, {0x1b7f, 0x1b7f}, {0x113d4, 0x113d5}, {0x113d7, 0x113d8}, {0x11be1, 0x11be1},
		{0x16d6d, 0x16d6f}, {0x1e5ff, 0x1e5ff},
	},
	"Sm": {{0x10d8e, 0x10d8f}},
	"So": {
		{0x2427, 0x2429}, {0x2ffc, 0x2fff}, {0x31e4, 0x31e5}, {0x31ef, 0x31ef}, {0x1cc00, 0x1ccef}, {0x1cd00, 0x1ceb3},
		{0x1f8b2, 0x1f8bb}, {0x1f8c0, 0x1f8c1}, {0x1fa89, 0x1fa89}, {0x1fa8f, 0x1fa8f}, {0x1fabe, 0x1fabe},
		{0x1fac6, 0x1fac6}, {0x1fadc, 0x1fadc}, {0x1fadf, 0x1fadf}, {0x1fae9, 0x1fae9}, {0x1fbcb, 0x1fbef},
	},
	"Arabic":   {{0x897, 0x897}, {0x10ec2, 0x10ec4}, {0x10efc, 0x10efc}},
	"Cyrillic": {{0x1c89, 0x1c8a}},
	"Han":      {{0x2ebf0, 0x2ee5d}},
	"Latin":    {{0xa7cb, 0xa7cd}, {0xa7da, 0xa7dc}},
}

// newerIn says which lists of newer belong to a property.
var newerIn = map[string][]string{
	"L": {"Lu", "Ll", "Lm", "Lo"}, "Lu": {"Lu"}, "Ll": {"Ll"}, "Lm": {"Lm"}, "Lo": {"Lo"},
	"M": {"Mn", "Mc"}, "Mn": {"Mn"}, "Mc": {"Mc"}, "N": {"Nd"}, "Nd": {"Nd"},
	"P": {"Pd", "Po"}, "Pd": {"Pd"}, "Po": {"Po"}, "S": {"Sm", "So"}, "Sm": {"Sm"}, "So": {"So"},
	"Arabic": {"Arabic"}, "Cyrillic": {"Cyrillic"}, "Han": {"Han"}, "Latin": {"Latin"},
}

// older holds, by category, the characters of Go's tables that are no longer in it:
// those of newer were unassigned.
var older = func() map[string][][2]rune {
	var assigned [][2]rune
	for name, ranges := range newer {
		if len(name) == 2 { // a category; the scripts repeat their characters
			assigned = append(assigned, ranges...)
		}
	}
	return map[string][][2]rune{"C": assigned, "Cn": assigned, "Mn": {{0x1171e, 0x1171e}}}
}()

// youngPunctuation holds the characters of \p{P} that the Punctuation pre-tokenizer of the
// reference implementation, with tables of an older version of Unicode, does not know.
var youngPunctuation = [][2]rune{
	{0x61d, 0x61d}, {0x9fd, 0x9fd}, {0xa76, 0xa76}, {0xc77, 0xc77}, {0xc84, 0xc84}, {0x1b4e, 0x1b4f},
	{0x1b7d, 0x1b7f}, {0x2e43, 0x2e4f}, {0x2e52, 0x2e5d}, {0x10d6e, 0x10d6e}, {0x10ead, 0x10ead},
	{0x10f55, 0x10f59}, {0x10f86, 0x10f89}, {0x113d4, 0x113d5}, {0x113d7, 0x113d8}, {0x1144b, 0x1144f},
	{0x1145a, 0x1145b}, {0x1145d, 0x1145d}, {0x11660, 0x1166c}, {0x116b9, 0x116b9}, {0x1183b, 0x1183b},
	{0x11944, 0x11946}, {0x119e2, 0x119e2}, {0x11a3f, 0x11a46}, {0x11a9a, 0x11a9c}, {0x11a9e, 0x11aa2},
	{0x11b00, 0x11b09}, {0x11be1, 0x11be1}, {0x11c41, 0x11c45}, {0x11c70, 0x11c71}, {0x11ef7, 0x11ef8},
	{0x11f43, 0x11f4f}, {0x11fff, 0x11fff}, {0x12ff1, 0x12ff2}, {0x16d6d, 0x16d6f}, {0x16e97, 0x16e9a},
	{0x16fe2, 0x16fe2}, {0x1e5ff, 0x1e5ff}, {0x1e95e, 0x1e95f},
}

// exact holds the properties of which Go's tables, with newer and older, have exactly the
// characters that the reference implementation has.
var exact = func() map[string]bool {
	names := make(map[string]bool)
	for _, name := range strings.Fields("L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sc Sk Sm So Z Zs Zl Zp C Cc Cf Cn Co " +
		"Arabic Armenian Bengali Bopomofo Braille Cyrillic Devanagari Ethiopic Georgian Greek Gujarati Gurmukhi Han Hangul Hebrew " +
		"Hiragana Kannada Katakana Khmer Lao Latin Malayalam Mongolian Sinhala Tamil Telugu Thaana Thai Tibetan") {
		names[name] = true
	}
	return names
}()
