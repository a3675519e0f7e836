package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
)

// Object is a JSON object that keeps the order of its keys: the order in which
// they were first set. The zero value is empty and ready to use; a nil *Object
// reads as empty.
//
// Values may be nil, booleans, numbers, json.Number, strings, *Object and slices
// of values. Anything else, notably a Go map, is refused when a template is
// rendered.
type Object struct {
	index map[string]int
	keys  []string
	vals  []any
}

// NewMessage returns the object {"role": role, "content": content}.
func NewMessage(role, content string) *Object {
	return new(Object).Set("role", role).Set("content", content)
}

// Set stores value under key, keeping the key's position if it already has one,
// and returns the object.
func (o *Object) Set(key string, value any) *Object {
	if i, ok := o.index[key]; ok {
		o.vals[i] = value
		return o
	}
	if o.index == nil {
		o.index = make(map[string]int)
	}
	o.index[key] = len(o.keys)
	o.keys = append(o.keys, key)
	o.vals = append(o.vals, value)
	return o
}

// Get returns the value of key and whether there is one.
func (o *Object) Get(key string) (any, bool) {
	if o == nil {
		return nil, false
	}
	i, ok := o.index[key]
	if !ok {
		return nil, false
	}
	return o.vals[i], true
}

// Len returns the number of keys.
func (o *Object) Len() int {
	if o == nil {
		return 0
	}
	return len(o.keys)
}

// All yields keys and values in order.
func (o *Object) All() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for i := range o.Len() {
			if !yield(o.keys[i], o.vals[i]) {
				return
			}
		}
	}
}

// UnmarshalJSON replaces the object with the one in data, keys in order.
func (o *Object) UnmarshalJSON(data []byte) error {
	v, err := decodeJSON(data)
	if err != nil {
		return err
	}
	obj, ok := v.(*Object)
	if !ok {
		return fmt.Errorf("decode json object: found %s, expected an object", jsonKind(v))
	}
	*o = *obj
	return nil
}

// MarshalJSON writes the object with its keys in order.
func (o *Object) MarshalJSON() ([]byte, error) {
	if o == nil {
		return []byte("null"), nil
	}
	var b bytes.Buffer
	b.WriteByte('{')
	for key, value := range o.All() {
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		k, err := json.Marshal(key)
		if err != nil {
			return nil, err
		}
		v, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode json value of %q: %w", key, err)
		}
		b.Write(k)
		b.WriteByte(':')
		b.Write(v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

const (
	// maxJSONDepth is how deep decodeJSON follows nested values.
	maxJSONDepth = 500
	// maxDigits is the maximum length of an integer in decimal digits, as in
	// Python.
	maxDigits = 4300
)

// decodeJSON reads one JSON value: nil, bool, int64, float64, string, []any or
// *Object. Numbers with a fraction or an exponent are floats, others integers;
// those that do not fit in 64 bits stay a json.Number. Of equal keys the last
// value wins, in the position of the first.
func decodeJSON(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	v, err := decodeValue(dec, 0)
	if err != nil {
		return nil, fmt.Errorf("decode json: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("decode json: found more after the value at byte %d, expected its end", dec.InputOffset())
	}
	return v, nil
}

func decodeValue(dec *json.Decoder, depth int) (any, error) {
	if depth > maxJSONDepth {
		return nil, fmt.Errorf("values nested deeper than %d", maxJSONDepth)
	}
	tok, err := dec.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	switch tok := tok.(type) {
	case json.Number:
		return decodeNumber(tok)
	case json.Delim:
		if tok == '[' {
			list := []any{}
			for dec.More() {
				v, err := decodeValue(dec, depth+1)
				if err != nil {
					return nil, err
				}
				list = append(list, v)
			}
			_, err := dec.Token()
			return list, err
		}
		obj := new(Object)
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			v, err := decodeValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			obj.Set(key.(string), v) // the decoder allows nothing but strings here
		}
		_, err := dec.Token()
		return obj, err
	}
	return tok, nil // nil, bool, string
}

func decodeNumber(n json.Number) (any, error) {
	s := string(n)
	if strings.ContainsAny(s, ".eE") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return nil, fmt.Errorf("bad number %q", s)
		}
		return f, nil // out of range is infinity, as in Python
	}
	if len(s) > maxDigits {
		return nil, fmt.Errorf("integer of %d digits is longer than %d", len(s), maxDigits)
	}
	i, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return n, nil
	}
	return i, nil
}

func jsonKind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case string:
		return "a string"
	case []any:
		return "an array"
	case *Object:
		return "an object"
	}
	return "a number"
}
