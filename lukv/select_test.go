package lukv

import (
	"math"
	"slices"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// keepBySorting is the definition of Keep: protected first, then by score
// descending with NaN as -Inf, ties by slot ascending.
func keepBySorting(scores []float32, b int, p Protection) []int32 {
	T := len(scores)
	score := func(t int32) float64 {
		if v := float64(scores[t]); v == v {
			return v
		}
		return math.Inf(-1)
	}
	ids := make([]int32, T)
	for t := range ids {
		ids[t] = int32(t)
	}
	rank := func(t int32) int { // protected entries, in the order they are kept
		switch {
		case int(t) < p.Sinks:
			return int(t)
		case int(t) >= T-p.Window && p.Recent:
			return T + T - int(t)
		case int(t) >= T-p.Window:
			return T + int(t)
		}
		return 4 * T
	}
	sort.SliceStable(ids, func(i, j int) bool {
		a, b := ids[i], ids[j]
		if ra, rb := rank(a), rank(b); ra != rb {
			return ra < rb
		}
		return rank(a) == 4*T && score(a) > score(b)
	})
	ids = ids[:min(max(b, 0), T)]
	slices.Sort(ids)
	return ids
}

func drawScores(t *rapid.T) []float32 {
	pool := []float32{0, float32(math.Copysign(0, -1)), 1, 1, -1, float32(math.NaN()),
		float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32, math.SmallestNonzeroFloat32}
	return rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom(pool), rapid.Float32()), 0, 80).Draw(t, "scores")
}

func TestKeepMatchesSorting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scores := drawScores(t)
		p := Protection{
			Sinks:  rapid.IntRange(0, 90).Draw(t, "sinks"),
			Window: rapid.IntRange(0, 90).Draw(t, "window"),
			Recent: rapid.Bool().Draw(t, "recent"),
		}
		b := rapid.IntRange(-1, len(scores)+2).Draw(t, "b")
		got, want := Keep(nil, scores, b, p), keepBySorting(scores, b, p)
		if !slices.Equal(got, want) {
			t.Fatalf("keep %d of %v with %+v: got %v, want %v", b, scores, p, got, want)
		}
		lo, hi := p.Split(len(scores))
		if n := p.Count(len(scores)); n != lo+len(scores)-hi {
			t.Fatalf("count %d, split [%d, %d)", n, lo, hi)
		}
		for i := range scores {
			if p.Has(i, len(scores)) != (i < lo || i >= hi) {
				t.Fatalf("slot %d: Has contradicts Split", i)
			}
		}
	})
}

func TestKeepIsNested(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scores := drawScores(t)
		p := Protection{Sinks: rapid.IntRange(0, 5).Draw(t, "sinks"), Window: rapid.IntRange(0, 5).Draw(t, "window"), Recent: rapid.Bool().Draw(t, "recent")}
		var last []int32
		for b := range len(scores) + 1 {
			now := Keep(nil, scores, b, p)
			for _, i := range last {
				if !slices.Contains(now, i) {
					t.Fatalf("slot %d kept with %d entries, dropped with %d", i, b-1, b)
				}
			}
			last = now
		}
	})
}

func TestKeepTiesAndProtection(t *testing.T) {
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		scores []float32
		b      int
		p      Protection
		want   []int32
	}{
		"all equal: lowest win":             {[]float32{3, 3, 3, 3}, 2, Protection{}, []int32{0, 1}},
		"zeros have no sign":                {[]float32{float32(math.Copysign(0, -1)), 0, 0}, 1, Protection{}, []int32{0}},
		"nan is last":                       {[]float32{nan, -1e30, nan, 0}, 3, Protection{}, []int32{0, 1, 3}},
		"nan ties with -inf":                {[]float32{float32(math.Inf(-1)), nan, 1}, 2, Protection{}, []int32{0, 2}},
		"protected above +inf":              {[]float32{float32(math.Inf(1)), 0, 0}, 1, Protection{Window: 1}, []int32{2}},
		"budget below protection":           {[]float32{0, 0, 9, 0, 0}, 2, Protection{Sinks: 1, Window: 2}, []int32{0, 3}},
		"budget below protection, recent":   {[]float32{0, 0, 9, 0, 0}, 2, Protection{Sinks: 1, Window: 2, Recent: true}, []int32{0, 4}},
		"protection covers all":             {[]float32{1, 2, 3}, 2, Protection{Sinks: 9, Window: 9}, []int32{0, 1}},
		"sinks and window overlap":          {[]float32{1, 2, 3}, 3, Protection{Sinks: 2, Window: 2}, []int32{0, 1, 2}},
		"empty head":                        {nil, 3, Protection{Sinks: 1}, []int32{}},
		"negative budget":                   {[]float32{1}, -1, Protection{}, []int32{}},
		"budget above length":               {[]float32{1, 2}, 9, Protection{}, []int32{0, 1}},
		"negative protection means nothing": {[]float32{1, 2, 3}, 1, Protection{Sinks: -1, Window: -4}, []int32{2}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, Keep([]int32{7, 7, 7}, c.scores, c.b, c.p))
		})
	}
}

func TestKeepAllocatesNothing(t *testing.T) {
	scores := make([]float32, 1000)
	for i := range scores {
		scores[i] = float32(i * 7919 % 1000)
	}
	dst := make([]int32, 0, 100)
	require.Zero(t, testing.AllocsPerRun(10, func() { dst = Keep(dst, scores, 100, Protection{Sinks: 4, Window: 8}) }))
}
