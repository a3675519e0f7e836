// Package jinja is the language of chat templates: the subset of Jinja2 that
// published templates use and their authors would write, as the transformers
// library sets it up. Blocks trim their newline and the blanks before them, and
// nothing is HTML-escaped. Values behave as in Python, and the rendered text is
// the text that Python would produce.
//
//   - statements: if, for (with if, else, break, continue), set (names, tuples,
//     namespace attributes, blocks), macro, generation, comments
//   - expressions: all operators, conditionals, slices, calls with named arguments
//   - the filters of [textFilters], [numberFilters], [sequenceFilters] and
//     [selectionFilters], the tests of [typeTests] and [valueTests], the methods of
//     [defineTextMethods] and [defineDictMethods], the functions of [defineGlobals]
//
// Everything else of Jinja and Python is refused by name with [ErrUnsupported]: by
// [Parse] where names and literals show it, otherwise when it is reached. The
// known differences: letters whose capital is more than one letter, except ß, keep
// their case, and Greek sigma has only one lower-case form. A loop, macro or block that
// reads a variable of the caller before the code around it sets that name sees the
// variable, where Jinja has nothing.
//
// # How it works
//
// A lexer produces tokens one at a time (lexer.go); a recursive-descent parser
// builds a tree from them (parser.go, expressions.go, ast.go) and looks up the
// names in it (check.go). The tree's nodes evaluate themselves (eval.go, exec.go,
// call.go) over values that never change once made (value.go).
//
// # Origin
//
// A text knows which of its bytes came from the input (text.go); every operation
// preserves that, and [Result] reports it.
//
// # Bounds
//
// Steps are charged for what is evaluated, visited and scanned, memory for what is
// made, before it is made (run.go); a parsed template is small because its source
// is. A context can end a run within a thousand steps.
package jinja
