package model

import (
	"fmt"
	"strings"

	"github.com/lukv/lukv/internal/strictjson"
)

// maxConfigDepth bounds the nesting of a config; known ones are five deep.
const maxConfigDepth = 64

// fields is a name under which object can embed the reader.
type fields = strictjson.Object

// object reads the settings of a model out of a JSON object.
type object struct{ *fields }

func parseObject(text []byte) (object, error) {
	o, err := strictjson.ParseObject(text, maxConfigDepth)
	if err != nil {
		return object{}, fmt.Errorf("invalid %w", err)
	}
	return object{o}, nil
}

// sole fails unless the number is absent or has the given value, the only one
// supported.
func (o object) sole(key string, value float64) {
	if v := o.Float(key, value); v != value {
		o.Fail(key, "a value of %g is %w, expected %g", v, ErrUnsupported, value)
	}
}

// truth reads a boolean that may be written as 0 or 1.
func (o object) truth(key string, def bool) bool {
	switch string(o.Raw(key)) {
	case "0":
		return false
	case "1":
		return true
	}
	return o.Bool(key, def)
}

// ids reads a token id or a list of them, nil if absent. The id -1, which no token has,
// stands for none.
func (o object) ids(key string) []int {
	raw := o.Raw(key)
	if raw == nil {
		return nil
	}
	ids := []int{}
	s := strictjson.NewScanner(raw, 1)
	id := func(int) error {
		n, err := s.Int(-1, maxVocab)
		if n >= 0 {
			ids = append(ids, int(n))
		}
		return err
	}
	var err error
	if s.Peek() == '[' {
		err = s.Array("a list", id)
	} else {
		err = id(0)
	}
	if err != nil {
		o.Wrong(key, fmt.Sprintf("a token id or a list of token ids, from -1 to %d", maxVocab))
		return nil
	}
	return ids
}

// short truncates text from a file for use in a message.
func short(s string) string {
	const limit = 80
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}
