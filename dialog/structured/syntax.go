package structured

import (
	"context"
	"strings"
	"sync"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

// Syntax is how a model writes calls and reasoning, found from how its chat template renders
// some probes: calls in the form of Llama 3, Mistral (both of its forms), Qwen, Granite 3 or
// Phi 4, reasoning between <think> and </think>.
type Syntax struct {
	m       *model.Model
	tok     *tokenizer.Tokenizer
	calls   func() *callSyntax
	reasons func() bool
}

// NewSyntax returns the syntax of a model whose prompts have the given format.
func NewSyntax(m *model.Model, format *dialog.Format) (*Syntax, error) {
	tok, err := m.Tokenizer()
	if err != nil {
		return nil, err
	}
	return &Syntax{
		m: m, tok: tok,
		calls:   sync.OnceValue(func() *callSyntax { return findCallSyntax(format, tok) }),
		reasons: sync.OnceValue(func() bool { return findReasoning(format) }),
	}, nil
}

// Reasons reports whether the model's template knows reasoning.
func (s *Syntax) Reasons() bool { return s.reasons() }

// callSyntax is how a family of models writes function calls.
type callSyntax struct {
	name    string
	mark    string // precedes the calls; empty: the answer begins with a call
	first   int32  // the control token of the mark, or one that may precede calls; -1: none
	before  string // precedes each call
	after   string
	between string
	close   string // follows all calls
	open    string // precedes the name of a function; empty: the call begins with the name
	middle  string // stands between the name and the arguments
	shut    string // follows the arguments
	many    bool   // several calls at once
	idBytes int    // of ids, if the template checks their length
	shown   bool   // the template shows functions to the model
	writes  bool   // it writes calls that were made
	results bool   // it writes results of calls
}

var (
	llamaTools   = callSyntax{name: "llama", open: callBegin, middle: `", "parameters": `, shut: "}", shown: true}
	mistralTools = callSyntax{name: "mistral", mark: toolCalls, open: callBegin, middle: callArguments, shut: "}", between: ", ", close: "]", many: true, idBytes: 9, shown: true}
	argsTools    = callSyntax{name: "mistral args", mark: toolCalls, middle: argsMark, between: toolCalls, many: true, idBytes: 9, shown: true}
	qwenTools    = callSyntax{name: "qwen", mark: "<tool_call>", before: "\n", open: callBegin, middle: callArguments, shut: "}", after: "\n</tool_call>", between: "\n<tool_call>", many: true, shown: true}
	graniteTools = callSyntax{name: "granite", mark: toolCall, open: callBegin, middle: callArguments, shut: "}", between: ", ", close: "]", many: true, shown: true}
	phiTools     = callSyntax{name: "phi", mark: toolCall, open: callBegin, middle: callArguments, shut: "}", after: toolCallEnd, between: toolCall, many: true, shown: true}
	plainTools   = callSyntax{name: "plain", open: callBegin, middle: callArguments, shut: "}"}
)

const (
	// callBegin precedes a function's name in most syntaxes, and callArguments follows it.
	callBegin     = `{"name": "`
	callArguments = `", "arguments": `

	// Marks that are control tokens in the vocabularies of those who write them.
	toolCalls   = "[TOOL_CALLS]"   // Mistral
	argsMark    = "[ARGS]"         // since Mistral Small 3.2
	toolCall    = "<|tool_call|>"  // Granite 3, Phi 4
	toolCallEnd = "<|/tool_call|>" // Phi 4
)

// inCalls are the control tokens that syntaxes have within calls and between them.
var inCalls = []string{toolCalls, argsMark, toolCall, toolCallEnd}

// llamaTag is the control token that Llama 3 may write before a call.
const llamaTag = "<|python_tag|>"

// findCallSyntax finds the syntax from how a template renders a call. A template that
// does not know calls gets the plain syntax, which is explained to the model unless the
// template shows it the functions.
func findCallSyntax(format *dialog.Format, tok *tokenizer.Tokenizer) *callSyntax {
	function := new(chat.Object).Set("name", "lukv_probe").Set("arguments", new(chat.Object).Set("x", int64(1)))
	call := new(chat.Object).Set("id", "abcdefghi").Set("type", "function").Set("function", function)
	tool := new(chat.Object).Set("type", "function").Set("function", new(chat.Object).Set("name", "lukv_shown").Set("description", "").
		Set("parameters", new(chat.Object).Set("type", "object").Set("properties", new(chat.Object))))
	answer := chat.NewMessage("assistant", "").Set("tool_calls", []any{call})
	probe := func(role string, after ...*chat.Object) (chat.Prompt, error) {
		result := chat.NewMessage(role, "lukv_result").Set("tool_call_id", "abcdefghi")
		return format.Render(context.Background(), chat.Input{
			Messages: append([]*chat.Object{chat.NewMessage("user", "x"), answer, result}, after...),
			Tools:    []*chat.Object{tool},
		})
	}
	after := []*chat.Object{chat.NewMessage("user", "z")}
	p, err := probe("tool", after...)
	if err != nil { // not every template lets a user speak right after a tool
		after = nil
		p, err = probe("tool")
	}
	writes := err == nil && strings.Contains(p.Text, "lukv_probe")
	results := err == nil && strings.Contains(p.Text, "lukv_result")
	if results { // not if they are words of the assistant, as every role but the user's is
		said, err := probe("assistant", after...)
		results = err != nil || said.Text != p.Text
	}
	s := plainTools
	if writes && strings.Contains(p.Text, "lukv_shown") {
		s = writtenSyntax(p.Text)
	}
	if !s.shown { // it may show functions without knowing calls
		p, err := format.Render(context.Background(), chat.Input{Messages: []*chat.Object{chat.NewMessage("user", "x")}, Tools: []*chat.Object{tool}})
		if err == nil && strings.Contains(p.Text, "lukv_shown") {
			s = explainedSyntax(p.Text)
		}
	}
	s.writes, s.results = writes, results
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

// writtenSyntax is the syntax in which a text has a call of lukv_probe.
func writtenSyntax(text string) callSyntax {
	switch {
	case strings.Contains(text, toolCalls) && strings.Contains(text, argsMark):
		return argsTools
	case strings.Contains(text, toolCalls):
		return mistralTools
	case strings.Contains(text, toolCall+callBegin+"lukv_probe"):
		return phiTools
	case strings.Contains(text, "<tool_call>"):
		return qwenTools
	case strings.Contains(text, `"parameters": {"x"`):
		return llamaTools
	}
	return plainTools
}

// explainedSyntax is the syntax that a text which shows functions tells the model to use.
// Templates of Granite 3 and SmolLM3 do not write calls, which are text of the assistant there.
func explainedSyntax(text string) callSyntax {
	s := plainTools
	switch {
	case strings.Contains(text, toolCall):
		s = graniteTools
	case strings.Contains(text, "<tool_call>"):
		s = qwenTools
	}
	s.shown = true
	return s
}

// Marks between which models write their reasoning before they answer: those of Qwen3, SmolLM3,
// DeepSeek-R1 and models distilled from it.
const (
	thinkBegin = "<think>"
	thinkEnd   = "</think>"
)

// findReasoning reports whether a template knows the marks: it leaves out earlier reasoning,
// begins it, tells the model to write it between them, or ends it where it is not wanted.
func findReasoning(format *dialog.Format) bool {
	render := func(extra *chat.Object, messages ...*chat.Object) string {
		p, err := format.Render(context.Background(), chat.Input{Messages: messages, AddGenerationPrompt: true, Extra: extra})
		if err != nil {
			return ""
		}
		return strings.TrimSpace(p.Text)
	}
	ask := chat.NewMessage("user", "x")
	asked := render(nil, ask)
	later := render(nil, ask,
		chat.NewMessage("assistant", thinkBegin+"\nlukv_reasoning\n"+thinkEnd+"\n\nlukv_answer"),
		chat.NewMessage("user", "y"))
	switch {
	case strings.Contains(later, "lukv_answer") && !strings.Contains(later, "lukv_reasoning"), strings.HasSuffix(later, thinkBegin):
		return true
	case strings.Contains(asked, thinkBegin) && strings.Contains(asked, thinkEnd):
		return true
	}
	return strings.HasSuffix(render(new(chat.Object).Set("enable_thinking", false), ask), thinkEnd)
}
