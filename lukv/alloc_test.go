package lukv

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lukv/lukv/lukv/solve"
)

// allocatorTable lists every allocator in every form; to add one, add a
// row.
func allocatorTable() []AllocatorConfig {
	return []AllocatorConfig{
		{Name: "uniform"},
		{Name: "pyramidkv"},
		{Name: "pyramid", Params: `{"window":2,"beta":3}`},
		{Name: "pyramidkv", Params: `{"form":"absolute"}`},
		{Name: "adakv"},
		{Name: "ada", Params: `{"alpha":0}`},
		{Name: "adakv", Params: `{"alpha":1}`},
		{Name: "adakv", Params: `{"pool":"model"}`},
		{Name: "adakv", Params: `{"form":"interpolate"}`},
		{Name: "adakv", Params: `{"form":"interpolate","normalize":true,"skip":1}`},
		{Name: "global"},
		{Name: "global", Params: `{"pool":"layer"}`},
		{Name: "global", Params: `{"count":"removed","weights":[1,0,2.5,1]}`},
		{Name: "cake"},
		{Name: "cake", Params: `{"cascade":false,"tau1":0.8}`},
		{Name: "headkv", Params: `{"importance":[[1,2,3,1,2,3],[0,0,1,5,1,1],[1,1,1,1,1,1],[2,2,2,9,2,2]]}`},
		{Name: "duo"},
		{Name: "duo", Params: `{"streaming":12,"importance":[[1,2,3],[0,0,1],[9,1,1],[2,2,2]]}`},
		{Name: "threshold", Params: `{"least":60}`},
		{Name: "lukv"},
		{Name: "lukv", Params: `{"lookup":"nearest"}`},
	}
}

// testProfile solves a synthetic model of the given shape.
func testProfile(t testing.TB, layers, kvHeads, T int, excluded ...int) *Profile {
	t.Helper()
	importance, scores := syntheticModel(layers, kvHeads, T, 11)
	for _, l := range excluded {
		importance[l] = nil
	}
	id := DefaultProfileIdentity()
	id.Model, id.Metric = "test", MetricConfig{Name: "keydiff"}
	id.Protection = Protection{Sinks: 4, Window: 1}
	b, err := NewProfileBuilder(id, layers, kvHeads, excluded)
	require.NoError(t, err)
	_, err = b.Add(t.Context(), 0, importance, scores)
	require.NoError(t, err)
	p, err := b.Profile()
	require.NoError(t, err)
	return p
}

// TestAllocatorsKeepTheirWord: for every allocator, shape, demand and rounding
// the budgets have the right shape, lie between 1 and T, give excluded layers
// everything, and meet the total that the allocator promises.
func TestAllocatorsKeepTheirWord(t *testing.T) {
	const L, K = 4, 3
	profile, without := testProfile(t, L, K, 400), testProfile(t, L, K, 400, 1)
	rng := rand.New(rand.NewPCG(5, 6))
	for _, cfg := range allocatorTable() {
		a, err := NewAllocator(cfg, profile)
		require.NoError(t, err)
		again, err := NewAllocator(AllocatorConfigOf(a), profile)
		require.NoError(t, err)
		require.Equal(t, a, again, "configuration of %s does not come back", cfg)
		for _, T := range []int{1, 2, 5, 40, 400, 1000} {
			for _, ratio := range []float64{0, 0.001, 0.3, 0.5, 0.8, 0.9, 0.99, 0.999} {
				for _, excluded := range [][]bool{nil, {false, true, false, false}} {
					a := a
					if excluded != nil {
						a, err = NewAllocator(cfg, without)
						require.NoError(t, err)
					}
					for _, prot := range []Protection{{}, {Sinks: 4, Window: 8}} {
						d := Demand{T: T, Layers: L, KVHeads: K, Ratio: ratio, Excluded: excluded, Protection: prot, Weights: []float64{1, 3, 2, 9}}
						if rng.IntN(3) == 0 {
							d = d.DemandTokens(UniformShare(T, ratio, true))
						}
						scores := randomScores(rng, L, K, T)
						where := fmt.Sprintf("%s T=%d ratio=%v excluded=%v protection=%v absolute=%v", cfg, T, ratio, excluded, prot, d.Absolute)
						got, err := Allocate(a, d, scores)
						require.NoError(t, err, where)
						checkBudgets(t, a, &d, got, where)
						checkEarlierAnswers(t, a, d, scores, got, where)
					}
				}
			}
		}
	}
}

func randomScores(rng *rand.Rand, layers, kvHeads, T int) []Scores {
	out := make([]Scores, layers)
	for l := range out {
		out[l] = make(Scores, kvHeads)
		for h := range out[l] {
			out[l][h] = make([]float32, T)
			for t := range out[l][h] {
				// Few distinct values, so that ties are common.
				out[l][h][t] = float32(rng.IntN(50)) * float32(h+1)
			}
		}
	}
	return out
}

func checkBudgets(t *testing.T, a Allocator, d *Demand, got [][]int, where string) {
	t.Helper()
	require.Len(t, got, d.Layers, where)
	for l, row := range got {
		require.Len(t, row, d.KVHeads, where)
		for _, b := range row {
			if d.NoOp() || !d.Includes(l) {
				require.Equal(t, d.T, b, where)
				continue
			}
			require.GreaterOrEqual(t, b, 1, where)
			require.LessOrEqual(t, b, d.T, where)
		}
	}
	if d.NoOp() {
		return
	}
	achieved := d.Achieved(got)
	kept, n, units := achieved.Kept, d.Share(), d.Units()
	if form := AllocatorConfigOf(a).Params; d.Absolute && !strings.Contains(form, "absolute") && !strings.Contains(form, "interpolate") {
		require.LessOrEqual(t, kept, max(d.Entries, units), where)
	}
	if _, saturates := a.(lu); !saturates && d.Protection.Count(d.T) >= n {
		// Protected entries alone take the budget: rounding apart, it holds.
		require.LessOrEqual(t, kept, (n+1)*units, where)
	}
	switch a := a.(type) {
	case uniform:
		require.Equal(t, n*units, kept, where)
	case ada:
		if a.Form == "pool" {
			require.Equal(t, n*units, kept, where)
		} else {
			require.InDelta(t, n*units, kept, float64(units), where)
		}
	case global:
		require.InDelta(t, max(d.mean()*float64(units), float64(units)), kept, float64(units), where)
	case lu:
		if d.Absolute {
			require.Equal(t, max(d.Entries, units), kept, where)
		}
		require.InDelta(t, d.mean()*float64(units), kept, 0.03*float64(d.T*units)+float64(2*units), where)
	}
	require.InDelta(t, 1-float64(kept)/float64(d.T*units), achieved.Ratio, 1e-12, where)
}

// checkEarlierAnswers checks that an allocator that can answer before all is
// known gives the same answer then, and that one that cannot says so.
func checkEarlierAnswers(t *testing.T, a Allocator, d Demand, scores []Scores, want [][]int, where string) {
	t.Helper()
	before, err := Allocate(a, d, nil)
	if d.NoOp() {
		require.Equal(t, want, before, where)
		return
	}
	if a.BudgetsKnown() == KnownBefore {
		require.NoError(t, err, where)
		require.Equal(t, want, before, where)
	} else if a.BudgetsKnown() == KnownPerLayer || a.BudgetsKnown() == KnownSoFar {
		require.NoError(t, err, where)
		for l := range before {
			require.Equal(t, d.Includes(l), before[l] == nil, where)
		}
	} else {
		require.Error(t, err, where)
	}
	for l := range want {
		seen := make([]Scores, d.Layers)
		seen[l] = scores[l]
		some, err := Allocate(a, d, seen)
		if a.BudgetsKnown() == KnownAtEnd {
			require.Error(t, err, where)
			continue
		}
		require.NoError(t, err, where)
		if a.BudgetsKnown() == KnownSoFar {
			if d.Includes(l) {
				require.GreaterOrEqual(t, some[l][0], want[l][0]-1, "%s: a layer alone has all of the budget", where)
			}
			continue
		}
		require.Equal(t, want[l], some[l], where)
	}
}

// TestPoolCounts compares the radix selection with a stable sort of all
// entries.
func TestPoolCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := make([][]float32, rapid.IntRange(1, 4).Draw(t, "rows"))
		entries := 0
		for r := range rows {
			rows[r] = rapid.SliceOfN(rapid.SampledFrom([]float32{
				0, float32(math.Copysign(0, -1)), 1, -1, 2, 1e-40, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
			}), 1, 9).Draw(t, "row")
			entries += len(rows[r])
		}
		prot := Protection{Sinks: rapid.IntRange(0, 2).Draw(t, "sinks"), Window: rapid.IntRange(0, 2).Draw(t, "window")}
		safe := rapid.IntRange(0, 4).Draw(t, "safe")
		total := rapid.IntRange(0, entries).Draw(t, "total")
		got := poolCounts(rows, prot, safe, total)

		type entry struct {
			row, rank int // rank of the flag: 0 secured, 1 competing
			key       uint32
		}
		var all []entry
		secured := 0
		for r, row := range rows {
			// Keep orders protected entries first, then by score.
			head := Keep(nil, row, max(safe, prot.Count(len(row))), prot)
			secured += len(head)
			for t := range row {
				rank := 1
				if slices.Contains(head, int32(t)) {
					rank = 0
				}
				all = append(all, entry{r, rank, rankKey(row[t])})
			}
		}
		sum := 0
		for _, n := range got {
			sum += n
		}
		if sum != total {
			t.Fatalf("kept %d, want %d", sum, total)
		}
		if secured > total {
			most := slices.Max(got)
			for r, n := range got {
				if n > len(rows[r]) || n < min(most-1, len(rows[r])) {
					t.Fatalf("row %d of %d keeps %d of %d, another %d", r, len(rows[r]), n, total, most)
				}
			}
			return
		}
		slices.SortStableFunc(all, func(a, b entry) int {
			if c := cmp.Compare(a.rank, b.rank); c != 0 || a.rank == 0 {
				return c
			}
			return cmp.Compare(b.key, a.key)
		})
		want := make([]int, len(rows))
		for _, e := range all[:total] {
			want[e.row]++
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// TestBudgetsGrowWithTheTotal: no head in a competition loses entries when
// all may keep more.
func TestBudgetsGrowWithTheTotal(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	const T, K = 60, 4
	for _, cfg := range allocatorTable() {
		if cfg.Name == "lukv" || strings.Contains(cfg.Params, "interpolate") || cfg.Name[:3] == "pyr" || cfg.Name == "cake" || cfg.Name == "headkv" || cfg.Name == "duo" || strings.Contains(cfg.Params, "weights") {
			continue // rounding and windows of their own
		}
		a, err := NewAllocator(cfg, nil)
		require.NoError(t, err)
		scores := randomScores(rng, 2, K, T)
		last := make([]int, 2*K)
		for n := 1; n < T; n++ {
			d := Demand{T: T, Layers: 2, KVHeads: K, Protection: Protection{Sinks: 2, Window: 3}}.DemandTokens(n)
			got, err := Allocate(a, d, scores)
			require.NoError(t, err)
			flat := slices.Concat(got...)
			for u := range flat {
				require.GreaterOrEqual(t, flat[u], last[u], "%s: unit %d at %d entries per head", cfg, u, n)
			}
			last = flat
		}
	}
}

func TestApportion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weight := rapid.SliceOfN(rapid.Float64Range(0, 1), 1, 12).Draw(t, "weights")
		T := rapid.IntRange(1, 200).Draw(t, "T")
		least := rapid.IntRange(0, min(3, T)).Draw(t, "least")
		total := rapid.IntRange(0, T*len(weight)+5).Draw(t, "total")
		got := apportion(weight, total, least, T)
		sum := 0
		for h, n := range got {
			if n < least || n > T {
				t.Fatalf("head %d gets %d, want %d to %d", h, n, least, T)
			}
			sum += n
			for g, m := range got {
				if weight[h] > weight[g] && n < m-1 {
					t.Fatalf("weights %v and %v get %d and %d", weight[h], weight[g], n, m)
				}
				// In proportion, except for one entry each and the ends of the range.
				if n < T && m > least && weight[h] > 1e-30 && float64(m-1)*weight[h] > float64(n+1)*weight[g]*(1+1e-9) {
					t.Fatalf("weights %v and %v get %d and %d", weight[h], weight[g], n, m)
				}
			}
		}
		if want := min(max(total, least*len(weight)), T*len(weight)); sum != want {
			t.Fatalf("sum %d, want %d", sum, want)
		}
	})
}

// TestTakeFromLargest compares with taking one at a time.
func TestTakeFromLargest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.IntRange(0, 12), 1, 6).Draw(t, "budgets")
		floor := rapid.IntRange(0, 6).Draw(t, "floor")
		excess := rapid.IntRange(0, 40).Draw(t, "excess")
		got, want := slices.Clone(b), slices.Clone(b)
		ptrs := make([]*int, len(got))
		for i := range got {
			ptrs[i] = &got[i]
		}
		left := takeFromLargest(ptrs, excess, floor)
		for excess > 0 && slices.Max(want) > floor {
			want[slices.Index(want, slices.Max(want))]--
			excess--
		}
		slices.Sort(got)
		slices.Sort(want)
		if left != excess || !slices.Equal(got, want) {
			t.Fatalf("got %v, %d left; want %v, %d left", got, left, want, excess)
		}
	})
}

// TestProtectedFloor: under LU-KV a short prompt keeps its window in every
// head, totals stay the same, and the option can be switched off.
func TestProtectedFloor(t *testing.T) {
	profile := testProfile(t, 4, 3, 4000)
	a, err := NewAllocator(AllocatorConfig{Name: "lukv"}, profile)
	require.NoError(t, err)
	for _, absolute := range []bool{false, true} {
		d := Demand{T: 250, Layers: 4, KVHeads: 3, Ratio: 0.8, Protection: Protection{Sinks: 4, Window: 32}}
		if absolute {
			d = d.DemandTokens(50)
		}
		with, err := Allocate(a, d, nil)
		require.NoError(t, err)
		d.Rounding.Floor = FloorNone
		without, err := Allocate(a, d, nil)
		require.NoError(t, err)
		require.Less(t, d.Achieved(without).Least, 36, "the case must need the floor")
		require.Equal(t, 36, d.Achieved(with).Least)
		require.Equal(t, d.Achieved(without).Kept, d.Achieved(with).Kept)
		require.Zero(t, d.Achieved(with).Short)
	}
	// Too little for the floor: every head gets the same, and no more in total.
	d := Demand{T: 250, Layers: 4, KVHeads: 3, Protection: Protection{Sinks: 4, Window: 32}}.DemandTokens(20)
	b, err := Allocate(a, d, nil)
	require.NoError(t, err)
	require.Equal(t, 240, d.Achieved(b).Kept)
	require.Equal(t, 20, d.Achieved(b).Least)
}

func TestRoundingModes(t *testing.T) {
	// Ideals 3.5, 1.5, 6.5 and 0 of 8 add up to 11.5, to even 12: two of the
	// three halves are rounded up, those of the lower heads.
	local := []float64{0.5625, 0.8125, 0.1875, 1}
	require.Equal(t, []int{3, 1, 6, 0}, RoundLocal(local, 8, HeadsFloor, true))
	require.Equal(t, []int{3, 1, 6, 1}, RoundLocal(local, 8, HeadsFloor, false))
	for _, mode := range []string{"", HeadsRemainder32, HeadsRemainder64} {
		require.Equal(t, []int{4, 2, 6, 0}, RoundLocal(local, 8, mode, true))
		require.Equal(t, []int{4, 2, 6, 1}, RoundLocal(local, 8, mode, false))
	}
	// Of 7.5 and 3.5 the lower head is rounded up, but in binary32 1 - 0.65 is a
	// little more than 0.35.
	require.Equal(t, []int{8, 3}, RoundLocal([]float64{0.25, 0.65}, 10, HeadsRemainder64, false))
	for _, mode := range []string{"", HeadsRemainder32} {
		require.Equal(t, []int{7, 4}, RoundLocal([]float64{0.25, 0.65}, 10, mode, false))
	}
}

// TestReconcile: by layer, the model's total may drift; by model, it may not.
func TestReconcile(t *testing.T) {
	const L = 8
	p := &Profile{layers: L, kvHeads: 1, ratios: make([]float64, solve.Levels*L)}
	for l := range L {
		p.at(49)[l] = 0.46 // ideal 5.4 of 10 in every layer, 43.2 together
	}
	a, err := NewAllocator(AllocatorConfig{Name: "lukv"}, p)
	require.NoError(t, err)
	d := Demand{T: 10, Layers: L, KVHeads: 1, Ratio: 0.5}
	byLayer, err := Allocate(a, d, nil)
	require.NoError(t, err)
	require.Equal(t, 40, d.Achieved(byLayer).Kept)
	d.Rounding.Reconcile = ReconcileModel
	byModel, err := Allocate(a, d, nil)
	require.NoError(t, err)
	require.Equal(t, 43, d.Achieved(byModel).Kept)
	require.Equal(t, []int{6, 6, 6, 5, 5, 5, 5, 5}, slices.Concat(byModel...))
}

func TestDemandAbsolute(t *testing.T) {
	d := Demand{T: 100, Layers: 4, KVHeads: 2, Excluded: []bool{false, true, false, false}}
	require.Equal(t, 6, d.Units())
	tokens := d.DemandTokens(25)
	require.Equal(t, 150, tokens.Entries)
	require.InDelta(t, 0.75, tokens.Target(), 1e-12)
	one := Demand{T: 1, Layers: 1, KVHeads: 1}.DemandTokens(0)
	require.Equal(t, 1.0, one.Target())
	many := Demand{T: 3, Layers: 1, KVHeads: 1}.DemandTokens(4)
	require.Zero(t, many.Target())
	none := Demand{T: 0, Layers: 1, KVHeads: 1}.DemandTokens(4)
	require.Zero(t, none.Target())
	require.Equal(t, 25, tokens.Share())
	bytes := d.DemandBytes(100_000, 512) // 195 entries
	require.Equal(t, 195, bytes.Entries)
	require.Equal(t, 32, bytes.Share())
	for n, want := range map[int]bool{99: false, 100: true, math.MaxInt32: true} {
		d := d.DemandTokens(n)
		require.Equal(t, want, d.NoOp(), n)
	}
	for _, bad := range []Demand{
		{T: 10, Layers: 1, KVHeads: 1, Ratio: 1},
		{T: 10, Layers: 1, KVHeads: 1, Ratio: -0.1},
		{T: 10, Layers: 1, KVHeads: 1, Ratio: math.NaN()},
		{T: 10, Layers: 0, KVHeads: 1},
		{T: 10, Layers: 2, KVHeads: 1, Excluded: []bool{true}},
		{T: 10, Layers: 1, KVHeads: 1, Rounding: Rounding{Share: "up"}},
	} {
		require.Error(t, bad.Validate())
	}
}

func TestAllocatorConfigErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{"name":"adakv","alfa":1}`:                            "it has no parameter alfa",
		`best`:                                                 "is unknown, expected one of uniform, pyramidkv, adakv, global, lukv",
		`{"name":"uniform","alpha":0.2}`:                       "it has no parameter alpha",
		`{"name":"adakv","alpha":1.5}`:                         "alpha: found 1.5, expected 0 to 1",
		`{"name":"adakv","skip":2}`:                            "skip and normalize: found one in the pool form",
		`{"name":"pyramidkv","beta":0}`:                        "beta: found 0, expected 1 to",
		`{"name":"pyramidkv","form":"flat"}`:                   `form: found "flat", expected one of ratio, absolute`,
		`{"name":"lukv","lookup":"best"}`:                      `lookup: found "best"`,
		`{"name":"adakv","form":"interpolate","pool":"model"}`: "pool",
		`{"name":"duo","streaming":0}`:                         "allocator duo: streaming: found 0, expected 1 to",
		`{"name":"duo","importance":[[1,2],[3]]}`:              "allocator duo: importance: layer 1, kv head 0: found 3 in a row of 1, expected a number in a row of 2",
		`{"name":"global","weights":[1,-1]}`:                   "allocator global: weights: layer 1: found -1, expected 0 to",
		`{"name":"global","pool":"layer","weights":[1]}`:       `allocator global: weights: found some with the pool "layer"`,
		`{"name":"threshold","least":"high"}`:                  "allocator threshold: least: found string, expected a number",
		`{"name":"threshold","least":1e300}`:                   "allocator threshold: least: found 1e+300",
	} {
		c, err := ParseAllocatorConfig(text)
		require.NoError(t, err, text)
		require.ErrorContains(t, c.Validate(), want, text)
	}
	for _, text := range []string{`{"name":1}`, `{"name":"adakv"} {}`, `{`} {
		_, err := ParseAllocatorConfig(text)
		require.Error(t, err, text)
	}
	_, err := NewAllocator(AllocatorConfig{Name: "lukv"}, nil)
	require.ErrorContains(t, err, "profile: found none")
}

// TestAllocatorShapeErrors: scores or profiles of the wrong shape are
// errors that name both shapes, for every allocator that looks at them.
func TestAllocatorShapeErrors(t *testing.T) {
	profile := testProfile(t, 2, 2, 300)
	rng := rand.New(rand.NewPCG(1, 9))
	d := Demand{T: 50, Layers: 2, KVHeads: 2, Ratio: 0.5, Weights: []float64{1, 2}}
	good := randomScores(rng, 2, 2, 50)
	for _, cfg := range allocatorTable() {
		a, err := NewAllocator(cfg, profile)
		require.NoError(t, err)
		bad := d
		bad.Ratio = 1.5
		_, err = Allocate(a, bad, good)
		require.ErrorContains(t, err, "ratio 1.5")
		if a.BudgetsKnown() == KnownBefore || strings.Contains(cfg.Params, "weights") {
			continue
		}
		_, err = Allocate(a, d, good[:1])
		require.ErrorContains(t, err, "scores of 1 layers, expected 2")
		_, err = Allocate(a, d, randomScores(rng, 2, 3, 50))
		require.ErrorContains(t, err, "scores of 3 heads, expected 2")
		_, err = Allocate(a, d, randomScores(rng, 2, 2, 49))
		require.NoError(t, err, "a ragged cache")
		_, err = Allocate(a, d, randomScores(rng, 2, 2, 51))
		require.ErrorContains(t, err, "51 scores, expected at most 50")
	}
	d.KVHeads = 3
	a, err := NewAllocator(AllocatorConfig{Name: "lukv"}, profile)
	require.NoError(t, err)
	_, err = Allocate(a, d, nil)
	require.ErrorIs(t, err, ErrProfileMismatch)
	require.ErrorContains(t, err, "the profile has 2 layers of 2 KV heads, the model 2 of 3")
}

// TestAdaNormalizes: a head's scores are weighted by the share of its sum held by
// its best entries. Of sums of 10, the first head's two best hold 5 and the
// second's 9.
func TestAdaNormalizes(t *testing.T) {
	s := Scores{{2.5, 2.5, 2.5, 2.5}, {4.5, 4.5, 0.5, 0.5}}
	require.Equal(t, []int{2, 2}, AdaInterpolate(s, 2, 0, false))
	require.Equal(t, []int{2, 2}, AdaInterpolate(s, 2, 0, true))
	s = Scores{{3, 3, 3, 1}, {2.5, 2.4, 0.1, 0}} // shares 0.6 and 0.98: 1.8 and 2.4
	require.Equal(t, []int{3, 1}, AdaInterpolate(Scores{{3, 3, 3, 1}, {3.5, 1, 0.5, 0}}, 2, 0, false))
	require.Equal(t, []int{3, 1}, AdaInterpolate(s, 2, 0, false))
	require.Equal(t, []int{2, 2}, AdaInterpolate(s, 2, 0, true))
	require.Equal(t, []int{2, 2}, AdaInterpolate(Scores{{0, 0, 0}, {0, 0, 0}}, 2, 1, true))
}

// TestHeadKVFloorDivision: ⌊B/β⌋ is that of the exact quotient even where the
// floating-point quotient would round up to an integer.
func TestHeadKVFloorDivision(t *testing.T) {
	for _, c := range []struct {
		B    int
		beta float64
		pool int
	}{{1298, 1.1, 1179}, {1298, 1.25, 1038}, {1300, 1.3, 999}, {6, 1.2, 5}, {7, 7, 1}, {6, 7, 0}, {0, 2, 0}} {
		// One head of two has all the importance, and with it the pool of both.
		got := headShares([][]float64{{1, 0}}, c.B, c.beta, 1)
		require.Equal(t, [][]int{{c.B + c.pool, c.B - c.pool}}, got, "%d/%g", c.B, c.beta)
	}
}

// TestHeadKVOfEqualHeads: heads about which the probe says nothing get the same.
func TestHeadKVOfEqualHeads(t *testing.T) {
	d := Demand{T: 50, Layers: 2, KVHeads: 2, Ratio: 0.6}
	got, err := Allocate(mustAllocator(t, "headkv", "importance", [][]float64{{0, 0}, {0, 0}}), d, nil)
	require.NoError(t, err)
	require.Equal(t, [][]int{{20, 20}, {20, 20}}, got)
}

// TestCAKEPresets: the temperatures of the published models and sizes.
func TestCAKEPresets(t *testing.T) {
	for preset, want := range map[string]string{
		"mistral-7b-1024": `"tau1":0.8,"tau2":0.5`, "mistral-7b-128": `"tau1":1,"tau2":0.8`,
		"llama-3.1-8b-1024": `"tau1":1.6,"tau2":0.4`, "llama-3.1-8b-128": `"tau1":1.6,"tau2":0.6`,
	} {
		require.Equal(t, `{"name":"cake","window":32,`+want+`,"cascade":true}`, AllocatorConfigOf(mustAllocator(t, "cake", "preset", preset)).String())
	}
}

// TestGlobalCounts: either the number that stays or the number that goes is rounded down.
func TestGlobalCounts(t *testing.T) {
	for _, c := range []struct {
		pool, count, share string
		T                  int
		ratio              float64
		want               int
	}{
		{"model", "kept", "", 15, 0.5, 22}, // of 45
		{"model", "removed", "", 15, 0.5, 23},
		{"layer", "kept", "", 15, 0.5, 3 * 7},
		{"layer", "removed", "", 15, 0.5, 3 * 8},
		{"model", "kept", ShareLiteral, 1000, 0.8, 599}, // as the doubles come out
		{"model", "kept", ShareExact, 1000, 0.8, 600},
		{"layer", "kept", ShareLiteral, 1000, 0.8, 3 * 199},
		{"layer", "kept", ShareExact, 1000, 0.8, 3 * 200},
	} {
		d := Demand{T: c.T, Layers: 3, KVHeads: 1, Ratio: c.ratio, Rounding: Rounding{Share: c.share}}
		got, err := Allocate(mustAllocator(t, "global", "pool", c.pool, "count", c.count), d, randomScores(rand.New(rand.NewPCG(1, 1)), 3, 1, c.T))
		require.NoError(t, err)
		require.Equal(t, c.want, d.Achieved(got).Kept, "%+v", c)
	}
}

// TestPyramidKeepsAnAbsoluteBudget: what rounding adds beyond the budget is taken back.
func TestPyramidKeepsAnAbsoluteBudget(t *testing.T) {
	for entries := 1; entries < 80; entries++ {
		for _, heads := range []int{1, 2} {
			d := Demand{T: 20, Layers: 4, KVHeads: heads, Absolute: true, Entries: entries}
			got, err := Allocate(mustAllocator(t, "pyramidkv", "window", 1, "beta", 3), d, nil)
			require.NoError(t, err)
			require.LessOrEqual(t, d.Achieved(got).Kept, max(entries, 4*heads), "%d entries of %d heads", entries, heads)
			require.GreaterOrEqual(t, d.Achieved(got).Kept, entries-4*heads, "%d entries of %d heads", entries, heads)
		}
	}
}

// TestScoresOfExcludedLayers: the scores of layers that take no part are ignored.
func TestScoresOfExcludedLayers(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 9))
	profile := testProfile(t, 4, 3, 400, 1)
	d := Demand{T: 50, Layers: 4, KVHeads: 3, Ratio: 0.5, Weights: []float64{1, 2, 3, 4}, Excluded: []bool{false, true, false, false}}
	scores := randomScores(rng, 4, 3, 50)
	scores[1] = nil
	for _, cfg := range allocatorTable() {
		a, err := NewAllocator(cfg, profile)
		require.NoError(t, err)
		want, err := Allocate(a, d, scores)
		require.NoError(t, err)
		with := slices.Clone(scores)
		with[1] = randomScores(rng, 1, 5, 99)[0]
		got, err := Allocate(a, d, with)
		require.NoError(t, err)
		require.Equal(t, want, got, cfg.String())
		require.Equal(t, []int{50, 50, 50}, got[1])
	}
}

// TestInnerAllocator: an allocator as a parameter is read from a configuration or a
// bare name, and written out in full.
func TestInnerAllocator(t *testing.T) {
	for text, want := range map[string]string{
		`"ada"`:                          `{"name":"adakv","form":"pool","alpha":0.2,"pool":"layer","normalize":false,"skip":0}`,
		`{"name":"adakv","alpha":0.5}`:   `{"name":"adakv","form":"pool","alpha":0.5,"pool":"layer","normalize":false,"skip":0}`,
		`{"name":"threshold","least":2}`: `{"name":"threshold","least":2}`,
	} {
		var a InnerAllocator
		require.NoError(t, json.Unmarshal([]byte(text), &a), text)
		data, err := json.Marshal(a)
		require.NoError(t, err)
		require.Equal(t, want, string(data))
	}
	for text, want := range map[string]string{
		`"best"`:                       `allocator "best" is unknown`,
		`{"name":"adakv","alpha":1.5}`: "alpha: found 1.5, expected 0 to 1",
		`5`:                            "allocator configuration: ",
	} {
		var a InnerAllocator
		require.ErrorContains(t, json.Unmarshal([]byte(text), &a), want)
	}
}

func TestPyramidFallback(t *testing.T) {
	// 4096 entries at 80 %: a window of 64 cannot hold beta 20 (spec 4.2).
	flat, fell := PyramidShares(32, 4096, 4096*(1-0.8), 64, 20)
	require.True(t, fell)
	require.Equal(t, 819, flat[0])
	require.Equal(t, 819, flat[31])
	slope, fell := PyramidShares(32, 4096, 4096*(1-0.8), 8, 20)
	require.False(t, fell)
	require.Greater(t, slope[0], slope[31])
	even, fell := PyramidShares(4, 100, 50, 8, 1)
	require.False(t, fell, "a pyramid without a slope")
	require.Equal(t, []int{50, 50, 50, 50}, even)
	one, fell := PyramidShares(1, 100, 50, 8, 20)
	require.True(t, fell)
	require.Equal(t, []int{50}, one)
}

func BenchmarkAdaLayer(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	s := make(Scores, 8)
	for h := range s {
		s[h] = make([]float32, 32768)
		for t := range s[h] {
			s[h][t] = rng.Float32()
		}
	}
	a, err := NewAllocator(AllocatorConfig{Name: "adakv"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	d := Demand{T: 32768, Layers: 1, KVHeads: 8, Ratio: 0.8}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Allocate(a, d, []Scores{s}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestGlobalWeights: a weight moves entries to its layer just as scores multiplied
// by it would.
func TestGlobalWeights(t *testing.T) {
	scores := randomScores(rand.New(rand.NewPCG(4, 4)), 3, 2, 50)
	d := Demand{T: 50, Layers: 3, KVHeads: 2, Ratio: 0.6}
	got, err := Allocate(mustAllocator(t, "global", "weights", []float64{4, 1, 0.5}), d, scores)
	require.NoError(t, err)
	for l, w := range []float32{4, 1, 0.5} {
		for h := range scores[l] {
			for i := range scores[l][h] {
				scores[l][h][i] *= w
			}
		}
	}
	want, err := Allocate(mustAllocator(t, "global"), d, scores)
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = Allocate(mustAllocator(t, "global", "weights", []float64{1}), d, scores)
	require.ErrorContains(t, err, "allocator global: weights: found those of 1 layers, expected 3")
}

// TestApportionScales: the scale of the weights does not matter, however large or
// small, nor does the scale of one relative to the others.
func TestApportionScales(t *testing.T) {
	for _, scale := range []float64{1, 1e-60, 1e-200, 1e-300, 1e100, 1e300} {
		require.Equal(t, []int{10, 20, 30}, apportion([]float64{1 * scale, 2 * scale, 3 * scale}, 60, 1, 100), "scale %g", scale)
	}
	require.Equal(t, []int{100, 10, 20}, apportion([]float64{1, 1e-100, 2e-100}, 130, 1, 100))
}

// TestLowTemperatures: even if the temperature makes powers overflow or vanish, the
// largest share is still the largest.
func TestLowTemperatures(t *testing.T) {
	d := Demand{T: 100, Layers: 2, KVHeads: 1, Ratio: 0.5}
	importance := [][]float64{{1, 2}, {3, 40}}
	got, err := Allocate(mustAllocator(t, "headkv", "tau", 1000, "beta", 1, "importance", importance), d, nil)
	require.NoError(t, err)
	require.Equal(t, [][]int{{1}, {100}}, got)
	got, err = Allocate(mustAllocator(t, "headkv", "beta", 1, "importance", [][]float64{{1e308, 1e308}, {1e308, 1e308}}), d, nil)
	require.NoError(t, err)
	require.Equal(t, [][]int{{50}, {50}}, got)

	d.Weights = []float64{power(1000, 1000) * power(500, 1000), power(2000, 1000) * power(400, 1000)}
	got, err = Allocate(mustAllocator(t, "cake", "tau1", 0.001, "tau2", 0.001), d, randomScores(rand.New(rand.NewPCG(1, 1)), 2, 1, 100))
	require.NoError(t, err)
	require.Equal(t, 100, d.Achieved(got).Kept, "%v", got)
}
