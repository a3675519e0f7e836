package lukv

import (
	"context"
	"fmt"
	"math"
)

// keyDistance scores an entry by the squared distance of its key, with the rotation
// undone, from the mean over its head: keys near the mean are interchangeable. It is
// this project's own, a relative of KeyDiff without the rotation and with lengths; spec
// 3.12.
type keyDistance struct {
	// Values multiplies by what the value's deviation from its mean adds to the
	// outputs, over the query heads of the group together.
	Values bool `json:"values"`
}

func (m keyDistance) Needs(T, n int) Needs {
	return Needs{Keys: true, Values: m.Values, Output: m.Values}
}

func (keyDistance) Protection(T, n int) Protection { return Protection{} }

func (m keyDistance) Score(ctx context.Context, l *Layer) (Scores, error) {
	if 2*len(l.InvFreq) != l.HeadDim {
		return nil, fmt.Errorf("score layer %d with key_distance: found %d rope frequencies, expected half of head dimension %d", l.Index, len(l.InvFreq), l.HeadDim)
	}
	s := l.NewScores()
	distances, err := l.keyDistances(ctx)
	if err != nil {
		return nil, err
	}
	return s, l.EachHead(ctx, func(h int, _ *Workspace) error {
		if m.Values {
			if err := l.weighByValues(ctx, h, distances[h]); err != nil {
				return err
			}
		}
		for t, v := range distances[h] {
			s[h][t] = float32(v)
		}
		return nil
	})
}

// weighByValues multiplies x, [Len(h)], by ‖(v_t - v̄)·W_O‖₂ over the group.
func (l *Layer) weighByValues(ctx context.Context, h int, x []float64) error {
	D, G := l.HeadDim, l.Group()
	gram, mean := NewOutputGram(D), make([]float64, D)
	weights := make([]float32, outputTile*D)
	for q := h * G; q < (h+1)*G; q++ {
		for from := 0; from < l.OutputDim; from += outputTile {
			to := min(from+outputTile, l.OutputDim)
			for rows := l.Output(q, from, to, weights[:(to-from)*D]); len(rows) >= D; rows = rows[D:] {
				gram.Add(rows[:D])
			}
		}
	}
	err := l.EachValues(ctx, h, func(lo, hi int, values []float32) {
		for i, v := range values[:(hi-lo)*D] {
			mean[i%D] += float64(v) / float64(len(x))
		}
	})
	if err != nil {
		return err
	}
	shifted := make([]float32, slotTile*D)
	var norms []float32
	return l.EachValues(ctx, h, func(lo, hi int, values []float32) {
		for i, v := range values[:(hi-lo)*D] {
			shifted[i] = float32(float64(v) - mean[i%D])
		}
		norms = gram.Norms(norms, shifted[:(hi-lo)*D])
		for t := lo; t < hi; t++ {
			x[t] *= math.Max(0, float64(norms[t-lo]))
		}
	})
}
