package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/big"
	"strconv"
	"strings"
)

// Object is a JSON object that keeps the order of its keys: the order in which
// they were first set. The zero value is empty and ready to use; a nil *Object
// reads as empty.
//
// Values may be nil, bool, Go integers and floats, *big.Int, json.Number,
// string, []any, []string, *Object and []*Object. Anything else, a Go map above
// all, is refused when a template is rendered.
type Object struct {
	index map[hashKey]int
	keys  []any
	vals  []any
}

// NewMessage returns the object {"role": role, "content": content}.
func NewMessage(role, content string) *Object {
	return new(Object).Set("role", role).Set("content", content)
}

// Set stores value under key, at the key's old place if it has one, and returns
// the object.
func (o *Object) Set(key string, value any) *Object {
	o.put(hashKey{kind: 's', s: key}, key, value)
	return o
}

// Get returns the value of key and whether there is one.
func (o *Object) Get(key string) (any, bool) {
	return o.get(hashKey{kind: 's', s: key})
}

// Len is the number of keys.
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
			if key, ok := o.keys[i].(string); ok && !yield(key, o.vals[i]) {
				return
			}
		}
	}
}

// UnmarshalJSON replaces the object with the one in data, keys in order.
func (o *Object) UnmarshalJSON(data []byte) error {
	v, err := DecodeJSON(data)
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
	n := 0
	for key, value := range o.All() {
		if n++; n > 1 {
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

func (o *Object) get(h hashKey) (any, bool) {
	if o == nil {
		return nil, false
	}
	i, ok := o.index[h]
	if !ok {
		return nil, false
	}
	return o.vals[i], true
}

func (o *Object) put(h hashKey, key, value any) {
	if i, ok := o.index[h]; ok {
		o.vals[i] = value
		return
	}
	if o.index == nil {
		o.index = make(map[hashKey]int)
	}
	o.index[h] = len(o.keys)
	o.keys = append(o.keys, key)
	o.vals = append(o.vals, value)
}

// hashKey identifies a dict key: equal values have equal hashKeys, so 1, 1.0
// and true are one key, as in Python.
type hashKey struct {
	kind byte
	n    int64
	s    string
}

// maxJSONDepth is how deep DecodeJSON follows nested values.
const maxJSONDepth = 500

// DecodeJSON reads one JSON value: nil, bool, int64, *big.Int, float64, string,
// []any or *Object. Numbers with a fraction or an exponent are floats, others
// are integers of any size; of equal keys the last wins, at the first's place.
func DecodeJSON(data []byte) (any, error) {
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
		return parseJSONNumber(tok)
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

func parseJSONNumber(n json.Number) (any, error) {
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
	b, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return nil, fmt.Errorf("bad number %q", s)
	}
	return normInt(b), nil
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

// importValue converts a caller's value to the evaluator's own kinds: nil,
// bool, int64, *big.Int, float64, string, []any and *Object. It copies lists
// and objects; path names the value in errors.
func importValue(v any, path string, depth int) any {
	if depth > maxJSONDepth {
		limitf("%.80s…: values nested deeper than %d", path, maxJSONDepth)
	}
	switch v := v.(type) {
	case nil, bool, int64, float64, string:
		return v
	case int:
		return int64(v)
	case int8:
		return int64(v)
	case int16:
		return int64(v)
	case int32:
		return int64(v)
	case uint8:
		return int64(v)
	case uint16:
		return int64(v)
	case uint32:
		return int64(v)
	case uint:
		return normInt(new(big.Int).SetUint64(uint64(v)))
	case uint64:
		return normInt(new(big.Int).SetUint64(v))
	case float32:
		return float64(v)
	case *big.Int:
		if v == nil {
			return nil
		}
		return normInt(new(big.Int).Set(v))
	case json.Number:
		n, err := parseJSONNumber(v)
		if err != nil {
			failf("%s: %w", path, err)
		}
		return n
	case json.RawMessage:
		d, err := DecodeJSON(v)
		if err != nil {
			failf("%s: %w", path, err)
		}
		return d
	case []any:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = importValue(e, path+"["+strconv.Itoa(i)+"]", depth+1)
		}
		return list
	case []string:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = e
		}
		return list
	case []*Object:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = importValue(e, path+"["+strconv.Itoa(i)+"]", depth+1)
		}
		return list
	case *Object:
		if v == nil {
			return nil
		}
		obj := new(Object)
		for key, e := range v.All() {
			obj.Set(key, importValue(e, path+"."+key, depth+1))
		}
		return obj
	case map[string]any:
		failf("%s: found a Go map, expected a *chat.Object, which keeps the order of its keys", path)
	}
	failf("%s: found a Go value of type %T, expected a JSON value", path, v)
	return nil
}
