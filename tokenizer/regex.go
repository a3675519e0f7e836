package tokenizer

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// newMatcher compiles a pattern of tokenizer.json or tekken.json. Their syntax is
// that of Oniguruma (Ruby): Unicode classes, line anchors. Patterns with a
// hand-written scanner come first, then those that package regexp can run in
// linear time, then all others on a backtracking engine.
func newMatcher(pattern string) (matcher, error) {
	if f, ok := knownPatterns[pattern]; ok {
		return f(), nil
	}
	p, needsBacktracking, err := translate(pattern)
	if err != nil {
		return nil, fmt.Errorf("compile pattern %q: %w", pattern, err)
	}
	if !needsBacktracking {
		if re, err := regexp.Compile(p); err == nil && contextFree(p) {
			return linearMatcher{re}, nil
		}
	}
	re, err := regexp2.Compile(pattern, regexp2.Multiline, regexp2.OptionMaxBacktrackingStackSize(1<<24))
	if err != nil {
		return nil, fmt.Errorf("compile pattern %q: %w", pattern, err)
	}
	re.MatchTimeout = 2 * time.Second
	return backtracker{re}, nil
}

// The classes of the pattern syntax, as they stand inside brackets.
var classNames = map[byte]string{
	's': `\t-\r\x{85}\p{Z}`,
	'd': `\p{Nd}`,
	'w': `\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}\x{200C}\x{200D}`,
	'h': `0-9a-fA-F`,
}

// translate rewrites a pattern for package regexp, whose \s, \d and \w know only
// ASCII. hard reports syntax that it does not have. What neither engine reads as
// Oniguruma does is an error.
func translate(pattern string) (p string, hard bool, err error) {
	var b strings.Builder
	depth := 0 // inside [...]
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		switch {
		case c == '\\':
			i++
			if i == len(pattern) {
				return "", false, fmt.Errorf("ends in a backslash")
			}
			e := pattern[i]
			lower := e | 0x20
			name, class := classNames[lower]
			switch {
			case class && e == 'h' || class && e == 'H':
				return "", false, fmt.Errorf(`class \%c is not supported`, e)
			case class && e == lower && depth > 0:
				b.WriteString(name)
			case class && e == lower:
				b.WriteString("[" + name + "]")
			case class && depth == 0:
				b.WriteString("[^" + name + "]")
			case class:
				hard = true // a negated class inside brackets
			case e == 'b' || e == 'B' || e == 'X' || e == 'R' || e == 'K' || e == 'G' || e == 'g' || e == 'k' || e >= '1' && e <= '9':
				if depth == 0 || e != 'b' {
					hard = true
				}
				b.WriteByte('\\')
				b.WriteByte(e)
			case e == '/' || e == '\'' || e == '"' || e == ' ' || e == '-' || e >= utf8.RuneSelf:
				// Escapes that stand for the character itself and that regexp rejects.
				if e == '-' {
					b.WriteByte('\\')
				}
				b.WriteByte(e)
			case e == 'u' && len(pattern) >= i+5:
				b.WriteString(`\x{` + pattern[i+1:i+5] + `}`)
				i += 4
			default:
				b.WriteByte('\\')
				b.WriteByte(e)
			}
		case depth > 0 && c == '[':
			return "", false, fmt.Errorf("brackets inside brackets are not supported")
		case depth > 0 && c == '&' && i+1 < len(pattern) && pattern[i+1] == '&':
			return "", false, fmt.Errorf("intersections of classes are not supported")
		case c == '[':
			depth++
			b.WriteByte(c)
			// A closing bracket that comes first stands for itself.
			if i+1 < len(pattern) && pattern[i+1] == '^' {
				i++
				b.WriteByte('^')
			}
			if i+1 < len(pattern) && pattern[i+1] == ']' {
				i++
				b.WriteString(`\]`)
			}
		case c == ']' && depth > 0:
			depth--
			b.WriteByte(c)
		case c == '(' && depth == 0 && strings.HasPrefix(pattern[i:], "(?"):
			rest := pattern[i+2:]
			if !strings.HasPrefix(rest, ":") && !strings.HasPrefix(rest, "i:") {
				hard = true
			}
			if strings.HasPrefix(rest, "m") || strings.HasPrefix(rest, "x") || strings.HasPrefix(rest, "im") {
				return "", false, fmt.Errorf("option (?m) or (?x) is not supported")
			}
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	if depth > 0 {
		return "", false, fmt.Errorf("a bracket is not closed")
	}
	return b.String(), hard, nil
}

// contextFree reports whether a pattern has no anchors, so that a match does not
// depend on what stands before it.
func contextFree(p string) bool {
	re, err := syntax.Parse(p, syntax.Perl)
	if err != nil {
		return false
	}
	var walk func(*syntax.Regexp) bool
	walk = func(re *syntax.Regexp) bool {
		switch re.Op {
		case syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
			return false
		}
		for _, sub := range re.Sub {
			if !walk(sub) {
				return false
			}
		}
		return true
	}
	return walk(re)
}

// linearMatcher runs on package regexp.
type linearMatcher struct{ re *regexp.Regexp }

func (m linearMatcher) next(s string, pos int) (int, int) {
	loc := m.re.FindStringIndex(s[pos:])
	if loc == nil {
		return -1, -1
	}
	return pos + loc[0], pos + loc[1]
}

// backtracker runs on regexp2.
type backtracker struct{ re *regexp2.Regexp }

func (m backtracker) next(s string, pos int) (int, int) {
	found, err := m.re.FindStringMatchStartingAt(s, pos)
	if found == nil || err != nil {
		return -1, -1
	}
	start, n := found.ByteRange()
	return start, start + n
}
