package lukv

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSummaries: every name is explained in one sentence, and no two alike.
func TestSummaries(t *testing.T) {
	seen := map[string]string{}
	check := func(name, summary string) {
		require.NotEmpty(t, summary, name)
		require.NotContains(t, strings.TrimSuffix(summary, "."), ". ", name)
		require.False(t, strings.HasSuffix(summary, "."), name)
		require.LessOrEqual(t, len(summary), 120, name)
		require.Empty(t, seen[summary], name)
		seen[summary] = name
	}
	for _, name := range append(Metrics(), "learned", "per_head") {
		check(name, MetricSummary(name))
	}
	for _, name := range Allocators() {
		check(name, AllocatorSummary(name))
	}
	require.Equal(t, AllocatorSummary("pyramidkv"), AllocatorSummary("pyramid"), "an alias")
	require.Empty(t, MetricSummary("nonsense"))
	require.Empty(t, AllocatorSummary("snapkv"))
}
