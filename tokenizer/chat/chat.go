package chat

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Template is a parsed chat template. It is immutable and safe for concurrent
// use.
type Template struct {
	name string
	body []stmt
}

// Parse parses a template's source; name stands for it in errors. A line break
// at the very end of the source is dropped, as Jinja does. Errors are *Error
// with the line of the fault.
func Parse(name, source string) (t *Template, err error) {
	line := 1
	defer rescue(name, &line, &err)
	p := &parser{toks: lex(source, &line), line: &line}
	body := p.statements(nil)
	if len(p.missing) > 0 {
		line = p.missing[0].line
		p.missing[0].fail()
	}
	return &Template{name: name, body: body}, nil
}

// Name is the name given to Parse.
func (t *Template) Name() string { return t.name }

// Options is how a template runs. The zero value is good for use.
type Options struct {
	// Limits bounds the run; zero fields have defaults.
	Limits Limits
	// Now is the time that strftime_now formats, in the zone it should show.
	// Default time.Now.
	Now func() time.Time
}

// Input is a conversation and what a template may want to know beside it.
type Input struct {
	// Messages of the conversation, oldest first, as in the chat APIs: objects
	// with role and content, perhaps tool_calls, tool_call_id, name.
	Messages []*Object
	// Tools the model may call, as JSON schema objects. Nil is none.
	Tools []*Object
	// Documents for templates that take some. Nil is none.
	Documents []*Object
	// AddGenerationPrompt ends the prompt with the start of an answer.
	AddGenerationPrompt bool
	// BOSToken and EOSToken are the texts of the special tokens. A template sees
	// an empty one as undefined.
	BOSToken, EOSToken string
	// Extra holds further variables, other special tokens and options of the
	// template's own; they win over the ones above. May be nil.
	Extra *Object

	Options
}

// variables are the names a template sees.
func (in *Input) variables() *Object {
	list := func(objects []*Object) any {
		if objects == nil {
			return nil
		}
		return objects
	}
	vars := new(Object)
	if in.Messages == nil {
		vars.Set("messages", []*Object{})
	} else {
		vars.Set("messages", in.Messages)
	}
	vars.Set("tools", list(in.Tools))
	vars.Set("documents", list(in.Documents))
	vars.Set("add_generation_prompt", in.AddGenerationPrompt)
	if in.BOSToken != "" {
		vars.Set("bos_token", in.BOSToken)
	}
	if in.EOSToken != "" {
		vars.Set("eos_token", in.EOSToken)
	}
	for name, v := range in.Extra.All() {
		vars.Set(name, v)
	}
	return vars
}

// Render returns the prompt for a conversation. It already holds the special
// tokens' texts that the template writes. Errors are *Error; a conversation that
// the template itself refuses is a *RaisedError inside.
func (t *Template) Render(ctx context.Context, in Input) (string, error) {
	return t.Execute(ctx, in.variables(), in.Options)
}

// Execute renders the template with the given variables and nothing else. A nil
// value is None, a name that is absent is undefined. It reads vars and keeps
// nothing of it.
func (t *Template) Execute(ctx context.Context, vars *Object, opt Options) (text string, err error) {
	r := &run{
		ctx:    ctx,
		limits: opt.Limits.withDefaults(),
		root:   new(scope),
		now:    opt.Now,
		out:    new(strings.Builder),
	}
	if r.now == nil {
		r.now = time.Now
	}
	defer rescue(t.name, &r.line, &err)
	r.vars = new(Object)
	for name, v := range vars.All() {
		r.vars.Set(name, importValue(v, name, 0))
	}
	r.exec(t.body, r.root)
	return r.out.String(), nil
}

// Split renders in.Messages followed by one user message of the given content
// and cuts the text right after the content: prefix is all that comes before and
// with it, suffix the end of the turn and, with AddGenerationPrompt, the start of
// the answer. A context can so be read first, before any question is known, and
// a question put between the two later.
//
// It fails if the template does not print the end of the content exactly once
// and unchanged.
func (t *Template) Split(ctx context.Context, in Input, content string) (prefix, suffix string, err error) {
	mark := sentinel(content)
	messages := make([]*Object, 0, len(in.Messages)+1)
	messages = append(messages, in.Messages...)
	in.Messages = append(messages, NewMessage("user", content+mark))
	text, err := t.Render(ctx, in)
	if err != nil {
		return "", "", err
	}
	prefix, suffix, ok := strings.Cut(text, mark)
	if !ok || strings.Contains(suffix, mark) {
		return "", "", &Error{Template: t.name, Err: fmt.Errorf("split after the user message: its end is printed %d times, expected once", strings.Count(text, mark))}
	}
	return prefix, suffix, nil
}

// sentinel is a text of plain letters and digits that does not occur in content,
// nor where content and sentinel meet.
func sentinel(content string) string {
	const stem = "EndOfContent"
	used := make(map[string]bool)
	for _, after := range strings.Split(content, stem)[1:] {
		used[after[:min(len(after), digitRun(after, isDecimal))]] = true
	}
	n := 0
	for used[strconv.Itoa(n)] {
		n++
	}
	return stem + strconv.Itoa(n) + "Mark"
}
