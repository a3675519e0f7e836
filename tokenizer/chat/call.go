package chat

import (
	"strconv"
	"strings"
)

// builtin is a function of the language: a filter, a test, a method or a global.
// Filters, tests and methods take the value they apply to first.
type builtin struct {
	name   string
	params []param
	// rest and named: further positional and named arguments are collected in a
	// tuple and an *Object, passed after params.
	rest, named bool
	fn          func(r *run, a []any) any
}

type param struct {
	name     string
	required bool
	def      any
}

// function is a builtin as a value, perhaps bound to the object it belongs to.
type function struct {
	def   *builtin
	self  any
	bound bool
}

// define makes a builtin from a signature in Python's words, as in
// "value width=80 *args **kwargs".
func define(name, signature string, fn func(r *run, a []any) any) *builtin {
	f := &builtin{name: name, fn: fn}
	for _, word := range strings.Fields(signature) {
		switch {
		case strings.HasPrefix(word, "**"):
			f.named = true
		case strings.HasPrefix(word, "*"):
			f.rest = true
		default:
			key, def, optional := strings.Cut(word, "=")
			f.params = append(f.params, param{name: key, required: !optional, def: defaultValue(def)})
		}
	}
	return f
}

// defaultValue reads a default in a signature: a name, an integer, a float or
// anything else as text.
func defaultValue(s string) any {
	switch s {
	case "None":
		return nil
	case "True":
		return true
	case "False":
		return false
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		return f
	}
	return s
}

// invoke binds arguments to f's parameters and runs it.
func (r *run) invoke(f *builtin, self any, bound bool, pos []any, named *Object) any {
	r.enter()
	defer r.leave()
	args := make([]any, len(f.params), len(f.params)+2)
	given := 0
	if bound {
		if len(f.params) == 0 {
			failf("%s() takes no arguments", f.name)
		}
		args[0] = self
		given = 1
	}
	n := min(len(pos), len(f.params)-given)
	copy(args[given:], pos[:n])
	given += n
	if n < len(pos) && !f.rest {
		failf("%s() takes at most %d arguments, found %d", f.name, len(f.params), given+len(pos)-n)
	}
	used := 0
	for i, p := range f.params {
		v, ok := named.Get(p.name)
		if ok {
			used++
		}
		switch {
		case i < given && ok:
			failf("%s(): argument '%s' is given twice", f.name, p.name)
		case i < given:
		case ok:
			args[i] = v
		case p.required:
			failf("%s(): missing argument '%s'", f.name, p.name)
		default:
			args[i] = p.def
		}
	}
	if f.rest {
		args = append(args, tuple{elems: pos[n:]})
	}
	if f.named {
		extra := new(Object)
		for name, v := range named.All() {
			if !f.hasParam(name) {
				extra.Set(name, v)
			}
		}
		args = append(args, extra)
	} else if used < named.Len() {
		for name := range named.All() {
			if !f.hasParam(name) {
				failf("%s() has no argument named '%s'", f.name, name)
			}
		}
	}
	return f.fn(r, args)
}

func (f *builtin) hasParam(name string) bool {
	for _, p := range f.params {
		if p.name == name {
			return true
		}
	}
	return false
}

// Arguments: each converts one value and fails, naming what it is for.

func intArg(v any, what string) int {
	if _, isFloat := v.(float64); isFloat || !isNumber(v) {
		if u, ok := v.(*undefined); ok {
			u.fail()
		}
		failf("%s: found '%s', expected an integer", what, typeName(v))
	}
	i, ok := toInt64(v)
	if !ok || i != int64(int(i)) {
		limitf("%s: integer %s is too large", what, formatInt(v))
	}
	return int(i)
}

func textArg(v any, what string) string {
	s, ok := asString(v)
	if !ok {
		failf("%s: found '%s', expected a string", what, typeName(v))
	}
	return s
}

func dictArg(v any, what string) *Object {
	d, ok := v.(*Object)
	if !ok {
		if u, ok := v.(*undefined); ok {
			u.fail()
		}
		failf("%s: found '%s', expected an object", what, typeName(v))
	}
	return d
}
