package lukv

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestScratchIsUsedAgain: metrics give back the memory that they work in. The layers
// of a prefill take it once, and get the same scores as without it.
func TestScratchIsUsedAgain(t *testing.T) {
	for name, m := range everyMetric(t) {
		l := withSums(t, randomAttention(60, 4, 2, 8), 1)
		score := func() Scores {
			s, err := Score(context.Background(), m, l)
			require.NoError(t, err)
			s, err = Refine(context.Background(), m, l, s, []int{12, 12})
			require.NoError(t, err)
			return s
		}
		want := score()
		s := &Scratch{Scores: true}
		l.Scratch = s
		require.Equal(t, want, score(), name)
		idle, scores := slices.Clone(s.idle), slices.Clone(s.scores.lists)
		for range 3 {
			s.Next()
			require.Equal(t, want, score(), name)
			require.ElementsMatch(t, idle, s.idle, name)
			require.Equal(t, scores, s.scores.lists, name)
		}
		for _, w := range s.idle {
			require.Zero(t, w.taken, name)
		}
		s.Close()
		require.Equal(t, want, score(), "%s in a scratch that was closed", name)
		s.Close()
	}
}

// TestScratchKeepsScores: scores stay as they are until Next, and later ones start
// at 0.
func TestScratchKeepsScores(t *testing.T) {
	s := &Scratch{Scores: true}
	defer s.Close()
	l := &Layer{Scratch: s, KVHeads: 2, Lens: []int{10, 30}}
	first, second := l.NewScores(), l.NewScores()
	for i := range first[1] {
		first[1][i] = 1
	}
	zeros := Scores{make([]float32, 10), make([]float32, 30)}
	require.Equal(t, zeros, second)
	s.Next()
	require.Equal(t, zeros, l.NewScores())
	held := s.Hold(5)
	other := s.Hold(5)
	held[4], other[4] = 1, 2
	require.Equal(t, float32(1), held[4])
	l.Scratch = &Scratch{}
	a, b := l.NewScores(), l.NewScores()
	a[0][0] = 1
	require.Zero(t, b[0][0])
}
