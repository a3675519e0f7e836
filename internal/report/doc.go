// Package report holds what the printed results of several commands share:
// [Bytes] for sizes, [WriteJSON] for machine-readable output, and [HeatMap]
// for one number per layer and KV head, as a picture or in the colours of a
// terminal. Nothing in it knows a model or a policy.
package report
