package jinja

import (
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"strconv"
	"strings"
)

// Mapping is an object supplied by the caller: keys in order, with values.
type Mapping interface {
	All() iter.Seq2[string, any]
}

// Trusted is a string from the caller that counts as the template's own text,
// such as the text of a special token.
type Trusted string

// maxInputDepth is how deep the caller's values may nest.
const maxInputDepth = 500

// maxDigits is how long an integer of the input may be: the limit of Python. Comparing two
// of them then takes no longer than other steps.
const maxDigits = 4300

// place is the position of a value in the input, for errors.
type place struct {
	up    *place
	key   string
	index int // if key is ""
	depth int
}

func (p *place) String() string {
	if p.up == nil {
		return p.key
	}
	if p.up.depth > 20 {
		return "…"
	}
	if p.key == "" {
		return p.up.String() + "[" + strconv.Itoa(p.index) + "]"
	}
	return fmt.Sprintf("%v.%.80s", p.up, p.key)
}

// input converts a caller's value to the language's own types. It copies lists
// and objects, charging for them.
func (r *run) input(v any, at *place) any {
	if at.depth > maxInputDepth {
		limitf("%v: values nested deeper than %d", at, maxInputDepth)
	}
	r.step(1)
	switch v := v.(type) {
	case nil:
		return nil
	case Trusted:
		return own(string(v))
	case json.Number:
		return inputNumber(v, at)
	case Mapping:
		if reflect.ValueOf(v).Kind() == reflect.Pointer && reflect.ValueOf(v).IsNil() {
			return nil
		}
		d := new(dict)
		for key, e := range v.All() {
			r.put(d, foreign(key), r.input(e, &place{up: at, key: key, depth: at.depth + 1}))
		}
		return d
	}
	switch x := reflect.ValueOf(v); x.Kind() {
	case reflect.Bool:
		return x.Bool()
	case reflect.String:
		return foreign(x.String())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return x.Int()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return inputNumber(json.Number(strconv.FormatUint(x.Uint(), 10)), at)
	case reflect.Float32, reflect.Float64:
		return x.Float()
	case reflect.Slice:
		r.allocTimes(x.Len(), valueBytes)
		list := make([]any, x.Len())
		for i := range list {
			list[i] = r.input(x.Index(i).Interface(), &place{up: at, index: i, depth: at.depth + 1})
		}
		return list
	case reflect.Map:
		failf("%v: found a Go map, expected an object that keeps the order of its keys", at)
	}
	failf("%v: found a Go value of type %T, expected a JSON value", at, v)
	return nil
}

// inputNumber converts a JSON number: with a fraction or an exponent to a
// float, otherwise to an integer of any size.
func inputNumber(n json.Number, at *place) any {
	s := string(n)
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i
	}
	if unsigned := strings.TrimPrefix(s, "-"); unsigned != "" && strings.Trim(unsigned, "0123456789") == "" {
		if len(unsigned) > maxDigits {
			failf("%v: found an integer of %d digits, expected at most %d", at, len(unsigned), maxDigits)
		}
		return wide(s)
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && f == 0 { // out of range is infinity, as in Python
		failf("%v: found the number %.80q, expected one of JSON's", at, s)
	}
	return f
}
