package chat

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lukv/lukv/internal/jinja"
	"github.com/lukv/lukv/tokenizer"
)

// Template is a parsed chat template. It is immutable and safe for concurrent
// use.
type Template struct {
	t      *jinja.Template
	source string

	tools    *Template // for conversations with tools; nil: this one
	toolsErr error     // why tools could not be parsed
}

// Parse parses a template's source; errors refer to it by name. A line break at
// the very end of the source is dropped, as in Jinja. Features that the
// language lacks are refused with ErrUnsupported: here where names and literals
// show them, otherwise by Render. Errors are *Error with the position of the
// fault.
func Parse(name, source string) (*Template, error) {
	t, err := jinja.Parse(name, source)
	if err != nil {
		return nil, public(err)
	}
	return &Template{t: t, source: source}, nil
}

// Source returns the source given to Parse.
func (t *Template) Source() string { return t.source }

// Name returns the name given to Parse.
func (t *Template) Name() string { return t.t.Name() }

// Limits bounds what rendering one template may use. A field that is zero or
// negative means its default. Exceeding a limit is an error for which
// errors.Is(err, ErrLimit) holds.
type Limits struct {
	// Memory is the total size in bytes of all strings, lists and objects made
	// while rendering, including the input and the result; each is counted
	// before it is made. Default 32 MiB, with which rendering takes less than 64
	// MB of the Go heap.
	Memory int
	// Steps counts evaluated expressions and statements, elements visited, and
	// text scanned (one step per 16 bytes). Default 5 million: under two
	// seconds.
	Steps int
	// Depth is how deep expressions, blocks, macro calls and values may nest
	// while rendering. Default 1000.
	Depth int
	// Range is the maximum number of elements of a range. Default 100000, Jinja's
	// own.
	Range int
}

// Options controls how a template runs. The zero value is ready to use.
type Options struct {
	// Limits bounds the run; zero fields have defaults.
	Limits Limits
	// Now is the time that strftime_now formats, in the zone it should show.
	// Default time.Now.
	Now func() time.Time
}

// Input is a conversation and whatever else a template may need.
type Input struct {
	// Messages of the conversation, oldest first, as in the chat APIs: objects
	// with role and content, perhaps tool_calls, tool_call_id, name.
	Messages []*Object
	// Tools the model may call, as JSON schema objects. Nil is none.
	Tools []*Object
	// Documents for templates that take them. Nil is none.
	Documents []*Object
	// AddGenerationPrompt ends the prompt with the start of an answer.
	AddGenerationPrompt bool
	// SpecialTokens holds the texts of the checkpoint's special tokens under the
	// names that templates use (see the function SpecialTokens): strings that count
	// as the template's own text. A template sees absent ones as undefined. May be
	// nil.
	SpecialTokens *Object
	// Extra holds further variables, such as options of a particular template;
	// they override the ones above. May be nil.
	Extra *Object

	Options
}

// Prompt is a conversation as a template renders it.
type Prompt struct {
	Text string
	// Data lists the parts of Text that came from messages, tools, documents and
	// extra variables, ascending and disjoint; the rest is the template's own.
	// Passed as tokenizer.EncodeOptions.Data, they keep whoever wrote these parts
	// from writing control tokens.
	Data []tokenizer.Span
}

// Data returns a prompt of text that came with a conversation.
func Data(text string) Prompt {
	if text == "" {
		return Prompt{}
	}
	return Prompt{Text: text, Data: []tokenizer.Span{{Start: 0, End: len(text)}}}
}

// Join concatenates prompts.
func Join(parts ...Prompt) Prompt {
	var text strings.Builder
	var data []tokenizer.Span
	for _, p := range parts {
		for _, d := range p.Data {
			data = append(data, tokenizer.Span{Start: text.Len() + d.Start, End: text.Len() + d.End})
		}
		text.WriteString(p.Text)
	}
	return Prompt{Text: text.String(), Data: data}
}

// Encode returns the prompt's tokens. The only control tokens are those that the
// template wrote: none is added, and none is recognised in Data.
// tokenizer.EncodeContext does the same with a limit.
func (p Prompt) Encode(tok *tokenizer.Tokenizer) []int32 {
	return tok.Encode(p.Text, tokenizer.EncodeOptions{Data: p.Data})
}

// Slice returns the part Text[start:end] of a prompt.
func (p Prompt) Slice(start, end int) Prompt {
	part := Prompt{Text: p.Text[start:end]}
	for _, d := range p.Data {
		if from, to := max(d.Start, start), min(d.End, end); from < to {
			part.Data = append(part.Data, tokenizer.Span{Start: from - start, End: to - start})
		}
	}
	return part
}

// knownRoles are the roles of the chat APIs. Some templates build control tokens
// from them, as in '<|' + message.role + '|>', so they count as the template's
// own.
var knownRoles = []string{"system", "developer", "user", "assistant", "tool", "function", "ipython"}

// message is a message whose role counts as the template's own if it is a known
// one.
type message struct{ *Object }

func (m message) All() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for key, v := range m.Object.All() {
			if role, ok := v.(string); ok && key == "role" && slices.Contains(knownRoles, role) {
				v = jinja.Trusted(role)
			}
			if !yield(key, v) {
				return
			}
		}
	}
}

// variables returns the variables that a template sees.
func (in *Input) variables() (*Object, error) {
	list := func(objects []*Object) any {
		if objects == nil {
			return nil
		}
		return objects
	}
	vars := new(Object)
	messages := make([]any, len(in.Messages))
	for i, m := range in.Messages {
		messages[i] = message{m}
	}
	vars.Set("messages", messages)
	vars.Set("tools", list(in.Tools))
	vars.Set("documents", list(in.Documents))
	vars.Set("add_generation_prompt", in.AddGenerationPrompt)
	for name, v := range in.SpecialTokens.All() {
		s, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("special token %s: found %T, expected a string", name, v)
		}
		vars.Set(name, jinja.Trusted(s))
	}
	for name, v := range in.Extra.All() {
		vars.Set(name, v)
	}
	return vars, nil
}

// Render returns the prompt for a conversation. It already holds the texts of
// the special tokens that the template writes. Errors are *Error; if the
// template itself refuses the conversation, they wrap a *RaisedError.
func (t *Template) Render(ctx context.Context, in Input) (Prompt, error) {
	if len(in.Tools) > 0 {
		if t.toolsErr != nil {
			return Prompt{}, t.toolsErr
		}
		if t.tools != nil {
			t = t.tools
		}
	}
	vars, err := in.variables()
	if err != nil {
		return Prompt{}, &Error{Template: t.Name(), Err: err}
	}
	return t.render(ctx, vars, in.Options)
}

func (t *Template) render(ctx context.Context, vars *Object, o Options) (Prompt, error) {
	result, err := t.t.Render(ctx, vars, jinja.Options{Limits: jinja.Limits(o.Limits), Now: o.Now})
	if err != nil {
		return Prompt{}, public(err)
	}
	p := Prompt{Text: result.Text, Data: make([]tokenizer.Span, len(result.Data))}
	for i, d := range result.Data {
		p.Data[i] = tokenizer.Span(d)
	}
	return p, nil
}

// Split renders in.Messages followed by one user message of the given content and
// cuts the text right after the content: prefix is everything up to and including
// it, suffix the end of the turn and, with AddGenerationPrompt, the start of the
// answer. That way a context can be read before any question is known, and a
// question inserted between the two later.
//
// It fails if the template does not print the end of the content exactly once
// and unchanged.
func (t *Template) Split(ctx context.Context, in Input, content string) (prefix, suffix Prompt, err error) {
	mark := sentinel(content)
	messages := make([]*Object, 0, len(in.Messages)+1)
	messages = append(messages, in.Messages...)
	in.Messages = append(messages, NewMessage("user", content+mark))
	p, err := t.Render(ctx, in)
	if err != nil {
		return Prompt{}, Prompt{}, err
	}
	if n := strings.Count(p.Text, mark); n != 1 {
		return Prompt{}, Prompt{}, &Error{Template: t.Name(), Err: fmt.Errorf("split after the user message: its end is printed %d times, expected once", n)}
	}
	i := strings.Index(p.Text, mark)
	return p.Slice(0, i), p.Slice(i+len(mark), len(p.Text)), nil
}

// sentinel returns a text of plain letters and digits that does not occur in
// content, nor across the point where content and sentinel meet.
func sentinel(content string) string {
	const stem = "EndOfContent"
	used := make(map[string]bool)
	for after := range strings.SplitSeq(content, stem) {
		used[after[:len(after)-len(strings.TrimLeft(after, "0123456789"))]] = true
	}
	n := 0
	for used[strconv.Itoa(n)] {
		n++
	}
	return stem + strconv.Itoa(n) + "Mark"
}
