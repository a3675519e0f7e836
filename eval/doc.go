// Package eval measures what cache compression costs: it asks questions about
// contexts whose cache was compressed before the question was known, and scores
// the answers.
//
// An [Item] is one question: context, question, answer prefix and accepted answers
// (the fields of RULER and of kvpress's tables); [ReadItems] reads them, [ReadData]
// reads folders and zip files of RULER and LongBench, and [Subset] draws a sample.
// [Run] groups items by context, compresses each context once per [Method], asks
// all its questions against forks of the compressed session, and hands out one
// [Answer] per item and method. A [Log] keeps answers in a file, so that a run can
// be resumed; package eval/runs stores whole runs. [Summarize] turns answers into
// rows per method and task with bootstrap confidence intervals; [WriteTable],
// [WriteMarkdown] and [WriteCSV] print them.
//
// The protocol is question-agnostic: only the context is in the cache when it
// is compressed; the question and the generated answer are never evicted, and
// decoding is greedy.
//
// # Concurrency and limits
//
// A run uses one goroutine, or Options.Parallel of them, on top of the model's
// own threads; different runs may share a model. A Log belongs to one run. Items
// that do not fit into the model's context are reported, and truncated only on
// request.
package eval
