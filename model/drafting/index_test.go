package drafting

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLookupFind: what is found is what followed the longest earlier occurrence of
// the end of the sequence, as found by looking at every place.
func TestLookupFind(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		seq := make([]int32, 2+rng.IntN(60))
		for i := range seq {
			seq[i] = int32(rng.IntN(3))
		}
		end := len(seq) - 1 // the last is not fed yet
		l := &Index{}
		for n := 0; n <= end; n = min(end, n+1+rng.IntN(9)) { // it may learn in any pieces
			l.Learn(seq[:n])
			if n == end {
				break
			}
		}
		got := l.Find(nil, seq[:end], seq[end], 4)
		best, longest := -1, 1
		for p := end - 1; p >= 1; p-- {
			k := 0
			for k < longestMatch && k <= p && seq[p-k] == seq[end-k] {
				k++
			}
			if k > longest {
				best, longest = p, k
			}
		}
		var want []int32
		if best >= 0 {
			more := slices.Clone(seq)
			for i := range min(4, longest) {
				want = append(want, more[best+1+i])
				more = append(more, want[i])
			}
		}
		require.Equal(t, want, got, "%v", seq)
	}
	l := &Index{}
	require.Empty(t, l.Find(nil, nil, 1, 4))
	l.Learn([]int32{1, 2, 3, 1})
	require.Equal(t, []int32{3, 1}, l.Find(nil, []int32{1, 2, 3, 1}, 2, 4), "no more than the match is long")
	l.Forget()
	l.Learn([]int32{5, 6})
	require.Empty(t, l.Find(nil, []int32{5, 6}, 2, 4))
}
