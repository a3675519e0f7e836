package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// The vocabulary and the merges are by far the largest parts of their files. They
// are read here, in place; small parts go to encoding/json.

// jsonCursor walks through JSON text.
type jsonCursor struct {
	b []byte
	i int
}

func (c *jsonCursor) blanks() {
	for c.i < len(c.b) && (c.b[c.i] == ' ' || c.b[c.i] == '\n' || c.b[c.i] == '\t' || c.b[c.i] == '\r') {
		c.i++
	}
}

// take skips blanks and, if it comes next, the character want.
func (c *jsonCursor) take(want byte) bool {
	c.blanks()
	if c.i < len(c.b) && c.b[c.i] == want {
		c.i++
		return true
	}
	return false
}

// text reads a string. It may be a view of the JSON text.
func (c *jsonCursor) text() (string, error) {
	start := c.i
	if !c.take('"') {
		if c.i >= len(c.b) {
			return "", errUnexpectedEnd
		}
		return "", fmt.Errorf("found %.20s, expected a string", c.b[min(c.i, len(c.b)):])
	}
	b, from, i := c.b, c.i, c.i
	plain, all := true, byte(0)
	for ; i < len(b) && b[i] != '"'; i++ {
		all |= b[i]
		if b[i] == '\\' {
			i++
			plain = false
		}
	}
	c.i = i
	if i >= len(b) {
		return "", errors.New("a string is not closed")
	}
	c.i++
	if raw := b[from:i]; plain && (all < utf8.RuneSelf || utf8.Valid(raw)) {
		return unsafe.String(unsafe.SliceData(raw), len(raw)), nil
	}
	var s string
	err := json.Unmarshal(c.b[start:c.i], &s)
	return s, err
}

// value skips a value and returns it. Of its content, only strings and
// brackets are looked at.
func (c *jsonCursor) value() ([]byte, error) {
	c.blanks()
	start, depth := c.i, 0
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case '"':
			if err := c.skipText(); err != nil {
				return nil, err
			}
			if depth == 0 {
				return c.b[start:c.i], nil
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return c.b[start:c.i], nil
			}
			if depth--; depth == 0 {
				c.i++
				return c.b[start:c.i], nil
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return c.b[start:c.i], nil
			}
		}
		c.i++
	}
	if depth > 0 {
		return nil, errUnexpectedEnd
	}
	return c.b[start:c.i], nil
}

var errUnexpectedEnd = errors.New("unexpected end of JSON input")

// skipText skips a string.
func (c *jsonCursor) skipText() error {
	const short = 16 // most strings of a vocabulary
	b := c.b[c.i+1:]
	for k := range min(len(b), short) {
		if b[k] == '"' {
			c.i += k + 2
			return nil
		}
		if b[k] == '\\' {
			break
		}
	}
	for at := c.i + 1; ; {
		k := bytes.IndexByte(c.b[at:], '"')
		if k < 0 {
			return errUnexpectedEnd
		}
		at += k + 1
		n := 0 // backslashes before the quote
		for c.b[at-2-n] == '\\' {
			n++
		}
		if n%2 == 0 {
			c.i = at
			return nil
		}
	}
}

// list calls f for each of the comma-separated elements between open and end; f
// skips the blanks before an element.
func (c *jsonCursor) list(open, end byte, f func() error) error {
	if !c.take(open) {
		if c.i >= len(c.b) {
			return errUnexpectedEnd
		}
		return fmt.Errorf("found %.20s, expected %s", c.b[c.i:], map[byte]string{'{': "an object", '[': "an array"}[open])
	}
	if c.take(end) {
		return nil
	}
	for {
		if err := f(); err != nil {
			return err
		}
		if c.take(',') {
			continue
		}
		if c.take(end) {
			return nil
		}
		if c.i >= len(c.b) {
			return errUnexpectedEnd
		}
		return fmt.Errorf("found %.20s, expected a comma or %c", c.b[c.i:], end)
	}
}

// members calls f for each member of the object that comes next, with the cursor
// before its value; f moves it past that. The name may be a view of the JSON text.
func (c *jsonCursor) members(f func(name string) error) error {
	return c.list('{', '}', func() error {
		name, err := c.text()
		if err != nil {
			return err
		}
		if !c.take(':') {
			return fmt.Errorf("member %.40q: expected a colon", name)
		}
		return f(name)
	})
}

// eachMember calls f for each member of an object. The name may be a view of raw.
func eachMember(raw []byte, f func(name string, value []byte) error) error {
	c := jsonCursor{b: raw}
	return c.end(c.members(func(name string) error {
		value, err := c.value()
		if err != nil {
			return err
		}
		return f(name, value)
	}))
}

// eachElement calls f for each element of an array.
func eachElement(raw []byte, f func(value []byte) error) error {
	c := jsonCursor{b: raw}
	err := c.list('[', ']', func() error {
		value, err := c.value()
		if err != nil {
			return err
		}
		return f(value)
	})
	return c.end(err)
}

// end checks that nothing follows what was read.
func (c *jsonCursor) end(err error) error {
	if c.blanks(); err == nil && c.i < len(c.b) {
		err = fmt.Errorf("found %.20s behind the end", c.b[c.i:])
	}
	return err
}

// isNull reports whether a value is null or missing.
func isNull(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }

// unmarshalPart reads a small part of a file. It limits the length and the number
// of objects and arrays to plausible values: Go values take many times the memory
// of the text that they come from.
func unmarshalPart(raw []byte, into any) error {
	const maxBytes, maxParts = 1 << 20, 1 << 12
	if n := bytes.Count(raw, []byte("{")) + bytes.Count(raw, []byte("[")); len(raw) > maxBytes || n > maxParts {
		return fmt.Errorf("%d bytes with %d objects and arrays, expected at most %d with %d", len(raw), n, maxBytes, maxParts)
	}
	return json.Unmarshal(raw, into)
}

// parseID reads a token id.
func parseID(raw []byte) (int32, error) {
	if n := len(raw); 0 < n && n < 7 {
		id := int32(0)
		for _, d := range raw {
			if d -= '0'; d <= 9 {
				id = 10*id + int32(d)
				n--
			}
		}
		if n == 0 { // only digits
			return id, nil
		}
	}
	id, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("has id %.40s, expected an integer", raw)
	}
	return int32(id), checkID(id)
}

// eachMerge calls f for each merge, given as "a b" or as ["a", "b"], with its number; a and b may
// be views of raw. It returns the number of the merge that the error is about.
func eachMerge(raw []byte, f func(n int, a, b string) error) (int, error) {
	if isNull(raw) {
		return 0, nil
	}
	c := jsonCursor{b: raw}
	n := -1
	err := c.list('[', ']', func() (err error) {
		n++
		var a, b string
		if c.take('[') {
			if a, err = c.text(); err != nil {
				return err
			}
			if !c.take(',') {
				return errors.New("expected two strings")
			}
			if b, err = c.text(); err != nil {
				return err
			}
			if !c.take(']') {
				return errors.New("expected two strings")
			}
			return f(n, a, b)
		}
		s, err := c.text()
		if err != nil {
			return err
		}
		if strings.HasPrefix(s, "#version") {
			n--
			return nil
		}
		k := strings.IndexByte(s, ' ')
		if k < 0 || strings.IndexByte(s[k+1:], ' ') >= 0 {
			return fmt.Errorf("%q: expected two tokens with a blank between them", s)
		}
		return f(n, s[:k], s[k+1:])
	})
	return max(n, 0), c.end(err)
}
