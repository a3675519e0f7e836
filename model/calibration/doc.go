// Package calibration measures the profiles that the allocator lukv divides a
// budget by, and carries a text to measure them on.
//
// A [Text] is a context with questions about different parts of it; [Narrative]
// is the one that comes with the package, [ReadTexts] reads others. [Profile]
// answers every question with the full cache, measures how much the answer drew
// on each entry of the context, solves for the best budgets, and averages.
// [Measure] is the loop beneath it, for several profiles from one pass or the
// measurements themselves.
//
// # Rules
//
// Equal models, texts and options give equal bytes, whatever the number of
// threads and however often the work is interrupted and resumed. A measurement
// belongs to one goroutine. The package links 20 KB of text.
package calibration
