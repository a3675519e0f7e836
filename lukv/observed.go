package lukv

import "context"

// observed scores an entry by the mean attention it got from the queries that
// could see it (kvpress; spec §3.6).
type observed struct{}

func (observed) Needs(T, n int) Needs { return Needs{ColumnSums: true} }

func (observed) Protection(T, n int) Protection { return Protection{} }

func (observed) Score(ctx context.Context, l *Layer) (Scores, error) {
	return scoreSums(ctx, l, func(h, t int) float64 {
		return l.Sums.Mean(h, t) / float64(max(l.Sums.Seen(h, t), 1))
	})
}

// scoreSums scores every entry by its accumulated attention.
func scoreSums(ctx context.Context, l *Layer, score func(h, t int) float64) (Scores, error) {
	s := make(Scores, l.KVHeads)
	err := l.EachHead(ctx, func(h int) error {
		s[h] = l.newScores(l.Len(h))
		for t := range s[h] {
			s[h][t] = float32(score(h, t))
		}
		return nil
	})
	return s, err
}
