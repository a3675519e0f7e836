// Package report has the common parts of the printed results of several commands:
// [Bytes] for sizes, [Table] for text in columns, [WriteJSON] for
// machine-readable output, [Figure] for charts, and [HeatMap] for one number
// per layer and KV head, as a picture or in a terminal's colours. Nothing in it
// knows about models or policies.
package report
