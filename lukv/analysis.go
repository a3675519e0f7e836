package lukv

import (
	"context"
	"fmt"
	"slices"
)

// HeadAnalysis compares what a metric keeps in one head with what the oracle
// would keep (spec 5.8). Losses are sums of oracle importance over the entries
// dropped.
type HeadAnalysis struct {
	Budget int     `json:"budget"` // entries kept, protected ones included
	Hits   int     `json:"hits"`   // chosen by both
	Misses int     `json:"misses"` // chosen by the oracle only; as many false positives
	Mass   float64 `json:"mass"`   // importance of all entries in the competition

	OracleLoss float64 `json:"oracle_loss"`
	MetricLoss float64 `json:"metric_loss"`
}

// Gap is the optimality gap: what the metric's ranking loses beyond what the
// budget must lose. Never negative.
func (a HeadAnalysis) Gap() float64 { return max(0, a.MetricLoss-a.OracleLoss) }

// Recall is the share of the oracle mass that the metric keeps, 1 for a head
// without any.
func (a HeadAnalysis) Recall() float64 { return recall(a.Mass, a.MetricLoss) }

// OracleRecall is the share of the oracle mass that could be kept.
func (a HeadAnalysis) OracleRecall() float64 { return recall(a.Mass, a.OracleLoss) }

func recall(mass, loss float64) float64 {
	if mass == 0 {
		return 1
	}
	return (mass - loss) / mass
}

// HeadSets are the entries behind a [HeadAnalysis], ascending.
type HeadSets struct {
	Hits, Misses, FalsePositives []int32
}

// AnalyzeHead compares metric and oracle at a budget of b entries, protected
// ones included. Both rank the unprotected entries and choose as many of them
// as the protected ones leave; with includeProtected both rank all entries and
// nothing is protected.
func AnalyzeHead(importance, scores []float32, b int, prot Protection, includeProtected bool) (HeadAnalysis, error) {
	var w analyzer
	return w.head(importance, scores, b, prot, includeProtected)
}

// AnalyzeHeadSets is AnalyzeHead with the entries themselves.
func AnalyzeHeadSets(importance, scores []float32, b int, prot Protection, includeProtected bool) (HeadAnalysis, HeadSets, error) {
	var w analyzer
	a, err := w.head(importance, scores, b, prot, includeProtected)
	if err != nil {
		return a, HeadSets{}, err
	}
	var sets HeadSets
	w.merge(func(t int32, byOracle, byMetric bool) {
		switch {
		case byOracle && byMetric:
			sets.Hits = append(sets.Hits, t)
		case byOracle:
			sets.Misses = append(sets.Misses, t)
		case byMetric:
			sets.FalsePositives = append(sets.FalsePositives, t)
		}
	})
	return a, sets, nil
}

// analyzer holds the two kept sets of one head and reuses their memory between
// calls.
type analyzer struct {
	oracle, metric []int32
}

func (w *analyzer) head(importance, scores []float32, b int, prot Protection, includeProtected bool) (HeadAnalysis, error) {
	T := len(importance)
	if len(scores) != T {
		return HeadAnalysis{}, fmt.Errorf("analysis: %d scores for %d importances", len(scores), T)
	}
	if err := checkImportance(importance); err != nil {
		return HeadAnalysis{}, fmt.Errorf("analysis: %w", err)
	}
	b = min(max(b, 0), T)
	lo, hi := 0, T
	if !includeProtected {
		lo, hi = prot.Split(T)
	}
	free := max(0, b-(lo+T-hi))
	w.oracle = appendTop(w.oracle[:0], importance[lo:hi], free, int32(lo))
	w.metric = appendTop(w.metric[:0], scores[lo:hi], free, int32(lo))
	a := HeadAnalysis{Budget: b, Mass: sumOf(importance[lo:hi])}
	// Losses are summed over the dropped entries themselves: the difference of
	// mass and kept mass would cancel at small losses.
	a.OracleLoss = droppedMass(importance, lo, hi, w.oracle)
	a.MetricLoss = droppedMass(importance, lo, hi, w.metric)
	w.merge(func(_ int32, byOracle, byMetric bool) {
		switch {
		case byOracle && byMetric:
			a.Hits++
		case byOracle:
			a.Misses++
		}
	})
	return a, nil
}

// merge walks the union of both sets in ascending order.
func (w *analyzer) merge(visit func(t int32, byOracle, byMetric bool)) {
	o, m := w.oracle, w.metric
	for len(o) > 0 || len(m) > 0 {
		switch {
		case len(m) == 0 || len(o) > 0 && o[0] < m[0]:
			visit(o[0], true, false)
			o = o[1:]
		case len(o) == 0 || m[0] < o[0]:
			visit(m[0], false, true)
			m = m[1:]
		default:
			visit(o[0], true, true)
			o, m = o[1:], m[1:]
		}
	}
}

func sumOf(x []float32) float64 {
	s := 0.0
	for _, v := range x {
		s += float64(v)
	}
	return s
}

// DroppedMass returns the importance of the entries that are not kept: what is lost with
// them. kept is ascending.
func DroppedMass(importance []float32, kept []int32) float64 {
	return droppedMass(importance, 0, len(importance), kept)
}

// droppedMass sums importance[lo:hi] outside kept (ascending).
func droppedMass(importance []float32, lo, hi int, kept []int32) float64 {
	s := 0.0
	for t := lo; t < hi; t++ {
		if len(kept) > 0 && int(kept[0]) == t {
			kept = kept[1:]
			continue
		}
		s += float64(importance[t])
	}
	return s
}

// Analysis holds the comparison for every head of a model.
type Analysis struct {
	Heads [][]HeadAnalysis `json:"heads"` // [L][K]; a nil layer took no part
}

// Analyze compares metric and oracle in every head. importance and scores are
// [L][K][T], budgets [L][K] entries kept with protected ones included; a nil
// layer of importance takes no part. The protected entries stay out of the
// comparison unless includeProtected.
func Analyze(ctx context.Context, importance, scores [][][]float32, budgets [][]int, prot Protection, includeProtected bool) (*Analysis, error) {
	if len(scores) != len(importance) || len(budgets) != len(importance) {
		return nil, fmt.Errorf("analysis: importance, scores and budgets of %d, %d and %d layers", len(importance), len(scores), len(budgets))
	}
	out := &Analysis{Heads: make([][]HeadAnalysis, len(importance))}
	var w analyzer
	for l, layer := range importance {
		if layer == nil {
			continue
		}
		if len(scores[l]) != len(layer) || len(budgets[l]) != len(layer) {
			return nil, fmt.Errorf("analysis: layer %d: importance, scores and budgets of %d, %d and %d heads", l, len(layer), len(scores[l]), len(budgets[l]))
		}
		out.Heads[l] = make([]HeadAnalysis, len(layer))
		for h := range layer {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			a, err := w.head(layer[h], scores[l][h], budgets[l][h], prot, includeProtected)
			if err != nil {
				return nil, fmt.Errorf("layer %d head %d: %w", l, h, err)
			}
			out.Heads[l][h] = a
		}
	}
	return out, nil
}

// LossSummary aggregates over heads.
type LossSummary struct {
	Heads      int     `json:"heads"`
	Mass       float64 `json:"mass"`
	OracleLoss float64 `json:"oracle_loss"`
	MetricLoss float64 `json:"metric_loss"`
	Hits       int     `json:"hits"`
	Misses     int     `json:"misses"`

	// Recalls as one ratio of sums over all heads, and as the mean of the
	// heads' own ratios.
	Recall           float64 `json:"recall"`
	OracleRecall     float64 `json:"oracle_recall"`
	MeanRecall       float64 `json:"mean_recall"`
	MeanOracleRecall float64 `json:"mean_oracle_recall"`
}

// Gap is the summed optimality gap.
func (s LossSummary) Gap() float64 { return max(0, s.MetricLoss-s.OracleLoss) }

// MeanLoss is the metric's loss per head.
func (s LossSummary) MeanLoss() float64 { return s.MetricLoss / float64(max(1, s.Heads)) }

// MeanOracleLoss is the oracle's loss per head.
func (s LossSummary) MeanOracleLoss() float64 { return s.OracleLoss / float64(max(1, s.Heads)) }

// Total summarises all heads.
func (a *Analysis) Total() LossSummary { return summarize(slices.Concat(a.Heads...)) }

// Layer summarises the heads of one layer.
func (a *Analysis) Layer(l int) LossSummary { return summarize(a.Heads[l]) }

func summarize(heads []HeadAnalysis) LossSummary {
	s := LossSummary{Heads: len(heads)}
	for _, h := range heads {
		s.Mass += h.Mass
		s.OracleLoss += h.OracleLoss
		s.MetricLoss += h.MetricLoss
		s.Hits += h.Hits
		s.Misses += h.Misses
		s.MeanRecall += h.Recall()
		s.MeanOracleRecall += h.OracleRecall()
	}
	s.Recall = recall(s.Mass, s.MetricLoss)
	s.OracleRecall = recall(s.Mass, s.OracleLoss)
	if n := float64(len(heads)); n > 0 {
		s.MeanRecall /= n
		s.MeanOracleRecall /= n
	}
	return s
}
