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

// eachMerge calls f for each merge, given as "a b" or as ["a", "b"], with its number; a and b may
// be views of raw. It returns the number of the merge that the error is about.
func eachMerge(raw []byte, f func(n int, a, b string) error) (int, error) {
	if isNull(raw) {
		return 0, nil
	}
	s := newScanner(raw)
	n := -1
	err := s.Array("an array", func(int) (err error) {
		n++
		if s.Peek() == '[' {
			var pair [2]string
			parts := 0
			err = s.Array("two tokens", func(i int) (err error) {
				if parts++; parts <= len(pair) {
					pair[i], err = s.View("a token")
					return err
				}
				return s.Skip()
			})
			if err == nil && parts != len(pair) {
				err = fmt.Errorf("found %d tokens, expected two", parts)
			}
			if err != nil {
				return err
			}
			return f(n, pair[0], pair[1])
		}
		text, err := s.View("two tokens")
		if err != nil {
			return err
		}
		if strings.HasPrefix(text, "#version") {
			n--
			return nil
		}
		k := strings.IndexByte(text, ' ')
		if k < 0 || strings.IndexByte(text[k+1:], ' ') >= 0 {
			return fmt.Errorf("found %q, expected two tokens with a blank between them", text)
		}
		return f(n, text[:k], text[k+1:])
	})
	if err == nil {
		err = s.End()
	}
	return max(n, 0), err
}
