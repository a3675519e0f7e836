// Package eval measures what cache compression costs: it asks questions about
// contexts whose cache has been compressed before the question was known, and
// scores the answers.
//
// An [Item] is one question: context, question, answer prefix and accepted
// answers (the fields of RULER and of kvpress's tables). [Run] groups items by
// context, compresses each context once per [Method], asks all its questions
// against forks of the compressed session, and hands out one [Answer] per item
// and method. [Summarize] turns answers into rows per method and task with
// bootstrap confidence intervals; [WriteTable], [WriteCSV] and [WriteJSON]
// print them.
//
// The protocol is question-agnostic: only the context is in the cache when it
// is compressed; the question and the generated answer are never evicted, and
// decoding is greedy.
package eval
