package tokenizer

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/text/unicode/norm"
)

// A normalizer rewrites the current stretch. first says that a prefix meant
// only for the start of the text belongs before this stretch.
type normalizer interface {
	normalize(s *scratch, first bool)
}

// maxGrowth is the largest factor by which normalisation may lengthen a text, not
// counting the prepended text. NFKC, Lowercase and a Replace of one character by another,
// each at its worst, are at 66.
const maxGrowth = 128

// maxReplacement is the most bytes that may be prepended or stand for a character of a
// SentencePiece model, and the largest factor by which a decoder may lengthen a token.
const maxReplacement = 64

// growth returns the largest factor by which replacing the matches of m with text
// can lengthen a text.
func growth(m matcher, text string) int {
	switch m := m.(type) {
	case literal:
		return max(1, (len(text)+len(m)-1)/len(m))
	case *pattern:
		if !m.hungry {
			return 1 + len(text)
		}
	}
	return max(1, len(text))
}

// prependText puts a text before every stretch that is not empty.
type prependText string

func (p prependText) normalize(s *scratch, _ bool) {
	if s.cur == "" {
		return
	}
	s.rewrite()
	s.put(string(p), 0, 0)
	s.copyOver(0, len(s.cur))
	s.finish()
}

// replaceText replaces each match.
type replaceText struct {
	m   matcher
	new string
}

func (p replaceText) normalize(s *scratch, _ bool) {
	if l, ok := p.m.(literal); ok {
		s.replaceAll(string(l), p.new)
		return
	}
	s.found = p.m.find(s, s.found[:0], s.cur)
	s.rewrite()
	done := 0
	for _, f := range s.found {
		s.copyOver(done, f.start)
		s.put(p.new, f.start, f.end)
		if s.spent(f.end - done) {
			break
		}
		done = f.end
	}
	s.copyOver(done, len(s.cur))
	s.finish()
}

// lowercase maps every character to lower case.
type lowercase struct{}

func (lowercase) normalize(s *scratch, _ bool) {
	s.rewrite()
	for i := 0; i < len(s.cur); {
		n := runeLen(s.cur, i)
		low := strings.ToLower(s.cur[i : i+n])
		if s.cur[i:i+n] == "\u0130" {
			low = "i\u0307" // the only character with a longer lower case
		}
		s.put(low, i, i+n)
		if s.spent(n) {
			break
		}
		i += n
	}
	s.finish()
}

// stripBlanks removes white space from the ends.
type stripBlanks struct{ left, right bool }

func (p stripBlanks) normalize(s *scratch, _ bool) {
	start, end := 0, len(s.cur)
	if p.left {
		start = trimLeft(s.cur, 0)
	}
	if p.right {
		end = max(start, trimRight(s.cur, end))
	}
	s.base += start
	if s.src != nil {
		s.src = s.src[start:end]
	}
	s.cur = s.cur[start:end]
}

// unicodeForm is NFC, NFD, NFKC or NFKD.
type unicodeForm norm.Form

// shortSegment is the number of characters up to which a segment cannot hold
// enough non-starters for x/text to break it up (x/text follows the stream-safe
// format, with a limit of 30; the definition of the forms has no limit).
const shortSegment = 8

// formChars says, with one bit per character of the basic plane, which ones begin a
// segment, and which of those are in the form.
type formChars struct{ begin, plain [1 << 16 / 64]uint64 }

// charsOf holds the formChars of each form, made on first use.
var charsOf = func() (tables [4]func() *formChars) {
	for form := range tables {
		tables[form] = sync.OnceValue(func() *formChars {
			t := new(formChars)
			for r := range rune(1 << 16) {
				char := string(r)
				if f := unicodeForm(form); f.begins(char, r) {
					t.begin[r>>6] |= 1 << (r & 63)
					if norm.Form(f).QuickSpanString(char) == len(char) && !unicode.Is(younger, r) {
						t.plain[r>>6] |= 1 << (r & 63)
					}
				}
			}
			return t
		})
	}
	return tables
}()

// span returns the length of the segments at the start of text that are in the form.
func (f unicodeForm) span(text string) int {
	i := 0
	for i < len(text) && text[i] < utf8.RuneSelf {
		i++
	}
	if i == len(text) {
		return i
	}
	form, plain := norm.Form(f), &charsOf[f]().plain
	segment := max(i-1, 0) // where the last segment begins
	for i < len(text) {
		if c := text[i]; c < utf8.RuneSelf || i+1 == len(text) || leads[c] != text[i+1]>>6 {
			segment = i // ASCII, or part of no character: unchanged in every form
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		if r < 1<<16 && plain[r>>6]>>(r&63)&1 != 0 {
			segment = i
			i += n
			continue
		}
		if f.begins(text[i:], r) {
			segment = i
			if r >= 1<<16 && form.PropertiesString(text[i:]).Decomposition() == nil && !unicode.Is(younger, r) {
				i += n
				continue
			}
		}
		i = f.segmentEnd(text, i)
		if form.QuickSpanString(text[segment:i]) < i-segment {
			return segment
		}
	}
	return len(text)
}

// segmentEnd returns the end of the segment that the character at i belongs to.
func (f unicodeForm) segmentEnd(text string, i int) int {
	begin := &charsOf[f]().begin
	for i += runeLen(text, i); i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if r < 1<<16 {
			if begin[r>>6]>>(r&63)&1 != 0 {
				break
			}
		} else if f.begins(text[i:], r) {
			break
		}
		i += n
	}
	return i
}

// younger holds the characters that the tables of the tokenizers library, which are of
// Unicode 9, do not know as what they are: it neither decomposes nor composes them, nor
// does it order these marks. There they are starters that stay as they are.
var younger = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x7fd, Hi: 0x7fd, Stride: 1}, {Lo: 0x898, Hi: 0x89f, Stride: 1}, {Lo: 0x8ca, Hi: 0x8d3, Stride: 1},
		{Lo: 0x9fe, Hi: 0x9fe, Stride: 1}, {Lo: 0xc3c, Hi: 0xc3c, Stride: 1}, {Lo: 0xd3b, Hi: 0xd3c, Stride: 1},
		{Lo: 0xeba, Hi: 0xeba, Stride: 1}, {Lo: 0x1715, Hi: 0x1715, Stride: 1}, {Lo: 0x1abf, Hi: 0x1ace, Stride: 1},
		{Lo: 0x1df6, Hi: 0x1dfa, Stride: 1}, {Lo: 0x32ff, Hi: 0x32ff, Stride: 1},
		{Lo: 0xa7f2, Hi: 0xa7f4, Stride: 1}, {Lo: 0xa82c, Hi: 0xa82c, Stride: 1},
		{Lo: 0xab69, Hi: 0xab69, Stride: 1},
	},
	R32: []unicode.Range32{
		{Lo: 0x10781, Hi: 0x10785, Stride: 1}, {Lo: 0x10787, Hi: 0x107b0, Stride: 1},
		{Lo: 0x107b2, Hi: 0x107ba, Stride: 1}, {Lo: 0x10d24, Hi: 0x10d27, Stride: 1},
		{Lo: 0x10eab, Hi: 0x10eac, Stride: 1}, {Lo: 0x10efd, Hi: 0x10eff, Stride: 1},
		{Lo: 0x10f46, Hi: 0x10f50, Stride: 1}, {Lo: 0x10f82, Hi: 0x10f85, Stride: 1},
		{Lo: 0x11070, Hi: 0x11070, Stride: 1}, {Lo: 0x1133b, Hi: 0x1133b, Stride: 1},
		{Lo: 0x1145e, Hi: 0x1145e, Stride: 1}, {Lo: 0x11839, Hi: 0x1183a, Stride: 1},
		{Lo: 0x11930, Hi: 0x11930, Stride: 1}, {Lo: 0x11938, Hi: 0x11938, Stride: 1},
		{Lo: 0x1193d, Hi: 0x1193e, Stride: 1}, {Lo: 0x11943, Hi: 0x11943, Stride: 1},
		{Lo: 0x119e0, Hi: 0x119e0, Stride: 1}, {Lo: 0x11a34, Hi: 0x11a34, Stride: 1},
		{Lo: 0x11a47, Hi: 0x11a47, Stride: 1}, {Lo: 0x11a99, Hi: 0x11a99, Stride: 1},
		{Lo: 0x11d42, Hi: 0x11d42, Stride: 1}, {Lo: 0x11d44, Hi: 0x11d45, Stride: 1},
		{Lo: 0x11d97, Hi: 0x11d97, Stride: 1}, {Lo: 0x11f41, Hi: 0x11f42, Stride: 1},
		{Lo: 0x16ff0, Hi: 0x16ff1, Stride: 1}, {Lo: 0x1e030, Hi: 0x1e06d, Stride: 1},
		{Lo: 0x1e08f, Hi: 0x1e08f, Stride: 1}, {Lo: 0x1e130, Hi: 0x1e136, Stride: 1},
		{Lo: 0x1e2ae, Hi: 0x1e2ae, Stride: 1}, {Lo: 0x1e2ec, Hi: 0x1e2ef, Stride: 1},
		{Lo: 0x1e4ec, Hi: 0x1e4ef, Stride: 1}, {Lo: 0x1f16c, Hi: 0x1f16c, Stride: 1},
		{Lo: 0x1fbf0, Hi: 0x1fbf9, Stride: 1},
	},
}

// finals holds the compatibility forms of final consonants of Hangul. In NFKC they
// compose with the syllable before them, which x/text overlooks.
var finals = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x3133, Hi: 0x3133, Stride: 1}, {Lo: 0x3135, Hi: 0x3136, Stride: 1}, {Lo: 0x313a, Hi: 0x313f, Stride: 1},
		{Lo: 0xffa3, Hi: 0xffa3, Stride: 1}, {Lo: 0xffa5, Hi: 0xffa6, Stride: 1}, {Lo: 0xffaa, Hi: 0xffaf, Stride: 1},
	},
}

// begins reports whether r, with which text starts, begins a segment.
func (f unicodeForm) begins(text string, r rune) bool {
	switch {
	case unicode.Is(younger, r):
		return true
	case norm.Form(f) == norm.NFKC && unicode.Is(finals, r):
		return false
	}
	return norm.Form(f).PropertiesString(text).BoundaryBefore()
}

func (f unicodeForm) normalize(s *scratch, _ bool) {
	form := norm.Form(f)
	ok := f.span(s.cur)
	if ok == len(s.cur) {
		return
	}
	s.rewrite()
	for i := 0; ; {
		bad := i + ok
		s.copyOver(i, bad)
		end := f.segmentEnd(s.cur, bad)
		if r, n := utf8.DecodeRuneInString(s.cur[bad:]); unicode.Is(younger, r) {
			end = bad + n
			s.copyOver(bad, end)
		} else if seg := s.cur[bad:end]; utf8.RuneCountInString(seg) <= shortSegment &&
			!(form == norm.NFKC && strings.ContainsFunc(seg, func(r rune) bool { return unicode.Is(finals, r) })) {
			s.norm = form.AppendString(s.norm[:0], s.cur[bad:end])
			s.put(unsafe.String(unsafe.SliceData(s.norm), len(s.norm)), bad, end)
		} else {
			s.put(normalizeLong(form, s.cur[bad:end]), bad, end)
		}
		if s.spent(end - i) {
			break
		}
		if i = end; i == len(s.cur) {
			break
		}
		if ok = f.span(s.cur[i:]); i+ok == len(s.cur) {
			s.copyOver(i, len(s.cur))
			break
		}
	}
	s.finish()
}

// normalizeLong normalises one long segment by the definition of the forms:
// decompose, order by combining class, compose.
func normalizeLong(form norm.Form, seg string) string {
	decompose := norm.NFD
	if form == norm.NFKC || form == norm.NFKD {
		decompose = norm.NFKD
	}
	chars := make([]normChar, 0, len(seg)/2+1)
	// Such a segment repeats a few characters: seen holds, by low bits, the last
	// one seen and where its decomposition is in chars.
	var seen [64]struct {
		r       rune
		at, end int32
	}
	for i := 0; i < len(seg); {
		r, n := utf8.DecodeRuneInString(seg[i:])
		e := &seen[r%64]
		at := int32(len(chars))
		if e.r == r && e.end > 0 && r != utf8.RuneError {
			chars = append(chars, chars[e.at:e.end]...)
		} else {
			for _, d := range decompose.String(seg[i : i+n]) {
				chars = append(chars, normChar{d, norm.NFD.PropertiesString(string(d)).CCC()})
			}
		}
		e.r, e.at, e.end = r, at, int32(len(chars))
		i += n
	}
	orderMarks(chars)
	if form == norm.NFC || form == norm.NFKC {
		var pairs pairCache
		out := chars[:0]
		starter := -1
		var last uint8 // class of the last character kept after the starter
		for _, c := range chars {
			if starter >= 0 && (starter == len(out)-1 || last < c.ccc) {
				if r := pairs.compose(out[starter].r, c.r); r != 0 {
					out[starter].r = r
					continue
				}
			}
			if c.ccc == 0 {
				starter = len(out)
			}
			last = c.ccc
			out = append(out, c)
		}
		chars = out
	}
	b := make([]byte, 0, len(seg))
	for _, c := range chars {
		b = utf8.AppendRune(b, c.r)
	}
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// normChar is a character with its canonical combining class.
type normChar struct {
	r   rune
	ccc uint8
}

// orderMarks sorts each run of non-starters by class; the sort is stable.
func orderMarks(chars []normChar) {
	var sorted []normChar
	for i := 0; i < len(chars); {
		if chars[i].ccc == 0 {
			i++
			continue
		}
		var places [256]int32 // first the count of each class, then the place of its next character
		j, inOrder := i, true
		for ; j < len(chars) && chars[j].ccc != 0; j++ {
			places[chars[j].ccc]++
			inOrder = inOrder && (j == i || chars[j-1].ccc <= chars[j].ccc)
		}
		if !inOrder {
			next := int32(0)
			for c, n := range places {
				places[c], next = next, next+n
			}
			sorted = append(sorted[:0], chars[i:j]...)
			for _, c := range sorted {
				chars[i+int(places[c.ccc])] = c
				places[c.ccc]++
			}
		}
		i = j
	}
}

// pairCache caches which pairs compose.
type pairCache [64]struct{ a, b, both rune }

// compose returns the primary composite of a and b, or 0.
func (p *pairCache) compose(a, b rune) rune {
	e := &p[(a^b<<3)%64]
	if e.a == a && e.b == b && a != 0 {
		return e.both
	}
	both := norm.NFC.String(string([]rune{a, b}))
	r, n := utf8.DecodeRuneInString(both)
	if n != len(both) {
		r = 0
	}
	e.a, e.b, e.both = a, b, r
	return r
}
