package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// The judge of the patterns is an independent backtracking engine. A translation
// that shares nothing with the parser under test makes it read a pattern as
// Oniguruma does.

// judge finds the matches of a pattern by regexp2; ok is false if regexp2 cannot
// express the pattern or takes too long.
func judge(pattern, text string) (out []piece, ok bool) {
	p, err := translate(pattern)
	if err != nil {
		return nil, false
	}
	re, err := regexp2.Compile(p, regexp2.Multiline)
	if err != nil {
		return nil, false
	}
	re.MatchTimeout = 50 * time.Millisecond
	runes := []rune(text)
	at, count := 0, 0 // byte and rune position
	to := func(n int) int {
		for ; count < n; count++ {
			at += runeLen(text, at)
		}
		return at
	}
	last := -1
	err = re.FindRunesMatches(runes, -1, func(v regexp2.MatchView) bool {
		start, n, ok := v.GroupRange(0)
		if ok && (n > 0 || start != last) {
			last = start + n
			from := to(start)
			out = append(out, piece{from, to(last)})
		}
		return true
	})
	return out, err == nil
}

// judgeWord is \w outside brackets and judgeBracketWord \w inside them, as written
// inside brackets. Oniguruma counts the Latin-1 superscript digits and fractions as
// word characters outside brackets only, and no others.
var (
	judgeWord        = judgeBracketWord + "\u00b2\u00b3\u00b9\u00bc-\u00be"
	judgeBracketWord = judgeProperty("L") + judgeProperty("M") + judgeProperty("Nd") + `\p{Nl}\p{Pc}` +
		"\u24b6-\u24e9\U0001F130-\U0001F149\U0001F150-\U0001F169\U0001F170-\U0001F189"
)

// The classes of the pattern syntax, as written inside brackets.
var judgeClasses = map[byte]string{
	's': "\\t-\\r\u0085\\p{Z}",
	'd': judgeProperty("Nd"),
	'w': judgeWord,
}

// judgeProperty returns \p{name} with the characters that newer versions of
// Unicode add, as written inside brackets.
func judgeProperty(name string) string {
	var b strings.Builder
	b.WriteString(`\p{` + name + `}`)
	for _, category := range newerIn[name] {
		for _, r := range newer[category] {
			b.WriteString(string(r[0]) + "-" + string(r[1]))
		}
	}
	return b.String()
}

// translate rewrites a pattern so that regexp2 reads it as Oniguruma does. A
// pattern that it cannot express is an error.
func translate(pattern string) (string, error) {
	var b strings.Builder
	inside := false // inside brackets
	var closing []string
	class := func(members string, negated bool) error {
		switch {
		case !negated && inside:
			b.WriteString(members)
		case !negated:
			b.WriteString("[" + members + "]")
		case !inside:
			b.WriteString("[^" + members + "]")
		default:
			return unsupported("a negated class inside brackets")
		}
		return nil
	}
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		rest := pattern[i+1:]
		switch {
		case c == '\\':
			if rest == "" {
				return "", fmt.Errorf("ends in a backslash")
			}
			i++
			e := rest[0]
			if members, ok := judgeClasses[e|0x20]; ok && (e|0x20 == e || 'A' <= e && e <= 'Z') {
				negated := e != e|0x20
				if inside && e|0x20 == 'w' {
					members = judgeBracketWord
				}
				if negated && inside && e|0x20 == 's' {
					// Everything but white space can be written without a class.
					members, negated = notSpace, false
				}
				if err := class(members, negated); err != nil {
					return "", err
				}
				continue
			}
			switch e {
			case 'p', 'P':
				name, _, ok := strings.Cut(rest[1:], "}")
				if !ok || name == "" || name[0] != '{' {
					return "", unsupported(`\%c without a name in braces`, e)
				}
				i += len(name) + 1
				name = name[1:]
				negated := e == 'P'
				if strings.HasPrefix(name, "^") {
					name, negated = name[1:], !negated
				}
				if negated && inside && newerIn[name] == nil {
					b.WriteString(`\P{` + name + `}`)
				} else if err := class(judgeProperty(name), negated); err != nil {
					return "", err
				}
			case 'b', 'B':
				if inside {
					return "", unsupported(`\%c inside brackets`, e)
				}
				w := "[" + judgeWord + "]"
				if e == 'b' {
					b.WriteString("(?:(?<=" + w + ")(?!" + w + ")|(?<!" + w + ")(?=" + w + "))")
				} else {
					b.WriteString("(?:(?<=" + w + ")(?=" + w + ")|(?<!" + w + ")(?!" + w + "))")
				}
			case 'u', 'x':
				digits, size := "", 0
				if e == 'x' && strings.HasPrefix(rest[1:], "{") {
					digits, _, _ = strings.Cut(rest[2:], "}")
					size = len(digits) + 2
				} else {
					size = map[byte]int{'u': 4, 'x': 2}[e]
					if len(rest) <= size {
						return "", fmt.Errorf(`\%c is cut off`, e)
					}
					digits = rest[1 : 1+size]
				}
				r, err := strconv.ParseUint(digits, 16, 32)
				if err != nil || !utf8.ValidRune(rune(r)) || len(digits) > 8 || size+1 > len(rest) {
					return "", fmt.Errorf(`\%c%.10q is no character`, e, digits)
				}
				i += size
				writeLiteral(&b, rune(r))
			case 't', 'n', 'r', 'f', 'v', 'a', 'A', 'z':
				b.WriteString(`\` + string(e))
			default:
				if e >= '1' && e <= '9' && !inside {
					b.WriteString(`\` + string(e))
					continue
				}
				if e >= '0' && e <= '9' || e >= 'A' && e <= 'Z' || e >= 'a' && e <= 'z' {
					return "", unsupported(`\%c`, e)
				}
				r, n := utf8.DecodeRuneInString(rest)
				i += n - 1
				writeLiteral(&b, r)
			}
		case inside && c == '[':
			return "", unsupported("brackets inside brackets")
		case inside && c == '&' && strings.HasPrefix(rest, "&"):
			return "", unsupported("intersections of classes")
		case inside && c == ']':
			inside = false
			b.WriteByte(c)
		case inside:
			b.WriteByte(c)
		case c == '[':
			inside = true
			b.WriteByte(c)
			if strings.HasPrefix(rest, "^") {
				i++
				b.WriteByte('^')
				rest = rest[1:]
			}
			// A closing bracket that comes first stands for itself.
			if strings.HasPrefix(rest, "]") {
				i++
				b.WriteString(`\]`)
			}
		case c == '{' && strings.HasPrefix(rest, ","):
			return "", unsupported("a repetition without a lower bound")
		case c == '}' && strings.HasPrefix(rest, "+"):
			return "", unsupported("+ behind a repetition in braces")
		case c == '(' && strings.HasPrefix(rest, "?"):
			if !groupStart(rest[1:]) {
				return "", unsupported("a group that starts with (%.4s", rest)
			}
			// regexp2 treats a repeated group that holds only an atomic one as atomic as
			// a whole, but not a repeated group that captures.
			switch kind := rest[1]; kind {
			case ':':
				i += 2
				b.WriteByte(c)
				closing = append(closing, ")")
			case '>':
				i += 2
				b.WriteString("((?>")
				closing = append(closing, "))")
			default:
				b.WriteByte(c)
				closing = append(closing, ")")
			}
		case c == '(':
			b.WriteByte(c)
			closing = append(closing, ")")
		case c == ')' && len(closing) > 0:
			b.WriteString(closing[len(closing)-1])
			closing = closing[:len(closing)-1]
		default:
			b.WriteByte(c)
		}
	}
	if inside {
		return "", fmt.Errorf("a bracket is not closed")
	}
	return b.String(), nil
}

// notSpace is \S as written inside brackets.
const notSpace = "\\x00-\\x08\\x0e-\\x1f!-\u0084\u0086-\u009f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\U0010FFFF"

// groupStart reports whether (? may be followed by s.
func groupStart(s string) bool {
	for _, p := range []string{":", "i:", "i)", "-i:", "-i)", "=", "!", "<=", "<!", ">"} {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// writeLiteral writes a character that stands for itself. Commas and digits, which may have
// been escaped in braces, must not make a repetition of them.
func writeLiteral(b *strings.Builder, r rune) {
	switch {
	case r < ' ' || r == 0x7f || r == ',' || '0' <= r && r <= '9':
		fmt.Fprintf(b, `\x%02x`, r)
	case r < utf8.RuneSelf && !(r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z') && r != ' ' && !strings.ContainsRune(`/'"<>=!@#%&:;~`+"`_", r):
		b.WriteByte('\\')
		b.WriteRune(r)
	default:
		b.WriteRune(r)
	}
}
