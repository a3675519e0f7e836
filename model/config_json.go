package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// required, given as a default, makes an absent number an error.
const required = math.MinInt

// object reads typed values out of a JSON object. The first error is kept in
// err; after it, getters return defaults. Absent keys and nulls mean the same.
type object struct {
	fields map[string]json.RawMessage
	err    error
}

func parseObject(text []byte) (*object, error) {
	o := &object{}
	if err := json.Unmarshal(text, &o.fields); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return nil, fmt.Errorf("found a JSON %s, expected an object", kind.Value)
		}
		return nil, fmt.Errorf("invalid JSON: %w", err)
	}
	if o.fields == nil {
		return nil, errors.New("found a JSON null, expected an object")
	}
	return o, nil
}

// has reports whether key is present and not null.
func (o *object) has(key string) bool {
	raw, ok := o.fields[key]
	return ok && string(raw) != "null"
}

func (o *object) fail(err error) {
	if o.err == nil {
		o.err = err
	}
}

// wrong returns the error for a value of the wrong kind.
func (o *object) wrong(key, expected string) error {
	return fmt.Errorf("%q: found %s, expected %s", key, short(string(o.fields[key])), expected)
}

// get decodes the value of key into dst and reports whether it did.
func (o *object) get(key string, dst any, expected string) bool {
	if !o.has(key) {
		return false
	}
	if json.Unmarshal(o.fields[key], dst) != nil {
		o.fail(o.wrong(key, expected))
		return false
	}
	return true
}

func (o *object) str(key, def string) string {
	v := def
	o.get(key, &v, "a string")
	return v
}

func (o *object) boolean(key string, def bool) bool {
	v := def
	o.get(key, &v, "true or false")
	return v
}

func (o *object) number(key string, def float64) float64 {
	v := def
	o.get(key, &v, "a number")
	return v
}

func (o *object) between(key string, def, lo, hi float64) float64 {
	v := o.number(key, def)
	if v < lo || v > hi {
		o.fail(o.wrong(key, fmt.Sprintf("a number from %g to %g", lo, hi)))
		return def
	}
	return v
}

// sole fails unless the number is absent or has the given value, the only one
// supported.
func (o *object) sole(key string, value float64) {
	if v := o.number(key, value); v != value {
		o.fail(fmt.Errorf("%q: a value of %g is %w, expected %g", key, v, ErrUnsupported, value))
	}
}

// integer reads a number that is written without a decimal point or exponent.
func (o *object) integer(key string, def, lo, hi int) int {
	if !o.has(key) {
		if def == required {
			o.fail(fmt.Errorf("%q is missing", key))
		}
		return def
	}
	v, err := strconv.Atoi(string(o.fields[key]))
	if err != nil || v < lo || v > hi {
		o.fail(o.wrong(key, fmt.Sprintf("a whole number from %d to %d", lo, hi)))
		return def
	}
	return v
}

// whole reads a whole number that may be written with a decimal point or exponent.
func (o *object) whole(key string, def, lo, hi int) int {
	v := o.number(key, float64(def))
	if v != math.Trunc(v) || v < float64(lo) || v > float64(hi) {
		o.fail(o.wrong(key, fmt.Sprintf("a whole number from %d to %d", lo, hi)))
		return def
	}
	return int(v)
}

// truth reads a boolean that may be written as 0 or 1.
func (o *object) truth(key string, def bool) bool {
	switch string(o.fields[key]) {
	case "0":
		return false
	case "1":
		return true
	}
	return o.boolean(key, def)
}

// ids reads a token id or a list of them, nil if absent. The id -1, which no token has,
// stands for none.
func (o *object) ids(key string) []int {
	if !o.has(key) {
		return nil
	}
	list := []json.RawMessage{o.fields[key]}
	if o.fields[key][0] == '[' {
		list = nil // decoding into the text itself would overwrite it
		if !o.get(key, &list, "a list") {
			return nil
		}
	}
	ids := make([]int, 0, len(list))
	for _, raw := range list {
		id, err := strconv.Atoi(string(raw))
		if err != nil || id < -1 || id > maxVocab {
			o.fail(o.wrong(key, "a token id or a list of token ids"))
			return nil
		}
		if id >= 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

// object returns a nested object, an empty one if absent. Its
// errors stay in it until adopted.
func (o *object) object(key string) *object {
	in := &object{}
	o.get(key, &in.fields, "an object")
	return in
}

// adopt takes over the error of the object under key.
func (o *object) adopt(key string, in *object) {
	if in.err != nil {
		o.fail(fmt.Errorf("%q: %w", key, in.err))
	}
}

// short truncates text from a file for use in a message.
func short(s string) string {
	const limit = 80
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}
