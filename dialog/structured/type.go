package structured

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SchemaOf returns the JSON Schema of a Go type, as encoding/json reads it: the exported fields
// of structs under the names of their json tags, in order, and no others. A field is required
// unless it is tagged omitempty or omitzero; a pointer that is required may be null. Integers
// have the bounds of their type, []byte is base64, time.Time is a date and time of RFC 3339,
// other types with UnmarshalText are strings, and any is any value.
//
// A tag jsonschema:"KEY=VALUE,..." says more about the values of a field, or about the items of
// a list: description, enum (once for each of its texts), pattern, format, minLength,
// maxLength, minimum, maximum; minItems and maxItems are about the list. A comma in a value is
// written \\,.
//
// Channels, functions, complex numbers, maps without string keys, the json option "string",
// and types with UnmarshalJSON have no schema.
func SchemaOf[T any]() ([]byte, error) {
	w := &typeWriter{defs: map[reflect.Type]string{}}
	t := reflect.TypeFor[T]()
	text, err := w.value(t, nil)
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", t, err)
	}
	if len(w.texts) > 0 {
		text = fmt.Appendf(nil, `%s,"$defs":{%s}}`, text[:len(text)-1], strings.Join(w.texts, ","))
	}
	return text, nil
}

// typeWriter writes the schemas of types. Those that contain themselves are definitions.
type typeWriter struct {
	open  []reflect.Type          // being written
	defs  map[reflect.Type]string // names of those found in themselves
	texts []string                // of definitions
}

var (
	timeType   = reflect.TypeFor[time.Time]()
	rawType    = reflect.TypeFor[json.RawMessage]()
	numberType = reflect.TypeFor[json.Number]()
	fromJSON   = reflect.TypeFor[json.Unmarshaler]()
	fromText   = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// base64Pattern is the standard encoding with padding.
const base64Pattern = `"pattern":"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"`

// value returns the schema of a type with the further keywords of a tag, an object.
func (w *typeWriter) value(t reflect.Type, more []string) ([]byte, error) {
	switch pointer := reflect.PointerTo(t); {
	case t == timeType:
		return schema(more, `"type":"string"`, `"format":"date-time"`), nil
	case t == rawType:
		return schema(more), nil
	case t == numberType:
		return schema(more, `"type":"number"`), nil
	case t.Kind() == reflect.Pointer:
		inner, err := w.value(t.Elem(), more)
		return fmt.Appendf(nil, `{"anyOf":[%s,{"type":"null"}]}`, inner), err
	case pointer.Implements(fromJSON):
		return nil, fmt.Errorf("%s has an UnmarshalJSON of its own", t)
	case pointer.Implements(fromText):
		return schema(more, `"type":"string"`), nil
	}
	return w.kind(t, more)
}

// kind returns the schema of a type that encoding/json reads by its kind.
func (w *typeWriter) kind(t reflect.Type, more []string) ([]byte, error) {
	switch t.Kind() {
	case reflect.String:
		return schema(more, `"type":"string"`), nil
	case reflect.Bool:
		return schema(more, `"type":"boolean"`), nil
	case reflect.Float32, reflect.Float64:
		return schema(more, `"type":"number"`), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		high := int64(1)<<(t.Bits()-1) - 1
		return schema(more, integer(more, strconv.FormatInt(-high-1, 10), strconv.FormatInt(high, 10))...), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		high := ^uint64(0) >> (64 - t.Bits())
		return schema(more, integer(more, "0", strconv.FormatUint(high, 10))...), nil
	case reflect.Slice, reflect.Array:
		return w.list(t, more)
	case reflect.Struct:
		return w.structure(t, more)
	case reflect.Interface:
		if t.NumMethod() == 0 {
			return schema(more), nil
		}
	case reflect.Map:
		if t.Key().Kind() == reflect.String && !reflect.PointerTo(t.Key()).Implements(fromText) {
			inner, err := w.value(t.Elem(), nil)
			return schema(more, `"type":"object"`, `"additionalProperties":`+string(inner)), err
		}
	}
	return nil, fmt.Errorf("%s has no values in JSON that could be told beforehand", t)
}

// schema returns a schema with keywords and those of a tag.
func schema(more []string, keywords ...string) []byte {
	return []byte("{" + strings.Join(slices.Concat(keywords, more), ",") + "}")
}

// integer returns the keywords of integers, with bounds unless a tag has its own.
func integer(more []string, low, high string) []string {
	out := []string{`"type":"integer"`}
	for _, bound := range [][2]string{{`"maximum":`, high}, {`"minimum":`, low}} {
		if !slices.ContainsFunc(more, func(m string) bool { return strings.HasPrefix(m, bound[0]) }) {
			out = append(out, bound[0]+bound[1])
		}
	}
	return out
}

// list returns the schema of a slice or an array.
func (w *typeWriter) list(t reflect.Type, more []string) ([]byte, error) {
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
		return schema(more, `"type":"string"`, base64Pattern), nil
	}
	list, items := []string{`"type":"array"`}, []string(nil)
	for _, m := range more {
		if strings.HasPrefix(m, `"minItems"`) || strings.HasPrefix(m, `"maxItems"`) || strings.HasPrefix(m, `"description"`) {
			list = append(list, m)
		} else {
			items = append(items, m)
		}
	}
	if t.Kind() == reflect.Array {
		list = append(list, fmt.Sprintf(`"minItems":%d,"maxItems":%[1]d`, t.Len()))
	}
	inner, err := w.value(t.Elem(), items)
	if err != nil {
		return nil, err
	}
	return schema(nil, append(list, `"items":`+string(inner))...), nil
}

// structure returns the schema of a struct, or a reference to it within itself.
func (w *typeWriter) structure(t reflect.Type, more []string) ([]byte, error) {
	if slices.Contains(w.open, t) && w.defs[t] == "" {
		w.defs[t] = fmt.Sprintf("type%d", len(w.defs)+1)
	}
	refer := func() []byte {
		return fmt.Appendf(nil, `{"$ref":"#/$defs/%s"}`, w.defs[t])
	}
	if w.defs[t] != "" {
		return refer(), nil
	}
	w.open = append(w.open, t)
	fields, err := fieldsOf(t)
	if err != nil {
		return nil, err
	}
	var properties bytes.Buffer
	required := []string{}
	for i, f := range fields {
		keywords, err := tagged(f.Tag.Get("jsonschema"))
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", f.Name, err)
		}
		of := f.Type
		if f.optional && of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		value, err := w.value(of, keywords)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", f.Name, err)
		}
		if !f.optional {
			required = append(required, f.key)
		}
		if i > 0 {
			properties.WriteByte(',')
		}
		fmt.Fprintf(&properties, "%s:%s", quoted(f.key), value)
	}
	w.open = w.open[:len(w.open)-1]
	text := schema(more, `"type":"object"`, fmt.Sprintf(`"properties":{%s}`, &properties), `"required":`+quoted(required), `"additionalProperties":false`)
	if w.defs[t] == "" {
		return text, nil
	}
	w.texts = append(w.texts, fmt.Sprintf("%q:%s", w.defs[t], text))
	return refer(), nil
}

// quoted returns a text, or a list of texts, as JSON.
func quoted(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // texts can be written
	return strings.TrimSpace(b.String())
}

// field is one that encoding/json reads.
type field struct {
	reflect.StructField
	key      string
	optional bool
}

// fieldsOf returns the fields of a struct and those of structs embedded in it.
func fieldsOf(t reflect.Type) ([]field, error) {
	var out []field
	at := map[string]int{}
	for _, f := range reflect.VisibleFields(t) {
		key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		plain := f.Type
		if plain.Kind() == reflect.Pointer {
			plain = plain.Elem()
		}
		embeds := f.Anonymous && key == "" && plain.Kind() == reflect.Struct // its fields follow
		if embeds || !f.IsExported() && !(f.Anonymous && plain.Kind() == reflect.Struct) || f.Tag.Get("json") == "-" || hiddenIn(t, f.Index) {
			continue
		}
		if key == "" {
			key = f.Name
		}
		for option := range strings.SplitSeq(options, ",") {
			if option == "string" {
				return nil, fmt.Errorf("field %s: the option string of its json tag is not supported", f.Name)
			}
		}
		x := field{f, key, slices.ContainsFunc(strings.Split(options, ","), func(o string) bool { return o == "omitempty" || o == "omitzero" })}
		switch i, twice := at[key]; {
		case !twice:
			at[key] = len(out)
			out = append(out, x)
		case len(out[i].Index) == len(f.Index):
			return nil, fmt.Errorf("field %s: another one is called %q, too", f.Name, key)
		case len(out[i].Index) > len(f.Index): // the outer one counts
			out[i] = x
		}
	}
	return out, nil
}

// hiddenIn reports whether a field is part of an embedded struct that has a name of its own
// in JSON, or none.
func hiddenIn(t reflect.Type, index []int) bool {
	for i := 1; i < len(index); i++ {
		if tag, _, _ := strings.Cut(t.FieldByIndex(index[:i]).Tag.Get("json"), ","); tag != "" {
			return true
		}
	}
	return false
}

// tagged returns the keywords of a jsonschema tag.
func tagged(tag string) ([]string, error) {
	var out, enum []string
	for part := range strings.SplitSeq(strings.ReplaceAll(tag, `\,`, "\x00"), ",") {
		if tag == "" {
			break
		}
		key, value, _ := strings.Cut(strings.ReplaceAll(part, "\x00", ","), "=")
		switch key {
		case "enum":
			enum = append(enum, value)
		case "description", "pattern", "format":
			out = append(out, fmt.Sprintf("%q:%s", key, quoted(value)))
		case "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems":
			if _, err := strconv.ParseFloat(value, 64); err != nil {
				return nil, fmt.Errorf("jsonschema tag: found %s=%s, expected a number", key, value)
			}
			out = append(out, fmt.Sprintf("%q:%s", key, value))
		default:
			return nil, fmt.Errorf("jsonschema tag: found the key %q, expected description, enum, pattern, format, minLength, maxLength, minimum, maximum, minItems or maxItems", key)
		}
	}
	if enum != nil {
		out = append(out, `"enum":`+quoted(enum))
	}
	return out, nil
}
