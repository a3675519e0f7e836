package jinja

import (
	"fmt"
	"slices"
	"strings"
)

// The names a template uses are checked while it is parsed, so that a
// template that needs an unsupported feature fails when it is loaded and not
// in the middle of a conversation. The checks in this file see names and
// literals; what a template computes is checked again when it runs.

// known returns the filter or test with the given name.
func (p *parser) known(what string, table map[string]*builtin, name string, at pos) *builtin {
	f, ok := table[name]
	if !ok {
		p.refuse(at, "%s '%s'", what, name)
	}
	return f
}

// checkName refuses names that have a meaning in Jinja but not here.
func (p *parser) checkName(t token) {
	switch t.text {
	case "self", "super":
		p.refuse(t.at, "'%s'", t.text)
	case "cycler", "joiner", "lipsum":
		p.refuse(t.at, "function '%s'", t.text)
	case "caller", "varargs", "kwargs":
		for _, m := range p.macros {
			i := slices.Index(m.params, t.text)
			if i < 0 {
				continue
			}
			if t.text == "caller" && i < len(m.params)-len(m.defaults) {
				p.at = t.at
				failf("parameter 'caller' needs a default")
			}
			return
		}
		if len(p.macros) > 0 && t.text != "caller" {
			p.refuse(t.at, "'%s' in a macro", t.text)
		}
		for _, m := range p.macros {
			m.caller = true
		}
	}
}

// checkCall refuses calls of loop, and literal arguments that a function would
// refuse when called.
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

// changing lists the methods that modify their receiver. In Jinja's sandbox no
// value has them: a template that names one fails only where it calls it.
const changing = "append clear extend insert pop popitem remove reverse setdefault sort update"

// checkMethod refuses methods that no value has, and arguments that no method of
// that name takes.
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

// lacks names the first argument that f does not take, or returns "".
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

// checkFilter refuses arguments that a filter does not take. It also looks
// up the filter passed to map and the test passed to select and the like, if
// they are literals.
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

// literal returns positional argument i if it is a string literal in the source.
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
