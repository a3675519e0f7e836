package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/lukv/lukv/internal/strictjson"
	"github.com/lukv/lukv/internal/turns"
	"github.com/lukv/lukv/tokenizer/chat"
)

// maxDepth bounds the nesting of requests.
const maxDepth = 64

// fields reads the values of a JSON object. Keys are exact, null is absent, unknown
// keys are ignored, and the first value of a wrong type or out of range is kept in err.
// Values are views of the body, which strictjson has checked: a request cannot mean one
// thing here and another to a gateway in front.
type fields struct {
	values map[string]json.RawMessage
	path   string // precedes names in errors
	err    *apiError

	ctx context.Context // of the request

	size  int // of the body in bytes, and its objects and arrays; not set for objects
	parts int // within it
}

func newFields(ctx context.Context, path string) *fields {
	return &fields{ctx: ctx, values: map[string]json.RawMessage{}, path: path}
}

// parseBody reads the object that a request consists of.
func parseBody(ctx context.Context, data []byte) (*fields, error) {
	f := newFields(ctx, "")
	at := "" // the field that is being read
	s := scanner(ctx, data, maxDepth)
	err := s.Object("an object", func(key string) error {
		at = key
		value, err := s.Raw()
		if f.values[key] = value; err == nil {
			at = ""
		}
		return err
	})
	if err == nil {
		err = s.End()
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		if at != "" {
			return nil, invalid(at, "%s: %v", at, err)
		}
		return nil, invalid("", "read the body: %v", err)
	}
	f.parts = s.Parts()
	return f, nil
}

// scanner returns a scanner that reads in turns.
func scanner(ctx context.Context, text []byte, depth int) *strictjson.Scanner {
	s := strictjson.NewScanner(text, depth)
	s.Pause = func() error { return turns.Check(ctx) }
	return s
}

// parseObject reads an object within a body, which has been checked.
func parseObject(ctx context.Context, text []byte, path string) *fields {
	f := newFields(ctx, path)
	s := scanner(ctx, text, math.MaxInt)
	_ = s.Members("an object", func(key string) error {
		value, err := s.Outline()
		f.values[key] = value
		return err
	})
	return f
}

// errSurplus ends a list that is longer than it may be.
var errSurplus = errors.New("too many elements")

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

// noteRead, if not nil, is told which keys of requests are looked for; tests compare them
// with those described.
var noteRead func(r context.Context, key string)

// raw returns a value; nil if it is absent or null.
func (f *fields) raw(key string) json.RawMessage {
	if noteRead != nil && f.size > 0 {
		noteRead(f.ctx, key)
	}
	if v := f.values[key]; string(v) != "null" {
		return v
	}
	return nil
}

func (f *fields) has(key string) bool { return f.raw(key) != nil }

// kind names the type of a value.
func kind(v json.RawMessage) string { return strictjson.KindOf(v) }

// unquote returns the string that a value within a body is; false if it is none.
func unquote(ctx context.Context, v json.RawMessage) (string, bool) {
	s, err := scanner(ctx, v, 0).String("a string")
	return s, err == nil
}

func (f *fields) str(key string) string {
	v := f.raw(key)
	if v == nil {
		return ""
	}
	s, ok := unquote(f.ctx, v)
	if !ok {
		f.fail(key, "found %s, expected a string", kind(v))
	}
	return s
}

func (f *fields) boolean(key string) bool {
	v := f.raw(key)
	if v == nil {
		return false
	}
	b, err := strictjson.NewScanner(v, 0).Bool()
	if err != nil {
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
		f.fail(key, "found %.20s, expected %s", v, between(x, lo, hi))
		return def
	}
	return x
}

// between says in words which numbers are allowed instead of x. Of bounds that only keep
// numbers within their type, it names the one that x exceeds.
func between(x, lo, hi float64) string {
	switch {
	case hi < 1<<30:
		return fmt.Sprintf("%g to %g", lo, hi)
	case x > hi:
		return fmt.Sprintf("at most %.0f", hi)
	}
	return fmt.Sprintf("at least %g", lo)
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
	if v[0] != '[' {
		f.fail(key, "found %s, expected a list", kind(v))
		return nil
	}
	var list []json.RawMessage
	s := scanner(f.ctx, v, math.MaxInt)
	err := s.Array("a list", func(i int) error {
		if i == n {
			return errSurplus
		}
		e, err := s.Outline()
		list = append(list, e)
		return err
	})
	if err != nil {
		f.fail(key, "found more than %d elements, expected at most %d", n, n)
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
		s, ok := unquote(f.ctx, v)
		if !ok {
			f.fail(fmt.Sprintf("%s[%d]", key, i), "found %s, expected a string", kind(v))
		}
		out = append(out, s)
	}
	return out
}

// tokens reads a list of token ids below vocab; of a list longer than n, it returns n+1.
func (f *fields) tokens(key string, v json.RawMessage, vocab, n int) []int32 {
	if v[0] != '[' {
		f.fail(key, "found %s, expected a list of token ids", kind(v))
		return nil
	}
	var out []int32
	s := scanner(f.ctx, v, 1)
	err := s.Array("a list of token ids", func(i int) error {
		if i > n {
			return errSurplus
		}
		e, err := s.Outline()
		if err != nil {
			return err
		}
		id, err := strictjson.NewScanner(e, 0).Int(0, int64(vocab-1))
		if err != nil {
			f.fail(fmt.Sprintf("%s[%d]", key, i), "found %.20s, expected a token id from 0 to %d", e, vocab-1)
			return err
		}
		out = append(out, int32(id))
		return nil
	})
	if err != nil && !errors.Is(err, errSurplus) {
		return nil
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
	return parseObject(f.ctx, v, f.name(key))
}

// exactKeys returns the first key, in the object that a value within a body is or in one
// within it, that is not written in lower case: encoding/json would take it for another.
func exactKeys(ctx context.Context, v json.RawMessage) (wrong string) {
	if len(v) == 0 || v[0] != '{' {
		return ""
	}
	for key, value := range parseObject(ctx, v, "").values {
		for i := range len(key) {
			if c := key[i]; !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '_') {
				return key
			}
		}
		if wrong := exactKeys(ctx, value); wrong != "" {
			return wrong
		}
	}
	return ""
}

// maxEmbedded bounds JSON whose values are made all at once, without a pause.
const maxEmbedded = 1 << 20

// embedded reads an object that a text holds, and counts the memory that it takes.
func (f *fields) embedded(key string, into *chat.Object) {
	text := []byte(f.str(key))
	if len(text) == 0 {
		return
	}
	if len(text) > maxEmbedded {
		f.fail(key, "found %d bytes, expected at most %d", len(text), maxEmbedded)
		return
	}
	s := scanner(f.ctx, text, maxDepth)
	err := cmp.Or(s.Skip(), s.End())
	if err == nil {
		f.charge(partCost * int64(s.Parts()))
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		f.fail(key, "expected a text that is a JSON object: %v", err)
	}
}

// charge counts n more bytes of the request.
func (f *fields) charge(n int64) {
	if err := holdsOf(f.ctx).charge.take(n, forRequests); err != nil && f.err == nil {
		f.err = asError(err, 0)
	}
}
