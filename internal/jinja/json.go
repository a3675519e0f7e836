package jinja

import (
	"fmt"
	"math"
	"slices"
)

// jsonWriter is Python's json.dumps with its options.
type jsonWriter struct {
	*builder
	ascii     bool
	sortKeys  bool
	indented  bool
	indent    text // of one level
	item, key text // separators
}

func filterToJSON(r *run, a []any) any {
	w := &jsonWriter{builder: r.builder(), ascii: truthy(a[1]), sortKeys: truthy(a[4]), item: own(", "), key: own(": ")}
	if a[2] != nil {
		w.indented = true
		w.item = own(",")
		if t, ok := a[2].(text); ok {
			w.indent = t
		} else {
			w.indent = r.repeat(own(" "), intArg(a[2], "tojson indent"))
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
	return w.text()
}

func (w *jsonWriter) newline(level int) {
	if !w.indented {
		return
	}
	w.put("\n", false)
	w.r.step(level)
	for range level {
		w.add(w.indent)
	}
}

func (w *jsonWriter) value(v any, level int) {
	r := w.r
	r.step(1)
	r.enter()
	defer r.leave()
	switch v := v.(type) {
	case text:
		w.string(v)
	case nil, bool, int64, wide, float64:
		w.put(jsonScalar(v), false)
	case []any:
		w.list(v, level)
	case tuple:
		w.list(v.elems, level)
	case *dict:
		w.object(v, level)
	case *undefined:
		failf("tojson: undefined value is not JSON serializable: %v", v)
	default:
		failf("tojson: '%s' object is not JSON serializable", typeName(v))
	}
}

func jsonScalar(v any) string {
	if f, ok := v.(float64); ok {
		switch {
		case math.IsNaN(f):
			return "NaN"
		case math.IsInf(f, 1):
			return "Infinity"
		case math.IsInf(f, -1):
			return "-Infinity"
		}
	}
	return scalar(v, "null", "true", "false")
}

func (w *jsonWriter) list(elems []any, level int) {
	if len(elems) == 0 {
		w.put("[]", false)
		return
	}
	w.put("[", false)
	for i, e := range elems {
		if i > 0 {
			w.add(w.item)
		}
		w.newline(level + 1)
		w.value(e, level+1)
	}
	w.newline(level)
	w.put("]", false)
}

func (w *jsonWriter) object(d *dict, level int) {
	if d.len() == 0 {
		w.put("{}", false)
		return
	}
	w.r.allocTimes(d.len(), 8)
	order := make([]int, d.len())
	for i := range order {
		order[i] = i
	}
	if w.sortKeys {
		slices.SortStableFunc(order, func(i, j int) int { return w.r.compare(d.keys[i], d.keys[j], "<") })
	}
	w.put("{", false)
	for n, i := range order {
		if n > 0 {
			w.add(w.item)
		}
		w.newline(level + 1)
		switch key := d.keys[i].(type) {
		case text:
			w.string(key)
		case nil, bool, int64, wide, float64:
			w.string(own(jsonScalar(key)))
		default:
			failf("tojson: keys must be strings, numbers, booleans or none, found '%s'", typeName(key))
		}
		w.add(w.key)
		w.value(d.vals[i], level+1)
	}
	w.newline(level)
	w.put("}", false)
}

// string writes a JSON string. Its quotes are the template's; its content,
// including escapes, keeps its marks.
func (w *jsonWriter) string(t text) {
	w.put(`"`, false)
	w.add(w.r.mapRunes(t, func(c rune) string {
		switch c {
		case '"':
			return `\"`
		case '\\':
			return `\\`
		case '\n':
			return `\n`
		case '\r':
			return `\r`
		case '\t':
			return `\t`
		case '\b':
			return `\b`
		case '\f':
			return `\f`
		}
		switch {
		case c < 0x20 || w.ascii && 0x7f <= c && c < 0x10000:
			return fmt.Sprintf(`\u%04x`, c)
		case w.ascii && c >= 0x10000:
			c -= 0x10000
			return fmt.Sprintf(`\u%04x\u%04x`, 0xd800+c>>10, 0xdc00+c&0x3ff)
		}
		return ""
	}))
	w.put(`"`, false)
}
