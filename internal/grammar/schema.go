package grammar

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	maxNesting    = 100     // of schemas
	maxStringSize = 1 << 30 // for minLength and the like
	maxIndent     = 20      // blanks after a line break
)

var allTypes = []string{"object", "array", "string", "number", "boolean", "null"}

// keywords are those that are enforced, with the type that they apply to; "": all.
var keywords = map[string]string{
	"type": "", "enum": "", "const": "", "anyOf": "", "oneOf": "", "allOf": "", "$ref": "",
	"properties": "object", "required": "object", "additionalProperties": "object",
	"items": "array", "prefixItems": "array", "minItems": "array", "maxItems": "array", "uniqueItems": "array",
	"minLength": "string", "maxLength": "string", "pattern": "string", "format": "string",
	"minimum": "number", "maximum": "number", "exclusiveMinimum": "number", "exclusiveMaximum": "number", "multipleOf": "number",
}

// notes are keywords that say nothing about values. OpenAPI's discriminator only names the
// property that tells the alternatives of a oneOf apart.
var notes = []string{"discriminator", "title", "description", "default", "examples", "example", "$schema", "$id", "id", "$anchor", "$comment", "contentEncoding", "contentMediaType", "contentSchema", "externalDocs", "$defs", "definitions", "deprecated", "readOnly", "writeOnly"}

// schemas compiles the parts of one schema.
type schemas struct {
	c      *compiler
	root   any
	strict bool
}

type schemaKey struct {
	schema *object
	strict bool
}

// compile returns the rule of a schema.
func (s *schemas) compile(v any, path string) (int32, error) {
	c := s.c
	if c.err != nil {
		return 0, c.err
	}
	switch v := v.(type) {
	case bool:
		if v {
			return s.any(), nil
		}
		return c.begin(0, -1), nil // nothing
	case *object:
		key := schemaKey{v, s.strict}
		if r, ok := c.memo[key]; ok {
			return r, nil
		}
		r := c.begin(0, -1)
		c.memo[key] = r
		return r, s.fill(r, v, path)
	}
	return 0, fmt.Errorf("schema at %s: found %s, expected an object", path, typeOf(v))
}

// fill fills in the rule of a schema.
func (s *schemas) fill(r int32, o *object, path string) error {
	var asserts []string
	for _, k := range o.keys {
		if _, ok := keywords[k]; ok {
			asserts = append(asserts, k)
		} else if !slices.Contains(notes, k) && !strings.HasPrefix(k, "x-") {
			return fmt.Errorf("schema at %s: the keyword %q is not supported", path, k)
		}
	}
	// A keyword that replaces a whole schema must be the only one.
	for _, k := range []string{"$ref", "anyOf", "oneOf", "allOf"} {
		v, ok := o.values[k]
		if !ok {
			continue
		}
		for _, other := range asserts {
			if other != k {
				return fmt.Errorf("schema at %s: the keyword %q is not supported beside %q", path, other, k)
			}
		}
		if k == "$ref" {
			return s.refer(r, v, path)
		}
		return s.choose(r, k, v, path+"/"+k)
	}
	if len(asserts) == 0 {
		s.c.either(r, s.any())
		return nil
	}
	types, err := s.types(o, path)
	if err != nil {
		return err
	}
	for _, k := range []string{"const", "enum"} {
		if v, ok := o.values[k]; ok {
			for _, other := range asserts {
				if other != k && other != "type" {
					return fmt.Errorf("schema at %s: the keyword %q is not supported beside %q", path, other, k)
				}
			}
			return s.values(r, k, v, types, path)
		}
	}
	for _, t := range types {
		of, err := s.ofType(t, o, path)
		if err != nil {
			return err
		}
		s.c.either(r, of)
	}
	return nil
}

// refer makes a rule read what another schema describes.
func (s *schemas) refer(r int32, v any, path string) error {
	ref, ok := v.(string)
	if !ok || !strings.HasPrefix(ref, "#") || len(ref) > 1 && ref[1] != '/' {
		return fmt.Errorf("schema at %s: the $ref %.100s is not supported, expected one that begins with #/", path, compact(v))
	}
	target, ok := s.at(ref)
	if !ok {
		return fmt.Errorf("schema at %s: nothing is at %.100q", path, ref)
	}
	of, err := s.compile(target, ref)
	if err != nil {
		return err
	}
	s.c.either(r, of)
	return nil
}

// at returns what a reference names in the schema.
func (s *schemas) at(ref string) (any, bool) {
	target := s.root
	if ref == "#" {
		return target, true
	}
	ref, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil, false
	}
	for _, part := range strings.Split(ref, "/") {
		if p, err := url.PathUnescape(part); err == nil {
			part = p
		}
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		ok := false
		switch t := target.(type) {
		case *object:
			target, ok = t.values[part]
		case []any:
			var i int
			if i, ok = index(part, len(t)); ok {
				target = t[i]
			}
		}
		if !ok {
			return nil, false
		}
	}
	return target, true
}

func index(s string, n int) (int, bool) {
	i, err := strconv.Atoi(s)
	return i, err == nil && i >= 0 && i < n
}

// choose makes a rule read what one of several schemas describes.
func (s *schemas) choose(r int32, keyword string, v any, path string) error {
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		return fmt.Errorf("schema at %s: expected a list of schemas", path)
	}
	if keyword == "allOf" && len(list) > 1 {
		return fmt.Errorf("schema at %s: the keyword %q of more than one schema is not supported", path, keyword)
	}
	if keyword == "oneOf" && !s.disjoint(list) {
		return fmt.Errorf(`schema at %s: the keyword "oneOf" is supported only where types, or a constant of a required property, tell the schemas apart`, path)
	}
	for i, x := range list {
		of, err := s.compile(x, fmt.Sprintf("%s/%d", path, i))
		if err != nil {
			return err
		}
		s.c.either(r, of)
	}
	return nil
}

// types returns the types that a value may have, "integer" for whole numbers only.
func (s *schemas) types(o *object, path string) ([]string, error) {
	v, ok := o.values["type"]
	if !ok {
		return allTypes, nil
	}
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	var out []string
	for _, x := range list {
		t, ok := x.(string)
		if !ok || t != "integer" && !slices.Contains(allTypes, t) {
			return nil, fmt.Errorf("schema at %s/type: found %.100s, expected one of %q", path, compact(x), append([]string{"integer"}, allTypes...))
		}
		if !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	if slices.Contains(out, "number") {
		out = slices.DeleteFunc(out, func(t string) bool { return t == "integer" })
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("schema at %s/type: the list is empty", path)
	}
	return out, nil
}

// values makes a rule read one of a list of values.
func (s *schemas) values(r int32, keyword string, v any, types []string, path string) error {
	list := []any{v}
	if keyword == "enum" {
		var ok bool
		if list, ok = v.([]any); !ok {
			return fmt.Errorf("schema at %s/enum: found %s, expected a list", path, typeOf(v))
		}
	}
	var words []string
	for _, x := range list {
		if ofTypes(x, types) {
			words = append(words, compact(x))
		}
	}
	rule := s.c.rules[r]
	s.c.words(rule.start, rule.end, words)
	return nil
}

// ofTypes reports whether a value has one of the types.
func ofTypes(v any, types []string) bool {
	t := typeOf(v)
	return slices.Contains(types, t) || t == "integer" && slices.Contains(types, "number")
}

// ofType returns the rule of the values of one type.
func (s *schemas) ofType(t string, o *object, path string) (int32, error) {
	c := s.c
	switch t {
	case "null", "boolean":
		r := c.begin(0, -1)
		words := []string{"null"}
		if t == "boolean" {
			words = []string{"true", "false"}
		}
		c.words(c.rules[r].start, c.rules[r].end, words)
		return r, nil
	case "string":
		return s.text(o, path)
	case "integer", "number":
		return c.decimals(t == "integer", o, path)
	case "array":
		return s.array(o, path)
	}
	return s.object(o, path)
}

// counts reads a minimum and a maximum; the maximum is -1 if there is none.
func counts(o *object, least, most, path string) (int, int, error) {
	out := [2]int{0, -1}
	for i, k := range []string{least, most} {
		v, ok := o.values[k]
		if !ok {
			continue
		}
		n, ok := v.(json.Number)
		x, err := strconv.Atoi(n.String())
		if !ok || err != nil || x < 0 || x > maxStringSize {
			return 0, 0, fmt.Errorf("schema at %s/%s: found %.30s, expected a whole number from 0 to %d", path, k, compact(v), maxStringSize)
		}
		out[i] = x
	}
	return out[0], out[1], nil
}

// any returns the rule of any value.
func (s *schemas) any() int32 {
	c := s.c
	if r, ok := c.anything[s.strict]; ok {
		return r
	}
	r := c.begin(0, -1)
	c.anything[s.strict] = r
	free := schemas{c: c} // values inside are free, too
	for _, t := range allTypes {
		of, err := free.ofType(t, &object{}, "#")
		if err != nil {
			c.fail(err)
		}
		c.either(r, of)
	}
	return r
}

// blank returns the rule of white space.
func (c *compiler) blank() int32 {
	if c.space >= 0 {
		return c.space
	}
	r := c.begin(0, maxIndent)
	c.space = r
	start, end, line := c.rules[r].start, c.rules[r].end, c.node(r)
	c.skip(start, end)
	c.edge(start, end, ' ', ' ')
	c.edge(start, line, '\n', '\n')
	c.nodes[line].edges = append(c.nodes[line].edges, edge{lo: ' ', hi: ' ', count: true, to: line})
	c.skip(line, end)
	return r
}

// array returns the rule of lists.
func (s *schemas) array(o *object, path string) (int32, error) {
	c := s.c
	least, most, err := counts(o, "minItems", "maxItems", path)
	if err != nil {
		return 0, err
	}
	var before []any
	if v, ok := o.values["prefixItems"]; ok {
		if before, ok = v.([]any); !ok {
			return 0, fmt.Errorf("schema at %s/prefixItems: found %s, expected a list", path, typeOf(v))
		}
	}
	if on, err := s.unique(o, most, path); err != nil {
		return 0, err
	} else if on {
		return s.distinct(o, least, most), nil
	}
	r := c.begin(least, most)
	if most >= 0 && most < least {
		return r, nil // nothing
	}
	end := c.rules[r].end
	at := c.then(c.text(c.rules[r].start, "["), c.blank())
	// item reads another item from a node and returns where it ends.
	item := func(from int32, of int32) int32 {
		to := c.node(r)
		c.nodes[from].calls = append(c.nodes[from].calls, call{rule: of, to: to, count: true})
		return to
	}
	// stop ends the list after an item.
	stop := func(from int32, need bool) {
		at := c.node(r)
		c.nodes[from].calls = append(c.nodes[from].calls, call{rule: c.blank(), to: at, need: need})
		c.edge(at, end, ']', ']')
	}
	// comma leads to another item, if there may be one.
	comma := func(from int32) int32 {
		to := c.node(r)
		c.nodes[from].edges = append(c.nodes[from].edges, edge{lo: ',', hi: ',', room: true, to: to})
		return c.then(to, c.blank())
	}
	for i, x := range before {
		if i >= least && i > 0 {
			stop(at, false)
		} else if i >= least {
			c.edge(at, end, ']', ']')
		}
		of, err := s.compile(x, fmt.Sprintf("%s/prefixItems/%d", path, i))
		if err != nil {
			return 0, err
		}
		if i > 0 {
			at = comma(at)
		}
		at = item(at, of)
	}
	if len(before) >= least && len(before) > 0 {
		stop(at, false)
	} else if len(before) >= least {
		c.edge(at, end, ']', ']')
	}
	rest, ok := o.values["items"]
	if !ok {
		rest = true
	}
	of, err := s.compile(rest, path+"/items")
	if err != nil {
		return 0, err
	}
	if len(before) > 0 {
		at = comma(at)
	}
	last := item(at, of)
	stop(last, true)
	again := comma(last)
	c.nodes[again].calls = append(c.nodes[again].calls, call{rule: of, to: c.nodes[at].calls[len(c.nodes[at].calls)-1].to, count: true})
	return r, nil
}

// property is a declared or required property.
type property struct {
	name     string
	of       int32
	required bool
}

// properties returns the properties that an object declares or requires, and the
// rule of others; -1 if there may be none.
func (s *schemas) properties(o *object, path string) ([]property, int32, error) {
	declared := &object{}
	if v, ok := o.values["properties"]; ok {
		if declared, ok = v.(*object); !ok {
			return nil, 0, fmt.Errorf("schema at %s/properties: found %s, expected an object", path, typeOf(v))
		}
	}
	var required []string
	if v, ok := o.values["required"]; ok {
		list, ok := v.([]any)
		if !ok {
			return nil, 0, fmt.Errorf("schema at %s/required: found %s, expected a list", path, typeOf(v))
		}
		for _, x := range list {
			name, ok := x.(string)
			if !ok {
				return nil, 0, fmt.Errorf("schema at %s/required: found %s, expected names", path, typeOf(x))
			}
			required = append(required, name)
		}
	}
	other, ok := o.values["additionalProperties"]
	if !ok {
		other = !s.strict
	}
	more := int32(-1)
	var err error
	if other != false {
		if more, err = s.compile(other, path+"/additionalProperties"); err != nil {
			return nil, 0, err
		}
	}
	must := map[string]bool{}
	for _, name := range required {
		must[name] = true
	}
	var out []property
	for _, name := range declared.keys {
		of, err := s.compile(declared.values[name], path+"/properties/"+name)
		if err != nil {
			return nil, 0, err
		}
		out = append(out, property{name, of, must[name]})
		delete(must, name)
	}
	for _, name := range required {
		if must[name] {
			delete(must, name)
			of := more
			if more < 0 {
				of = s.c.begin(0, -1) // nothing
			}
			out = append(out, property{name, of, true})
		}
	}
	return out, more, nil
}

// object returns the rule of objects: declared properties in order, then others.
func (s *schemas) object(o *object, path string) (int32, error) {
	c := s.c
	list, more, err := s.properties(o, path)
	if err != nil {
		return 0, err
	}
	r := c.begin(0, -1)
	// Before property i come none[i], if nothing has been written, some[i], if
	// something has, and comma[i], after a comma.
	var none, some, comma []int32
	for range len(list) + 1 {
		none, some, comma = append(none, c.node(r)), append(some, c.node(r)), append(comma, c.node(r))
	}
	c.call(c.text(c.rules[r].start, "{"), none[0], c.blank())
	value := func(key int32, of int32, to int32) {
		at := c.then(c.text(key, ":"), c.blank())
		c.call(at, to, of)
	}
	for i, p := range list {
		if !p.required {
			c.skip(none[i], none[i+1])
			c.skip(some[i], some[i+1])
			c.skip(comma[i], comma[i+1])
		}
		key := c.node(r)
		c.skip(none[i], key)
		c.skip(comma[i], key)
		c.call(c.text(some[i], ","), comma[i], c.blank())
		value(c.text(key, quote(p.name)), p.of, some[i+1])
	}
	n := len(list)
	c.edge(none[n], c.rules[r].end, '}', '}')
	c.edge(c.then(some[n], c.blank()), c.rules[r].end, '}', '}')
	if more >= 0 {
		key := c.node(r)
		c.skip(none[n], key)
		c.skip(comma[n], key)
		c.call(c.text(some[n], ","), comma[n], c.blank())
		var names []string
		for _, p := range list {
			names = append(names, p.name)
		}
		value(c.then(key, c.otherKeys(names)), more, some[n])
	}
	return r, nil
}
