package jinja

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxSource is the maximum length of a template in bytes. Published
	// templates stay below 100 kB.
	MaxSource = 256 << 10
	// maxName is the maximum length of a name in a template in bytes.
	maxName = 256
)

type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokBlockBegin
	tokBlockEnd
	tokVarBegin
	tokVarEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

type token struct {
	kind tokenKind
	text string // data, name, decoded string, digits or operator
	num  any    // int64 or float64 of a number
	at   pos
}

// describe returns how errors show a token.
func (t token) describe() string {
	fixed := []string{tokEOF: "end of template", tokData: "template text", tokBlockBegin: "{%", tokBlockEnd: "%}", tokVarBegin: "{{", tokVarEnd: "}}"}
	if int(t.kind) < len(fixed) {
		return fixed[t.kind]
	}
	if t.kind == tokString {
		return fmt.Sprintf("string %.40q", t.text)
	}
	return "'" + t.text + "'"
}

// lexer cuts a template into tokens with Jinja's whitespace rules for
// trim_blocks and lstrip_blocks.
type lexer struct {
	src   string
	from  int       // bytes read
	at    pos       // of the next character
	ready []token   // read but not yet returned
	tag   tokenKind // the end of the tag being read, or tokEOF outside of tags
	done  bool      // no more tags follow
	// lineStart is true if the last match ended a line, so that blanks before
	// the next tag are all there is on the line so far.
	lineStart bool
	// closers holds the closing brackets still expected inside a tag.
	closers []byte
}

func newLexer(source string) *lexer {
	if len(source) > MaxSource {
		limitf("source of %d bytes is longer than %d", len(source), MaxSource)
	}
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	return &lexer{src: source, at: pos{1, 1}, lineStart: true}
}

// next returns the next token; at the end it keeps returning tokEOF. It fails
// (see failure) on bad input, at lx.at.
func (lx *lexer) next() token {
	for len(lx.ready) == 0 {
		switch {
		case lx.tag != tokEOF && lx.from < len(lx.src):
			lx.inTag()
		case lx.done || lx.tag != tokEOF:
			return token{kind: tokEOF, at: lx.at}
		default:
			lx.done = !lx.root()
		}
	}
	t := lx.ready[0]
	lx.ready = slices.Delete(lx.ready, 0, 1)
	return t
}

// take emits everything up to end as a token and moves there.
func (lx *lexer) take(end int, t token) {
	t.at = lx.at
	lx.ready = append(lx.ready, t)
	lx.advance(end)
}

// advance moves to end, counting lines and columns, and notes whether a line
// ended there.
func (lx *lexer) advance(end int) {
	for _, c := range lx.src[lx.from:end] {
		lx.at.col++
		if c == '\n' {
			lx.at = pos{lx.at.line + 1, 1}
		}
	}
	if end > 0 {
		lx.lineStart = lx.src[end-1] == '\n'
	}
	lx.from = end
}

// root reads text up to the next tag and the start of that tag; it returns false at
// the end.
func (lx *lexer) root() bool {
	tag := lx.from
	for {
		i := strings.IndexByte(lx.src[tag:], '{')
		if i < 0 || tag+i+1 == len(lx.src) {
			if lx.from < len(lx.src) {
				lx.take(len(lx.src), token{kind: tokData, text: lx.src[lx.from:]})
			}
			return false
		}
		if tag += i; strings.IndexByte("%{#", lx.src[tag+1]) >= 0 {
			break
		}
		tag++
	}
	body := tag + 2
	opener, sign := lx.src[tag+1], byte(0)
	if body < len(lx.src) && (lx.src[body] == '-' || lx.src[body] == '+') {
		sign = lx.src[body]
		body++
	}
	keep := lx.textBefore(tag, sign, opener != '{')
	if keep != "" {
		lx.take(tag, token{kind: tokData, text: keep})
	} else {
		lx.advance(tag)
	}
	switch opener {
	case '#':
		lx.comment(body)
	case '{':
		lx.tag = tokVarEnd
		lx.take(body, token{kind: tokVarBegin})
	default:
		lx.tag = tokBlockEnd
		lx.take(body, token{kind: tokBlockBegin})
	}
	lx.closers = lx.closers[:0]
	return true
}

// textBefore returns the text before a tag with its trailing blanks handled:
// for '-', removed including newlines; where lstrip applies, removed back to
// the start of the line; for '+', kept.
func (lx *lexer) textBefore(tag int, sign byte, lstrip bool) string {
	text := lx.src[lx.from:tag]
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, isSpace)
	case sign != '+' && lstrip:
		start := strings.LastIndexByte(text, '\n') + 1
		if (start > 0 || lx.lineStart) && strings.TrimLeftFunc(text[start:], isSpace) == "" {
			return text[:start]
		}
	}
	return text
}

func (lx *lexer) skipSpace(i int) int {
	return len(lx.src) - len(strings.TrimLeftFunc(lx.src[i:], isSpace))
}

// tagEnd matches the end of a tag at i: "-" strips following blanks, a bare end
// drops one newline if block, "+" (allowed if block) keeps everything.
func (lx *lexer) tagEnd(i int, end string, block bool) (int, bool) {
	s := lx.src[i:]
	switch {
	case strings.HasPrefix(s, end):
		i += len(end)
		if block && strings.HasPrefix(lx.src[i:], "\n") {
			i++
		}
		return i, true
	case block && strings.HasPrefix(s, "+"+end):
		return i + 1 + len(end), true
	case strings.HasPrefix(s, "-"+end):
		return lx.skipSpace(i + 1 + len(end)), true
	}
	return i, false
}

// comment skips a comment whose text starts at body.
func (lx *lexer) comment(body int) {
	i := strings.Index(lx.src[body:], "#}")
	if body < len(lx.src) && i < 0 { // Jinja accepts an opener at the very end of the template
		failf("comment: missing end '#}'")
	}
	i = body + max(i, 0)
	if i > body && (lx.src[i-1] == '-' || lx.src[i-1] == '+') {
		i--
	}
	end, _ := lx.tagEnd(i, "#}", true)
	lx.advance(end)
}

// inTag reads one token of a tag, or blanks.
func (lx *lexer) inTag() {
	if len(lx.closers) == 0 {
		end, block := "}}", lx.tag == tokBlockEnd
		if block {
			end = "%}"
		}
		if to, ok := lx.tagEnd(lx.from, end, block); ok {
			lx.take(to, token{kind: lx.tag})
			lx.tag = tokEOF
			return
		}
	}
	if to := lx.skipSpace(lx.from); to > lx.from {
		lx.advance(to)
		return
	}
	s := lx.src[lx.from:]
	switch {
	case s[0] == '\'' || s[0] == '"':
		lx.quoted(s)
	case lx.number(s), lx.word(s):
	default:
		lx.operator(s)
	}
}

// isWord reports whether c can be part of a name; the first character must not be a
// digit.
func isWord(c rune) bool { return c == '_' || unicode.IsLetter(c) || unicode.IsDigit(c) }

func isDecimal(c rune) bool { return '0' <= c && c <= '9' }

// runLen returns how many bytes at the start of s hold characters that satisfy is.
func runLen(s string, is func(rune) bool) int { return len(s) - len(strings.TrimLeftFunc(s, is)) }

// word reads a name; ok is false if there is none.
func (lx *lexer) word(s string) (ok bool) {
	n := runLen(s, isWord)
	if n == 0 {
		return false
	}
	if n > maxName {
		limitf("name or number of %d bytes is longer than %d", n, maxName)
	}
	lx.take(lx.from+n, token{kind: tokName, text: s[:n]})
	return true
}

// number reads an integer or a float; ok is false if there is none.
func (lx *lexer) number(s string) (ok bool) {
	n := runLen(s, isDecimal)
	if n == 0 {
		return false
	}
	whole := n
	if lx.src[lx.from-1] != '.' { // after a dot it is an element's index, as in a.0.1
		if d := runLen(s[min(n+1, len(s)):], isDecimal); d > 0 && s[n] == '.' {
			n += 1 + d
		}
		if e := s[n:]; len(e) > 1 && e[0]|0x20 == 'e' {
			sign := 0
			if e[1] == '+' || e[1] == '-' {
				sign = 1
			}
			if d := runLen(e[1+sign:], isDecimal); d > 0 {
				n += 1 + sign + d
			}
		}
	}
	t := token{kind: tokInt, text: s[:n]}
	if c, _ := utf8.DecodeRuneInString(s[n:]); isWord(c) || s[0] == '0' && whole > 1 && strings.Trim(s[:whole], "0") != "" {
		unsupportedf("number written as %.40s", s[:n+runLen(s[n:], isWord)])
	}
	var err error
	if n > whole {
		t.kind = tokFloat
		t.num, _ = strconv.ParseFloat(s[:n], 64) // out of range is infinity, as in Python
	} else if t.num, err = strconv.ParseInt(s[:n], 10, 64); err != nil {
		unsupportedf("integer %.40s beyond 64 bits", s[:n])
	}
	lx.take(lx.from+n, t)
	return true
}

// quoted reads a string.
func (lx *lexer) quoted(s string) {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0]:
			lx.take(lx.from+i+1, token{kind: tokString, text: unescape(s[1:i])})
			return
		}
	}
	failf("string: missing end quote %c", s[0])
}

// operators, longest first.
var operators = strings.Fields("// ** == != >= <= + - / * % ~ [ ] ( ) { } > < = . : | , ;")

func (lx *lexer) operator(s string) {
	i := slices.IndexFunc(operators, func(op string) bool { return strings.HasPrefix(s, op) })
	if i < 0 {
		r, _ := utf8.DecodeRuneInString(s)
		failf("unexpected character %q", r)
	}
	op := operators[i]
	if k := strings.Index("([{", op); k >= 0 {
		lx.closers = append(lx.closers, ")]}"[k])
	} else if strings.Contains(")]}", op) {
		n := len(lx.closers) - 1
		if n < 0 {
			failf("unexpected '%s'", op)
		}
		if lx.closers[n] != op[0] {
			failf("unexpected '%s', expected '%c'", op, lx.closers[n])
		}
		lx.closers = lx.closers[:n]
	}
	lx.take(lx.from+len(op), token{kind: tokOp, text: op})
}

// plainEscapes are Python's single-character escapes.
var plainEscapes = map[byte]string{
	'\n': "", '\\': `\`, '\'': `'`, '"': `"`, 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

// unescape decodes the body of a string literal with Python's escapes.
func unescape(s string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '\\')
		if i < 0 || i+1 == len(s) {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:i])
		c := s[i+1]
		digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		end := min(i+2+digits, len(s))
		switch plain, ok := plainEscapes[c]; {
		case ok:
			b.WriteString(plain)
		case digits > 0:
			v, err := strconv.ParseUint(s[i+2:end], 16, 32)
			if err != nil || end != i+2+digits || v > utf8.MaxRune {
				failf("string: bad escape %q", s[i:end])
			}
			b.WriteRune(rune(v))
		case c == 'N' || '0' <= c && c <= '7' || c >= utf8.RuneSelf:
			unsupportedf("string escape %.4q", s[i:min(i+2, len(s))])
		default: // unknown escapes stay
			b.WriteString(s[i:end])
		}
		s = s[end:]
	}
}
