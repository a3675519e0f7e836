package grammar

import "fmt"

// maxUnique is how many constants the items of a list without repetitions may have.
const maxUnique = 8

// unique reports whether a list may have no item twice and distinct enforces it: the items
// are constants, and there are few. Otherwise it cannot be enforced unless there is at most one
// item: strict schemas are refused, and in others it is an annotation, as readers of sets drop
// what is there twice.
func (s *schemas) unique(o *object, most int, path string) (bool, error) {
	v, ok := o.values["uniqueItems"]
	on, isBool := v.(bool)
	switch {
	case ok && !isBool:
		return false, fmt.Errorf("schema at %s/uniqueItems: found %s, expected true or false", path, typeOf(v))
	case !on || most == 0 || most == 1:
		return false, nil
	}
	if list := s.constants(o); list != nil && len(list) <= maxUnique {
		return true, nil
	}
	if s.strict {
		return false, fmt.Errorf("schema at %s/uniqueItems: not supported unless items has an enum of at most %d values", path, maxUnique)
	}
	return false, nil
}

// constants returns the texts of the values that the items of a list are limited to; nil if
// they are not, or not by an enum alone.
func (s *schemas) constants(o *object) []string {
	if _, ok := o.values["prefixItems"]; ok {
		return nil
	}
	items := s.resolve(o.values["items"])
	if items == nil {
		return nil
	}
	list, ok := items.values["enum"].([]any)
	types, err := s.types(items, "")
	if !ok || err != nil {
		return nil
	}
	out, seen := []string{}, map[string]bool{}
	for _, v := range list {
		if key := canonical(v); !seen[key] && ofTypes(v, types) {
			seen[key] = true
			out = append(out, compact(v))
		}
	}
	return out
}

// distinct returns the rule of lists of constants without repetitions: its places are the
// sets of constants that have been read.
func (s *schemas) distinct(o *object, least, most int) int32 {
	c, values := s.c, s.constants(o)
	if n := len(values); most < 0 || most > n {
		most = n
	}
	r := c.begin(0, -1)
	if least > most {
		return r // nothing
	}
	end := c.rules[r].end
	rules := make([]int32, len(values))
	for i, v := range values {
		rules[i] = c.begin(0, -1)
		c.words(c.rules[rules[i]].start, c.rules[rules[i]].end, []string{v})
	}
	read := map[int]int32{} // the nodes after a set of constants
	first := c.then(c.text(c.rules[r].start, "["), c.blank())
	if least == 0 {
		c.edge(first, end, ']', ']')
	}
	for set := range 1 << len(values) { // what a set is made from comes before it
		at, size := first, 0
		for i := range values {
			size += set >> i & 1
		}
		after, ok := read[set]
		if set > 0 && !ok || size > most {
			continue
		}
		if set > 0 {
			if size >= least {
				c.edge(c.then(after, c.blank()), end, ']', ']')
			}
			if size < most {
				at = c.then(c.text(after, ","), c.blank())
			}
		}
		for i := range values {
			if next := set | 1<<i; next != set && size < most {
				if _, ok := read[next]; !ok {
					read[next] = c.node(r)
				}
				c.call(at, read[next], rules[i])
			}
		}
	}
	return r
}
