// Package structured makes answers that programs can read: it says which tokens may come
// next so that an answer follows a JSON Schema, a Go type, a regular expression or a list of
// texts, and splits answers into reasoning, text and calls of tools.
//
// Engines do both for requests with a format, tools or reasoning (see engine.Request); with
// sessions alone, a [Plan] gives the masks and readers.
//
//	type Ticket struct {
//		Kind  string `json:"kind" jsonschema:"enum=bug,enum=question"`
//		Title string `json:"title"`
//	}
//	ticket, err := engine.Ask[Ticket](ctx, e, engine.Request{Prompt: prompt})
//
// # Main types
//
//   - A [Format] is the set of texts that an answer may be: [Schema], [Type], [Regexp],
//     [Choice], [Object].
//   - A [Syntax] is how a model writes calls and reasoning, as its chat template shows. It
//     makes [Tools] of functions, and [Reasoning].
//   - A [Compiler] makes a [Plan] of them for a request, and keeps the grammars compiled last.
//   - A [Reader] splits one answer into [Piece]s as it comes.
//
// # What is enforced
//
// Formats hold token by token, whatever the model wants to write; only a limit on the length
// of an answer can cut it. Keywords of a schema that cannot be enforced are errors that name
// them. Calls that have to be made follow the schemas of their functions. Otherwise text is
// free until the mark of a call, after which only a call can come. Formats and calls apply to
// what follows the reasoning.
//
// # Concurrency
//
// A Compiler is safe for concurrent use. Formats, Syntaxes, Tools and Reasoning are immutable. The
// mask of a Plan is called by one goroutine at a time, and a Reader belongs to one goroutine.
package structured
