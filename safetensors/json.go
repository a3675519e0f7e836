package safetensors

import (
	"fmt"
	"math"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of skipped values and thus the stack.
const maxDepth = 64

// scanner reads JSON (RFC 8259) front to back, value by value, without
// building a tree. It supports only what headers and indices need. The text must
// be valid UTF-8.
type scanner struct {
	text []byte
	pos  int
}

// fail returns an error that names the current position.
func (s *scanner) fail(format string, args ...any) error {
	return fmt.Errorf("JSON at byte %d: %w", s.pos, fmt.Errorf(format, args...))
}

// found describes what is at the current position.
func (s *scanner) found() string {
	if s.pos >= len(s.text) {
		return "the end of the text"
	}
	r, _ := utf8.DecodeRune(s.text[s.pos:])
	return fmt.Sprintf("%q", r)
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// open consumes the bracket c that begins a value called what.
func (s *scanner) open(c byte, what string) error {
	if s.peek() != c {
		return s.fail("found %s, expected %s", s.found(), what)
	}
	s.pos++
	return nil
}

// more moves to the next element of an array or object that ends with the
// bracket end; n is the number of elements read so far. It returns false, with
// the bracket consumed, if there is none.
func (s *scanner) more(n int, end byte) (bool, error) {
	switch c := s.peek(); {
	case c == end:
		s.pos++
		return false, nil
	case n == 0:
		return true, nil
	case c == ',':
		s.pos++
		return true, nil
	}
	return false, s.fail("found %s, expected ',' or %q", s.found(), end)
}

// object reads an object and calls field for each key, in order; field must
// consume the value. It is called for every occurrence of a repeated key.
func (s *scanner) object(what string, field func(key string) error) error {
	if err := s.open('{', what); err != nil {
		return err
	}
	for n := 0; ; n++ {
		ok, err := s.more(n, '}')
		if !ok || err != nil {
			return err
		}
		key, err := s.str("a key")
		if err != nil {
			return err
		}
		if s.peek() != ':' {
			return s.fail("found %s, expected ':'", s.found())
		}
		s.pos++
		if err := field(key); err != nil {
			return err
		}
	}
}

// array reads an array and calls element for each value; element must consume it.
func (s *scanner) array(what string, element func() error) error {
	if err := s.open('[', what); err != nil {
		return err
	}
	for n := 0; ; n++ {
		ok, err := s.more(n, ']')
		if !ok || err != nil {
			return err
		}
		if err := element(); err != nil {
			return err
		}
	}
}

// str reads a string. It rejects unpaired surrogates: otherwise different ones
// would become the same name.
func (s *scanner) str(what string) (string, error) {
	if s.peek() != '"' {
		return "", s.fail("found %s, expected %s, a string", s.found(), what)
	}
	s.pos++
	start := s.pos
	var buf []byte // nil until an escape occurs
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; {
		case c == '"':
			part := s.text[start:s.pos]
			s.pos++
			if buf == nil {
				return string(part), nil
			}
			return string(append(buf, part...)), nil
		case c < 0x20:
			return "", s.fail("found control character %#02x in a string", c)
		case c == '\\':
			buf = append(buf, s.text[start:s.pos]...)
			s.pos++
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			buf = utf8.AppendRune(buf, r)
			start = s.pos
		default:
			s.pos++
		}
	}
	return "", s.fail("string does not end")
}

// escape reads what follows a backslash.
func (s *scanner) escape() (rune, error) {
	if s.pos >= len(s.text) {
		return 0, s.fail("string does not end")
	}
	c := s.text[s.pos]
	s.pos++
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
		r, err := s.hex4()
		if err != nil || !utf16.IsSurrogate(r) {
			return r, err
		}
		if s.pos+1 < len(s.text) && s.text[s.pos] == '\\' && s.text[s.pos+1] == 'u' {
			s.pos += 2
			low, err := s.hex4()
			if err != nil {
				return 0, err
			}
			if both := utf16.DecodeRune(r, low); both != utf8.RuneError {
				return both, nil
			}
		}
		return 0, s.fail("unpaired surrogate in a string")
	}
	s.pos--
	return 0, s.fail("found %s after a backslash", s.found())
}

func (s *scanner) hex4() (rune, error) {
	var r rune
	for range 4 {
		if s.pos >= len(s.text) {
			return 0, s.fail("string does not end")
		}
		c := s.text[s.pos]
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, s.fail("found %s, expected a hexadecimal digit", s.found())
		}
		s.pos++
		r = r<<4 | rune(c)
	}
	return r, nil
}

var errNotCount = fmt.Errorf("expected a whole number from 0 to %d, without sign, point or exponent", math.MaxInt)

// count reads a number that is written as a non-negative integer and fits an int.
func (s *scanner) count() (int, error) {
	s.peek()
	start := s.pos
	n := uint64(0)
	for ; s.pos < len(s.text) && '0' <= s.text[s.pos] && s.text[s.pos] <= '9'; s.pos++ {
		d := uint64(s.text[s.pos] - '0')
		if n > (math.MaxInt-d)/10 {
			return 0, s.fail("number is too large: %w", errNotCount)
		}
		n = n*10 + d
	}
	switch {
	case s.pos == start:
		return 0, s.fail("found %s: %w", s.found(), errNotCount)
	case s.text[start] == '0' && s.pos > start+1:
		return 0, s.fail("number with a leading zero: %w", errNotCount)
	case s.pos < len(s.text) && (s.text[s.pos] == '.' || s.text[s.pos]|0x20 == 'e'):
		return 0, s.fail("found %s in a number: %w", s.found(), errNotCount)
	}
	return int(n), nil
}

// skip reads any value and discards it.
func (s *scanner) skip(depth int) error {
	if depth >= maxDepth {
		return s.fail("nested more than %d deep", maxDepth)
	}
	switch c := s.peek(); {
	case c == '{':
		return s.object("an object", func(string) error { return s.skip(depth + 1) })
	case c == '[':
		return s.array("an array", func() error { return s.skip(depth + 1) })
	case c == '"':
		_, err := s.str("a value")
		return err
	case c == '-' || '0' <= c && c <= '9':
		return s.number()
	}
	for _, word := range []string{"true", "false", "null"} {
		if len(s.text)-s.pos >= len(word) && string(s.text[s.pos:s.pos+len(word)]) == word {
			s.pos += len(word)
			return nil
		}
	}
	return s.fail("found %s, expected a value", s.found())
}

// number reads a number of any kind, checking its syntax.
func (s *scanner) number() error {
	digits := func() bool {
		start := s.pos
		for s.pos < len(s.text) && '0' <= s.text[s.pos] && s.text[s.pos] <= '9' {
			s.pos++
		}
		return s.pos > start
	}
	at := func(c byte) bool { return s.pos < len(s.text) && s.text[s.pos] == c }
	if at('-') {
		s.pos++
	}
	if at('0') {
		s.pos++
	} else if !digits() {
		return s.fail("found %s, expected a digit", s.found())
	}
	if at('.') {
		s.pos++
		if !digits() {
			return s.fail("found %s, expected a digit", s.found())
		}
	}
	if at('e') || at('E') {
		s.pos++
		if at('+') || at('-') {
			s.pos++
		}
		if !digits() {
			return s.fail("found %s, expected a digit", s.found())
		}
	}
	return nil
}
