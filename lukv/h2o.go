package lukv

import "context"

// h2o scores an entry by the attention that it has accumulated, since a few entries
// ("heavy hitters") receive most of it. A protected recent window takes half of the
// budget.
//
// Zhang et al., "H2O", 2023, https://arxiv.org/abs/2306.14048; spec 3.6.
type h2o struct {
	Window int `json:"window"` // protected recent entries; -1: half of the budget
}

func (m h2o) Validate() error { return within("window", m.Window, -1, maxSlots) }

func (h2o) Needs(T, n int) Needs { return Needs{ColumnSums: true} }

func (m h2o) Protection(T, n int) Protection {
	if m.Window >= 0 {
		return Protection{Window: min(m.Window, T)}
	}
	return Protection{Window: max(n, 0) / 2}
}

func (h2o) Score(ctx context.Context, l *Layer) (Scores, error) {
	s := l.NewScores()
	for h, row := range s {
		for t := range row {
			row[t] = float32(l.Sums.Mean(h, t))
		}
	}
	return s, ctx.Err()
}
