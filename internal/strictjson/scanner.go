package strictjson

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// Scanner reads a JSON text front to back, value by value, without building a
// tree. The text must not change while the Scanner, or a view that it returned, is in use.
type Scanner struct {
	text  []byte
	pos   int
	depth int // objects and arrays that are open
	limit int // of depth
	parts int // objects and arrays that were opened

	// Pause, if not nil, is called about every 64 KiB of a text that is read; with its
	// error the reading ends.
	Pause func() error
	next  int // where it is called next
}

// pauseEvery is the number of bytes between two calls of Pause.
const pauseEvery = 64 << 10

// look calls Pause if it is time.
func (s *Scanner) look() error {
	if s.pos < s.next || s.Pause == nil {
		return nil
	}
	s.next = s.pos + pauseEvery
	return s.Pause()
}

// NewScanner returns a Scanner at the beginning of text that opens at most depth
// objects and arrays within each other.
func NewScanner(text []byte, depth int) *Scanner {
	return &Scanner{text: text, limit: depth}
}

// Rest returns the number of bytes that have not been read.
func (s *Scanner) Rest() int { return len(s.text) - s.pos }

// Parts returns the number of objects and arrays that were read, but for those in an
// Outline: what a text takes as values depends on it more than on its length.
func (s *Scanner) Parts() int { return s.parts }

// Fail returns an error that names the current position.
func (s *Scanner) Fail(format string, args ...any) error {
	return fmt.Errorf("JSON at byte %d: %w", s.pos, fmt.Errorf(format, args...))
}

// found describes what is at the current position.
func (s *Scanner) found() string {
	if s.pos >= len(s.text) {
		return "the end of the text"
	}
	r, _ := utf8.DecodeRune(s.text[s.pos:])
	return fmt.Sprintf("%q", r)
}

// expected returns the error for a value that is not what was expected.
func (s *Scanner) expected(what string) error {
	return s.Fail("found %s, expected %s", s.found(), what)
}

// Peek skips white space and returns the next byte, 0 at the end.
func (s *Scanner) Peek() byte {
	for ; s.pos < len(s.text); s.pos++ {
		switch c := s.text[s.pos]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// End checks that only white space follows.
func (s *Scanner) End() error {
	if s.Peek(); s.pos < len(s.text) {
		return s.Fail("found %s after the value, expected the end", s.found())
	}
	return nil
}

// open consumes the bracket c that begins a value called what.
func (s *Scanner) open(c byte, what string) error {
	if s.Peek() != c {
		return s.expected(what)
	}
	if s.depth == s.limit {
		return s.Fail("found objects and arrays nested more than %d deep", s.limit)
	}
	s.depth++
	s.parts++
	s.pos++
	return nil
}

// more moves to the next element of an array or object that ends with the
// bracket end; n is the number of elements read so far. It returns false, with
// the bracket consumed, if there is none.
func (s *Scanner) more(n int, end byte) (bool, error) {
	if err := s.look(); err != nil {
		return false, err
	}
	switch c := s.Peek(); {
	case c == end:
		s.pos++
		s.depth--
		return false, nil
	case n == 0:
		return true, nil
	case c == ',':
		s.pos++
		return true, nil
	}
	return false, s.expected(fmt.Sprintf("',' or %q", end))
}

// Object reads an object, called what in errors, and calls member for each key in
// order, with the Scanner before the value, which member must read. The key may be
// a view of the text. A key that occurs twice is an error.
func (s *Scanner) Object(what string, member func(key string) error) error {
	return s.object(what, true, member)
}

// Members is like Object, but leaves it to the caller to refuse duplicate keys.
func (s *Scanner) Members(what string, member func(key string) error) error {
	return s.object(what, false, member)
}

func (s *Scanner) object(what string, distinct bool, member func(key string) error) error {
	if err := s.open('{', what); err != nil {
		return err
	}
	var seen keySet
	for n := 0; ; n++ {
		ok, err := s.more(n, '}')
		if !ok || err != nil {
			return err
		}
		key, err := s.View("a key")
		if err != nil {
			return err
		}
		if distinct && !seen.add(key) {
			return s.Fail("key %.80q occurs twice", key)
		}
		if s.Peek() != ':' {
			return s.expected("':'")
		}
		s.pos++
		if err := member(key); err != nil {
			return err
		}
	}
}

// keySet is the set of the keys of an object.
type keySet struct {
	few  [8]string
	n    int                 // keys in few
	many map[string]struct{} // of all keys, once there are more than few can hold
}

// add adds a key and reports whether it is new.
func (k *keySet) add(key string) bool {
	if k.many != nil {
		n := len(k.many)
		k.many[key] = struct{}{}
		return len(k.many) > n
	}
	if slices.Contains(k.few[:k.n], key) {
		return false
	}
	if k.n < len(k.few) {
		k.few[k.n] = key
		k.n++
		return true
	}
	k.many = map[string]struct{}{key: {}}
	for _, other := range k.few {
		k.many[other] = struct{}{}
	}
	return true
}

// Array reads an array, called what in errors, and calls element for each value,
// numbered from 0, with the Scanner before the value, which element must read.
func (s *Scanner) Array(what string, element func(i int) error) error {
	if err := s.open('[', what); err != nil {
		return err
	}
	for n := 0; ; n++ {
		ok, err := s.more(n, ']')
		if !ok || err != nil {
			return err
		}
		if err := element(n); err != nil {
			return err
		}
	}
}

// String reads a string, called what in errors.
func (s *Scanner) String(what string) (string, error) {
	v, err := s.View(what)
	return strings.Clone(v), err
}

// plain holds the bytes that stand for themselves in a string.
var plain = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= 0x20 && c != '"' && c != '\\'
	}
	return t
}()

// View is like String, but a string without escapes is a view of the text.
func (s *Scanner) View(what string) (string, error) { return s.view(what, true) }

// view is View; unless keep, a string with escapes is only checked.
func (s *Scanner) view(what string, keep bool) (string, error) {
	if s.Peek() != '"' {
		return "", s.expected(what + ", a string")
	}
	s.pos++
	start := s.pos
	var buf []byte // nil until an escape occurs
	for {
		i, err := s.plain()
		if err != nil {
			return "", err
		}
		part := s.text[s.pos:i]
		s.pos = i
		if i >= len(s.text) {
			return "", s.Fail("a string does not end")
		}
		switch c := s.text[i]; c {
		case '"':
			s.pos++
			if buf == nil {
				return unsafe.String(unsafe.SliceData(s.text[start:]), i-start), nil
			}
			return string(append(buf, part...)), nil
		case '\\':
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			if keep {
				buf = utf8.AppendRune(append(buf, part...), r)
			}
		default:
			return "", s.Fail("found control character %#02x in a string", c)
		}
	}
}

// plain returns where the bytes that stand for themselves end, from the position on.
func (s *Scanner) plain() (end int, err error) {
	at := s.pos
	defer func() { s.pos = at }()
	for {
		var all byte
		n := 0
		rest := s.text[s.pos:min(len(s.text), s.pos+pauseEvery)]
		for n < len(rest) && plain[rest[n]] {
			all |= rest[n]
			n++
		}
		more := n == pauseEvery && s.pos+n < len(s.text)
		if all >= utf8.RuneSelf {
			for cut := 0; more && cut < utf8.UTFMax && !utf8.RuneStart(s.text[s.pos+n]); cut++ {
				n-- // the last character goes on
			}
			if !utf8.Valid(rest[:n]) {
				s.pos = at
				return 0, s.Fail("a string is not valid UTF-8")
			}
		}
		if s.pos += n; !more {
			return s.pos, nil
		}
		if err := s.look(); err != nil {
			return 0, err
		}
	}
}

// escape reads a backslash and what follows it.
func (s *Scanner) escape() (rune, error) {
	s.pos++
	if s.pos >= len(s.text) {
		return 0, s.Fail("a string does not end")
	}
	c := s.text[s.pos]
	if c == 'u' {
		return s.unicode()
	}
	i := strings.IndexByte(`"\/bfnrt`, c)
	if i < 0 {
		return 0, s.Fail("found %s after a backslash", s.found())
	}
	s.pos++
	return rune("\"\\/\b\f\n\r\t"[i]), nil
}

// unicode reads a Unicode escape from its "u" on, and the second one of a
// surrogate pair.
func (s *Scanner) unicode() (rune, error) {
	first := s.pos - 1
	r, err := s.hex4()
	if err != nil || r < 0xD800 || r > 0xDFFF {
		return r, err
	}
	if r < 0xDC00 && bytes.HasPrefix(s.text[s.pos:], []byte(`\u`)) {
		s.pos++
		low, err := s.hex4()
		if err != nil {
			return 0, err
		}
		if 0xDC00 <= low && low <= 0xDFFF {
			return (r-0xD800)<<10 | (low - 0xDC00) + 0x10000, nil
		}
	}
	s.pos = first
	return 0, s.Fail("found %s, an unpaired surrogate", s.text[first:first+6])
}

// hex4 reads a "u" and four hexadecimal digits.
func (s *Scanner) hex4() (rune, error) {
	var r rune
	s.pos++
	for range 4 {
		if s.pos >= len(s.text) {
			return 0, s.Fail("a string does not end")
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
			return 0, s.expected("a hexadecimal digit")
		}
		s.pos++
		r = r<<4 | rune(c)
	}
	return r, nil
}

// Int reads a number from lo to hi that is written without point and exponent.
func (s *Scanner) Int(lo, hi int64) (int64, error) {
	neg := s.Peek() == '-'
	start := s.pos
	raw, err := s.Number()
	if err != nil {
		return 0, err
	}
	digits := raw
	if neg {
		digits = raw[1:]
	}
	// Negated, so that the least int64 fits.
	n, ok := int64(0), !neg || lo < 0
	for i := 0; i < len(digits) && ok; i++ {
		d := int64(digits[i] - '0')
		if ok = 0 <= d && d <= 9 && n >= (math.MinInt64+d)/10; ok {
			n = n*10 - d
		}
	}
	if !neg {
		ok = ok && n != math.MinInt64
		n = -n
	}
	if !ok || n < lo || n > hi {
		s.pos = start
		return 0, s.Fail("found %.40s, expected %s", raw, wholeRange(lo, hi))
	}
	return n, nil
}

// wholeRange describes the whole numbers from lo to hi.
func wholeRange(lo, hi int64) string {
	switch {
	case lo == math.MinInt64 && hi == math.MaxInt64:
		return "a whole number of 64 bits"
	case hi >= math.MaxInt32:
		return fmt.Sprintf("a whole number of at least %d", lo)
	}
	return fmt.Sprintf("a whole number from %d to %d", lo, hi)
}

// Number reads a number and returns it as it is written. The result is a view of the text.
func (s *Scanner) Number() (string, error) {
	c := s.Peek()
	start := s.pos
	if c == '-' {
		s.pos++
	}
	if s.at('0') {
		s.pos++
	} else if err := s.digits(); err != nil {
		if s.pos == start {
			err = s.expected("a number")
		}
		return "", err
	}
	if s.at('.') {
		s.pos++
		if err := s.digits(); err != nil {
			return "", err
		}
	}
	if s.at('e') || s.at('E') {
		s.pos++
		if s.at('+') || s.at('-') {
			s.pos++
		}
		if err := s.digits(); err != nil {
			return "", err
		}
	}
	if s.pos < len(s.text) && '0' <= s.text[s.pos] && s.text[s.pos] <= '9' {
		return "", s.Fail("found a number with a leading zero")
	}
	return unsafe.String(unsafe.SliceData(s.text[start:]), s.pos-start), nil
}

func (s *Scanner) at(c byte) bool { return s.pos < len(s.text) && s.text[s.pos] == c }

// digits reads one digit or more.
func (s *Scanner) digits() error {
	start := s.pos
	for s.pos < len(s.text) && '0' <= s.text[s.pos] && s.text[s.pos] <= '9' {
		s.pos++
	}
	if s.pos == start {
		return s.expected("a digit")
	}
	return nil
}

// word reads a literal name: true, false or null.
func (s *Scanner) word() (string, error) {
	s.Peek()
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(s.text[s.pos:], []byte(word)) {
			s.pos += len(word)
			return word, nil
		}
	}
	return "", s.expected("a value")
}

// Null reads null if it comes next, and reports whether it did.
func (s *Scanner) Null() bool {
	if s.Peek() != 'n' || !bytes.HasPrefix(s.text[s.pos:], []byte("null")) {
		return false
	}
	s.pos += len("null")
	return true
}

// Bool reads true or false.
func (s *Scanner) Bool() (bool, error) {
	if c := s.Peek(); c == 't' || c == 'f' {
		word, err := s.word()
		return word == "true", err
	}
	return false, s.expected("true or false")
}

// Skip reads a value of any type, checks it, and discards it.
func (s *Scanner) Skip() error {
	var err error
	switch c := s.Peek(); {
	case c == '{':
		err = s.Object("an object", func(string) error { return s.Skip() })
	case c == '[':
		err = s.Array("an array", func(int) error { return s.Skip() })
	case c == '"':
		_, err = s.view("a value", false)
	case c == '-' || '0' <= c && c <= '9':
		_, err = s.Number()
	default:
		_, err = s.word()
	}
	return err
}

// Raw reads a value of any type, checks it, and returns its text, a view.
func (s *Scanner) Raw() ([]byte, error) {
	s.Peek()
	start := s.pos
	err := s.Skip()
	return s.text[start:s.pos:s.pos], err
}

// Outline returns the text of a value of any type, a view, of which it follows only
// brackets and strings: another Scanner has to check it. It is several times as
// fast as Raw.
func (s *Scanner) Outline() ([]byte, error) {
	s.Peek()
	start, depth := s.pos, 0
	for s.pos < len(s.text) {
		switch s.text[s.pos] {
		case '"':
			if err := s.look(); err != nil {
				return nil, err
			}
			if err := s.pass(); err != nil {
				return nil, err
			}
			if depth == 0 {
				return s.text[start:s.pos:s.pos], nil
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return s.outlined(start)
			}
			if depth--; depth == 0 {
				s.pos++
				return s.text[start:s.pos:s.pos], nil
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return s.outlined(start)
			}
			if err := s.look(); err != nil {
				return nil, err
			}
		}
		s.pos++
	}
	if depth > 0 {
		return nil, s.expected("a bracket")
	}
	return s.outlined(start)
}

// outlined returns the text from start on, which must not be empty.
func (s *Scanner) outlined(start int) ([]byte, error) {
	if s.pos == start {
		return nil, s.expected("a value")
	}
	return s.text[start:s.pos:s.pos], nil
}

// pass moves past a string.
func (s *Scanner) pass() error {
	const short = 16 // most strings of a vocabulary
	b := s.text[s.pos+1:]
	for k := range min(len(b), short) {
		if b[k] == '"' {
			s.pos += k + 2
			return nil
		}
		if b[k] == '\\' {
			break
		}
	}
	for at := s.pos + 1; ; {
		k := bytes.IndexByte(s.text[at:], '"')
		if k < 0 {
			return s.Fail("a string does not end")
		}
		at += k + 1
		n := 0 // backslashes before the quote
		for s.text[at-2-n] == '\\' {
			n++
		}
		if n%2 == 0 {
			s.pos = at
			return nil
		}
	}
}
