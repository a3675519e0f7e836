package chat

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"
)

// jsonWriter is Python's json.dumps with its options.
type jsonWriter struct {
	r         *run
	b         strings.Builder
	ascii     bool
	sortKeys  bool
	indented  bool
	indent    string // of one level
	item, key string // separators
}

func filterToJSON(r *run, a []any) any {
	w := &jsonWriter{r: r, ascii: truthy(a[1]), sortKeys: truthy(a[4]), item: ", ", key: ": "}
	if a[2] != nil {
		w.indented = true
		w.item = ","
		if s, ok := asString(a[2]); ok {
			w.indent = s
		} else {
			w.indent = r.repeatText(" ", intArg(a[2], "tojson indent"))
		}
	}
	if a[3] != nil {
		parts := r.list(a[3])
		if len(parts) != 2 {
			failf("tojson separators: found %d, expected 2", len(parts))
		}
		w.item, w.key = textArg(parts[0], "tojson separator"), textArg(parts[1], "tojson separator")
	}
	w.value(a[0], 0)
	return w.b.String()
}

func (w *jsonWriter) put(s string) {
	w.r.alloc(len(s))
	w.b.WriteString(s)
}

func (w *jsonWriter) newline(level int) {
	if w.indented {
		w.put("\n")
		w.put(w.r.repeatText(w.indent, level))
	}
}

func (w *jsonWriter) value(v any, level int) {
	r := w.r
	r.step(1)
	r.enter()
	defer r.leave()
	if s, ok := asString(v); ok {
		w.string(s)
		return
	}
	switch v := v.(type) {
	case nil, bool, int64, *big.Int, float64:
		w.put(jsonScalar(v))
	case []any:
		w.list(v, level)
	case tuple:
		w.list(v.elems, level)
	case *Object:
		w.object(v, level)
	default:
		if u, ok := v.(*undefined); ok {
			failf("tojson: undefined value is not JSON serializable: %s", u.why)
		}
		failf("tojson: '%s' object is not JSON serializable", typeName(v))
	}
}

func jsonScalar(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		if v {
			return "true"
		}
		return "false"
	case float64:
		switch {
		case math.IsNaN(v):
			return "NaN"
		case math.IsInf(v, 1):
			return "Infinity"
		case math.IsInf(v, -1):
			return "-Infinity"
		}
		return formatFloat(v)
	}
	return formatInt(v)
}

func (w *jsonWriter) list(elems []any, level int) {
	if len(elems) == 0 {
		w.put("[]")
		return
	}
	w.put("[")
	for i, e := range elems {
		if i > 0 {
			w.put(w.item)
		}
		w.newline(level + 1)
		w.value(e, level+1)
	}
	w.newline(level)
	w.put("]")
}

func (w *jsonWriter) object(o *Object, level int) {
	if o.Len() == 0 {
		w.put("{}")
		return
	}
	order := make([]int, o.Len())
	for i := range order {
		order[i] = i
	}
	if w.sortKeys {
		slices.SortStableFunc(order, func(i, j int) int {
			w.r.step(1)
			return w.r.compare(o.keys[i], o.keys[j], "<")
		})
	}
	w.put("{")
	for n, i := range order {
		if n > 0 {
			w.put(w.item)
		}
		w.newline(level + 1)
		switch key := o.keys[i].(type) {
		case string:
			w.string(key)
		case nil, bool, int64, *big.Int, float64:
			w.string(jsonScalar(key))
		default:
			failf("tojson: keys must be strings, numbers, booleans or none, found '%s'", typeName(key))
		}
		w.put(w.key)
		w.value(o.vals[i], level+1)
	}
	w.newline(level)
	w.put("}")
}

func (w *jsonWriter) string(s string) {
	w.r.alloc(len(s) + 2)
	b := &w.b
	b.WriteByte('"')
	from := 0
	for i, n := 0, 0; i < len(s); i += n {
		n = 1
		esc := ""
		switch c := s[i]; {
		case c == '"':
			esc = `\"`
		case c == '\\':
			esc = `\\`
		case c == '\n':
			esc = `\n`
		case c == '\r':
			esc = `\r`
		case c == '\t':
			esc = `\t`
		case c == '\b':
			esc = `\b`
		case c == '\f':
			esc = `\f`
		case c < 0x20 || c == 0x7f && w.ascii:
			esc = fmt.Sprintf(`\u%04x`, c)
		case c >= utf8.RuneSelf:
			var x rune
			x, n = utf8.DecodeRuneInString(s[i:])
			switch {
			case !w.ascii:
			case x >= 0x10000:
				x -= 0x10000
				esc = fmt.Sprintf(`\u%04x\u%04x`, 0xd800+x>>10, 0xdc00+x&0x3ff)
			default:
				esc = fmt.Sprintf(`\u%04x`, x)
			}
		}
		if esc == "" {
			continue
		}
		w.r.alloc(len(esc))
		b.WriteString(s[from:i])
		b.WriteString(esc)
		from = i + n
	}
	b.WriteString(s[from:])
	b.WriteByte('"')
}
