package serve

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/internal/grammar"
	"github.com/lukv/lukv/internal/strictjson"
	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

const (
	maxTools     = 128
	maxToolBytes = 256 << 10
)

// toolSyntax is how a family of models writes function calls.
type toolSyntax struct {
	name    string
	mark    string // precedes the calls; empty: the answer begins with a call
	first   int32  // the control token of the mark, or one that may precede calls; -1: none
	before  string // precedes each call
	after   string
	between string
	close   string // follows all calls
	key     string // of the arguments
	many    bool   // several calls at once
	idBytes int    // of ids, if the template checks their length
	shown   bool   // the template shows functions to the model
}

var (
	llamaTools   = toolSyntax{name: "llama", key: "parameters", shown: true}
	mistralTools = toolSyntax{name: "mistral", mark: "[TOOL_CALLS]", key: "arguments", between: ", ", close: "]", many: true, idBytes: 9, shown: true}
	qwenTools    = toolSyntax{name: "qwen", mark: "<tool_call>", before: "\n", after: "\n</tool_call>", between: "\n<tool_call>", key: "arguments", many: true, shown: true}
	plainTools   = toolSyntax{name: "plain", key: "arguments"}
)

// llamaTag is the control token that Llama 3 may write before a call.
const llamaTag = "<|python_tag|>"

// callBegin precedes a function's name in every syntax.
const callBegin = `{"name": "`

// findToolSyntax finds the syntax from how a template renders a call. A template that
// does not know calls gets the plain syntax, which is explained to the model unless the
// template shows it the functions.
func findToolSyntax(format *dialog.Format, tok *tokenizer.Tokenizer) *toolSyntax {
	function := new(chat.Object).Set("name", "lukv_probe").Set("arguments", new(chat.Object).Set("x", int64(1)))
	call := new(chat.Object).Set("id", "abcdefghi").Set("type", "function").Set("function", function)
	tool := new(chat.Object).Set("type", "function").Set("function", new(chat.Object).Set("name", "lukv_shown").Set("description", "").
		Set("parameters", new(chat.Object).Set("type", "object").Set("properties", new(chat.Object))))
	answer := chat.NewMessage("assistant", "").Set("tool_calls", []any{call})
	p, err := format.Render(context.Background(), chat.Input{
		Messages: []*chat.Object{chat.NewMessage("user", "x"), answer, chat.NewMessage("tool", "y").Set("tool_call_id", "abcdefghi"), chat.NewMessage("user", "z")},
		Tools:    []*chat.Object{tool},
	})
	if err != nil { // not every template lets a user speak right after a tool
		p, err = format.Render(context.Background(), chat.Input{
			Messages: []*chat.Object{chat.NewMessage("user", "x"), answer, chat.NewMessage("tool", "y").Set("tool_call_id", "abcdefghi")},
			Tools:    []*chat.Object{tool},
		})
	}
	s := plainTools
	if err == nil && strings.Contains(p.Text, "lukv_probe") && strings.Contains(p.Text, "lukv_shown") {
		switch {
		case strings.Contains(p.Text, "[TOOL_CALLS]") && !strings.Contains(p.Text, "[ARGS]"):
			s = mistralTools
		case strings.Contains(p.Text, "<tool_call>"):
			s = qwenTools
		case strings.Contains(p.Text, `"parameters": {"x"`):
			s = llamaTools
		}
	}
	if !s.shown { // it may show functions without knowing calls
		p, err := format.Render(context.Background(), chat.Input{Messages: []*chat.Object{chat.NewMessage("user", "x")}, Tools: []*chat.Object{tool}})
		s.shown = err == nil && strings.Contains(p.Text, "lukv_shown")
	}
	s.first = -1
	mark := s.mark
	if s.name == llamaTools.name {
		mark = llamaTag
	}
	if id, ok := tok.ID(mark); ok && mark != "" && tok.IsSpecial(id) {
		s.first = id
	}
	return &s
}

// function is one that the model may call.
type function struct {
	name       string
	parameters json.RawMessage
	strict     bool
}

// toolCalls are the functions of a request, and how they may be called.
type toolCalls struct {
	*toolSyntax
	functions []function
	names     map[string]bool
	choice    string // auto, the name of the one that has to be called, or empty if any has to be
	many      bool
	must      bool // the answer begins with the token of the mark
}

var functionName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// tools reads tools and tool_choice, and passes the tools to the template, or explains
// them. The result is nil if nothing can be called.
func tools(f *fields, v *served, in *chat.Input) *toolCalls {
	list := f.list("tools", maxTools)
	if len(f.raw("tools")) > maxToolBytes {
		f.fail("tools", "found %d bytes, expected at most %d", len(f.raw("tools")), maxToolBytes)
	}
	t := &toolCalls{names: map[string]bool{}, choice: "auto"}
	for i, o := range f.objects("tools", maxTools) {
		t.add(o)
		f.adopt(o)
		shown := &chat.Object{} // in the order of the request
		if err := json.Unmarshal(list[i], shown); err != nil {
			f.fail("tools", "%v", err)
		}
		in.Tools = append(in.Tools, shown)
	}
	t.readChoice(f)
	t.many = !f.has("parallel_tool_calls") || f.boolean("parallel_tool_calls")
	if f.err != nil || len(t.functions) == 0 || t.choice == "none" {
		in.Tools = nil
		return nil
	}
	t.toolSyntax = v.toolSyntax()
	t.many = t.many && t.toolSyntax.many
	t.must = t.choice != "auto" && t.first >= 0 && t.mark != ""
	if !t.shown {
		explain(f, in)
	}
	return t
}

// add reads a function.
func (t *toolCalls) add(o *fields) {
	if kind := o.str("type"); kind != "function" {
		o.fail("type", "%q is not supported, expected function", kind)
		return
	}
	d := o.object("function")
	if d == nil {
		o.fail("function", "missing")
		return
	}
	fn := function{name: d.str("name"), parameters: d.raw("parameters"), strict: d.boolean("strict")}
	switch {
	case !functionName.MatchString(fn.name):
		d.fail("name", "found %.80q, expected 1 to 64 letters, digits, points, hyphens and underscores", fn.name)
	case t.names[fn.name]:
		d.fail("name", "%q occurs twice", fn.name)
	case fn.parameters == nil:
		fn.parameters, fn.strict = json.RawMessage(`{"type":"object"}`), true
	case fn.parameters[0] != '{':
		d.fail("parameters", "found %s, expected an object", kind(fn.parameters))
	default:
		fn.parameters = ofObjects(fn.parameters)
	}
	o.adopt(d)
	t.names[fn.name] = true
	t.functions = append(t.functions, fn)
}

// ofObjects returns a schema of arguments that requires objects even if the given one
// does not say so.
func ofObjects(schema json.RawMessage) json.RawMessage {
	var says map[string]json.RawMessage
	if json.Unmarshal(schema, &says) != nil {
		return schema // compiling it says what is wrong
	}
	for _, k := range []string{"type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"} {
		if _, ok := says[k]; ok {
			return schema
		}
	}
	if len(says) == 0 {
		return json.RawMessage(`{"type":"object"}`)
	}
	return append(json.RawMessage(`{"type":"object",`), schema[1:]...)
}

// readChoice reads tool_choice.
func (t *toolCalls) readChoice(f *fields) {
	v := f.raw("tool_choice")
	switch {
	case v == nil:
		return
	case v[0] == '"':
		switch t.choice = f.str("tool_choice"); t.choice {
		case "auto", "none":
			return
		case "required":
		default:
			f.fail("tool_choice", "%q is unknown, expected none, auto, required or a function", t.choice)
		}
		t.choice = "" // any of them
	default:
		o := f.object("tool_choice")
		if o == nil {
			return
		}
		if kind := o.str("type"); kind != "function" {
			o.fail("type", "%q is not supported, expected function", kind)
		}
		d := o.object("function")
		if d == nil {
			o.fail("function", "missing")
		} else {
			if t.choice = d.str("name"); !t.names[t.choice] {
				d.fail("name", "found %q, expected the name of one of the tools", t.choice)
			}
			o.adopt(d)
		}
		f.adopt(o)
	}
	if len(t.functions) == 0 {
		f.fail("tool_choice", "found a choice without tools")
	}
}

// explain tells a model about functions if its template does not: before the first user
// message, which every template shows.
func explain(f *fields, in *chat.Input) {
	var b strings.Builder
	b.WriteString("You can call functions. To call one, answer with nothing but JSON: " + callBegin + `FUNCTION", "arguments": {...}}. The functions are:`)
	for _, t := range in.Tools {
		data, err := json.Marshal(t)
		if err != nil {
			f.fail("tools", "%v", err)
			return
		}
		b.WriteString("\n")
		b.Write(data)
	}
	in.Tools = nil
	for i, m := range in.Messages {
		if role, _ := m.Get("role"); role == "user" {
			text, _ := m.Get("content")
			in.Messages[i] = chat.NewMessage("user", fmt.Sprintf("%s\n\n%s", &b, text))
			return
		}
	}
	f.fail("tools", "found no message with the role user, in which to describe them")
}

// language returns the format of calls: of the whole answer if calls have to be made,
// otherwise of what follows the mark. If nothing has to be called, schemas that are not
// strict and cannot be enforced allow any object; if there are too many to be enforced
// together, all that are not strict do.
func (t *toolCalls) language(ctx context.Context, v *served) language {
	out := t.languageOf(ctx, v, false)
	if t.choice == "auto" {
		if _, err := v.grammar(ctx, out); err != nil {
			return t.languageOf(ctx, v, true)
		}
	}
	return out
}

// languageOf is language; with loose, only strict schemas are enforced.
func (t *toolCalls) languageOf(ctx context.Context, v *served, loose bool) language {
	auto := t.choice == "auto"
	key := fmt.Appendf(nil, "calls %s %q %v %v %v", t.name, t.choice, t.many, t.must, loose)
	var list []grammar.Part
	for _, fn := range t.functions {
		if !auto && t.choice != "" && t.choice != fn.name {
			continue
		}
		arguments := grammar.Schema(fn.parameters, fn.strict)
		if auto && !fn.strict {
			var err error
			if !loose {
				_, err = v.grammar(ctx, language{part: arguments, key: fmt.Appendf(nil, "schema false %s", fn.parameters)})
			}
			if loose || err != nil {
				arguments = anyObject().part
			}
		}
		list = append(list, grammar.Sequence(grammar.Text(fn.name+`", "`+t.key+`": `), arguments))
		key = fmt.Appendf(key, " %q %v %s", fn.name, fn.strict, fn.parameters)
	}
	call := grammar.Sequence(grammar.Text(t.before+callBegin), grammar.OneOf(list...), grammar.Text("}"+t.after))
	if t.many {
		call = grammar.Repeat(call, grammar.Text(t.between))
	}
	if t.close == "]" {
		call = grammar.Sequence(grammar.Texts("[", " ["), call, grammar.Text(t.close))
	}
	if !auto && !t.must {
		call = grammar.Sequence(grammar.Text(t.mark), call)
	}
	return language{part: call, key: key}
}

// orFormat returns the language of answers that follow a format or make calls, as the
// model decides.
func (t *toolCalls) orFormat(ctx context.Context, v *served, format language) language {
	calls := t.language(ctx, v)
	if t.mark != "" && t.first >= 0 {
		format.firstToken, format.first = t.first, &calls
		return format
	}
	return language{
		part:  grammar.OneOf(format.part, grammar.Sequence(grammar.Text(t.mark), calls.part)),
		field: format.field,
		key:   fmt.Appendf(nil, "either %d %s%s", len(format.key), format.key, calls.key),
	}
}

// callStart finds where calls begin in an answer.
type callStart struct {
	t    *toolCalls
	g    *grammar.Grammar
	tok  *tokenizer.Tokenizer
	text []byte // the end of the answer so far: a part of the mark, or of the first call
	none bool   // no calls can come any more
}

// token takes a token and returns the state after it; nil before the calls.
func (c *callStart) token(ctx context.Context, budget *grammar.Budget, id int32) (*grammar.State, error) {
	if id == c.t.first {
		return c.g.Start(), nil
	}
	if c.none {
		return nil, nil
	}
	c.text = append(c.text, c.tok.TokenBytes(id)...)
	if c.t.mark == "" {
		s, err := c.g.Bytes(ctx, budget, c.g.Start(), c.text)
		switch {
		case s == nil || err != nil:
			c.none = true
		case len(c.text) >= len(callBegin):
			return s, nil
		}
		return nil, err
	}
	if i := bytes.Index(c.text, []byte(c.t.mark)); i >= 0 {
		s, err := c.g.Bytes(ctx, budget, c.g.Start(), c.text[i+len(c.t.mark):])
		c.none = s == nil
		return s, err
	}
	if n := len(c.text) - len(c.t.mark); n > 0 {
		c.text = c.text[n:]
	}
	return nil, nil
}

// callDelta is a piece of a call: the first has a name.
type callDelta struct {
	index     int
	id, name  string
	arguments string
}

// callReader splits an answer into text and calls, as it comes.
type callReader struct {
	t     *toolCalls
	stage callStage
	buf   string // still undecided
	lost  string // preceded it; it is text if no call follows
	begun bool   // without a mark: the answer did not begin with a call
	calls int
	at    strictjson.Nesting // in the arguments
}

type callStage int

const (
	inText      callStage = iota // a mark may still come
	inHead                       // of a call: up to its arguments
	inArguments                  // of a call
	inTail                       // after a call
	afterCalls                   // only text comes
)

// add takes the next piece of the answer; last is set at the end.
func (c *callReader) add(text string, last bool) (string, []callDelta) {
	c.buf += text
	content := ""
	var calls []callDelta
	for {
		before, stage := len(c.buf), c.stage
		switch c.stage {
		case inText:
			content += c.text()
		case inHead:
			content, calls = c.head(content, calls)
		case inArguments:
			if n := c.arguments(); n > 0 {
				calls = append(calls, callDelta{index: c.calls - 1, arguments: c.buf[:n]})
				c.buf = c.buf[n:]
			}
		case inTail:
			if i := strings.Index(c.buf, callBegin); i >= 0 {
				c.buf, c.lost, c.stage = c.buf[i:], "", inHead
			} else if n := len(c.buf) - len(callBegin); n > 0 {
				c.buf = c.buf[n:]
			}
		case afterCalls:
			content += c.buf
			c.buf = ""
		}
		if c.stage == stage && (len(c.buf) == before || c.buf == "" || stage == inTail) {
			break
		}
	}
	if last && c.calls == 0 {
		// Where nothing but a call can come, the beginning of one is no text.
		if c.t.choice == "auto" && !c.cutHead() {
			content += c.lost + c.buf
		}
		c.buf, c.lost = "", ""
	}
	return content, calls
}

// cutHead reports whether the undecided text is the beginning of a call after a mark.
func (c *callReader) cutHead() bool {
	rest := strings.TrimLeft(c.buf, " [\n")
	for name := range c.t.names {
		if c.t.mark != "" && c.stage == inHead && strings.HasPrefix(callBegin+name+`", "`+c.t.key+`": `, rest) {
			return true
		}
	}
	return false
}

// text returns the text that certainly is not part of a call. In a syntax without a mark, the
// token that may precede calls is a mark once text has come.
func (c *callReader) text() string {
	mark := c.t.mark
	if mark == "" {
		mark = llamaTag
		rest := strings.TrimPrefix(c.buf, llamaTag)
		switch {
		case c.begun:
		case strings.HasPrefix(rest, callBegin):
			c.lost, c.buf, c.stage = c.buf[:len(c.buf)-len(rest)], rest, inHead
			return ""
		case strings.HasPrefix(callBegin, rest) || strings.HasPrefix(llamaTag, c.buf):
			return ""
		case c.t.first < 0:
			c.stage = afterCalls
			return ""
		}
		c.begun = true
	}
	if i := strings.Index(c.buf, mark); i >= 0 {
		out := c.buf[:i]
		c.lost, c.buf, c.stage = mark, c.buf[i+len(mark):], inHead
		return out
	}
	hold := 0
	for n := min(len(mark)-1, len(c.buf)); n > 0; n-- {
		if strings.HasSuffix(c.buf, mark[:n]) {
			hold = n
			break
		}
	}
	out := c.buf[:len(c.buf)-hold]
	c.buf = c.buf[len(c.buf)-hold:]
	return out
}

// head reads the name of a function. What does not begin like a call was text.
func (c *callReader) head(content string, calls []callDelta) (string, []callDelta) {
	at := strings.Index(c.buf, callBegin)
	if at < 0 && len(c.buf) < 4+len(callBegin) {
		return content, calls
	}
	if at >= 0 {
		rest := c.buf[at+len(callBegin):]
		next := `", "` + c.t.key + `": `
		i := strings.Index(rest, next)
		if i < 0 && len(rest) < 64+len(next) {
			return content, calls
		}
		if i >= 0 && c.t.names[rest[:i]] {
			calls = append(calls, callDelta{index: c.calls, id: c.t.newID(), name: rest[:i]})
			c.calls++
			c.buf, c.lost, c.stage = rest[i+len(next):], "", inArguments
			c.at = strictjson.Nesting{}
			return content, calls
		}
	}
	content += c.lost
	c.lost, c.stage = "", afterCalls
	return content, calls
}

// arguments returns how much of buf belongs to the arguments, which end where their
// object is closed or, if a schema lets them be something else, before the bracket that
// closes the call.
func (c *callReader) arguments() int {
	for i := range len(c.buf) {
		if b := c.buf[i]; c.at.Next(b) && (b == '}' || b == ']') && c.at.Depth <= 0 {
			c.stage = inTail
			return i + 1 + c.at.Depth
		}
	}
	return len(c.buf)
}

// newID returns an id for a call.
func (t *toolCalls) newID() string {
	if t.idBytes > 0 {
		return rand.Text()[:t.idBytes]
	}
	return "call_" + randomID()
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
			if text := fn.str("arguments"); text != "" {
				if err := cmp.Or(embedded(text), json.Unmarshal([]byte(text), arguments)); err != nil {
					fn.fail("arguments", "expected a text that is a JSON object: %v", err)
				}
			}
			call.Set("function", function.Set("arguments", arguments))
			o.adopt(fn)
		}
		m.adopt(o)
		out = append(out, call)
	}
	return out
}
