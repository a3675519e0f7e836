// Package ruler writes questions of RULER's thirteen tasks at any length: needles
// in haystacks, chains of variables, common words, and questions about documents.
// [Generate] makes the samples of one task; package eval reads them.
//
// The rules are RULER's (docs/specification.md); wording, word lists, essays and
// documents are our own unless [Sources] provides others. Results on ours
// compare methods with each other and not with published figures, and samples
// say so (Data is "builtin").
//
// Equal options give equal bytes, and sample i does not depend on how many are
// made. Lengths are counted with the caller's tokenizer.
package ruler
