package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// The vocabulary and the merges are by far the largest parts of tokenizer.json.
// They are read here, straight from text that encoding/json has already found to
// be valid JSON.

// jsonCursor walks through valid JSON.
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
		return "", fmt.Errorf("found %.20s, expected a string", c.b[min(c.i, len(c.b)):])
	}
	from := c.i
	plain := true
	for ; c.i < len(c.b) && c.b[c.i] != '"'; c.i++ {
		if c.b[c.i] == '\\' {
			c.i++
			plain = false
		}
	}
	if c.i >= len(c.b) {
		return "", errors.New("a string is not closed")
	}
	c.i++
	if raw := c.b[from : c.i-1]; plain && utf8.Valid(raw) {
		return unsafe.String(unsafe.SliceData(raw), len(raw)), nil
	}
	var s string
	err := json.Unmarshal(c.b[start:c.i], &s)
	return s, err
}

// scalar reads a number or a word.
func (c *jsonCursor) scalar() []byte {
	c.blanks()
	start := c.i
	for c.i < len(c.b) && !strings.ContainsRune(",}] \n\t\r", rune(c.b[c.i])) {
		c.i++
	}
	return c.b[start:c.i]
}

// eachMember calls f for each member of an object whose values are scalars. The
// name may be a view of raw.
func eachMember(raw json.RawMessage, f func(name string, value []byte) error) error {
	c := jsonCursor{b: raw}
	if !c.take('{') {
		return fmt.Errorf("vocab: found %.20s, expected an object", raw)
	}
	if c.take('}') {
		return nil
	}
	for {
		c.blanks()
		name, err := c.text()
		if err != nil {
			return fmt.Errorf("vocab: %w", err)
		}
		c.take(':')
		if err := f(name, c.scalar()); err != nil {
			return err
		}
		if !c.take(',') {
			break
		}
	}
	if !c.take('}') {
		return fmt.Errorf("vocab: found %.20s, expected a comma or the end of the object", c.b[min(c.i, len(c.b)):])
	}
	return nil
}

// eachMerge calls f for each merge, given as "a b" or as ["a", "b"]; a and b may be
// views of raw.
func eachMerge(raw json.RawMessage, f func(a, b string) error) error {
	c := jsonCursor{b: raw}
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	if !c.take('[') {
		return fmt.Errorf("merges: found %.20s, expected an array", raw)
	}
	if c.take(']') {
		return nil
	}
	for n := 0; ; n++ {
		c.blanks()
		var a, b string
		var err error
		if c.take('[') {
			c.blanks()
			if a, err = c.text(); err != nil {
				return fmt.Errorf("merges: merge %d: %w", n, err)
			}
			if !c.take(',') {
				return fmt.Errorf("merges: merge %d: expected two strings", n)
			}
			c.blanks()
			if b, err = c.text(); err != nil {
				return fmt.Errorf("merges: merge %d: %w", n, err)
			}
			if !c.take(']') {
				return fmt.Errorf("merges: merge %d: expected two strings", n)
			}
		} else {
			s, err := c.text()
			if err != nil {
				return fmt.Errorf("merges: merge %d: %w", n, err)
			}
			if strings.HasPrefix(s, "#version") {
				n--
				if !c.take(',') {
					break
				}
				continue
			}
			var ok bool
			a, b, ok = strings.Cut(s, " ")
			if !ok || strings.Contains(b, " ") {
				return fmt.Errorf("merges: merge %d %q: expected two tokens with a blank between them", n, s)
			}
		}
		if err := f(a, b); err != nil {
			return err
		}
		if !c.take(',') {
			break
		}
	}
	if !c.take(']') {
		return fmt.Errorf("merges: found %.20s, expected a comma or the end of the array", c.b[min(c.i, len(c.b)):])
	}
	return nil
}
