// Package lukv decides which entries of a key/value cache stay. It provides
// metrics that rank the entries of a head, allocators that decide how many
// each head keeps, and the profiles and analysis of LU-KV. Plain arrays go in,
// budgets and kept sets come out; the package knows nothing of models and
// never touches a cache.
//
// # The two questions
//
// A [Metric] says which entries of a head matter (SnapKV, KeyDiff, Expected Attention,
// StreamingLLM, Knorm, TOVA, observed attention, H2O, CAKE, DefensiveKV, CriticalKV): it
// reads a [Layer] and returns [Scores]. An [Allocator] says how many entries each
// (layer, KV head) may keep (uniform, PyramidKV, AdaKV, global top-k, CAKE, HeadKV,
// LU-KV): it reads a [Demand], in some cases the scores too, and returns budgets [L][K].
// Any metric goes with any allocator; [Keep] cuts a head to its budget. A [Policy] names
// all of this, and [Policy.Compile] binds it to a cache:
//
//	c, err := policy.Compile(fingerprint, shape)
//	d := c.Demand(T)                          // what should become of T entries per head
//	if d.NoOp() { … }                    // nothing to do
//	budgets, err := lukv.Allocate(c.Allocator(), d, nil) // if c.Allocator().BudgetsKnown() == KnownBefore
//	scores, err := lukv.Score(ctx, c.Metric(), layer)
//	kept := lukv.Keep(nil, scores[h], budgets[l][h], d.Protection)
//
// Both sets are open: a module can add to them with [RegisterMetric] and
// [RegisterAllocator], as this package does with its own; examples/methods is
// such a module.
//
// # Profiles
//
// LU-KV reads its budgets from a [Profile], made once per model and metric: an
// [Oracle] measures what each entry was worth to the answers of calibration
// questions; package solve finds, for 99 levels of compression at once, the
// budgets that lose least when the metric does the ranking; a [ProfileBuilder]
// averages over questions. [Analyze] reports what metric and oracle lose. By
// default the oracle is not normalised, unlike in the published procedure
// ([DefaultProfileIdentity] says why); [Normalizations] lists the choices.
//
// # Rules
//
// Everything is deterministic to the bit on every CPU and at any degree of
// parallelism. Ties go to the lower position (selection), then the lower
// layer, head and position (competition between heads); in the solver they go
// to the higher head first, as in the published one.
//
// Metrics, allocators, profiles, curves and compiled policies are immutable and
// safe for concurrent use; [Oracle], [QueryStats], [ColumnSums] and
// [DecodeLayer] say what may run concurrently; a [ProfileBuilder] belongs to
// one goroutine.
//
// Returned slices belong to the caller unless a comment says otherwise. Input
// from outside (profiles, .npy files, JSON) is checked and never panics; slices
// of the wrong length passed in code are errors where the function returns one.
//
// # Limits
//
// At most 2³¹-1 positions. Making a profile keeps the importance and scores
// that it is given, and the curves of package solve, in memory. Budgets count
// entries: the pages of a cache may hold more bytes than entries times their
// size.
package lukv
