package lukv

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestDuo: heads in order of importance keep everything, one keeps what is
// left and the others the streaming entries; the total is exact.
func TestDuo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		L, K, T := rapid.IntRange(1, 4).Draw(t, "L"), rapid.IntRange(1, 4).Draw(t, "K"), rapid.IntRange(2, 200).Draw(t, "T")
		few := rapid.IntRange(1, 60).Draw(t, "streaming")
		importance := make([][]float64, L)
		for l := range importance {
			importance[l] = rapid.SliceOfN(rapid.SampledFrom([]float64{0, 0.2, 0.5, 1}), K, K).Draw(t, "importance")
		}
		d := Demand{T: T, Layers: L, KVHeads: K}.DemandTokens(rapid.IntRange(1, T-1).Draw(t, "n"))
		d.Entries += rapid.IntRange(0, L*K-1).Draw(t, "more")
		a := duo{Streaming: few, Importance: importance}
		got, err := Allocate(a, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		total, between := 0, 0
		for l, row := range got {
			for h, b := range row {
				total += b
				if b < min(few, d.Share()) {
					t.Fatalf("head %d.%d keeps %d", l, h, b)
				}
				if b > min(few, d.Share()) && b < T {
					between++
				}
				for m, other := range got {
					for i, c := range other {
						if importance[l][h] > importance[m][i] && b < c {
							t.Fatalf("head %d.%d of importance %v keeps %d, head %d.%d of %v %d", l, h, importance[l][h], b, m, i, importance[m][i], c)
						}
					}
				}
			}
		}
		if total != d.Entries || between > 1 {
			t.Fatalf("kept %d of %d, %d heads in part: %v", total, d.Entries, between, got)
		}
	})
}

func TestDuoFromAProfile(t *testing.T) {
	profile := testProfile(t, 2, 2, 300)
	_, err := NewAllocator(AllocatorConfig{Name: "duo"}, nil)
	require.ErrorContains(t, err, "allocator duo: profile: found none and no importance")
	require.True(t, AllocatorConfig{Name: "duo"}.NeedsProfile())
	require.False(t, AllocatorConfig{Name: "duo", Params: `{"importance":[[1]]}`}.NeedsProfile())
	a, err := NewAllocator(AllocatorConfig{Name: "duo", Params: `{"streaming":20}`}, profile)
	require.NoError(t, err)
	d := Demand{T: 300, Layers: 2, KVHeads: 2, Ratio: 0.6}
	got, err := Allocate(a, d, nil)
	require.NoError(t, err)
	row := profile.Row(0.6, false)
	best := [2]int{}
	for l := range row {
		for h, r := range row[l] {
			if r < row[best[0]][best[1]] {
				best = [2]int{l, h}
			}
		}
	}
	require.Equal(t, 300, got[best[0]][best[1]], "the head that keeps the most in the profile")
	require.Empty(t, a.(duo).Notes(d))
	d.Ratio = 0.9
	require.Contains(t, a.(duo).Notes(d)[0], "duo: no head keeps everything")
	// One head of 300 and three of 20 are 90 each.
	require.Empty(t, a.(duo).Notes(d.DemandTokens(90)))
	require.Contains(t, a.(duo).Notes(d.DemandTokens(89))[0], "89 entries a head leave no room beside the 20 of each streaming head")
	require.NotEmpty(t, a.(duo).Notes(d.DemandTokens(20)))
	_, err = Allocate(mustAllocator(t, "duo", "importance", [][]float64{{1, 2, 3}}), d, nil)
	require.ErrorContains(t, err, "allocator duo: importance: found 1 layers of 3 kv heads, expected 2 of 2")
}

// TestThreshold: a head keeps the entries that reach the threshold, its protected
// ones and at least one, or the best if that is more than the demand leaves the
// layer.
func TestThreshold(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const T, K = 80, 3
	prot := Protection{Sinks: 2, Window: 3}
	for _, least := range []float64{0, 0.5, 0.9, 0.999, 2} {
		for _, ratio := range []float64{0.01, 0.5, 0.9} {
			scores := make(Scores, K)
			passing := 0
			for h := range scores {
				scores[h] = make([]float32, T)
				n := 5
				for i := range scores[h] {
					scores[h][i] = rng.Float32()
					if !prot.Has(i, T) && float64(scores[h][i]) >= least {
						n++
					}
				}
				passing += n
			}
			d := Demand{T: T, Layers: 1, KVHeads: K, Ratio: ratio, Protection: prot}
			got, err := Allocate(mustAllocator(t, "threshold", "least", least), d, []Scores{scores})
			require.NoError(t, err)
			kept := 0
			for h, b := range got[0] {
				kept += b
				worst := float32(2)
				for _, i := range Keep(nil, scores[h], b, prot) {
					if !prot.Has(int(i), T) {
						worst = min(worst, scores[h][i])
					}
				}
				require.GreaterOrEqual(t, worst, float32(least)-3*float32(max(0, least-1)))
			}
			require.Equal(t, min(passing, K*d.Share()), kept, "least %v, ratio %v", least, ratio)
		}
	}
}

// TestDuoWithEmptyImportance: an empty list counts as no importance.
func TestDuoWithEmptyImportance(t *testing.T) {
	c := AllocatorConfig{Name: "duo", Params: `{"importance":[]}`}
	require.True(t, c.NeedsProfile())
	_, err := NewAllocator(c, nil)
	require.ErrorContains(t, err, "found none and no importance")
	a, err := NewAllocator(c, testProfile(t, 2, 2, 300))
	require.NoError(t, err)
	_, err = Allocate(a, Demand{T: 300, Layers: 2, KVHeads: 2, Ratio: 0.5}, nil)
	require.NoError(t, err)
}
