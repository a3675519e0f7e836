// Package chat renders the chat templates that checkpoints carry: Jinja
// templates that turn a conversation, tools and special tokens into the one
// string a model was trained to read.
//
// # What it is
//
// A lexer, a parser to a syntax tree and an evaluator for the Jinja2 language
// as the transformers library sets it up: blocks trim their newline and the
// blanks before them, nothing is HTML-escaped, break, continue and a
// generation block exist, tojson keeps key order, raise_exception and
// strftime_now are globals. Values behave as Python's do: integers and floats
// stay apart, objects keep the order of their keys, None and undefined are two
// things, and the rendered text is the text Python would give.
//
// # Main types
//
//   - [Template] is a parsed template; [Parse] makes one from source, [Load]
//     from a checkpoint folder.
//   - [Object] is a JSON object that keeps its key order. Messages, tools and
//     tool arguments are Objects; [DecodeJSON] reads them.
//   - [Input] is a conversation with everything around it; [Template.Render]
//     turns it into text, [Template.Split] cuts that text after one user
//     message, and [Template.Execute] runs a template over arbitrary variables.
//   - [Limits] bounds what a template may use.
//
// # Lifetime and concurrency
//
// A Template is immutable and safe for concurrent use. Render and Execute read
// their input and never change or keep it; the caller must not change it
// meanwhile. An Object is a plain value for one goroutine, or for many readers.
//
// # Safety
//
// Templates and conversations are outside input. A template reaches only the
// values it is given and pure functions on them: no files, no network, no
// methods of Go types, no change of its input. Steps, memory, output, nesting
// and ranges are bounded by [Limits], and a context cancels. Every failure is
// an [Error] with the template's name and a line; [ErrLimit],
// [ErrUnsupported] and [RaisedError] tell the causes apart where callers care.
//
// # Limits of the language
//
// Templates that load other templates (extends, include, import, from) and
// automatic HTML escaping are refused while parsing. The filters pprint, random,
// urlize and wordwrap, the global lipsum, the methods str.encode, str.translate
// and str.maketrans, the string escape \N{...}, the format flag # for floats and
// complex numbers fail by name; self and super are undefined in blocks. Other
// extensions of Jinja than the ones above do not exist. What Python prints with
// a memory address prints without one, and a float power may differ in its last
// digit.
//
// A rendered prompt already holds the model's begin-of-text token where the
// template writes one: encode it without adding special tokens.
package chat
