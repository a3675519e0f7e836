package structured

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/lukv/lukv/internal/grammar"
	"github.com/lukv/lukv/tokenizer/chat"
)

// Function is one that a model may call.
type Function struct {
	Name        string // 1 to 64 letters, digits, points, hyphens and underscores
	Description string

	// Parameters is the JSON Schema of the arguments, an object unless it says otherwise; nil:
	// no arguments. [SchemaOf] makes one from a Go type. With Strict, objects have no other
	// properties than those in it, unless it says so, and it is enforced even if the call is
	// the model's decision and the schemas of all functions together are large.
	Parameters json.RawMessage
	Strict     bool
}

// ToolOptions say which calls may come. By default the model decides whether to answer with
// text or with calls.
type ToolOptions struct {
	Required bool   // the answer is a call
	Only     string // and of the function of this name
	Single   bool   // there is one call at most, as there is in some syntaxes in any case
}

// Tools are the functions that the answers to a request may call.
type Tools struct {
	*callSyntax
	functions []Function
	names     map[string]bool
	o         ToolOptions
	many      bool // several calls at once
	must      bool // the answer begins with the token of the mark
}

var functionName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// NameError says that a function cannot have its name.
type NameError struct {
	Function int    // its index
	Reason   string // with what was found and expected
}

func (e *NameError) Error() string { return fmt.Sprintf("function %d: %s", e.Function, e.Reason) }

// Tools returns functions as calls in this syntax. A name that is wrong or occurs twice is a
// [NameError].
func (s *Syntax) Tools(functions []Function, o ToolOptions) (*Tools, error) {
	t := &Tools{callSyntax: s.calls(), names: map[string]bool{}, o: o}
	for i, f := range functions {
		switch {
		case !functionName.MatchString(f.Name):
			return nil, &NameError{i, fmt.Sprintf("found %.80q, expected 1 to 64 letters, digits, points, hyphens and underscores", f.Name)}
		case t.names[f.Name]:
			return nil, &NameError{i, fmt.Sprintf("%q occurs twice", f.Name)}
		case f.Parameters == nil:
			f.Parameters, f.Strict = json.RawMessage(`{"type":"object"}`), true
		default:
			f.Parameters = OfObjects(f.Parameters)
		}
		t.names[f.Name] = true
		t.functions = append(t.functions, f)
	}
	switch {
	case len(t.functions) == 0:
		return nil, errors.New("found no functions, expected at least one")
	case o.Only != "" && !t.names[o.Only]:
		return nil, fmt.Errorf("found %q, expected the name of one of the tools", o.Only)
	}
	t.o.Required = o.Required || o.Only != ""
	t.many = !o.Single && t.callSyntax.many
	t.must = t.o.Required && t.first >= 0 && t.mark != ""
	return t, nil
}

// Required reports whether the answer is a call.
func (t *Tools) Required() bool { return t.o.Required }

// OfObjects returns a schema that describes objects even if the given one does not say so, as
// it does for the arguments of functions.
func OfObjects(schema json.RawMessage) json.RawMessage {
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
	at := strings.IndexByte(string(schema), '{') + 1
	return append(json.RawMessage(`{"type":"object",`), schema[at:]...)
}

// Show adds the functions to the input of a chat template; if in.Tools is set already, it is
// those that are shown. If the template does not show functions, they are explained before
// the first user message, which there has to be. Calls and results that it leaves out become
// text, see [Syntax.Retell].
func (t *Tools) Show(in *chat.Input) error {
	if in.Tools == nil {
		for _, f := range t.functions {
			shown := &chat.Object{}
			if err := json.Unmarshal(f.Parameters, shown); err != nil {
				return fmt.Errorf("the parameters of the function %s: %w", f.Name, err)
			}
			of := new(chat.Object).Set("name", f.Name).Set("description", f.Description).Set("parameters", shown)
			in.Tools = append(in.Tools, new(chat.Object).Set("type", "function").Set("function", of))
		}
	}
	t.retell(in)
	if t.shown {
		return nil
	}
	return explain(in)
}

// explain tells a model about functions if its template does not: before the first user
// message, which every template shows.
func explain(in *chat.Input) error {
	var b strings.Builder
	b.WriteString("You can call functions. To call one, answer with nothing but JSON: " + callBegin + `FUNCTION` + callArguments + `{...}}. The functions are:`)
	for _, t := range in.Tools {
		data, err := json.Marshal(t)
		if err != nil {
			return err
		}
		b.WriteString("\n")
		b.Write(data)
	}
	in.Tools = nil
	for i, m := range in.Messages {
		if role, _ := m.Get("role"); role == "user" {
			text, _ := m.Get("content")
			in.Messages = slices.Clone(in.Messages) // the caller's stay as they are
			in.Messages[i] = chat.NewMessage("user", fmt.Sprintf("%s\n\n%s", &b, text))
			return nil
		}
	}
	return errors.New("found no message with the role user, in which to describe them")
}

// format returns the format of calls: of the whole answer if calls have to be made,
// otherwise of what follows the mark. If nothing has to be called, schemas that are not
// strict and cannot be enforced allow any object; if there are too many to be enforced
// together, all that are not strict do.
func (t *Tools) format(ctx context.Context, c *Compiler) Format {
	out := t.formatOf(ctx, c, false)
	if !t.o.Required {
		if _, err := c.grammar(ctx, out); err != nil {
			return t.formatOf(ctx, c, true)
		}
	}
	return out
}

// formatOf is format; with loose, only strict schemas are enforced.
func (t *Tools) formatOf(ctx context.Context, c *Compiler, loose bool) Format {
	auto := !t.o.Required
	key := fmt.Appendf(nil, "calls %s %v %q %v %v %v", t.name, auto, t.o.Only, t.many, t.must, loose)
	var list []grammar.Part
	for _, fn := range t.functions {
		if t.o.Only != "" && t.o.Only != fn.Name {
			continue
		}
		arguments := Schema(fn.Parameters, fn.Strict)
		if auto && !fn.Strict {
			var err error
			if !loose {
				_, err = c.grammar(ctx, arguments)
			}
			if loose || err != nil {
				arguments = Object()
			}
		}
		list = append(list, grammar.Sequence(grammar.Text(fn.Name), c.mark(t.middle), arguments.part))
		key = fmt.Appendf(key, " %q %v %s", fn.Name, fn.Strict, fn.Parameters)
	}
	call := grammar.Sequence(grammar.Text(t.before+t.open), grammar.OneOf(list...), c.mark(t.shut+t.after))
	if t.many {
		call = grammar.Repeat(call, c.mark(t.between))
	}
	if t.close == "]" {
		call = grammar.Sequence(grammar.Texts("[", " ["), call, grammar.Text(t.close))
	}
	if !auto && !t.must {
		call = grammar.Sequence(grammar.Text(t.mark), call)
	}
	return Format{part: call, key: key}
}

// orFormat returns the format of answers that follow another one or make calls, as the
// model decides.
func (t *Tools) orFormat(ctx context.Context, c *Compiler, format Format) Format {
	calls := t.format(ctx, c)
	if t.mark != "" && t.first >= 0 {
		format.firstToken, format.first = t.first, &calls
		return format
	}
	return Format{
		part: grammar.OneOf(format.part, grammar.Sequence(grammar.Text(t.mark), calls.part)),
		key:  fmt.Appendf(nil, "either %d %s%s", len(format.key), format.key, calls.key),
		err:  format.err,
	}
}
