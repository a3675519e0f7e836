package grammar

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/lukv/lukv/internal/strictjson"
)

// object is a JSON object in the order in which it was written.
type object struct {
	keys   []string
	values map[string]any
}

// parse reads JSON: nil, bool, json.Number, string, []any, *object.
func parse(data []byte) (any, error) {
	s := strictjson.NewScanner(data, maxNesting)
	v, err := parseValue(s)
	if err == nil {
		err = s.End()
	}
	return v, err
}

func parseValue(s *strictjson.Scanner) (any, error) {
	switch s.Peek() {
	case '[':
		list := []any{}
		err := s.Array("a list", func(int) error {
			v, err := parseValue(s)
			list = append(list, v)
			return err
		})
		return list, err
	case '{':
		o := &object{values: map[string]any{}}
		err := s.Object("an object", func(key string) (err error) {
			o.keys = append(o.keys, key)
			o.values[key], err = parseValue(s)
			return err
		})
		return o, err
	case '"':
		return s.String("a text")
	case 't', 'f':
		return s.Bool()
	case 'n':
		if s.Null() {
			return nil, nil
		}
	}
	n, err := s.Number()
	return json.Number(n), err
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
