// Package brackets follows the brackets of JSON text byte by byte, without
// parsing it.
package brackets

// Scanner tracks how deeply a position in a text is nested. The zero value is at
// the beginning of a text.
type Scanner struct {
	Depth           int // objects and lists that are open
	quoted, escaped bool
}

// Next reads a byte, and reports whether it is outside of strings; quotes are not.
func (s *Scanner) Next(c byte) (outside bool) {
	switch {
	case s.escaped:
		s.escaped = false
	case s.quoted && c == '\\':
		s.escaped = true
	case c == '"':
		s.quoted = !s.quoted
	case s.quoted:
	default:
		switch c {
		case '{', '[':
			s.Depth++
		case '}', ']':
			s.Depth--
		}
		return true
	}
	return false
}

// Depth returns the greatest nesting depth in a text.
func Depth(text []byte) int {
	var s Scanner
	most := 0
	for _, c := range text {
		s.Next(c)
		most = max(most, s.Depth)
	}
	return most
}
