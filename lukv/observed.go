package lukv

import "context"

// observed scores an entry by the mean attention that it received from the queries that
// could see it. Unlike h2o it does not favour entries that more queries could see.
//
// The press ObservedAttentionPress of kvpress, https://github.com/NVIDIA/kvpress; spec
// 3.6.
type observed struct{}

func (observed) Needs(T, n int) Needs { return Needs{ColumnSums: true} }

func (observed) Protection(T, n int) Protection { return Protection{} }

func (observed) Score(ctx context.Context, l *Layer) (Scores, error) {
	s := l.NewScores()
	for h, row := range s {
		for t := range row {
			row[t] = float32(l.Sums.Mean(h, t) / float64(max(l.Sums.Seen(h, t), 1)))
		}
	}
	return s, ctx.Err()
}
