package lukv

import (
	"context"
	"errors"
	"fmt"
)

// Metric ranks the cached entries of a layer. A metric is a struct of
// parameters and nothing else: it is immutable and safe for concurrent use.
// [RegisterMetric] gives it a name.
//
// A metric may also have these methods:
//
//   - Validate() error checks the parameters once they have been read;
//   - Refine, of the interface [Refiner], ranks again once budgets are known;
//   - ProfileProtection, of the interface [ProfileProtecter];
//   - Rerotates() bool says whether the owner of the cache must renumber what
//     is kept (see [Rerotate]).
type Metric interface {
	// Needs lists the inputs of Score for heads of T entries with the uniform
	// share n (0: not known).
	Needs(T, n int) Needs

	// Protection is the metric's own protected set for heads of T entries with
	// the uniform share n (0: not known).
	Protection(T, n int) Protection

	// Score returns new scores, K rows of one score per entry. [Score] calls it
	// with a layer that has what Needs names. Errors: the layer cannot provide
	// something, or ctx is done.
	Score(ctx context.Context, l *Layer) (Scores, error)
}

// Refiner is a metric that ranks in two steps: allocators see the scores from
// Score, and the entries of each head are selected by those from Refine. Call it
// through [Refine].
type Refiner interface {
	Metric

	// Refine returns new scores. s is the result of Score; budgets are the
	// numbers of entries that the heads keep, nil if not known, as when a
	// profile is measured.
	Refine(ctx context.Context, l *Layer, s Scores, budgets []int) (Scores, error)
}

// ProfileProtecter is implemented by metrics whose profiles protect more than
// [Metric].Protection says, for example where the scores alone express what is
// kept.
type ProfileProtecter interface {
	ProfileProtection() Protection
}

// Needs lists the fields of a Layer that a metric reads.
type Needs struct {
	Keys, Values bool

	// Output asks for the output projection.
	Output bool

	// Window is the number of most recent queries (after RoPE) to keep, and
	// WindowMeans says that only [Layer.WindowMeans] reads them, so that an accelerator
	// may keep their column sums instead.
	Window      int
	WindowMeans bool

	// Stats asks for the mean of the queries before RoPE, Covariance for their
	// second moments too, ChannelNorms for the mean lengths of their pairs of channels.
	// The first StatsSkip positions of the text are left out.
	Stats, Covariance, ChannelNorms bool
	StatsSkip                       int

	// Hidden is the number of most recent tokens whose hidden states to keep; T or more
	// keeps those of all compressed tokens. They take as much memory again as the
	// residual stream.
	Hidden int

	// ColumnSums asks for the attention that every slot has received.
	ColumnSums bool

	// Repeat asks for the scores of a repetition of the context.
	Repeat RepeatText

	// Budgets says that scores depend on Layer.Share, Layer.Ratio or
	// Layer.Budgets, other than through Window.
	Budgets bool
}

// Union returns the needs of metrics with needs n and x together. Errors: needs that
// contradict each other within one pass.
func (n Needs) Union(x Needs) (Needs, error) {
	if n.Stats && x.Stats && n.StatsSkip != x.StatsSkip {
		return n, fmt.Errorf("metrics that leave out %d and %d first positions cannot share one prefill", n.StatsSkip, x.StatsSkip)
	}
	if n.Repeat.Chunk > 0 && x.Repeat.Chunk > 0 && n.Repeat != x.Repeat {
		return n, errors.New("metrics that repeat the context in different ways cannot share one prefill")
	}
	if x.Repeat.Chunk > 0 {
		n.Repeat = x.Repeat
	}
	if x.Stats {
		n.Stats, n.StatsSkip = true, x.StatsSkip
	}
	n.Keys, n.Values, n.Output = n.Keys || x.Keys, n.Values || x.Values, n.Output || x.Output
	n.Window, n.Hidden = max(n.Window, x.Window), max(n.Hidden, x.Hidden)
	n.Covariance = n.Covariance || x.Covariance
	n.ChannelNorms = n.ChannelNorms || x.ChannelNorms
	n.ColumnSums = n.ColumnSums || x.ColumnSums
	n.Budgets = n.Budgets || x.Budgets
	n.WindowMeans = false // what one reads on a device, another may read on the host
	return n, nil
}

// Score ranks the entries of a layer: it checks that the layer has what the
// metric needs and that the result has a score for every entry.
func Score(ctx context.Context, m Metric, l *Layer) (Scores, error) {
	n := m.Needs(l.longest(), l.Share)
	if l.Accelerator != nil && n.WindowMeans {
		n.Window = 0 // the device has the queries; a layer that falls back to the host checks again
	}
	name := metrics.nameOf(m)
	if err := l.check(name, n); err != nil {
		return nil, err
	}
	s, err := m.Score(ctx, l)
	if err != nil {
		return nil, err
	}
	return s, l.checkScores(name, s)
}

// Refine returns the scores that entries are selected by: those that a [Refiner] makes
// from s, or s itself for any other metric. The arguments are those of [Refiner].
func Refine(ctx context.Context, m Metric, l *Layer, s Scores, budgets []int) (Scores, error) {
	r, ok := m.(Refiner)
	if !ok {
		return s, nil
	}
	refined, err := r.Refine(ctx, l, s, budgets)
	if err != nil {
		return nil, err
	}
	return refined, l.checkScores(metrics.nameOf(m), refined)
}

// checkScores reports scores that do not fit the layer.
func (l *Layer) checkScores(name string, s Scores) error {
	if len(s) != l.KVHeads {
		return fmt.Errorf("score layer %d with %s: found scores of %d heads, expected %d", l.Index, name, len(s), l.KVHeads)
	}
	for h, row := range s {
		if len(row) != l.Len(h) {
			return fmt.Errorf("score layer %d with %s: found %d scores of kv head %d, expected %d", l.Index, name, len(row), h, l.Len(h))
		}
	}
	return nil
}
