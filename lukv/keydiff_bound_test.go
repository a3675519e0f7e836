package lukv

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKeyDiffHugeBlock: a block larger than the number of entries takes all of them at
// once, and no memory for the rest.
func TestKeyDiffHugeBlock(t *testing.T) {
	l := randomAttention(300, 2, 2, 8)
	l.Share = 100
	score := func(block int) Scores {
		s, err := Score(t.Context(), mustMetric(t, MetricConfig{Name: "keydiff", Params: fmt.Sprintf(`{"block":%d}`, block)}), l)
		require.NoError(t, err)
		return s
	}
	want := score(l.T - l.Share)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := score(math.MaxInt32)
	runtime.ReadMemStats(&after)
	require.Equal(t, want, got)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}
