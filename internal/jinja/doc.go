// Package jinja is the language of chat templates: the part of Jinja2 that
// published templates use and their authors would write, as the transformers
// library sets it up. Blocks trim their newline and the blanks before them, and
// nothing is HTML-escaped. Values behave as Python's do, and the rendered text is
// the text Python would give.
//
//   - statements: if, for (with if, else, break, continue), set (names, tuples,
//     namespace attributes, blocks), macro, generation, comments
//   - expressions: all operators, conditionals, slices, calls with named arguments
//   - the filters of [textFilters], [numberFilters], [sequenceFilters] and
//     [selectionFilters], the tests of [typeTests] and [valueTests], the methods of
//     [defineTextMethods] and [defineDictMethods], the functions of [defineGlobals]
//
// Everything else of Jinja and Python is refused by name with [ErrUnsupported]: by
// [Parse] where names and literals show it, else when it is reached. What remains
// to be known: letters whose capital is more than one letter, but for ß, keep
// their case, and a Greek sigma has one small form.
//
// # How it works
//
// A lexer cuts tokens one at a time (lexer.go), a recursive-descent parser makes a
// tree of them (parser.go, expressions.go, ast.go) and looks up what it names
// (check.go). The tree's nodes evaluate themselves (eval.go, exec.go, call.go) over
// values that never change once made (value.go).
//
// # Origin
//
// A text knows which of its bytes came from the input (text.go); every operation
// keeps that, and [Result] hands it out.
//
// # Bounds
//
// Steps are charged for what is evaluated, visited and scanned, memory for what is
// made, before it is made (run.go); a parsed template is small because its source
// is. A context ends a run within a thousand steps.
package jinja
