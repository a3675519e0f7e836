package strictjson

import (
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
)

// Check reads a text that is one value, with at most depth objects and arrays
// within each other, and returns the first error.
func Check(text []byte, depth int) error {
	s := NewScanner(text, depth)
	if err := s.Skip(); err != nil {
		return err
	}
	return s.End()
}

// Unmarshal checks text like Check and stores its value in v like json.Unmarshal.
func Unmarshal(text []byte, depth int, v any) error {
	if err := Check(text, depth); err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// Required, given to Int as the default, makes an absent number an error.
const Required = math.MinInt

// FieldError is an error about one value within an object.
type FieldError struct {
	Path string // of the value, as in messages[0].role
	Err  error
}

func (e *FieldError) Error() string { return fmt.Sprintf("%q: %v", e.Path, e.Err) }
func (e *FieldError) Unwrap() error { return e.Err }

// Object is a JSON object whose values are read by key and type. Keys are exact,
// null counts as absent, and keys that nobody asks for are ignored. The first error,
// in this object or in one read from it, is kept; the readers of wrong values return
// their defaults. A nil *Object reads as empty.
type Object struct {
	path   string
	keys   []string
	values map[string][]byte // views of the text
	err    *error            // shared with the objects within
}

// ParseObject checks a text that is one object, with at most depth objects and
// arrays within each other, itself included. The text must not change while the
// Object is in use.
func ParseObject(text []byte, depth int) (*Object, error) {
	o := newObject("", new(error))
	s := NewScanner(text, depth)
	err := s.Object("an object", func(key string) error {
		value, err := s.Raw()
		o.Set(key, value)
		return err
	})
	if err == nil {
		err = s.End()
	}
	if err != nil {
		return nil, err
	}
	return o, nil
}

func newObject(path string, err *error) *Object {
	return &Object{path: path, values: make(map[string][]byte), err: err}
}

// within returns the object that text, which has been checked, holds.
func (o *Object) within(path string, text []byte) *Object {
	in := newObject(path, o.err)
	s := NewScanner(text, math.MaxInt)
	_ = s.Members("an object", func(key string) error {
		value, err := s.Outline()
		in.Set(key, value)
		return err
	})
	return in
}

// Path returns the keys and indices that lead to the object from the outermost
// one, which has an empty path.
func (o *Object) Path() string { return o.path }

// Err returns the first error, a *FieldError.
func (o *Object) Err() error { return *o.err }

// Fail sets the error, unless there is one, to one about the value of key.
func (o *Object) Fail(key, format string, args ...any) {
	if *o.err == nil {
		*o.err = &FieldError{o.PathOf(key), fmt.Errorf(format, args...)}
	}
}

// PathOf returns the path of the value of key.
func (o *Object) PathOf(key string) string {
	if o.path == "" {
		return key
	}
	return o.path + "." + key
}

// Len returns the number of keys, those whose value is null included.
func (o *Object) Len() int {
	if o == nil {
		return 0
	}
	return len(o.keys)
}

// All yields keys and the texts of their values, null included, in the order of the text.
func (o *Object) All() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for i := range o.Len() {
			key := o.keys[i]
			if !yield(key, o.values[key]) {
				return
			}
		}
	}
}

// Set gives key the value that text holds, which must be valid JSON without white
// space around it.
func (o *Object) Set(key string, text []byte) {
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = text
}

// Delete removes a key and its value.
func (o *Object) Delete(key string) {
	if _, ok := o.values[key]; ok {
		delete(o.values, key)
		o.keys = slices.DeleteFunc(o.keys, func(k string) bool { return k == key })
	}
}

// Raw returns the text of a value, a view; nil if the key is absent or the value is null.
func (o *Object) Raw(key string) []byte {
	if o == nil || string(o.values[key]) == "null" {
		return nil
	}
	return o.values[key]
}

// Has reports whether key is present and its value is not null.
func (o *Object) Has(key string) bool { return o.Raw(key) != nil }

// Null reports whether key is present and its value is null.
func (o *Object) Null(key string) bool { return o != nil && string(o.values[key]) == "null" }

// KindOf names the type of the value that text holds.
func KindOf(text []byte) string {
	if len(text) == 0 {
		return "nothing"
	}
	switch text[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	return "a number"
}

// show shortens a value for a message: long ones are named by their type.
func show(text []byte) string {
	const limit = 40
	if len(text) > limit || text[0] == '{' {
		return KindOf(text)
	}
	return string(text)
}

// Wrong sets the error, unless there is one, to one that says what the value of
// key is and what was expected.
func (o *Object) Wrong(key, expected string) {
	v := o.values[key]
	if v == nil {
		o.Fail(key, "missing, expected %s", expected)
		return
	}
	o.Fail(key, "found %s, expected %s", show(v), expected)
}

// value returns the text of a value for whose type the byte test speaks; nil, and
// an error if the value has another type.
func (o *Object) value(key, expected string, first func(c byte) bool) []byte {
	v := o.Raw(key)
	if v != nil && !first(v[0]) {
		o.Wrong(key, expected)
		return nil
	}
	return v
}

func isQuote(c byte) bool   { return c == '"' }
func isLetter(c byte) bool  { return c == 't' || c == 'f' }
func isBrace(c byte) bool   { return c == '{' }
func isBracket(c byte) bool { return c == '[' }

// String reads a string.
func (o *Object) String(key, def string) string {
	v := o.value(key, "a string", isQuote)
	if v == nil {
		return def
	}
	return text(v)
}

// text returns the string that text, which has been checked, holds.
func text(raw []byte) string {
	s, _ := NewScanner(raw, 0).String("a string")
	return s
}

// Bool reads a truth value.
func (o *Object) Bool(key string, def bool) bool {
	v := o.value(key, "true or false", isLetter)
	if v == nil {
		return def
	}
	return v[0] == 't'
}

// Float reads a number.
func (o *Object) Float(key string, def float64) float64 {
	return o.Between(key, def, -math.MaxFloat64, math.MaxFloat64)
}

// Between reads a number from lo to hi.
func (o *Object) Between(key string, def, lo, hi float64) float64 {
	v := o.Raw(key)
	if v == nil {
		return def
	}
	x, err := strconv.ParseFloat(string(v), 64)
	if err != nil || !(x >= lo && x <= hi) {
		o.Wrong(key, numberRange(lo, hi))
		return def
	}
	return x
}

// numberRange describes the numbers from lo to hi. It omits bounds that only
// keep numbers within a type.
func numberRange(lo, hi float64) string {
	const large = 1 << 30
	switch {
	case hi < large:
		return fmt.Sprintf("a number from %g to %g", lo, hi)
	case lo > -large:
		return fmt.Sprintf("a number of at least %g", lo)
	}
	return "a number"
}

// Int reads a number from lo to hi that is written without point and exponent. If
// def is Required, the number must be given.
func (o *Object) Int(key string, def, lo, hi int) int {
	v := o.Raw(key)
	if v == nil {
		if def == Required {
			o.Fail(key, "missing, expected %s", wholeRange(int64(lo), int64(hi)))
		}
		return def
	}
	n, ok := o.int(v, lo, hi)
	if !ok {
		o.Wrong(key, wholeRange(int64(lo), int64(hi)))
		return def
	}
	return n
}

func (o *Object) int(raw []byte, lo, hi int) (int, bool) {
	s := NewScanner(raw, 0)
	n, err := s.Int(int64(lo), int64(hi))
	return int(n), err == nil && s.End() == nil
}

// Whole reads a whole number from lo to hi in any spelling, 5.0 and 1e3 included.
// From 2^53 on, only the spelling of Int is exact and thus accepted.
func (o *Object) Whole(key string, def, lo, hi int) int {
	v := o.Raw(key)
	if v == nil {
		return def
	}
	if n, ok := o.int(v, lo, hi); ok {
		return n
	}
	const exact = 1<<53 - 1
	x, err := strconv.ParseFloat(string(v), 64)
	if err != nil || x != math.Trunc(x) || x < max(float64(lo), -exact) || x > min(float64(hi), exact) {
		o.Wrong(key, wholeRange(int64(lo), int64(hi)))
		return def
	}
	return int(x)
}

// List returns the texts of the elements of a list of at most n.
func (o *Object) List(key string, n int) [][]byte { return o.list(key, "a list", n) }

func (o *Object) list(key, expected string, n int) [][]byte {
	v := o.value(key, expected, isBracket)
	if v == nil {
		return nil
	}
	list := [][]byte{}
	s := NewScanner(v, math.MaxInt)
	err := s.Array("a list", func(i int) error {
		if i == n {
			return s.Fail("found more than %d elements, expected at most %d", n, n)
		}
		e, err := s.Outline()
		list = append(list, e)
		return err
	})
	if err != nil {
		o.Fail(key, "found more than %d elements, expected at most %d", n, n)
		return nil
	}
	return list
}

// Strings reads a list of at most n strings.
func (o *Object) Strings(key string, n int) []string {
	var list []string
	for i, v := range o.list(key, "a list of strings", n) {
		if v[0] != '"' {
			o.Fail(fmt.Sprintf("%s[%d]", key, i), "found %s, expected a string", KindOf(v))
			return nil
		}
		list = append(list, text(v))
	}
	return list
}

// Object reads an object; nil if the key is absent.
func (o *Object) Object(key string) *Object {
	v := o.value(key, "an object", isBrace)
	if v == nil {
		return nil
	}
	return o.within(o.PathOf(key), v)
}

// Objects reads a list of at most n objects.
func (o *Object) Objects(key string, n int) []*Object {
	var list []*Object
	for i, v := range o.list(key, "a list of objects", n) {
		at := fmt.Sprintf("%s[%d]", key, i)
		if v[0] != '{' {
			o.Fail(at, "found %s, expected an object", KindOf(v))
			return nil
		}
		list = append(list, o.within(o.PathOf(at), v))
	}
	return list
}
