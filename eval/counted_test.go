package eval

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/builtin"
)

// TestSubsetOfOne: a limit is the most items of a task, one as well as any other.
func TestSubsetOfOne(t *testing.T) {
	items := make([]Item, 30)
	for i := range items {
		items[i].Task = []string{"a", "b", "c"}[i%3]
	}
	for _, limit := range []int{1, 2, 10} {
		drawn, places, err := Subset(items, 0, limit, 4)
		require.NoError(t, err)
		require.Len(t, places, 3*limit)
		count := map[string]int{}
		for _, it := range drawn {
			count[it.Task]++
		}
		require.Equal(t, map[string]int{"a": limit, "b": limit, "c": limit}, count)
	}
}

// TestPeakInTables: a row says how much memory the largest cache took, where that is known.
func TestPeakInTables(t *testing.T) {
	r := Row{PeakBytes: 5 << 20}
	require.Contains(t, r.cells(), report.Bytes(5<<20))
	r.PeakBytes = 0
	require.NotContains(t, r.cells(), report.Bytes(5<<20))
	require.Contains(t, r.cells(), "-")
}

// TestReadingsOnlyForLosses: the readings that a loss is measured by take memory, and are kept
// only if a loss is asked for.
func TestReadingsOnlyForLosses(t *testing.T) {
	m, err := builtin.Open(t.Context())
	require.NoError(t, err)
	defer m.Close()
	most := 0.1
	for _, c := range []struct {
		o    Options
		most *float64
		want bool
	}{{Options{}, nil, false}, {Options{MeasureLoss: true}, nil, true}, {Options{}, &most, true}} {
		r, err := newRunner(m, nil, []Method{{Name: "half", Policy: &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "keydiff"}}, MaxLoss: c.most}}, c.o)
		require.NoError(t, err)
		require.Equal(t, c.want, r.o.Session.ProbeLoss != nil)
	}
}
