package serve

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/tokenizer/chat"
)

const (
	maxTools     = 128
	maxToolBytes = 256 << 10
)

// tools reads tools and tool_choice, and shows the tools to the model. The result is nil if
// nothing can be called.
func tools(f *fields, v *served, in *chat.Input) *structured.Tools {
	list := f.list("tools", maxTools)
	if len(f.raw("tools")) > maxToolBytes {
		f.fail("tools", "found %d bytes, expected at most %d", len(f.raw("tools")), maxToolBytes)
	}
	var functions []structured.Function
	var paths []string // of their names
	for i, o := range f.objects("tools", maxTools) {
		fn, path := function(o)
		functions, paths = append(functions, fn), append(paths, path)
		f.adopt(o)
		shown := &chat.Object{} // in the order of the request
		if err := json.Unmarshal(list[i], shown); err != nil {
			f.fail("tools", "%v", err)
		}
		in.Tools = append(in.Tools, shown)
	}
	o, none := toolChoice(f, functions)
	o.Single = f.has("parallel_tool_calls") && !f.boolean("parallel_tool_calls")
	v.syntax.Retell(in)
	if f.err != nil || len(functions) == 0 {
		in.Tools = nil
		return nil
	}
	t, err := v.syntax.Tools(functions, o)
	var name *structured.NameError
	switch {
	case errors.As(err, &name):
		f.fail(paths[name.Function], "%s", name.Reason)
	case err != nil:
		f.fail("tools", "%v", err)
	case none:
	default:
		if err := t.Show(in); err != nil {
			f.fail("tools", "%v", err)
		}
		return t
	}
	in.Tools = nil
	return nil
}

// function reads a function; path is that of its name in the request.
func function(o *fields) (fn structured.Function, path string) {
	if kind := o.str("type"); kind != "function" {
		o.fail("type", "%q is not supported, expected function", kind)
		return fn, ""
	}
	d := o.object("function")
	if d == nil {
		o.fail("function", "missing")
		return fn, ""
	}
	fn = structured.Function{Name: d.str("name"), Parameters: d.raw("parameters"), Strict: d.boolean("strict")}
	if fn.Parameters != nil && fn.Parameters[0] != '{' {
		d.fail("parameters", "found %s, expected an object", kind(fn.Parameters))
	}
	o.adopt(d)
	return fn, d.name("name")
}

// toolChoice reads tool_choice; none says that nothing may be called.
func toolChoice(f *fields, functions []structured.Function) (o structured.ToolOptions, none bool) {
	v := f.raw("tool_choice")
	switch {
	case v == nil:
		return o, false
	case v[0] == '"':
		switch choice := f.str("tool_choice"); choice {
		case "auto", "none":
			return o, choice == "none"
		case "required":
			o.Required = true
		default:
			f.fail("tool_choice", "%q is unknown, expected none, auto, required or a function", choice)
		}
	default:
		o.Only = namedFunction(f, functions)
	}
	if len(functions) == 0 {
		f.fail("tool_choice", "found a choice without tools")
	}
	return o, false
}

// namedFunction reads the name of the function that has to be called.
func namedFunction(f *fields, functions []structured.Function) (name string) {
	o := f.object("tool_choice")
	if o == nil {
		return ""
	}
	if kind := o.str("type"); kind != "function" {
		o.fail("type", "%q is not supported, expected function", kind)
	}
	if d := o.object("function"); d == nil {
		o.fail("function", "missing")
	} else {
		name = d.str("name")
		if !slices.ContainsFunc(functions, func(fn structured.Function) bool { return fn.Name == name }) {
			d.fail("name", "found %q, expected the name of one of the tools", name)
		}
		o.adopt(d)
	}
	f.adopt(o)
	return name
}

// messageCalls reads the calls of a message of the assistant, for the template: with
// arguments as an object.
func messageCalls(m *fields) []any {
	var out []any
	for _, o := range m.objects("tool_calls", maxTools) {
		if kind := o.str("type"); kind != "function" && kind != "" {
			o.fail("type", "%q is not supported, expected function", kind)
		}
		call := new(chat.Object).Set("id", o.str("id")).Set("type", "function")
		if fn := o.object("function"); fn == nil {
			o.fail("function", "missing")
		} else {
			function := new(chat.Object).Set("name", fn.str("name"))
			arguments := &chat.Object{}
			fn.embedded("arguments", arguments)
			call.Set("function", function.Set("arguments", arguments))
			o.adopt(fn)
		}
		m.adopt(o)
		out = append(out, call)
	}
	return out
}
