package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lukv/lukv/eval"
)

func TestDemo(t *testing.T) {
	out := ok(t, "demo", "--limit", "1", "--texts", "1")
	for _, want := range []string{"full", "uniform", "adakv", "lukv", "KV head", "average", "removed", "held", "LU-KV minus"} {
		assert.Contains(t, out, want)
	}
	assert.NotContains(t, out, "\x1b", "no escape codes where there is no terminal")

	r := decode[demoResult](t, ok(t, "demo", "--limit", "1", "--texts", "1", "--metric", "snapkv", "--json"))
	assert.Equal(t, "snapkv", r.Metric)
	assert.Equal(t, 10, r.ProfilePairs)
	assert.Len(t, r.Example, 4)
	assert.Len(t, r.Gains, 2)
	for _, row := range r.Rows {
		if row.Task == eval.Average && row.Method != "full" {
			assert.InDelta(t, 0.8, row.RatioAchieved, 0.01, row.Method)
			assert.Less(t, row.CacheBytes, row.FullBytes/3, "what is removed is freed: %s", row.Method)
		}
	}
}
