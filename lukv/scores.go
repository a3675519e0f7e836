package lukv

import (
	"context"
	"math"

	"github.com/lukv/lukv/kernels"
)

// Dimension names of this package: L layers, H query heads, K KV heads,
// G = H/K query heads per KV head (query head q reads KV head q/G), D head
// dimension, T cached entries of a head, w window rows, b entries kept in one
// head (protected ones included), n the uniform share of a head.
//
// A slot is an index into a head's cache, a position the token's place in the
// text. They coincide until something is evicted; afterwards slots of a head
// are in ascending order of position.

// Scores holds the scores of one layer: Scores[h][t] for KV head h and slot t,
// larger means keep. Rows of different heads differ in length where the cache
// is ragged. Entries that the metric itself always keeps and has no real score
// for (SnapKV's window, Expected Attention's sinks) hold +Inf. NaN ranks as
// -Inf.
type Scores [][]float32

// NaNs counts the scores that are NaN; a metric that produces any was fed
// non-finite keys, values or queries.
func (s Scores) NaNs() int {
	n := 0
	for _, row := range s {
		for _, v := range row {
			if v != v {
				n++
			}
		}
	}
	return n
}

// Degenerate reports whether every finite score of some head is the same value
// although the head has at least two of them: the lowest positions then win
// and the metric says nothing.
func (s Scores) Degenerate() bool {
	for _, row := range s {
		seen, same := 0, true
		var first float32
		for _, v := range row {
			if math.IsInf(float64(v), 0) || v != v {
				continue
			}
			if seen == 0 {
				first = v
			}
			seen++
			if v != first {
				same = false
				break
			}
		}
		if seen > 1 && same {
			return true
		}
	}
	return false
}

// ReplaceInf writes m+plus into every +Inf entry, where m is the largest
// finite score of the whole layer. It turns the protection flag into what the
// peers write instead: plus 1 for kvpress, plus 0 for the LU-KV authors' fork.
// Needed for number-for-number comparison only.
func (s Scores) ReplaceInf(plus float32) {
	m := float32(math.Inf(-1))
	for _, row := range s {
		for _, v := range row {
			if v > m && !math.IsInf(float64(v), 1) {
				m = v
			}
		}
	}
	if math.IsInf(float64(m), -1) {
		m = 0
	}
	for _, row := range s {
		for t, v := range row {
			if math.IsInf(float64(v), 1) {
				row[t] = m + plus
			}
		}
	}
}

// Protection names the entries that are always kept if the budget allows: the
// first Sinks and the last Window slots of a head. It ranks above every real
// score. The zero value protects nothing.
//
// If the budget is smaller than the protected set, the lowest slots win; with
// Recent the sinks win first and then the newest slots, backwards.
type Protection struct {
	Sinks  int  `json:"sinks"`
	Window int  `json:"window"`
	Recent bool `json:"recent,omitempty"`
}

// Split clips the protection to a head of T slots: slots [0,lo) and [hi,T) are
// protected, 0 <= lo <= hi <= T.
func (p Protection) Split(T int) (lo, hi int) {
	lo = min(max(p.Sinks, 0), T)
	hi = max(lo, T-max(p.Window, 0))
	return lo, hi
}

// Count returns how many slots of a head of T slots are protected.
func (p Protection) Count(T int) int {
	lo, hi := p.Split(T)
	return lo + T - hi
}

// Has reports whether slot t of a head of T slots is protected.
func (p Protection) Has(t, T int) bool {
	lo, hi := p.Split(T)
	return t < lo || t >= hi
}

// Union protects what p or q protects.
func (p Protection) Union(q Protection) Protection {
	return Protection{max(p.Sinks, q.Sinks), max(p.Window, q.Window), p.Recent || q.Recent}
}

// Layer is what a metric sees of one attention layer. Whoever compresses fills
// it from a cache; only the fields that the metric's Needs names have to be
// set. Functions may be called from several goroutines at once for different
// heads when Parallel is set.
type Layer struct {
	Index   int   // layer number, for errors
	T       int   // entries per head where Lens is nil
	Lens    []int // [K] entries of each head where they differ; nil: T each
	Heads   int   // H
	KVHeads int   // K
	HeadDim int   // D

	// Keys returns rows [lo,hi) of KV head h, [hi-lo][D], after RoPE as cached.
	// It may fill dst (capacity at least (hi-lo)*D) and return it, or return a
	// view of the cache; the caller does not write to it and is done with it
	// before it passes the same dst again. Values likewise.
	Keys   func(h, lo, hi int, dst []float32) []float32
	Values func(h, lo, hi int, dst []float32) []float32

	// Positions returns the ascending positions of KV head h, [T]. nil: slot
	// equals position, as in prefill.
	Positions func(h int) []int32

	Queries *QueryWindow // last rows of the queries after RoPE
	Stats   *QueryStats  // moments of the queries before RoPE
	Sums    *ColumnSums  // accumulated attention per slot

	// Accelerator scores the entries where they lie; nil: from what is above.
	// With it, snapkv needs neither Keys nor Queries.
	Accelerator Accelerator

	NextPosition int // position of the next token

	// InvFreq holds the effective RoPE frequencies, [D/2], scaling included.
	// RopeScale is the factor on cosine and sine (yarn's attention factor);
	// 0 means 1.
	InvFreq   []float64
	RopeScale float64

	// Share is the uniform budget n of a head where it is known, 0 otherwise.
	// Budgets holds each head's own budget where those are known beforehand;
	// nil: Share each. Only metrics whose scores depend on the budget look
	// (block-wise KeyDiff, a shrinking window).
	Share   int
	Budgets []int

	// CPU is the instruction set for the heavy products; results do not depend
	// on it. The zero value is portable Go.
	CPU kernels.CPU

	// Parallel runs fn(0) … fn(n-1), in any order and on any number of
	// goroutines. nil: one after the other. Results never depend on it.
	Parallel func(n int, fn func(i int))
}

// Needs says what a metric reads from a Layer.
type Needs struct {
	Keys, Values bool

	// Window is the number of most recent queries (after RoPE) to keep, and
	// WindowScores says that they serve Accelerator.WindowScores alone where there
	// is one.
	Window       int
	WindowScores bool

	// Stats asks for the mean of the queries before RoPE, Covariance for their
	// second moments too. The first StatsSkip positions of the text stay out.
	Stats, Covariance bool
	StatsSkip         int

	// ColumnSums asks for the attention that every slot has received.
	ColumnSums bool

	// Budgets says that Score needs Layer.Share or Layer.Budgets.
	Budgets bool
}

// Metric ranks the cached entries of a layer. Metrics hold parameters only:
// they are immutable and safe for concurrent use.
type Metric interface {
	// Name is the canonical name, as listed by [Metrics].
	Name() string

	// Config returns the full configuration: every parameter that the metric
	// has, none that it has not. NewMetric of it gives the same metric.
	Config() MetricConfig

	// Needs says what Score will read for heads of T entries with the uniform
	// share n (0: not known).
	Needs(T, n int) Needs

	// Protection is the metric's own protected set for heads of T entries with
	// the uniform share n (0: not known).
	Protection(T, n int) Protection

	// Score returns new scores, K rows. Errors: the layer lacks something that
	// Needs names or contradicts itself, or ctx is done.
	Score(ctx context.Context, l *Layer) (Scores, error)
}
