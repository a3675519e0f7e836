package tokenizer

import (
	"strings"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/text/unicode/norm"
)

// A normalizer rewrites the current stretch. first says that a prefix that goes
// only to the start of the text belongs before this stretch.
type normalizer interface {
	normalize(s *scratch, first bool)
}

// maxGrowth is how many times longer normalisation may make a text, but for what is
// put in front of it.
const maxGrowth = 64

// growth returns how many times longer replacing the matches of m by text makes a
// text at most.
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

// stripBlanks takes white space from the ends.
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

// shortSegment is the number of characters up to which a segment cannot hold so
// many non-starters that x/text would break it up (it follows the stream-safe
// format, with a limit of 30; the definition of the forms knows no limit).
const shortSegment = 8

func (f unicodeForm) normalize(s *scratch, _ bool) {
	form := norm.Form(f)
	ok := form.QuickSpanString(s.cur)
	if ok == len(s.cur) {
		return
	}
	s.rewrite()
	for i := 0; ; {
		// cur[i:i+ok] is in normal form, but what stands at its end may belong to the
		// segment that is not.
		bad := i + ok
		for bad > i && !form.PropertiesString(s.cur[bad:]).BoundaryBefore() {
			_, n := utf8.DecodeLastRuneInString(s.cur[:bad])
			bad -= n
		}
		s.copyOver(i, bad)
		end := bad + runeLen(s.cur, bad)
		chars := 1
		for end < len(s.cur) && !form.PropertiesString(s.cur[end:]).BoundaryBefore() {
			end += runeLen(s.cur, end)
			chars++
		}
		if chars <= shortSegment {
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
		if ok = form.QuickSpanString(s.cur[i:]); i+ok == len(s.cur) {
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
	type char struct {
		r   rune
		ccc uint8
	}
	var chars []char
	for i := 0; i < len(seg); {
		n := runeLen(seg, i)
		for _, r := range decompose.String(seg[i : i+n]) {
			chars = append(chars, char{r, norm.NFD.PropertiesString(string(r)).CCC()})
		}
		i += n
	}
	// Stable counting sort of each run of non-starters.
	for i := 0; i < len(chars); {
		if chars[i].ccc == 0 {
			i++
			continue
		}
		j := i
		var byClass [256][]char
		for ; j < len(chars) && chars[j].ccc != 0; j++ {
			byClass[chars[j].ccc] = append(byClass[chars[j].ccc], chars[j])
		}
		k := i
		for _, c := range byClass {
			k += copy(chars[k:], c)
		}
		i = j
	}
	if form == norm.NFC || form == norm.NFKC {
		pairs := make(map[[2]rune]rune)
		out := chars[:0]
		starter := -1
		var last uint8 // class of the last character behind the starter that stayed
		for _, c := range chars {
			if starter >= 0 && (starter == len(out)-1 || last < c.ccc) {
				if r := composePair(pairs, out[starter].r, c.r); r != 0 {
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
	var b strings.Builder
	for _, c := range chars {
		b.WriteRune(c.r)
	}
	return b.String()
}

// composePair returns the primary composite of a and b, or 0.
func composePair(known map[[2]rune]rune, a, b rune) rune {
	key := [2]rune{a, b}
	if r, ok := known[key]; ok {
		return r
	}
	both := norm.NFC.String(string(key[:]))
	r, n := utf8.DecodeRuneInString(both)
	if n != len(both) {
		r = 0
	}
	known[key] = r
	return r
}
