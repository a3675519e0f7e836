package grammar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// object is a JSON object in the order in which it was written.
type object struct {
	keys   []string
	values map[string]any
}

// parse reads JSON: nil, bool, json.Number, string, []any, *object.
func parse(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	v, err := parseValue(dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("there is something behind the value")
	}
	return v, nil
}

func parseValue(dec *json.Decoder, depth int) (any, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("it is nested deeper than %d", maxNesting)
	}
	t, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			v, err := parseValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := dec.Token()
		return list, err
	case json.Delim('{'):
		o := &object{values: map[string]any{}}
		for dec.More() {
			k, err := dec.Token()
			if err != nil {
				return nil, err
			}
			key := k.(string) // it cannot be anything else
			if _, ok := o.values[key]; ok {
				return nil, fmt.Errorf("%q is given twice", key)
			}
			if o.values[key], err = parseValue(dec, depth+1); err != nil {
				return nil, err
			}
			o.keys = append(o.keys, key)
		}
		_, err := dec.Token()
		return o, err
	}
	return t, nil
}

// quote writes a string as JSON, with no more escapes than necessary.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x20:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// compact writes a value without white space.
func compact(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return v.String()
	case string:
		return quote(v)
	case []any:
		list := make([]string, len(v))
		for i, x := range v {
			list[i] = compact(x)
		}
		return "[" + strings.Join(list, ",") + "]"
	case *object:
		list := make([]string, len(v.keys))
		for i, k := range v.keys {
			list[i] = quote(k) + ":" + compact(v.values[k])
		}
		return "{" + strings.Join(list, ",") + "}"
	}
	panic(fmt.Sprintf("a value of type %T", v))
}

// canonical writes a value so that equal ones are the same text: 1 and 1.0, and objects
// whose keys are in a different order.
func canonical(v any) string {
	switch v := v.(type) {
	case json.Number:
		digits, power := scientific(v)
		return digits + "e" + power.String()
	case []any:
		list := make([]string, len(v))
		for i, x := range v {
			list[i] = canonical(x)
		}
		return "[" + strings.Join(list, ",") + "]"
	case *object:
		var list []string
		for _, k := range slices.Sorted(slices.Values(v.keys)) {
			list = append(list, quote(k)+":"+canonical(v.values[k]))
		}
		return "{" + strings.Join(list, ",") + "}"
	}
	return compact(v)
}

// scientific returns a number as digits, without zeros at either end, and a power of
// ten.
func scientific(n json.Number) (digits string, power *big.Int) {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(n.String()), "e")
	power = new(big.Int)
	if exponent != "" {
		power.SetString(exponent, 10)
	}
	sign := ""
	if rest, ok := strings.CutPrefix(mantissa, "-"); ok {
		sign, mantissa = "-", rest
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	all := strings.TrimLeft(whole+fraction, "0")
	digits = strings.TrimRight(all, "0")
	if digits == "" {
		return "0", new(big.Int)
	}
	return sign + digits, power.Add(power, big.NewInt(int64(len(all)-len(digits)-len(fraction))))
}

// typeOf names the type of a value as schemas do.
func typeOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case json.Number:
		if _, power := scientific(v); power.Sign() < 0 {
			return "number"
		}
		return "integer"
	case string:
		return "string"
	case []any:
		return "array"
	}
	return "object"
}
