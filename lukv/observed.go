package lukv

import "context"

// observed scores an entry by the mean attention it got from the queries that
// could see it (kvpress; spec §3.6).
type observed struct{}

func newObserved(*params) Metric { return observed{} }

func (observed) Name() string { return "observed" }

func (m observed) Config() MetricConfig { return MetricConfig{Name: m.Name()} }

func (observed) Needs(T, n int) Needs { return Needs{ColumnSums: true} }

func (observed) Protection(T, n int) Protection { return Protection{} }

func (m observed) Score(ctx context.Context, l *Layer) (Scores, error) {
	return scoreSums(ctx, m, l, func(h, t int) float64 {
		return l.Sums.Mean(h, t) / float64(max(l.Sums.Seen(h, t), 1))
	})
}

// h2o scores an entry by the attention it has accumulated, next to a protected
// recent window that takes half of the budget (Zhang et al., "H2O", 2023; spec
// §3.6).
type h2o struct {
	recent int // protected entries; -1: half of the budget
}

func newH2O(p *params) Metric {
	return h2o{recent: p.integer("window", p.cfg.Window, -1, -1, maxSlots)}
}

func (h2o) Name() string { return "h2o" }

func (m h2o) Config() MetricConfig { return MetricConfig{Name: m.Name(), Window: new(m.recent)} }

func (h2o) Needs(T, n int) Needs { return Needs{ColumnSums: true} }

func (m h2o) Protection(T, n int) Protection {
	if m.recent >= 0 {
		return Protection{Window: min(m.recent, T)}
	}
	return Protection{Window: max(n, 0) / 2}
}

func (m h2o) Score(ctx context.Context, l *Layer) (Scores, error) {
	return scoreSums(ctx, m, l, l.Sums.Mean)
}

func scoreSums(ctx context.Context, m Metric, l *Layer, score func(h, t int) float64) (Scores, error) {
	if err := l.check(m.Name(), m.Needs(l.longest(), l.Share)); err != nil {
		return nil, err
	}
	s := make(Scores, l.KVHeads)
	err := l.eachHead(ctx, func(h int) error {
		s[h] = make([]float32, l.Len(h))
		for t := range s[h] {
			s[h][t] = float32(score(h, t))
		}
		return nil
	})
	return s, err
}
