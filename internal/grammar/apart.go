package grammar

import (
	"slices"
	"strings"
)

// disjoint reports whether no value satisfies two of the schemas, as far as their
// types and constants, also of required properties, tell.
func (s *schemas) disjoint(list []any) bool {
	if len(list) > maxNesting {
		return false // it would take long to know
	}
	for i, a := range list {
		for _, b := range list[:i] {
			if !s.apart(a, b) {
				return false
			}
		}
	}
	return true
}

// maxCompared bounds the bytes of constants and names that are compared to tell
// schemas apart.
const maxCompared = 1 << 22

func (s *schemas) apart(a, b any) bool {
	x, y := s.resolve(a), s.resolve(b)
	if x == nil || y == nil {
		return false
	}
	if s.differ(x, y) {
		return true
	}
	tx, err := s.types(x, "")
	ty, err2 := s.types(y, "")
	if err != nil || err2 != nil {
		return false
	}
	whole := func(t string) string { return strings.Replace(t, "integer", "number", 1) }
	if !slices.ContainsFunc(tx, func(t string) bool {
		return slices.ContainsFunc(ty, func(u string) bool { return whole(t) == whole(u) })
	}) {
		return true
	}
	if len(tx) != 1 || len(ty) != 1 || tx[0] != "object" || ty[0] != "object" {
		return false
	}
	px, _ := x.values["properties"].(*object)
	py, _ := y.values["properties"].(*object)
	rx, _ := x.values["required"].([]any)
	ry, _ := y.values["required"].([]any)
	if px == nil || py == nil {
		return false
	}
	for _, k := range px.keys {
		if s.c.compared += len(rx) + len(ry); s.c.compared > maxCompared {
			return false
		}
		if !slices.Contains(rx, any(k)) || !slices.Contains(ry, any(k)) {
			continue
		}
		kx, ky := s.resolve(px.values[k]), s.resolve(py.values[k])
		if kx == nil || ky == nil {
			continue
		}
		if s.differ(kx, ky) {
			return true
		}
	}
	return false
}

// resolve follows references to an object; nil if they lead to none.
func (s *schemas) resolve(v any) *object {
	for range maxNesting {
		o, ok := v.(*object)
		if !ok {
			return nil
		}
		ref, ok := o.values["$ref"].(string)
		if !ok {
			return o
		}
		s.c.compared += len(ref)
		if v, ok = s.at(ref); !ok {
			return nil
		}
	}
	return nil
}

// possible returns the texts of a schema's constants; nil if it has none.
func (s *schemas) possible(o *object) map[string]bool {
	list, ok := o.values["enum"].([]any)
	if v, is := o.values["const"]; is {
		list, ok = []any{v}, true
	}
	if !ok {
		return nil
	}
	out := make(map[string]bool, len(list))
	for _, v := range list {
		if s.c.compared > maxCompared {
			return nil // it would take long to know
		}
		text := canonical(v)
		s.c.compared += len(text)
		out[text] = true
	}
	return out
}

// differ reports whether two schemas both have constants, but none in common.
func (s *schemas) differ(x, y *object) bool {
	a, b := s.possible(x), s.possible(y)
	for v := range a {
		if b[v] {
			return false
		}
	}
	return a != nil && b != nil
}
