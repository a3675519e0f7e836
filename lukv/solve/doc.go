// Package solve divides a budget of cache entries among heads so that the sum
// of their losses is small: loss curves, their convex surrogates, the greedy
// sweep over all compression levels, its repair, the exact programme, and a
// certificate of how far a solution can be from the optimum. Arrays of gains go
// in, counts come out; what a gain measures is up to the caller.
//
// A [Curve] is one head ("unit"): the gain of each further entry in the order
// in which a metric would keep them. [Greedy] spreads totals over many curves,
// [Repair] improves on units it left inside a block, [Exact] is the reference
// for small instances, and [Sweep] runs the 99 levels of a profile. [Project]
// is the least-squares projection onto non-increasing sequences that all of
// them use.
//
// Results are deterministic to the bit. Equal gains go to the higher unit
// first, as in the published solver. Curves are immutable and safe for
// concurrent use; returned slices belong to the caller.
//
// # Limits
//
// A sweep holds the gains and 4 bytes per block of their projections: about
// 10 MB for 32 layers of 8 heads of 4096 entries, 2 GB at 128k. [Exact] is for
// small instances or a coarse quantum.
package solve
