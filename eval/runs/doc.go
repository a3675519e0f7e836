// Package runs keeps evaluations on disk and makes the tables of reports from
// them. A [Folder] is one run: its settings and versions, its answers, its scores;
// a run that was stopped goes on in it. [Read] reads such folders and the
// predictions of kvpress, RULER and LongBench, and [NewTable] sets methods against
// tasks, categories or ratios, with intervals, paired differences and the figures
// of published tables beside them.
//
// A Folder belongs to one goroutine and one process at a time.
package runs
