package structured

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/lukv/lukv/tokenizer/chat"
)

// Retell tells calls and results of functions in a conversation as text where the model's
// template would leave them out: a call in the answer that made it, a result in a message of
// the user. The caller's messages stay as they are.
func (s *Syntax) Retell(in *chat.Input) {
	if slices.ContainsFunc(in.Messages, callsOrResult) {
		s.calls().retell(in)
	}
}

// callsOrResult reports whether a message has calls or is the result of one.
func callsOrResult(m *chat.Object) bool {
	return len(callsOf(m)) > 0 || textOf(m, "role") == "tool"
}

// callsOf returns the calls in a message.
func callsOf(m *chat.Object) []any {
	v, _ := m.Get("tool_calls")
	calls, _ := v.([]any)
	return calls
}

// textOf returns a field of a message that is a text.
func textOf(m *chat.Object, key string) string {
	v, _ := m.Get(key)
	text, _ := v.(string)
	return text
}

// retell is Retell. Results in a row, and the user's message after them, become one message,
// since many templates want the roles to alternate.
func (c *callSyntax) retell(in *chat.Input) {
	var out []*chat.Object
	var told []string // results that are not in out yet
	tell := func() {
		if len(told) > 0 {
			out, told = append(out, chat.NewMessage("user", strings.Join(told, "\n\n"))), nil
		}
	}
	names := map[string]string{} // of functions, by the ids of their calls
	for _, m := range in.Messages {
		calls, role := callsOf(m), textOf(m, "role")
		for _, call := range calls {
			if o, ok := call.(*chat.Object); ok {
				names[textOf(o, "id")], _ = functionOf(o)
			}
		}
		switch {
		case len(calls) > 0 && !c.writes:
			tell()
			out = append(out, c.withCalls(m, calls))
		case role == "tool" && !c.results:
			told = append(told, strings.TrimSpace("The function "+names[textOf(m, "tool_call_id")])+" returned:\n"+textOf(m, "content"))
		case role == "user" && len(told) > 0:
			told = append(told, textOf(m, "content"))
			tell()
		default:
			tell()
			out = append(out, m)
		}
	}
	tell()
	in.Messages = out
}

// withCalls returns a message with its calls as text.
func (c *callSyntax) withCalls(m *chat.Object, calls []any) *chat.Object {
	var b strings.Builder
	b.WriteString(c.mark)
	if c.close == "]" {
		b.WriteString("[")
	}
	for i, call := range calls {
		if i > 0 && c.many {
			b.WriteString(c.between)
		} else if i > 0 {
			b.WriteString("\n")
		}
		o, _ := call.(*chat.Object)
		name, arguments := functionOf(o)
		b.WriteString(c.before + c.open + name + c.middle + arguments + c.shut + c.after)
	}
	b.WriteString(c.close)
	text := b.String()
	if said := textOf(m, "content"); said != "" {
		text = said + "\n" + text
	}
	out := new(chat.Object)
	for key, v := range m.All() {
		if key != "tool_calls" {
			out.Set(key, v)
		}
	}
	return out.Set("content", text)
}

// functionOf returns the name and the arguments of a call; those may be JSON already.
func functionOf(call *chat.Object) (name, arguments string) {
	v, _ := call.Get("function")
	function, _ := v.(*chat.Object)
	v, _ = function.Get("arguments")
	if text, ok := v.(string); ok {
		return textOf(function, "name"), text
	}
	data, err := json.Marshal(v)
	if err != nil || v == nil {
		data = []byte("{}")
	}
	return textOf(function, "name"), string(data)
}
