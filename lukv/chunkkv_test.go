package lukv

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// given is a metric with given scores.
type given struct{ Rows Scores }

func (given) Needs(T, n int) Needs                            { return Needs{} }
func (given) Protection(T, n int) Protection                  { return Protection{} }
func (m given) Score(context.Context, *Layer) (Scores, error) { return m.Rows, nil }

// TestChunkKVKeepsWholeStretches: whatever the scores, a budget keeps whole
// stretches, best mean first, and part of one more.
func TestChunkKVKeepsWholeStretches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		T, K, size := rapid.IntRange(1, 40).Draw(t, "T"), rapid.IntRange(1, 3).Draw(t, "K"), rapid.IntRange(1, 9).Draw(t, "size")
		rows := make(Scores, K)
		for h := range rows {
			rows[h] = rapid.SliceOfN(rapid.Float32Range(-5, 5), T, T).Draw(t, "scores")
		}
		heads := rapid.SampledFrom([]string{"layer", "each"}).Draw(t, "heads")
		m := chunkKV{Metric: InnerMetric{given{rows}}, Size: size, Heads: heads}
		s, err := m.Score(context.Background(), &Layer{T: T, Heads: K, KVHeads: K, HeadDim: 2})
		if err != nil {
			t.Fatal(err)
		}
		b := rapid.IntRange(1, T).Draw(t, "b")
		for h := range s {
			held := map[int]int{}
			kept := Keep(nil, s[h], b, Protection{})
			if len(kept) != b {
				t.Fatalf("kept %d of %d", len(kept), b)
			}
			for _, i := range kept {
				held[int(i)/size]++
			}
			partial, worst, best := 0, math.Inf(1), math.Inf(-1)
			for c := 0; c*size < T; c++ {
				length := min(size, T-c*size)
				mean := 0.0
				for o := range rows {
					if heads == "layer" || o == h {
						for _, v := range rows[o][c*size : c*size+length] {
							mean += float64(v) / float64(length)
						}
					}
				}
				switch {
				case held[c] == length:
					worst = min(worst, mean)
				case held[c] > 0:
					partial++
					worst = min(worst, mean)
					best = max(best, mean)
				default:
					best = max(best, mean)
				}
			}
			if partial > 1 || best > worst+1e-5 {
				t.Fatalf("%d stretches kept in part; the worst kept has %v, the best left %v", partial, worst, best)
			}
		}
	})
}

func TestChunkKVFollowsPositionsAndProtection(t *testing.T) {
	inf := float32(math.Inf(1))
	rows := Scores{{inf, 1, 9, 9, 2, inf}}
	pos := []int32{0, 2, 3, 7, 8, 11}
	m := chunkKV{Metric: InnerMetric{given{rows}}, Size: 4, Heads: "each"}
	l := &Layer{T: 6, Heads: 1, KVHeads: 1, HeadDim: 2, Positions: func(int) []int32 { return pos }}
	s, err := m.Score(context.Background(), l)
	require.NoError(t, err)
	require.Equal(t, Scores{{inf, 5, 5, 9, 2, inf}}, s, "stretches of positions 0 to 3, 4 to 7, 8 to 11")
}
