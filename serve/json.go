package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/lukv/lukv/internal/strictjson"
)

// maxDepth bounds the nesting of requests.
const maxDepth = 64

// fields reads the values of a JSON object. Keys are exact, null is absent, unknown
// keys are ignored, and the first value of a wrong type or out of range is kept in err.
// encoding/json by itself takes keys in any case and the last of duplicates, and turns
// invalid UTF-8 and halves of surrogate pairs into U+FFFD; a request could then mean one
// thing here and another to a gateway in front.
type fields struct {
	values map[string]json.RawMessage
	path   string // precedes names in errors
	err    *apiError
	ctx    context.Context // of the request; only set for the fields of the body itself
}

// parseBody reads the object that a request consists of.
func parseBody(data []byte) (*fields, *apiError) {
	if !utf8.Valid(data) {
		return nil, invalid("", "the body is not UTF-8")
	}
	var at strictjson.Nesting
	for _, c := range data {
		if at.Next(c); at.Depth > maxDepth {
			return nil, invalid("", "the body is nested more than %d deep", maxDepth)
		}
	}
	return parseObject(data, "")
}

func parseObject(data []byte, path string) (*fields, *apiError) {
	where := path
	if where == "" {
		where = "the body"
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		if err != nil && err != io.EOF {
			return nil, invalid(path, "%s is not JSON: %v", where, err)
		}
		return nil, invalid(path, "%s is not a JSON object", where)
	}
	f := &fields{values: map[string]json.RawMessage{}, path: path}
	for dec.More() {
		before := dec.InputOffset()
		t, err := dec.Token()
		if err != nil {
			return nil, invalid(path, "%s is not JSON: %v", where, err)
		}
		if half := loneSurrogate(data[before:dec.InputOffset()]); half != "" {
			return nil, invalid(path, "a key of %s has %s, half of a surrogate pair, which is no character", where, half)
		}
		key := t.(string)
		if _, ok := f.values[key]; ok {
			return nil, invalid(f.name(key), "%q is given twice", f.name(key))
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, invalid(f.name(key), "%q is not JSON: %v", f.name(key), err)
		}
		if path == "" { // values of nested objects are part of those of the body
			if half := loneSurrogate(value); half != "" {
				return nil, invalid(key, "%s: there is %s, half of a surrogate pair, which is no character", key, half)
			}
		}
		f.values[key] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, invalid(path, "%s is not JSON: %v", where, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, invalid(path, "there is something behind %s", where)
	}
	return f, nil
}

// loneSurrogate returns the first escape in JSON text that is half of a surrogate pair
// without the other half; empty if there is none.
func loneSurrogate(text []byte) string {
	for {
		i := bytes.IndexByte(text, '\\')
		if i < 0 {
			return ""
		}
		text = text[i:]
		switch r := escapedUnit(text); {
		case r < 0:
			text = text[min(2, len(text)):]
		case !utf16.IsSurrogate(r):
			text = text[6:]
		case utf16.DecodeRune(r, escapedUnit(text[6:])) == utf8.RuneError:
			return string(text[:6])
		default:
			text = text[12:]
		}
	}
}

// escapedUnit returns the UTF-16 unit of the \u escape at the beginning of a text; -1 if
// there is none.
func escapedUnit(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	r, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(r)
}

func (f *fields) name(key string) string {
	if f.path == "" {
		return key
	}
	return f.path + "." + key
}

func (f *fields) fail(key, format string, args ...any) {
	if f.err == nil {
		f.err = invalid(f.name(key), "%s: %s", f.name(key), fmt.Sprintf(format, args...))
	}
}

// raw returns a value; nil if it is absent or null.
func (f *fields) raw(key string) json.RawMessage {
	if v := f.values[key]; string(v) != "null" {
		return v
	}
	return nil
}

func (f *fields) has(key string) bool { return f.raw(key) != nil }

// kind names the type of a value.
func kind(v json.RawMessage) string {
	switch v[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "a truth value"
	case 'n':
		return "null"
	}
	return "a number"
}

func (f *fields) str(key string) string {
	v := f.raw(key)
	if v == nil {
		return ""
	}
	var s string
	if err := json.Unmarshal(v, &s); err != nil {
		f.fail(key, "found %s, expected a string", kind(v))
	}
	return s
}

func (f *fields) boolean(key string) bool {
	v := f.raw(key)
	var b bool
	if v != nil && json.Unmarshal(v, &b) != nil {
		f.fail(key, "found %s, expected true or false", kind(v))
	}
	return b
}

func (f *fields) number(key string, def, lo, hi float64) float64 {
	v := f.raw(key)
	if v == nil {
		return def
	}
	if kind(v) != "a number" {
		f.fail(key, "found %s, expected a number", kind(v))
		return def
	}
	x, err := strconv.ParseFloat(string(v), 64)
	if err != nil && !math.IsInf(x, 0) || !(x >= lo && x <= hi) {
		f.fail(key, "found %.20s, expected %s", v, between(lo, hi))
		return def
	}
	return x
}

// between says in words which numbers are allowed. It omits upper bounds that only keep
// numbers within their type.
func between(lo, hi float64) string {
	if hi >= 1<<30 {
		return fmt.Sprintf("at least %g", lo)
	}
	return fmt.Sprintf("%g to %g", lo, hi)
}

func (f *fields) integer(key string, def, lo, hi int) int {
	v := f.raw(key)
	if v == nil {
		return def
	}
	x := f.number(key, float64(def), float64(lo), float64(hi))
	if x != math.Trunc(x) {
		f.fail(key, "found %.20s, expected a whole number", v)
		return def
	}
	return int(x)
}

// seed reads an int64 exactly.
func (f *fields) seed(key string) (uint64, bool) {
	v := f.raw(key)
	if v == nil {
		return 0, false
	}
	x, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		f.fail(key, "found %.30s, expected a whole number of 64 bits", v)
	}
	return uint64(x), true
}

// list returns the elements of a list, at most n.
func (f *fields) list(key string, n int) []json.RawMessage {
	v := f.raw(key)
	if v == nil {
		return nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(v, &list); err != nil {
		f.fail(key, "found %s, expected a list", kind(v))
	} else if len(list) > n {
		f.fail(key, "found %d elements, expected at most %d", len(list), n)
		return nil
	}
	return list
}

// texts reads a string or a list of at most n strings.
func (f *fields) texts(key string, n int) []string {
	v := f.raw(key)
	if v == nil {
		return nil
	}
	if v[0] == '"' {
		return []string{f.str(key)}
	}
	var out []string
	for i, v := range f.list(key, n) {
		var s string
		if string(v) == "null" || json.Unmarshal(v, &s) != nil {
			f.fail(fmt.Sprintf("%s[%d]", key, i), "found %s, expected a string", kind(v))
		}
		out = append(out, s)
	}
	return out
}

// tokens reads a list of token ids below vocab; of a list longer than n, it returns n+1.
func (f *fields) tokens(key string, v json.RawMessage, vocab, n int) []int32 {
	dec := json.NewDecoder(bytes.NewReader(v)) // undecoded numbers take much memory
	dec.UseNumber()
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		f.fail(key, "expected a list of token ids")
		return nil
	}
	var out []int32
	for len(out) <= n && dec.More() {
		t, err := dec.Token()
		number, ok := t.(json.Number)
		if err != nil || !ok {
			f.fail(key, "expected a list of token ids")
			return nil
		}
		x, err := strconv.ParseInt(string(number), 10, 32)
		if err != nil || x < 0 || int(x) >= vocab {
			f.fail(key, "token %d is %.20s, expected 0 to %d", len(out), number, vocab-1)
			return nil
		}
		out = append(out, int32(x))
	}
	return out
}

// object reads a nested object; nil if it is absent.
func (f *fields) object(key string) *fields {
	v := f.raw(key)
	if v == nil {
		return nil
	}
	if v[0] != '{' {
		f.fail(key, "found %s, expected an object", kind(v))
		return nil
	}
	o, err := parseObject(v, f.name(key))
	if err != nil && f.err == nil {
		f.err = err
	}
	return o
}
