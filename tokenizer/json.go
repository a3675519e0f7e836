package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/lukv/lukv/internal/strictjson"
)

// The vocabulary and the merges are by far the largest parts of their files. They
// are read in place; small parts go to encoding/json.

// maxDepth bounds the nesting of vocabulary files; known ones are seven deep.
const maxDepth = 64

func newScanner(text []byte) *strictjson.Scanner { return strictjson.NewScanner(text, maxDepth) }

// isNull reports whether a value is null or missing.
func isNull(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }

// unmarshalPart reads a small part of a file. It limits the length and the number
// of objects and arrays to plausible values: Go values take many times the memory
// of the text that they come from.
func unmarshalPart(s *strictjson.Scanner, into any) error {
	const maxBytes, maxParts = 1 << 20, 1 << 12
	raw, err := s.Raw()
	if err != nil {
		return err
	}
	n := 0
	for _, c := range raw {
		if c == '{' || c == '[' {
			n++
		}
	}
	if len(raw) > maxBytes || n > maxParts {
		return s.Fail("found %d bytes with %d objects and arrays, expected at most %d with %d", len(raw), n, maxBytes, maxParts)
	}
	return json.Unmarshal(raw, into)
}

// eachMerge calls f for each merge, given as "a b" or as ["a", "b"], with its number; a
// and b may be views of the file. It returns the number of the merge that the error is
// about.
func (m *hfModel) eachMerge(f func(n int, a, b string) error) (int, error) {
	if isNull(m.merges) {
		return 0, nil
	}
	s := newScanner(m.merges)
	n := -1
	err := s.Array("an array", func(int) (err error) {
		n++
		var a, b string
		if s.Peek() == '[' {
			a, b, err = readPair(s)
		} else {
			var line string
			if line, err = s.View("two tokens"); err != nil {
				return err
			}
			if strings.HasPrefix(line, "#version") {
				n--
				return nil
			}
			a, b, err = cutMerge(line)
		}
		if err != nil {
			return err
		}
		return f(n, a, b)
	})
	if err == nil {
		err = s.End()
	}
	return max(n, 0), err
}

// eachLine is eachMerge for lines from to to-1.
func eachLine(lines []string, from, to int) func(f func(n int, a, b string) error) (int, error) {
	return func(f func(n int, a, b string) error) (int, error) {
		for n, line := range lines[from:to] {
			a, b, err := cutMerge(line)
			if err == nil {
				err = f(from+n, a, b)
			}
			if err != nil {
				return from + n, err
			}
		}
		return 0, nil
	}
}

// cutMerge splits "a b".
func cutMerge(line string) (a, b string, err error) {
	k := strings.IndexByte(line, ' ')
	if k < 0 || strings.IndexByte(line[k+1:], ' ') >= 0 {
		return "", "", fmt.Errorf("found %.80q, expected two tokens with a blank between them", line)
	}
	return line[:k], line[k+1:], nil
}

// readPair reads ["a", "b"].
func readPair(s *strictjson.Scanner) (a, b string, err error) {
	n := 0
	err = s.Array("two tokens", func(i int) (err error) {
		switch n++; i {
		case 0:
			a, err = s.View("a token")
		case 1:
			b, err = s.View("a token")
		default:
			err = s.Skip()
		}
		return err
	})
	if err == nil && n != 2 {
		err = fmt.Errorf("found %d tokens, expected two", n)
	}
	return a, b, err
}
