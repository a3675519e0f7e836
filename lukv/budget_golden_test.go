package lukv

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv/solve"
)

// TestGoldenBudgets checks every table of budgets.json for an allocator
// built here; the others are skipped by name.
func TestGoldenBudgets(t *testing.T) {
	var tables map[string]struct {
		Rows [][]json.RawMessage `json:"rows"`
	}
	raw, err := os.ReadFile(evictionGolden("budgets.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &tables))
	checks := &goldenChecks{name: "budgets"}
	defer checks.report(t)

	runners := map[string]func(t *testing.T, row []json.RawMessage){
		"uniform": func(t *testing.T, row []json.RawMessage) {
			T, ratio := cell[int](t, row[0]), cell[float64](t, row[1])
			require.Equal(t, cell[int](t, row[2]), UniformShare(T, ratio, false))
			d := Demand{T: T, Layers: 2, KVHeads: 3, Ratio: ratio}
			require.NoError(t, d.Validate())
			require.Equal(t, cell[int](t, row[3]), d.Share())
			d.Rounding = kvpressRounding()
			require.Equal(t, cell[int](t, row[2]), d.Share())
		},
		"pyramid": func(t *testing.T, row []json.RawMessage) {
			T, ratio := cell[int](t, row[1]), cell[float64](t, row[2])
			got, _ := PyramidShares(cell[int](t, row[0]), T, float64(T)*(1-ratio), cell[int](t, row[3]), cell[float64](t, row[4]))
			require.Equal(t, cell[[]int](t, row[5]), got)
		},
		"pyramid_official": func(t *testing.T, row []json.RawMessage) {
			got := PyramidAbsolute(cell[int](t, row[0]), cell[int](t, row[1]), cell[int](t, row[2]), cell[int](t, row[3]), cell[int](t, row[4]))
			require.Equal(t, cell[[]int](t, row[5]), got)
		},
		"lukv_runtime": func(t *testing.T, row []json.RawMessage) {
			T, ratio := cell[int](t, row[0]), cell[float64](t, row[1])
			local := cell[[]float64](t, row[3])
			require.Equal(t, cell[int](t, row[2]), ProfileIndex(ratio))
			want := cell[[]int](t, row[4])
			require.Equal(t, want, RoundLocal(local, T, HeadsRemainder32, false))

			// The same through a profile that has this row at its level.
			p := &Profile{layers: 1, kvHeads: len(local), ratios: make([]float64, solve.Levels*len(local))}
			copy(p.at(ProfileIndex(ratio)), local)
			a, err := NewAllocator(AllocatorConfig{Name: "lukv", Params: `{"lookup":"nearest"}`}, p)
			require.NoError(t, err)
			d := Demand{T: T, Layers: 1, KVHeads: len(local), Ratio: ratio, Rounding: kvpressRounding()}
			d.Rounding.AllowEmpty = false
			got, err := Allocate(a, d, nil)
			require.NoError(t, err)
			require.Equal(t, want, got[0])
		},
		"decoding_target": func(t *testing.T, row []json.RawMessage) {
			d := Demand{T: cell[int](t, row[0]), Layers: 1, KVHeads: 1}.DemandTokens(cell[int](t, row[1]))
			got, err := Allocate(uniform{}, d, nil)
			require.NoError(t, err)
			require.Equal(t, cell[int](t, row[2]), got[0][0])
		},
		"cake_repair": func(t *testing.T, row []json.RawMessage) {
			shares := cell[[]float64](t, row[2])
			counts := make([]int, len(shares))
			for l, v := range shares {
				counts[l] = int(v)
			}
			require.Equal(t, cell[[]int](t, row[3]), cakeRepair(counts, cell[int](t, row[1]), cell[int](t, row[0])))
		},
		"headkv": func(t *testing.T, row []json.RawMessage) {
			kvHeads, window := cell[int](t, row[2]), cell[int](t, row[4])
			got := headShares(cell[[][]float64](t, row[7]), cell[int](t, row[3])-window, cell[float64](t, row[5]), cell[float64](t, row[6]))
			require.Equal(t, cell[[][]int](t, row[8]), got)
			for l, want := range cell[[][]int](t, row[9]) {
				require.Equal(t, want, groupMeans(got[l], kvHeads))
			}
		},
		"profile_index": func(t *testing.T, row []json.RawMessage) {
			require.Equal(t, cell[int](t, row[1]), ProfileIndex(cell[float64](t, row[0])))
		},
	}
	for name, table := range tables {
		run, ok := runners[name]
		if !ok {
			checks.skip(name+": allocator not built", len(table.Rows))
			continue
		}
		for i, row := range table.Rows {
			t.Run(fmt.Sprintf("%s/%d", name, i), func(t *testing.T) { run(t, row) })
			checks.n++
		}
	}
}

func cell[T any](t *testing.T, raw json.RawMessage) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal(raw, &v))
	return v
}
