package lukv

import (
	"context"
	"math"
	"slices"
)

// tova keeps the entries that the newest query attends to most. All heads of a layer
// share the ranking, so that the layer holds one set of tokens, like the state of a
// recurrent network.
//
// Oren et al., "Transformers are Multi-State RNNs", 2024,
// https://arxiv.org/abs/2401.06104; spec 3.7.
type tova struct {
	Window int `json:"window"` // newest entries protected: 1, or 0 as in the original
}

func (m tova) Validate() error { return within("window", m.Window, 0, 1) }

func (tova) Needs(T, n int) Needs { return Needs{Keys: true, Window: 1} }

func (m tova) Protection(T, n int) Protection { return Protection{Window: m.Window} }

func (m tova) Score(ctx context.Context, l *Layer) (Scores, error) {
	means, err := l.WindowMeans(ctx, 1)
	if err != nil {
		return nil, err
	}
	// The sums over the group of KV head h, in the row of its first query head.
	G := l.Group()
	for q, row := range means {
		if q%G > 0 {
			for t, v := range row {
				means[q-q%G][t] += v
			}
		}
	}
	s := l.NewScores()
	if samePositions(l) {
		meanOverHeads(s, means, G)
	} else {
		meanOverHolders(l, s, means, G)
	}
	for _, row := range s {
		if n := len(row); m.Window > 0 && n > 0 {
			row[n-1] = float32(math.Inf(1))
		}
	}
	return s, nil
}

// samePositions reports whether all KV heads hold entries of the same positions.
func samePositions(l *Layer) bool {
	first := l.positions(0)
	for h := 1; h < l.KVHeads; h++ {
		if l.Len(h) != l.Len(0) || !slices.Equal(l.positions(h), first) {
			return false
		}
	}
	return true
}

// meanOverHeads gives every head the mean over all query heads of the sums over
// groups, which are in every G-th row of sums.
func meanOverHeads(s Scores, sums [][]float64, G int) {
	for t := range s[0] {
		var total float64
		for h := range s {
			total += sums[h*G][t]
		}
		for h := range s {
			s[h][t] = float32(total / float64(len(sums)))
		}
	}
}

// meanOverHolders is meanOverHeads where heads hold different positions: the mean over
// the query heads whose cache holds the position. It walks all heads through the
// positions in ascending order.
func meanOverHolders(l *Layer, s Scores, sums [][]float64, G int) {
	at, pos := make([]int, len(s)), make([][]int32, len(s))
	for h := range pos {
		pos[h] = l.positions(h)
	}
	holds := func(h, p int) bool { return at[h] < len(s[h]) && positionOf(pos[h], at[h]) == p }
	for {
		next := math.MaxInt32
		for h := range s {
			if at[h] < len(s[h]) {
				next = min(next, positionOf(pos[h], at[h]))
			}
		}
		if next == math.MaxInt32 {
			return
		}
		var total float64
		holders := 0
		for h := range s {
			if holds(h, next) {
				total += sums[h*G][at[h]]
				holders++
			}
		}
		for h := range s {
			if holds(h, next) {
				s[h][at[h]] = float32(total / float64(holders*G))
				at[h]++
			}
		}
	}
}
