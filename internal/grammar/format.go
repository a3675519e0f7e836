package grammar

import (
	"fmt"
)

const (
	dateFormat = `(\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))` +
		`|(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)`
	timeFormat = `([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)`
	octet      = `(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)`
	hexGroup   = "[0-9A-Fa-f]{1,4}"
	clock      = `(\d{1,4}H(\d{1,2}M(\d{1,2}S)?)?|\d{1,4}M(\d{1,2}S)?|\d{1,4}S)`
	host       = `([A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?\.){0,4}[A-Za-z]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?`
	emailAtom  = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
)

// formats are the enforced values of the keyword format, as patterns. None allows more
// than its standard: RFC 3339 without leap seconds, RFC 9562, RFC 5321 without quotation
// marks and addresses in brackets, RFC 2673, RFC 4291 without IPv4 parts, RFC 1123, RFC 3986
// with a host, and the durations of RFC 3339. The parts of email addresses are short
// enough for their sum to stay within the limits of the standard.
var formats = map[string]string{
	"date":      "^" + dateFormat + "$",
	"time":      "^" + timeFormat + "$",
	"date-time": "^" + dateFormat + "T" + timeFormat + "$",
	"uuid":      `^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`,
	"email":     "^" + emailAtom + `(\.` + emailAtom + `){0,2}@([A-Za-z0-9]([A-Za-z0-9-]{0,38}[A-Za-z0-9])?\.){1,3}[A-Za-z]{2,60}$`,
	"ipv4":      `^(` + octet + `\.){3}` + octet + `$`,
	"ipv6": "^((" + hexGroup + ":){7}" + hexGroup + "|(" + hexGroup + ":){1,7}:|(" + hexGroup + ":){1,6}:" + hexGroup +
		"|(" + hexGroup + ":){1,5}(:" + hexGroup + "){2}|(" + hexGroup + ":){1,4}(:" + hexGroup + "){3}|(" + hexGroup + ":){1,3}(:" + hexGroup + "){4}" +
		"|(" + hexGroup + ":){1,2}(:" + hexGroup + "){5}|" + hexGroup + ":(:" + hexGroup + "){6}|:((:" + hexGroup + "){1,7}|:))$",
	"duration": `^P(\d{1,4}W|(\d{1,4}Y(\d{1,2}M(\d{1,2}D)?)?|\d{1,4}M(\d{1,2}D)?|\d{1,4}D)(T` + clock + `)?|T` + clock + `)$`,
	"hostname": "^" + host + "$",
	"uri":      `^[A-Za-z][A-Za-z0-9+.-]{0,15}://` + host + `(:[1-9]\d{0,3})?(/[A-Za-z0-9._~!$&'()*+,;=:@/-]*(\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?)?$`,
	"uuid1":    uuidOf("1"), "uuid3": uuidOf("3"), "uuid4": uuidOf("4"), "uuid5": uuidOf("5"), "uuid6": uuidOf("6"), "uuid7": uuidOf("7"), "uuid8": uuidOf("8"),
}

// uuidOf returns the pattern of a version's UUIDs, under the names that pydantic gives them.
func uuidOf(version string) string {
	return `^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-` + version + `[0-9A-Fa-f]{3}-[89ABab][0-9A-Fa-f]{3}-[0-9A-Fa-f]{12}$`
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
		if name, isText := v.(string); k == "format" && isText && formats[name] == "" {
			continue // an annotation, as JSON Schema has it
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
		pattern = formats[pattern]
	}
	r, err := s.c.pattern(pattern, least, most)
	if err != nil {
		return 0, fmt.Errorf("schema at %s/%s: %w", path, key, err)
	}
	return r, nil
}
