package strictjson

// Nesting tracks how deeply a position in a JSON text is nested, byte by byte and
// without checking the syntax. The zero value is at the beginning of a text.
type Nesting struct {
	Depth           int // objects and arrays that are open
	quoted, escaped bool
}

// Next reads a byte, and reports whether it is outside of strings; quotes are not.
func (n *Nesting) Next(c byte) (outside bool) {
	switch {
	case n.escaped:
		n.escaped = false
	case n.quoted && c == '\\':
		n.escaped = true
	case c == '"':
		n.quoted = !n.quoted
	case n.quoted:
	default:
		switch c {
		case '{', '[':
			n.Depth++
		case '}', ']':
			n.Depth--
		}
		return true
	}
	return false
}
