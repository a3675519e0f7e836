// Package grammar makes a model write what a program can read: it compiles JSON Schemas,
// regular expressions and texts to automata over bytes and says which tokens of a
// vocabulary may come next.
//
// # Main types
//
//   - A [Part] is a language: [Text], [Schema], [Regexp], and what [Sequence], [OneOf]
//     and [Repeat] make of others.
//   - [Compile] makes it a [Grammar] for a [Vocabulary].
//   - A [State] is a place in a grammar; [Grammar.Mask] has a bit for every token that
//     may come next there.
//
// # The automaton
//
// A grammar is a set of rules. A rule is a small automaton whose edges take a byte or call
// a rule, and it may count (items of a list, characters of a string). The text read so far
// is a set of stacks of places in rules; the sets are numbered as they are met, so that a
// byte that was read before at the same place takes one table look-up. Every place can be
// finished: parts from which no end can be reached are never entered, nor is a rule that
// would need a deeper stack than there is room for.
//
// The pattern of a string first becomes states over characters, which account for its
// anchors and the bounds on its length, so that nothing is begun that cannot be finished.
//
// # Masks
//
// The bytes of all tokens form a trie, which is walked together with the automaton, and
// the mask of a place is kept. Inside a string nearly every token may come: there, the
// tokens of whole plain characters are known in advance by length, and only the trie of
// the others is walked.
//
// # Lifetime and concurrency
//
// Vocabularies are immutable. Grammars are safe for concurrent use and remember at most a
// few megabytes of what they have met; beyond that, all is forgotten and found again.
//
// # Limits
//
// Objects have their declared properties first, in declared order. White space is a blank,
// or a line break and up to 20 blanks, only after brackets, commas and colons and before
// closing brackets. Keywords that are not enforced are errors that name them.
package grammar
