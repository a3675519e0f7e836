package chat

import (
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxSource is the longest template accepted, in bytes. Published templates
// stay below 100 kB.
const maxSource = 1 << 20

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
	text string // data, name, decoded string or operator
	num  any    // int64, *big.Int or float64 of a number
	line int
}

// describe is how errors show a token.
func (t token) describe() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokData:
		return "template text"
	case tokBlockBegin:
		return "{%"
	case tokBlockEnd:
		return "%}"
	case tokVarBegin:
		return "{{"
	case tokVarEnd:
		return "}}"
	case tokString:
		return "string " + strconv.Quote(t.text)
	case tokInt, tokFloat:
		return "number " + t.text
	}
	return "'" + t.text + "'"
}

// lexer cuts a template into tokens with Jinja's whitespace rules for
// trim_blocks and lstrip_blocks.
type lexer struct {
	src  string
	pos  int
	line int
	toks []token
	// lineStart is true when the last match ended a line, so that blanks before
	// the next tag are the whole line so far.
	lineStart bool
	// closers holds the closing brackets still expected inside a tag.
	closers []byte
}

// lex fails (see failure) on bad input; line receives the line reached.
func lex(source string, line *int) []token {
	if len(source) > maxSource {
		limitf("source of %d bytes is longer than %d", len(source), maxSource)
	}
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	lx := &lexer{src: source, line: 1, lineStart: true}
	defer func() { *line = lx.line }()
	for lx.root() {
	}
	lx.emit(tokEOF, "")
	return lx.toks
}

func (lx *lexer) emit(kind tokenKind, text string) {
	lx.toks = append(lx.toks, token{kind: kind, text: text, line: lx.line})
}

// advance moves to end, counting lines, and notes whether a line ended there.
func (lx *lexer) advance(end int) {
	lx.line += strings.Count(lx.src[lx.pos:end], "\n")
	if end > 0 {
		lx.lineStart = lx.src[end-1] == '\n'
	}
	lx.pos = end
}

// root reads text up to the next tag and the tag itself; false at the end.
func (lx *lexer) root() bool {
	tag := -1
	for i := lx.pos; i < len(lx.src)-1; i++ {
		j := strings.IndexByte(lx.src[i:], '{')
		if j < 0 || i+j+1 >= len(lx.src) {
			break
		}
		i += j
		if c := lx.src[i+1]; c == '%' || c == '{' || c == '#' {
			tag = i
			break
		}
	}
	if tag < 0 {
		if lx.pos < len(lx.src) {
			lx.emit(tokData, lx.src[lx.pos:])
			lx.advance(len(lx.src))
		}
		return false
	}
	text, opener := lx.src[lx.pos:tag], lx.src[tag+1]
	body := tag + 2
	var sign byte
	if body < len(lx.src) && (lx.src[body] == '-' || lx.src[body] == '+') {
		sign = lx.src[body]
		body++
	}
	lx.text(text, sign, opener != '{')
	switch opener {
	case '#':
		lx.advance(body)
		lx.comment()
	case '{':
		lx.advance(body)
		lx.emit(tokVarBegin, "")
		lx.tag(tokVarEnd)
	default:
		if end, ok := lx.rawBegin(body); ok {
			lx.advance(end)
			lx.raw()
			break
		}
		lx.advance(body)
		lx.emit(tokBlockBegin, "")
		lx.tag(tokBlockEnd)
	}
	return true
}

// text emits the text before a tag with its trailing blanks handled: removed up
// to and including newlines for '-', back to the line's start where lstrip
// applies, kept for '+'.
func (lx *lexer) text(text string, sign byte, lstrip bool) {
	keep := text
	switch {
	case sign == '-':
		keep = strings.TrimRightFunc(text, isSpace)
	case sign != '+' && lstrip:
		start := strings.LastIndexByte(text, '\n') + 1
		if (start > 0 || lx.lineStart) && strings.TrimLeftFunc(text[start:], isSpace) == "" {
			keep = text[:start]
		}
	}
	if keep != "" {
		lx.emit(tokData, keep)
	}
}

func (lx *lexer) skipSpace(i int) int {
	for i < len(lx.src) {
		r, n := utf8.DecodeRuneInString(lx.src[i:])
		if !isSpace(r) {
			break
		}
		i += n
	}
	return i
}

// tagEnd matches the end of a tag at i: "-" strips following blanks, a bare end
// drops one newline if trim, "+" (where allowed) keeps everything.
func (lx *lexer) tagEnd(i int, end string, plus, trim bool) (int, bool) {
	s := lx.src[i:]
	switch {
	case strings.HasPrefix(s, end):
		i += len(end)
		if trim && i < len(lx.src) && lx.src[i] == '\n' {
			i++
		}
		return i, true
	case plus && strings.HasPrefix(s, "+"+end):
		return i + 1 + len(end), true
	case strings.HasPrefix(s, "-"+end):
		return lx.skipSpace(i + 1 + len(end)), true
	}
	return i, false
}

func (lx *lexer) comment() {
	if lx.pos == len(lx.src) {
		return // Jinja lets an opener that is the template's last thing pass
	}
	i := strings.Index(lx.src[lx.pos:], "#}")
	if i < 0 {
		failf("comment: missing end '#}'")
	}
	i += lx.pos
	if i > lx.pos && (lx.src[i-1] == '-' || lx.src[i-1] == '+') {
		i--
	}
	end, _ := lx.tagEnd(i, "#}", true, true)
	lx.advance(end)
}

// rawBegin matches the rest of a raw tag whose body starts at i.
func (lx *lexer) rawBegin(i int) (int, bool) {
	i = lx.skipSpace(i)
	if !strings.HasPrefix(lx.src[i:], "raw") {
		return 0, false
	}
	return lx.tagEnd(lx.skipSpace(i+len("raw")), "%}", false, false)
}

func (lx *lexer) raw() {
	if lx.pos == len(lx.src) {
		return // as for comments
	}
	for from := lx.pos; ; {
		i := strings.Index(lx.src[from:], "{%")
		if i < 0 {
			failf("raw: missing end '{%% endraw %%}'")
		}
		start := from + i
		from = start + 2
		j := from
		var sign byte
		if j < len(lx.src) && (lx.src[j] == '-' || lx.src[j] == '+') {
			sign = lx.src[j]
			j++
		}
		j = lx.skipSpace(j)
		if !strings.HasPrefix(lx.src[j:], "endraw") {
			continue
		}
		end, ok := lx.tagEnd(lx.skipSpace(j+len("endraw")), "%}", true, true)
		if !ok {
			continue
		}
		lx.text(lx.src[lx.pos:start], sign, true)
		lx.advance(end)
		return
	}
}

// operators, longest first.
var operators = []string{
	"//", "**", "==", "!=", ">=", "<=",
	"+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";",
}

// tag reads tokens up to and including the tag's end.
func (lx *lexer) tag(end tokenKind) {
	lx.closers = lx.closers[:0]
	for lx.pos < len(lx.src) {
		if len(lx.closers) == 0 {
			var to int
			var ok bool
			if end == tokBlockEnd {
				to, ok = lx.tagEnd(lx.pos, "%}", true, true)
			} else {
				to, ok = lx.tagEnd(lx.pos, "}}", false, false)
			}
			if ok {
				lx.emit(end, "")
				lx.advance(to)
				return
			}
		}
		if to := lx.skipSpace(lx.pos); to > lx.pos {
			lx.advance(to)
			continue
		}
		lx.one()
	}
}

// one reads one number, name, string or operator.
func (lx *lexer) one() {
	s := lx.src[lx.pos:]
	if n := floatLen(s); n > 0 && (lx.pos == 0 || lx.src[lx.pos-1] != '.') {
		f, _ := strconv.ParseFloat(strings.ReplaceAll(s[:n], "_", ""), 64) // out of range is infinity, as in Python
		lx.toks = append(lx.toks, token{kind: tokFloat, text: s[:n], num: f, line: lx.line})
		lx.advance(lx.pos + n)
		return
	}
	if n := intLen(s); n > 0 {
		lx.toks = append(lx.toks, token{kind: tokInt, text: s[:n], num: parseIntLiteral(s[:n]), line: lx.line})
		lx.advance(lx.pos + n)
		return
	}
	if n := nameLen(s); n > 0 {
		if !isIdentifier(s[:n]) {
			failf("invalid character in identifier %q", s[:n])
		}
		lx.emit(tokName, s[:n])
		lx.advance(lx.pos + n)
		return
	}
	if s[0] == '\'' || s[0] == '"' {
		for i := 1; i < len(s); i++ {
			switch s[i] {
			case '\\':
				i++
			case s[0]:
				lx.emit(tokString, unescape(s[1:i]))
				lx.advance(lx.pos + i + 1)
				return
			}
		}
		failf("string: missing end quote %c", s[0])
	}
	for _, op := range operators {
		if !strings.HasPrefix(s, op) {
			continue
		}
		switch op {
		case "{":
			lx.closers = append(lx.closers, '}')
		case "(":
			lx.closers = append(lx.closers, ')')
		case "[":
			lx.closers = append(lx.closers, ']')
		case "}", ")", "]":
			if len(lx.closers) == 0 {
				failf("unexpected '%s'", op)
			}
			want := lx.closers[len(lx.closers)-1]
			if want != op[0] {
				failf("unexpected '%s', expected '%c'", op, want)
			}
			lx.closers = lx.closers[:len(lx.closers)-1]
		}
		lx.emit(tokOp, op)
		lx.advance(lx.pos + len(op))
		return
	}
	r, _ := utf8.DecodeRuneInString(s)
	failf("unexpected character %q", r)
}

// digitRun is the length of digits with single underscores between them.
func digitRun(s string, ok func(byte) bool) int {
	n := 0
	for n < len(s) {
		switch {
		case ok(s[n]):
			n++
		case n > 0 && s[n] == '_' && n+1 < len(s) && ok(s[n+1]):
			n += 2
		default:
			return n
		}
	}
	return n
}

func isDecimal(c byte) bool { return '0' <= c && c <= '9' }

// floatLen is the length of a float literal at the start of s: digits, then a
// fraction, an exponent or both.
func floatLen(s string) int {
	n := digitRun(s, isDecimal)
	if n == 0 {
		return 0
	}
	found := false
	if n < len(s) && s[n] == '.' {
		if d := digitRun(s[n+1:], isDecimal); d > 0 {
			n += 1 + d
			found = true
		}
	}
	if n < len(s) && (s[n] == 'e' || s[n] == 'E') {
		e := n + 1
		if e < len(s) && (s[e] == '+' || s[e] == '-') {
			e++
		}
		if d := digitRun(s[e:], isDecimal); d > 0 {
			n = e + d
			found = true
		}
	}
	if !found {
		return 0
	}
	return n
}

// intLen is the length of an integer literal at the start of s.
func intLen(s string) int {
	if s == "" || !isDecimal(s[0]) {
		return 0
	}
	if s[0] != '0' {
		return digitRun(s, isDecimal)
	}
	if len(s) > 2 {
		var ok func(byte) bool
		switch s[1] {
		case 'x', 'X':
			ok = func(c byte) bool {
				return isDecimal(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
			}
		case 'o', 'O':
			ok = func(c byte) bool { return '0' <= c && c <= '7' }
		case 'b', 'B':
			ok = func(c byte) bool { return c == '0' || c == '1' }
		}
		if ok != nil {
			at := 2
			if s[at] == '_' {
				at++
			}
			if d := digitRun(s[at:], ok); d > 0 {
				return at + d
			}
		}
	}
	return digitRun(s, func(c byte) bool { return c == '0' })
}

func parseIntLiteral(s string) any {
	if len(s) > maxDigits {
		limitf("integer literal of %d digits is longer than %d", len(s), maxDigits)
	}
	b, ok := new(big.Int).SetString(strings.ReplaceAll(s, "_", ""), 0)
	if !ok {
		failf("bad integer literal %q", s)
	}
	return normInt(b)
}

// nameLen is the length of the word at the start of s, as Python's \w counts.
func nameLen(s string) int {
	for i, r := range s {
		if r != '_' && !unicode.IsLetter(r) && !unicode.IsNumber(r) || r == utf8.RuneError {
			return i
		}
	}
	return len(s)
}

func isIdentifier(s string) bool {
	for i, r := range s {
		switch {
		case r == '_' || unicode.IsLetter(r) || unicode.Is(unicode.Nl, r):
		case i > 0 && (unicode.Is(unicode.Nd, r) || unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Mc, r) || unicode.Is(unicode.Pc, r)):
		default:
			return false
		}
	}
	return s != ""
}

// unescape decodes a string literal's body with Python's escapes. Unknown
// escapes stay as they are. Python first writes non-ASCII characters as escapes
// themselves, so a backslash before one turns it into the escape's text.
func unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var b strings.Builder
	hex := func(i, n int) rune {
		if i+n > len(s) {
			failf("string %q: truncated escape", s)
		}
		v, err := strconv.ParseUint(s[i:i+n], 16, 32)
		if err != nil {
			failf("string %q: bad escape %q", s, s[i-2:i+n])
		}
		if v > unicode.MaxRune {
			failf("string %q: escape %q is beyond U+10FFFF", s, s[i-2:i+n])
		}
		return rune(v)
	}
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch c := s[i]; c {
		case '\n':
		case '\\', '\'', '"':
			b.WriteByte(c)
		case 'a':
			b.WriteByte('\a')
		case 'b':
			b.WriteByte('\b')
		case 'f':
			b.WriteByte('\f')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case 'v':
			b.WriteByte('\v')
		case 'x':
			b.WriteRune(hex(i+1, 2))
			i += 2
		case 'u':
			b.WriteRune(hex(i+1, 4))
			i += 4
		case 'U':
			b.WriteRune(hex(i+1, 8))
			i += 8
		case 'N':
			unsupportedf(`string escape \N{...}`)
		case '0', '1', '2', '3', '4', '5', '6', '7':
			v, n := rune(0), 0
			for n < 3 && i+n < len(s) && '0' <= s[i+n] && s[i+n] <= '7' {
				v = v*8 + rune(s[i+n]-'0')
				n++
			}
			b.WriteRune(v)
			i += n - 1
		default:
			b.WriteByte('\\')
			if c < utf8.RuneSelf {
				b.WriteByte(c)
				break
			}
			r, n := utf8.DecodeRuneInString(s[i:])
			b.WriteString(escapeRune(r)[1:])
			i += n - 1
		}
	}
	return b.String()
}
