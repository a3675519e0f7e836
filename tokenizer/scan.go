package tokenizer

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// A scanner is a matcher for a pattern that matches at every position, so that
// its matches cover a text without gaps.
type scanner interface {
	matcher
	// scan returns the end of the match that starts at pos < len(s).
	scan(s string, pos int) int
}

// knownPatterns are the patterns with a hand-written scanner; pattern_match.go
// handles all others.
var knownPatterns = func() map[string]func() matcher {
	known := map[string]func() matcher{gpt2Pattern: func() matcher { return gpt2Scanner{classes()} }}
	for limit, digits := range map[int]string{1: `\p{N}`, 2: `\p{N}{1,2}`, 3: `\p{N}{1,3}`} {
		known[digits] = func() matcher { return digitRuns{classes(), limit} }
		// Llama 3, Qwen2. The possessive form matches the same as the other.
		for _, form := range []string{
			`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
			`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`,
		} {
			known[strings.Replace(form, "DIGITS", digits, 1)] = func() matcher { return llamaScanner{classes(), limit} }
		}
		// Mistral's tekken; with contractions, o200k.
		for _, contractions := range []string{"", `(?i:'s|'t|'re|'ve|'m|'ll|'d)?`} {
			form := `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` + contractions +
				`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*` + contractions +
				`|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
			known[strings.Replace(form, "DIGITS", digits, 1)] = func() matcher {
				return tekkenScanner{classes(), limit, contractions != ""}
			}
		}
	}
	return known
}()

const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// run returns the end of the longest run of characters at s[i:] whose class has
// any bit of want.
func (t *classTable) run(s string, i int, want uint8) int {
	for i < len(s) {
		if b := s[i]; b < utf8.RuneSelf && t.bytes[b]&want != 0 {
			i++
			continue
		}
		c, n := t.at(s, i)
		if c&want == 0 {
			break
		}
		i += n
	}
	return i
}

// runNot returns the end of the longest run of characters at s[i:] whose class
// has no bit of not.
func (t *classTable) runNot(s string, i int, not uint8) int {
	for i < len(s) {
		c, n := t.at(s, i)
		if c&not != 0 {
			break
		}
		i += n
	}
	return i
}

// blanks matches \s+(?!\S)|\s+ at s[i:], which starts with white space: the
// whole run at the end of the text, else the run without its last character,
// else that one character.
func (t *classTable) blanks(s string, i int) int {
	last, end := i, i
	for end < len(s) {
		c, n := t.at(s, end)
		if c&classSpace == 0 {
			break
		}
		last, end = end, end+n
	}
	if end == len(s) || last == i {
		return end
	}
	return last
}

// lines matches \s*[\r\n]+ at s[i:]: the white space up to and including its last
// line break. It returns i if there is none.
func (t *classTable) lines(s string, i int) int {
	end := i
	for j := i; j < len(s); {
		c, n := t.at(s, j)
		if c&classSpace == 0 {
			break
		}
		j += n
		if c&classNL != 0 {
			end = j
		}
	}
	return end
}

// contraction matches 's|'t|'re|'ve|'m|'ll|'d at s[i:]; with fold, in any case,
// with U+017F as an s. It returns i if there is none.
func contraction(s string, i int, fold bool) int {
	if i+1 >= len(s) || s[i] != '\'' {
		return i
	}
	c, d := s[i+1], byte(0)
	if i+2 < len(s) {
		d = s[i+2]
	}
	if fold {
		if c == 0xc5 && d == 0xbf {
			return i + 3
		}
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if 'A' <= d && d <= 'Z' {
			d += 'a' - 'A'
		}
	}
	switch {
	case c == 's', c == 't', c == 'm', c == 'd':
		return i + 2
	case d == 'e' && (c == 'r' || c == 'v'), d == 'l' && c == 'l':
		return i + 3
	}
	return i
}

// gpt2Scanner is the pattern of the ByteLevel pre-tokenizer.
type gpt2Scanner struct{ t *classTable }

func (g gpt2Scanner) find(s *scratch, dst []piece, text string) []piece {
	return scanAll(s, dst, g, text)
}

func (g gpt2Scanner) scan(s string, i int) int {
	if e := contraction(s, i, false); e > i {
		return e
	}
	j := i
	c, n := g.t.at(s, i)
	if s[i] == ' ' {
		if c2, n2 := g.t.at(s, i+1); n2 > 0 && c2&classSpace == 0 {
			j, c, n = i+1, c2, n2
		}
	}
	switch {
	case c&classL != 0:
		return g.t.run(s, j+n, classL)
	case c&classN != 0:
		return g.t.run(s, j+n, classN)
	case c&classSpace == 0:
		return g.t.runNot(s, j+n, classSpace|classL|classN)
	}
	return g.t.blanks(s, i)
}

// llamaScanner is the pattern of Llama 3 (digits 3) and Qwen2 (digits 1).
type llamaScanner struct {
	t      *classTable
	digits int
}

func (l llamaScanner) find(s *scratch, dst []piece, text string) []piece {
	return scanAll(s, dst, l, text)
}

func (l llamaScanner) scan(s string, i int) int {
	if e := contraction(s, i, true); e > i {
		return e
	}
	c, n := l.t.at(s, i)
	// [^\r\n\p{L}\p{N}]?\p{L}+
	if c&classL != 0 {
		return l.t.run(s, i+n, classL)
	}
	if c&(classNL|classN) == 0 {
		if c2, n2 := l.t.at(s, i+n); c2&classL != 0 {
			return l.t.run(s, i+n+n2, classL)
		}
	}
	if c&classN != 0 {
		return l.t.digitRun(s, i, l.digits)
	}
	return l.t.rest(s, i, false)
}

// digitRun returns the end of up to limit characters \p{N} at s[i:].
func (t *classTable) digitRun(s string, i, limit int) int {
	for ; limit > 0; limit-- {
		c, n := t.at(s, i)
		if c&classN == 0 {
			break
		}
		i += n
	}
	return i
}

// rest matches what Llama 3, Qwen2 and tekken share after letters and digits:
//
//	?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// with / allowed among the trailing line breaks if slash is set.
func (t *classTable) rest(s string, i int, slash bool) int {
	j := i
	if s[i] == ' ' {
		j++
	}
	if c, n := t.at(s, j); n > 0 && c&(classSpace|classL|classN) == 0 {
		j = t.runNot(s, j+n, classSpace|classL|classN)
		for j < len(s) && (s[j] == '\r' || s[j] == '\n' || slash && s[j] == '/') {
			j++
		}
		return j
	}
	if e := t.lines(s, i); e > i {
		return e
	}
	return t.blanks(s, i)
}

// tekkenScanner is the pattern of Mistral's tekken vocabularies.
type tekkenScanner struct {
	t            *classTable
	digits       int
	contractions bool // words include one that follows them
}

func (k tekkenScanner) find(s *scratch, dst []piece, text string) []piece {
	return scanAll(s, dst, k, text)
}

func (k tekkenScanner) scan(s string, i int) int {
	c, n := k.t.at(s, i)
	// Both letter alternatives may take one leading character that is neither a
	// line break, a letter nor a digit, and try with it first.
	prefix := c&(classNL|classL|classN) == 0
	e := 0
	if prefix {
		if next, _ := k.t.at(s, i+n); (c|next)&(classUpper|classLower) == 0 {
			return k.t.rest(s, i, true)
		}
		e = k.lower(s, i+n)
	}
	if e == 0 {
		e = k.lower(s, i)
	}
	if e == 0 && prefix {
		e = k.upper(s, i+n)
	}
	if e == 0 {
		e = k.upper(s, i)
	}
	if e > 0 {
		if k.contractions {
			e = contraction(s, e, true)
		}
		return e
	}
	if c&classN != 0 {
		return k.t.digitRun(s, i, k.digits)
	}
	return k.t.rest(s, i, true)
}

// lower matches [upper]*[lower]+ at s[i:], or returns 0. The classes overlap, so
// if no lower-case letter follows the run of upper, the match ends with its last
// character that counts as both.
func (k tekkenScanner) lower(s string, i int) int {
	both := 0
	for i < len(s) {
		c, n := k.t.at(s, i)
		if c&classUpper == 0 {
			break
		}
		i += n
		if c&classLower != 0 {
			both = i
		}
	}
	if c, n := k.t.at(s, i); c&classLower != 0 {
		return k.t.run(s, i+n, classLower)
	}
	return both
}

// upper matches [upper]+[lower]* at s[i:] where lower did not match, or returns 0.
func (k tekkenScanner) upper(s string, i int) int {
	if e := k.t.run(s, i, classUpper); e > i {
		return e
	}
	return 0
}

func scanAll(s *scratch, dst []piece, sc scanner, text string) []piece {
	for i := 0; i < len(text); {
		e := sc.scan(text, i)
		dst = append(dst, piece{i, e})
		if s.spent(e - i) {
			break
		}
		i = e
	}
	return dst
}

// digitRuns is \p{N}{1,limit}.
type digitRuns struct {
	t     *classTable
	limit int
}

func (d digitRuns) find(s *scratch, dst []piece, text string) []piece {
	for i := 0; i < len(text) && !s.spent(1); {
		c, n := d.t.at(text, i)
		if c&classN != 0 {
			e := d.t.digitRun(text, i, d.limit)
			dst = append(dst, piece{i, e})
			i = e
		} else {
			i += n
		}
	}
	return dst
}

// byteDigits is \p{N}{1,n} in the byte-level alphabet: of the bytes of a longer character,
// those count that stand for a Latin-1 digit or fraction.
type byteDigits int

func (d byteDigits) find(s *scratch, dst []piece, text string) []piece {
	for i := 0; i < len(text) && !s.spent(1); {
		e := i
		for e < len(text) && e-i < int(d) && unicode.IsNumber(byteToChar[text[e]]) {
			e++
		}
		if e > i {
			dst = append(dst, piece{i, e})
		}
		i = max(e, i+1)
	}
	return dst
}

// punctuation matches one character of the Punctuation pre-tokenizer: ASCII punctuation
// and \p{P}, as an older version of Unicode had it.
var punctuation = sync.OnceValue(func() *pattern {
	var b strings.Builder
	ranges, err := classRanges("!-/:-@\\[-`{-~\u166d\U000111c9"+propertyClass("P"), false)
	for i := 0; i < len(ranges); i += 2 {
		writeWithout(&b, ranges[i], ranges[i+1], youngPunctuation)
	}
	if err == nil {
		ranges, err = classRanges(b.String(), false)
	}
	if err != nil {
		panic(err) // of a constant
	}
	one := &patternNode{op: patClass, set: newCharSet(ranges)}
	p := &pattern{hungry: true}
	p.add(instr{op: opChar, set: one.set})
	p.add(instr{op: opMatch})
	one.addFirst(&p.first)
	return p
})

// literal matches a plain string.
type literal string

func (l literal) find(s *scratch, dst []piece, text string) []piece {
	for i := 0; ; {
		k := strings.Index(text[i:], string(l))
		if k < 0 || s.spent(k) {
			return dst
		}
		dst = append(dst, piece{i + k, i + k + len(l)})
		i += k + len(l)
	}
}
