package command

import (
	"io"
	"strings"
	"unicode/utf8"
)

// screen writes to a terminal so that text from outside (models, templates,
// profiles, names in files) is shown and never obeyed: control characters appear
// as their Unicode pictures or as U+FFFD. Everything the command prints goes
// through one; the command's own control sequences bypass it, see raw.
type screen struct {
	w    io.Writer
	rest []byte // an incomplete character, to be continued
}

// onScreen wraps w if it is a terminal; other outputs stay as they are.
func onScreen(w io.Writer) io.Writer {
	if isTerminal(w) {
		return &screen{w: w}
	}
	return w
}

// raw returns the writer under a screen, for our own colours and cursor movements.
func raw(w io.Writer) io.Writer {
	if s, ok := w.(*screen); ok {
		return s.w
	}
	return w
}

// Fd returns the terminal's file descriptor.
func (s *screen) Fd() uintptr {
	if f, ok := s.w.(interface{ Fd() uintptr }); ok {
		return f.Fd()
	}
	return ^uintptr(0)
}

func (s *screen) Write(p []byte) (int, error) {
	text := append(s.rest, p...)
	var b strings.Builder
	for len(text) > 0 && utf8.FullRune(text) {
		r, size := utf8.DecodeRune(text)
		if r == '\r' && len(text) > 1 && text[1] == '\n' {
			r = '\n'
			size++
		}
		b.WriteRune(shown(r))
		text = text[size:]
	}
	s.rest = append([]byte(nil), text...)
	if _, err := io.WriteString(s.w, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// shown returns the character to show for r on a terminal: r, unless it would be obeyed.
func shown(r rune) rune {
	switch {
	case r == '\n' || r == '\t':
		return r
	case r < ' ':
		return '␀' + r
	case r == 0x7f:
		return '␡'
	case r >= 0x80 && r < 0xa0, // control characters of ISO 6429
		r == 0x061c, r == 0x200e, r == 0x200f, // directional marks,
		r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, // which reorder text
		r == 0x2028, r == 0x2029:
		return utf8.RuneError
	}
	return r
}
