package grammar

import (
	"fmt"
	"maps"
	"slices"
)

const (
	dateFormat = `(\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))` +
		`|(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)`
	timeFormat = `([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)`
	octet      = `(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)`
	emailAtom  = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
)

// formats are the enforced values of the keyword format, as patterns. None allows more
// than its standard: RFC 3339 without leap seconds, RFC 9562, RFC 5321 without quotation
// marks and addresses in brackets, RFC 2673. The parts of email addresses are short
// enough for their sum to stay within the limits of the standard.
var formats = map[string]string{
	"date":      "^" + dateFormat + "$",
	"time":      "^" + timeFormat + "$",
	"date-time": "^" + dateFormat + "T" + timeFormat + "$",
	"uuid":      `^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`,
	"email":     "^" + emailAtom + `(\.` + emailAtom + `){0,2}@([A-Za-z0-9]([A-Za-z0-9-]{0,38}[A-Za-z0-9])?\.){1,3}[A-Za-z]{2,60}$`,
	"ipv4":      `^(` + octet + `\.){3}` + octet + `$`,
}

// text returns the rule of strings.
func (s *schemas) text(o *object, path string) (int32, error) {
	least, most, err := counts(o, "minLength", "maxLength", path)
	if err != nil {
		return 0, err
	}
	pattern, key := "", ""
	for _, k := range []string{"pattern", "format"} {
		v, ok := o.values[k]
		if !ok {
			continue
		}
		if key != "" {
			return 0, fmt.Errorf("schema at %s: the keyword %q is not supported beside %q", path, k, key)
		}
		key = k
		if pattern, ok = v.(string); !ok {
			return 0, fmt.Errorf("schema at %s/%s: found %s, expected a text", path, k, typeOf(v))
		}
	}
	if key == "" {
		return s.c.characters(least, most), nil
	}
	if key == "format" {
		name := pattern
		var ok bool
		if pattern, ok = formats[name]; !ok {
			return 0, fmt.Errorf("schema at %s/format: %.40q is not supported, expected one of %q", path, name, slices.Sorted(maps.Keys(formats)))
		}
	}
	r, err := s.c.pattern(pattern, least, most)
	if err != nil {
		return 0, fmt.Errorf("schema at %s/%s: %w", path, key, err)
	}
	return r, nil
}
