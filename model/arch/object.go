package arch

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/lukv/lukv/internal/strictjson"
)

// maxConfigDepth bounds the nesting of a config; known ones are five deep.
const maxConfigDepth = 64

// Bounds of what a configuration may claim: far above any published model, and
// low enough that no product of two of them overflows. Positions are bounded by
// the angles that can be rotated exactly.
const (
	maxConfigBytes = 16 << 20
	maxClasses     = 1 << 6
	maxLayers      = 1 << 10
	maxWidth       = 1 << 20 // Hidden, Intermediate
	maxHeads       = 1 << 12
	maxHeadDim     = 1 << 12
	maxVocab       = 1 << 24

	// PositionLimit is the most tokens of a sequence.
	PositionLimit = 12 << 20
)

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

// floats reads a list of at most n numbers, nil if absent.
func (o object) floats(key string, n int) []float64 {
	var list []float64
	for _, raw := range o.List(key, n) {
		v, err := strconv.ParseFloat(string(raw), 64)
		if err != nil {
			o.Wrong(key, "a list of numbers")
			return nil
		}
		list = append(list, v)
	}
	return list
}

// ints reads a list of at most n whole numbers from 0 on, nil if absent.
func (o object) ints(key string, n int) []int {
	var list []int
	for _, raw := range o.List(key, n) {
		v, err := strconv.Atoi(string(raw))
		if err != nil || v < 0 {
			o.Wrong(key, "a list of whole numbers")
			return nil
		}
		list = append(list, v)
	}
	return list
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
