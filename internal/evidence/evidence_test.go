package evidence

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
)

// The table is that of the documentation, number by number.
func TestTableIsThatOfTheDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/experiments.md")
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(text), "### Every metric\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	require.Contains(t, section, "uniform / PyramidKV / AdaKV /\nLU-KV")
	require.Contains(t, section, "| metric | 50 % removed | 80 % removed | 90 % removed |")
	number := regexp.MustCompile(`[+-][0-9]+\.[0-9]+`)
	seen := 0
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_0-9]+)` \\|(.*)\\|(.*)\\|(.*)\\|$").FindAllStringSubmatch(section, -1) {
		seen++
		for i := range ratios {
			found := number.FindAllString(row[2+i], -1)
			require.Len(t, found, len(allocators), row[1])
			for k, s := range found {
				want, err := strconv.ParseFloat(s, 64)
				require.NoError(t, err)
				assert.Equal(t, want, table[row[1]][i][k], "%s, %s, %g", row[1], allocators[k], ratios[i])
			}
		}
	}
	assert.Equal(t, len(table), seen)
}

func TestOf(t *testing.T) {
	policy := func(metric, params, allocator string) *lukv.Policy {
		return &lukv.Policy{Metric: lukv.MetricConfig{Name: metric, Params: params}, Allocator: lukv.AllocatorConfig{Name: allocator}, Ratio: 0.8}
	}
	const on = ", on SmolLM2 135M, text after 1,024 tokens; models of other sizes were not measured"
	for _, c := range []struct {
		p     *lukv.Policy
		ratio float64
		want  string
	}{
		{nil, 0.8, ""},
		{&lukv.Policy{}, 0.8, ""},
		{policy("snapkv", "", ""), 0, ""},
		{policy("snapkv", "", "uniform"), 0.801, "snapkv with uniform budgets lost 0.264 nats a token at 80 % removed" + on},
		{policy("", "", ""), 0.5, "key_distance with adakv budgets lost 0.061 nats a token at 50 % removed" + on},
		{policy("kvzip", "", "adakv"), 0.6, "kvzip with adakv budgets lost 0.014 nats a token at 50 % removed and 0.144 nats a token at 80 % removed" + on},
		{policy("knorm", "", "lukv"), 0.2, "knorm with lukv budgets lost 0.035 nats a token at 50 % removed (less was not measured)" + on},
		{policy("knorm", "", "uniform"), 0.95, "knorm with uniform budgets lost 0.518 nats a token at 90 % removed (more was not measured)" + on},
		{policy("snapkv", `{"window":32}`, ""), 0.8, "snapkv with uniform budgets lost 0.264 nats a token at 80 % removed" + on},
		{policy("snapkv", `{"window":64}`, ""), 0.8, "what snapkv with uniform budgets loses is not among what was measured for every metric on a model that others made"},
		{policy("learned", "", "lukv"), 0.8, "what learned with lukv budgets loses is not among what was measured for every metric on a model that others made"},
		{policy("snapkv", "", "cake"), 0.8, "what snapkv with cake budgets loses is not among what was measured for every metric on a model that others made"},
	} {
		assert.Equal(t, c.want, Of(c.p, c.ratio))
	}
}
