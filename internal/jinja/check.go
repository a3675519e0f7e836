package jinja

import (
	"fmt"
	"slices"
	"strings"
)

// What a template may name is checked while it is parsed, so that a template
// that needs what this package lacks fails when it is loaded and not in the
// middle of a conversation. The checks of this file see names and literals;
// what a template calculates is checked again when it runs.

// known is the filter or test of a name.
func (p *parser) known(what string, table map[string]*builtin, name string, at pos) *builtin {
	f, ok := table[name]
	if !ok {
		p.refuse(at, "%s '%s'", what, name)
	}
	return f
}

// checkName refuses the names that Jinja gives a meaning and this package does
// not.
func (p *parser) checkName(t token) {
	switch t.text {
	case "self", "super":
		p.refuse(t.at, "'%s'", t.text)
	case "cycler", "joiner", "lipsum":
		p.refuse(t.at, "function '%s'", t.text)
	case "caller", "varargs", "kwargs":
		for _, m := range p.macros {
			if slices.Contains(m.params, t.text) {
				return
			}
		}
		if len(p.macros) > 0 {
			p.refuse(t.at, "'%s' in a macro", t.text)
		}
	}
}

// checkCall refuses calls of a loop, and literal arguments that a function would
// refuse when it is called.
func (p *parser) checkCall(name string, call *callExpr) {
	switch name {
	case "loop":
		if p.loops > 0 {
			p.refuse(call.at, "a call of 'loop'")
		}
	case "strftime_now":
		if format, ok := literal(call.args, 0); ok {
			if bad := unknownDirective(format); bad != "" {
				p.refuse(call.at, "strftime_now directive '%s'", bad)
			}
		}
	}
}

// checkAttribute refuses attributes of 'loop' that this package does not have.
func (p *parser) checkAttribute(of expr, attr token) {
	name, ok := of.(*nameExpr)
	if ok && name.name == "loop" && p.loops > 0 && !slices.Contains(loopAttributes, attr.text) {
		p.refuse(attr.at, "'loop.%s'", attr.text)
	}
}

// changing are the methods that change what they belong to. To Jinja's sandbox no
// value has them: a template that names one fails only where it calls it.
const changing = "append clear extend insert pop popitem remove reverse setdefault sort update"

// checkMethod refuses methods that no value has, and arguments that none of that
// name takes.
func (p *parser) checkMethod(call *callExpr, name string) {
	if slices.Contains(strings.Fields(changing), name) {
		return
	}
	defs, ok := methodsByName[name]
	if !ok {
		p.refuse(call.at, "method '%s'", name)
	}
	missing := ""
	for _, f := range defs {
		if missing = f.lacks(&call.args); missing == "" {
			return
		}
	}
	p.refuse(call.at, "%s of method '%s'", missing, name)
}

// lacks names the first argument that f does not take, or is "".
func (f *builtin) lacks(args *callArgs) string {
	if most := len(f.params) - 1; len(args.pos) > most && !f.rest {
		return fmt.Sprintf("argument %d", most+1)
	}
	for _, name := range args.names {
		if !f.named && !f.has(name) {
			return "argument '" + name + "'"
		}
	}
	return ""
}

// checkFilter refuses arguments that a filter does not take. Where they are
// literals, it looks up the filter that map is given and the test that select and
// its like are given.
func (p *parser) checkFilter(f *filterExpr) {
	if missing := f.def.lacks(&f.args); missing != "" {
		p.refuse(f.at, "%s of filter '%s'", missing, f.def.name)
	}
	index, what, table := 0, "test", tests
	switch f.def.name {
	case "map":
		what, table = "filter", filters
	case "select", "reject":
	case "selectattr", "rejectattr":
		index = 1
	default:
		return
	}
	if name, ok := literal(f.args, index); ok {
		p.known(what, table, name, f.at)
	}
}

// checkTest refuses arguments that a test does not take.
func (p *parser) checkTest(t *testExpr) {
	if missing := t.def.lacks(&t.args); missing != "" {
		p.refuse(t.at, "%s of test '%s'", missing, t.def.name)
	}
}

// literal is the positional argument i if it is a string in the source.
func literal(args callArgs, i int) (string, bool) {
	if i >= len(args.pos) {
		return "", false
	}
	c, ok := args.pos[i].(*constExpr)
	if !ok {
		return "", false
	}
	t, ok := c.value.(text)
	return t.s, ok
}
