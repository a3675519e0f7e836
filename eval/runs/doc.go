// Package runs keeps evaluations on disk and makes report tables from them. A
// [Folder] is one run: its settings and versions, its answers and its scores; a
// stopped run is resumed in it. [Read] reads such folders and the predictions of
// kvpress, RULER and LongBench, and [NewTable] tabulates methods by task, category
// or ratio, with intervals, paired differences and the figures of published
// tables.
//
// A Folder belongs to one goroutine and one process at a time.
package runs
