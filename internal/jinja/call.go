package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// builtin is a function of the language: a filter, a test, a method or a global.
// Filters, tests and methods take the value they apply to first.
type builtin struct {
	name   string
	params []param
	// rest and named: further positional and named arguments are collected in an
	// []any and a []argument, passed after params.
	rest, named bool
	fn          func(r *run, a []any) any
}

type param struct {
	name     string
	required bool
	def      any
}

// argument is a named argument.
type argument struct {
	name  string
	value any
}

func find(named []argument, name string) (any, bool) {
	i := slices.IndexFunc(named, func(a argument) bool { return a.name == name })
	if i < 0 {
		return nil, false
	}
	return named[i].value, true
}

// method is a builtin as a value, perhaps bound to the object it belongs to.
type method struct {
	def   *builtin
	self  any
	bound bool
}

// define makes a builtin from a signature written as in Python, such as
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
	return own(s)
}

func table(lists ...[]*builtin) map[string]*builtin {
	t := make(map[string]*builtin)
	for _, f := range slices.Concat(lists...) {
		t[f.name] = f
	}
	return t
}

// invoke binds arguments to f's parameters and runs it.
func (r *run) invoke(f *builtin, self any, bound bool, pos []any, named []argument) any {
	r.enter()
	defer r.leave()
	args := make([]any, len(f.params), len(f.params)+2)
	given := 0
	if bound {
		args[0] = self
		given = 1
	}
	n := min(len(pos), len(f.params)-given)
	copy(args[given:], pos[:n])
	given += n
	if n < len(pos) && !f.rest {
		failf("%s() takes at most %d arguments, found %d", f.name, len(f.params), given+len(pos)-n)
	}
	for i, p := range f.params {
		v, ok := find(named, p.name)
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
		args = append(args, pos[n:])
	}
	var extra []argument
	for _, a := range named {
		if f.has(a.name) {
			continue
		}
		if !f.named {
			failf("%s() has no argument named '%s'", f.name, a.name)
		}
		extra = append(extra, a)
	}
	if f.named {
		args = append(args, extra)
	}
	return f.fn(r, args)
}

// has reports whether f has a parameter with the given name.
func (f *builtin) has(name string) bool {
	return slices.ContainsFunc(f.params, func(p param) bool { return p.name == name })
}

// args evaluates the arguments of a call. They count as memory until the caller
// releases them with done.
func (r *run) args(a *callArgs, s *scope) (pos []any, named []argument) {
	pos = r.evalAll(a.pos, s)
	if a.rest != nil {
		pos = append(pos, r.list(r.eval(a.rest, s))...)
	}
	r.allocTimes(len(a.names), valueBytes)
	for i, name := range a.names {
		named = append(named, argument{name, r.eval(a.named[i], s)})
	}
	if a.more != nil {
		d := dictArg(r.eval(a.more, s), "arguments after **")
		r.allocTimes(d.len(), valueBytes)
		for i, key := range d.keys {
			name := textArg(key, "arguments after **").s
			if _, ok := find(named, name); ok {
				failf("argument '%s' is given twice", name)
			}
			named = append(named, argument{name, d.vals[i]})
		}
	}
	return pos, named
}

// done releases the memory that args counted.
func (r *run) done(pos []any, named []argument) { r.mem -= (len(pos) + len(named)) * valueBytes }

func (e *callExpr) eval(r *run, s *scope) any { return e.call(r, s, nil) }

// call calls with a further argument named caller, unless that is nil.
func (e *callExpr) call(r *run, s *scope, caller *macro) any {
	callee := r.eval(e.callee, s)
	pos, named := r.args(&e.args, s)
	if caller != nil {
		r.alloc(valueBytes)
		named = append(named, argument{"caller", caller})
	}
	defer r.done(pos, named)
	r.at = e.at
	switch c := callee.(type) {
	case *method:
		return r.invoke(c.def, c.self, c.bound, pos, named)
	case *macro:
		return r.callMacro(c, pos, named)
	case *undefined:
		c.fail()
	}
	failf("'%s' object is not callable", typeName(callee))
	return nil
}

func (e *filterExpr) eval(r *run, s *scope) any {
	v := r.eval(e.of, s)
	pos, named := r.args(&e.args, s)
	defer r.done(pos, named)
	r.at = e.at
	return r.invoke(e.def, v, true, pos, named)
}

func (e *testExpr) eval(r *run, s *scope) any {
	v := r.eval(e.of, s)
	pos, named := r.args(&e.args, s)
	defer r.done(pos, named)
	r.at = e.at
	return r.invoke(e.def, v, true, pos, named)
}

// macro is a macro with the scope it was defined in.
type macro struct {
	*macroDef
	scope *scope
}

// callMacro binds arguments as Jinja does and returns the text that the body prints.
func (r *run) callMacro(m *macro, pos []any, named []argument) any {
	if len(pos) > len(m.params) {
		failf("macro '%s' takes at most %d arguments, found %d", m.name, len(m.params), len(pos))
	}
	r.step(len(m.params) * (1 + len(named)) / 8)
	inner := &scope{parent: m.scope}
	for i, name := range m.params {
		if i < len(pos) {
			r.assign(inner, name, pos[i])
			continue
		}
		v, ok := find(named, name)
		if !ok {
			if d := i - (len(m.params) - len(m.defaults)); d >= 0 {
				v = r.eval(m.defaults[d], inner)
			} else {
				v = &undefined{why: "parameter '%s' was not provided", first: name}
			}
		}
		r.assign(inner, name, v)
	}
	if m.caller {
		caller, ok := find(named, "caller")
		if !ok {
			caller = &undefined{why: "the macro was not called by a call block"}
		}
		r.assign(inner, "caller", caller)
	}
	for _, a := range named {
		if i := slices.Index(m.params, a.name); i < 0 && m.caller && a.name == "caller" {
			continue
		} else if i < 0 {
			failf("macro '%s' takes no argument named '%s'", m.name, a.name)
		} else if i < len(pos) {
			failf("macro '%s': argument '%s' is given twice", m.name, a.name)
		}
	}
	return r.capture(func() { r.exec(m.body, inner) })
}

// Arguments: each function converts one value or fails, saying what it is for.

func intArg(v any, what string) int {
	defined(v)
	if i, ok := toInt64(v); ok {
		if i != int64(int(i)) {
			limitf("%s: integer %d is too large", what, i)
		}
		return int(i)
	}
	failf("%s: found '%s', expected an integer", what, typeName(v))
	return 0
}

func textArg(v any, what string) text {
	t, ok := v.(text)
	if !ok {
		failf("%s: found '%s', expected a string", what, typeName(v))
	}
	return t
}

func dictArg(v any, what string) *dict {
	d, ok := v.(*dict)
	if !ok {
		defined(v)
		failf("%s: found '%s', expected an object", what, typeName(v))
	}
	return d
}
