package lukv

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/lukv/lukv/internal/strictjson"
)

// Preset is a named set of parameters of a metric or an allocator, for
// [RegisterMetric] and [RegisterAllocator].
type Preset[T any] struct {
	Name  string
	Value T
}

// registry holds the metrics or the allocators that a configuration can name. Each is
// a struct type whose JSON is its parameters, with the defaults as a value.
type registry[T any] struct {
	kind string // "metric" or "allocator", for messages

	mu      sync.RWMutex
	order   []*registered[T]
	aliases map[string]string
}

type registered[T any] struct {
	name     string
	typ      reflect.Type
	defaults []byte // JSON of the parameters
	presets  []Preset[[]byte]
	fields   []string // names of the parameters
	unlisted bool
}

// unlist leaves a name out of names; it can still be read.
func (r *registry[T]) unlist(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.named(name).unlisted = true
}

// add registers a type. A bad one is a programming error and panics, as in
// package database/sql.
func (r *registry[T]) add(name string, defaults T, presets []Preset[T]) {
	fail := func(format string, args ...any) {
		panic(fmt.Sprintf("register %s %q: %s", r.kind, name, fmt.Sprintf(format, args...)))
	}
	typ := reflect.TypeOf(defaults)
	if typ == nil || typ.Kind() != reflect.Struct {
		fail("found %v, expected a struct", typ)
	}
	encode := func(v T) []byte { // may read the registry: a parameter can be a metric
		if reflect.TypeOf(v) != typ {
			fail("found a preset of type %T, expected %v", v, typ)
		}
		data, err := json.Marshal(v)
		if err != nil {
			fail("%v", err)
		}
		return data
	}
	e := &registered[T]{name: name, typ: typ, fields: parameterNames(typ), defaults: encode(defaults)}
	for _, p := range presets {
		e.presets = append(e.presets, Preset[[]byte]{p.Name, encode(p.Value)})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if name == "" || r.aliases[name] != "" || r.named(name) != nil {
		fail("the name is empty or taken")
	}
	if r.typed(typ) != nil {
		fail("%v is registered as %q", typ, r.typed(typ).name)
	}
	for _, reserved := range []string{"name", "preset"} {
		if slices.Contains(e.fields, reserved) {
			fail("a parameter must not be called %q", reserved)
		}
	}
	r.order = append(r.order, e)
}

// summary returns the summary of a name; empty if there is none.
func (r *registry[T]) summary(name string) string {
	r.mu.RLock()
	e := r.named(r.canonical(name))
	r.mu.RUnlock()
	if e == nil {
		return ""
	}
	s, ok := reflect.Zero(e.typ).Interface().(summarizer)
	if !ok {
		return ""
	}
	return s.Summary()
}

// parameterNames lists the JSON names of a struct's fields.
func parameterNames(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name != "":
			names = append(names, name)
		case f.Anonymous && f.Type.Kind() == reflect.Struct:
			names = append(names, parameterNames(f.Type)...)
		default:
			names = append(names, f.Name)
		}
	}
	return names
}

func (r *registry[T]) named(name string) *registered[T] {
	for _, e := range r.order {
		if e.name == name {
			return e
		}
	}
	return nil
}

func (r *registry[T]) typed(t reflect.Type) *registered[T] {
	for _, e := range r.order {
		if e.typ == t {
			return e
		}
	}
	return nil
}

// names lists the registered names, in registration order; with all, also those that are
// unlisted.
func (r *registry[T]) names(all bool) []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	names := make([]string, 0, len(r.order))
	for _, e := range r.order {
		if all || !e.unlisted {
			names = append(names, e.name)
		}
	}
	return names
}

// canonical resolves aliases.
func (r *registry[T]) canonical(name string) string {
	if to, ok := r.aliases[name]; ok {
		return to
	}
	return name
}

// read builds the value that a configuration describes: the defaults, or those of the
// preset, with the parameters that are given. If the result has a method
// Validate() error, that has the last word.
func (r *registry[T]) read(c config) (v T, err error) {
	name := r.canonical(c.Name)
	r.mu.RLock()
	e := r.named(name)
	r.mu.RUnlock()
	if e == nil {
		return v, fmt.Errorf("%s %q is unknown, expected one of %s", r.kind, c.Name, strings.Join(r.names(true), ", "))
	}
	fail := func(err error) (T, error) {
		var none T
		return none, fmt.Errorf("%s %s: %w", r.kind, name, err)
	}
	members, err := objectMembers([]byte(c.Params))
	if err != nil {
		return fail(fmt.Errorf("read parameters: %w", err))
	}
	base, given := e.defaults, []member(nil)
	for _, m := range members {
		switch {
		case m.name == "preset":
			if base, err = e.preset(m.value); err != nil {
				return fail(err)
			}
		case !slices.ContainsFunc(e.fields, func(f string) bool { return strings.EqualFold(f, m.name) }):
			return fail(fmt.Errorf("it has no parameter %s", m.name))
		default:
			given = append(given, m)
		}
	}
	// Through JSON, so that nothing is shared with the registered value.
	p := reflect.New(e.typ)
	if err := json.Unmarshal(base, p.Interface()); err != nil {
		return fail(err)
	}
	if err := decodeStrict(joinMembers(given), p.Interface()); err != nil {
		return fail(parameterError(err))
	}
	v = p.Elem().Interface().(T)
	if c, ok := any(v).(interface{ Validate() error }); ok {
		if err := c.Validate(); err != nil {
			return fail(err)
		}
	}
	return v, nil
}

func (e *registered[T]) preset(raw json.RawMessage) ([]byte, error) {
	var name string
	if err := json.Unmarshal(raw, &name); err != nil {
		return nil, fmt.Errorf("preset: found %s, expected a name", raw)
	}
	if name == "" || name == "default" {
		return e.defaults, nil
	}
	names := []string{"default"}
	for _, p := range e.presets {
		if p.Name == name {
			return p.Value, nil
		}
		names = append(names, p.Name)
	}
	return nil, fmt.Errorf("preset: found %q, expected one of %s", name, strings.Join(names, ", "))
}

// parameterError says which parameter has the wrong type of value.
func parameterError(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field == "" {
		return fmt.Errorf("found %s, expected %s", wrong.Value, jsonKind(wrong.Type))
	}
	if wrong != nil {
		name := strings.TrimPrefix(wrong.Field, "fields.") // those of DecodeConfig are embedded
		return fmt.Errorf("%s: found %s, expected %s", name, wrong.Value, jsonKind(wrong.Type))
	}
	return err
}

// configOf returns the full configuration of v: its name and every parameter.
// An unregistered type goes by its type name.
func (r *registry[T]) configOf(v T) config {
	data, err := json.Marshal(v)
	if err != nil { // a number that is not finite, which Validate rejects
		data = fmt.Appendf(nil, "{\"error\":%q}", err)
	}
	c := config{Name: r.nameOf(v), Params: string(data)}
	if c.Params == "{}" {
		c.Params = ""
	}
	return c
}

func (r *registry[T]) nameOf(v T) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if e := r.typed(reflect.TypeOf(v)); e != nil {
		return e.name
	}
	return fmt.Sprintf("%T", v)
}

// config is what MetricConfig and AllocatorConfig have in common: a name, and
// parameters as the text of a JSON object, "" for none. In JSON both are one
// flat object with the name first.
type config struct{ Name, Params string }

func (c config) marshal() ([]byte, error) {
	members, err := objectMembers([]byte(c.Params))
	if err != nil {
		return nil, fmt.Errorf("parameters of %q: %w", c.Name, err)
	}
	name, err := json.Marshal(c.Name)
	if err != nil {
		return nil, err
	}
	return joinMembers(append([]member{{"name", name}}, members...)), nil
}

func (c config) text() string {
	data, err := c.marshal()
	if err != nil { // parameters that are not an object, which building rejects
		return fmt.Sprintf("{%q: %q}", c.Name, err)
	}
	return string(data)
}

func (c *config) unmarshal(data []byte) error {
	members, err := objectMembers(data)
	if err != nil {
		return err
	}
	*c = config{}
	rest := members[:0]
	for _, m := range members {
		if !strings.EqualFold(m.name, "name") {
			rest = append(rest, m)
			continue
		}
		if err := json.Unmarshal(m.value, &c.Name); err != nil {
			return fmt.Errorf("name: found %s, expected a string", m.value)
		}
	}
	if len(rest) > 0 {
		c.Params = string(joinMembers(rest))
	}
	return nil
}

// parseConfig reads a configuration from JSON, or a bare name.
func parseConfig(text string) (c config, err error) {
	text = strings.TrimSpace(text)
	if !strings.HasPrefix(text, "{") {
		return config{Name: text}, nil
	}
	return c, c.unmarshal([]byte(text))
}

// member is one member of a JSON object.
type member struct {
	name  string
	value json.RawMessage // compact
}

// maxNesting bounds metrics within metrics: each level rereads the text of
// those inside it.
const maxNesting = 16

// objectMembers splits a JSON object into its members, in order; empty text has
// none.
func objectMembers(data []byte) ([]member, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, nil
	}
	o, err := strictjson.ParseObject(data, maxNesting)
	if err != nil {
		return nil, err
	}
	var out []member
	for name, value := range o.All() {
		var compact bytes.Buffer
		if err := json.Compact(&compact, value); err != nil {
			return nil, err
		}
		out = append(out, member{name, compact.Bytes()})
	}
	return out, nil
}

func joinMembers(members []member) []byte {
	out := []byte{'{'}
	for i, m := range members {
		if i > 0 {
			out = append(out, ',')
		}
		name, _ := json.Marshal(m.name) // a string always encodes
		out = append(append(append(out, name...), ':'), m.value...)
	}
	return append(out, '}')
}

// decodeStrict reads one JSON value without unknown or repeated fields or trailing text.
func decodeStrict(data []byte, v any) error {
	if err := strictjson.Check(data, maxNesting+2); err != nil { // a metric in decode in a policy
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		if text, ok := strings.CutPrefix(err.Error(), "json: unknown"); ok {
			return errors.New("unknown" + text)
		}
		return parameterError(err)
	}
	return nil
}

// jsonKind names the kind of JSON value that a Go type is read from.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

// Parameter checks. Each returns nil or an error that names the parameter,
// what was found and what was expected; the first one counts.

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func within[N int | float64](name string, v, lo, hi N) error {
	if !(v >= lo && v <= hi) {
		return fmt.Errorf("%s: found %v, expected %v to %v", name, v, lo, hi)
	}
	return nil
}

func oneOf(name, v string, options ...string) error {
	if !slices.Contains(options, v) {
		return fmt.Errorf("%s: found %q, expected one of %s", name, v, strings.Join(options, ", "))
	}
	return nil
}
