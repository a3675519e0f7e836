package solve

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// halfEven divides by 100, rounding halves to even.
func halfEven(n int) int {
	q, r := n/100, n%100
	if r > 50 || r == 50 && q%2 == 1 {
		q++
	}
	return q
}

// sweepCurves returns curves of two heads in three layers, the middle one of which
// takes no part.
func sweepCurves(t *testing.T) [][]*Curve {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 1))
	curves := make([][]*Curve, 3)
	for _, l := range []int{0, 2} {
		for h := range 2 {
			gains := make([]float32, 55+15*l+10*h)
			for i := range gains {
				gains[i] = float32(rng.IntN(40))
			}
			c, err := NewCurve(gains, l)
			require.NoError(t, err)
			curves[l] = append(curves[l], c)
		}
	}
	return curves
}

// TestSweep computes a level's total, floors and sums for each group of layers
// that share a budget, and compares with that level solved alone.
func TestSweep(t *testing.T) {
	curves := sweepCurves(t)
	for _, scope := range []string{"", ScopeGlobal, ScopePerLayer} {
		groups := [][]int{{0, 2}}
		if scope == ScopePerLayer {
			groups = [][]int{{0}, {2}}
		}
		for _, retain := range []struct {
			share   float64
			percent int
		}{{0, 1}, {-1, 0}, {.1, 10}} {
			for _, repair := range []bool{false, true} {
				var steps []int
				set, err := Sweep(t.Context(), curves, SweepOptions{Scope: scope, MinRetention: retain.share, Repair: repair, Progress: func(done, total int) {
					require.Equal(t, len(groups)*99, total)
					steps = append(steps, done)
				}})
				require.NoError(t, err)
				require.Len(t, steps, len(groups)*99)
				for i, done := range steps {
					require.Equal(t, i+1, done)
				}
				require.Equal(t, []int{3, 2}, []int{set.Layers, set.KVHeads})
				for i, keep := range set.Keep {
					name := fmt.Sprintf("scope %q, floor %v, repair %v, level %d", scope, retain.share, repair, i+1)
					require.Equal(t, []int{0, 0}, keep[1], name)
					loss, bound, moves := 0.0, 0.0, 0
					for _, layers := range groups {
						var units []*Curve
						var floors, got []int
						entries := 0
						for _, l := range layers {
							for h, c := range curves[l] {
								units, got = append(units, c), append(got, keep[l][h])
								floors = append(floors, max(l, halfEven(retain.percent*c.Len())))
								entries += c.Len()
							}
						}
						want, err := Greedy(t.Context(), units, floors, []int{entries - halfEven((i+1)*entries)})
						require.NoError(t, err)
						if repair {
							want[0], err = Repair(t.Context(), units, floors, want[0])
							require.NoError(t, err)
						}
						require.Equal(t, want[0].Keep, got, name)
						loss, bound, moves = loss+want[0].Loss, bound+want[0].Bound, moves+want[0].Moves
					}
					require.InDelta(t, loss, set.Loss[i], 1e-9, name)
					require.InDelta(t, bound, set.Bound[i], 1e-9, name)
					require.Equal(t, moves, set.Moves[i], name)
				}
			}
		}
	}
}

// TestSweepHalves: 7 and 29 % of 150 entries are 10.5 and 43.5, halves to even;
// 0.07 · 150 in floating point is more than 10.5, 0.29 · 50 less than 14.5.
func TestSweepHalves(t *testing.T) {
	for _, entries := range []int{50, 150, 250, 350, 450, 550, 1050} {
		c, err := NewCurve(make([]float32, entries), 0)
		require.NoError(t, err)
		set, err := Sweep(t.Context(), [][]*Curve{{c}}, SweepOptions{MinRetention: -1})
		require.NoError(t, err)
		for i, keep := range set.Keep {
			require.Equal(t, entries-halfEven((i+1)*entries), keep[0][0], "%d %% of %d", i+1, entries)
		}
	}
}

func TestSweepRefuses(t *testing.T) {
	c := sweepCurves(t)[0][0]
	for want, curves := range map[string][][]*Curve{
		"layer 1 has 1 heads, expected 2": {{c, c}, {c}},
		"layer 0 has 0 heads, expected 0": {{}},
		"layer 1 lacks the curve":         {{c, c}, {c, nil}},
		"no layer takes part":             {nil, nil},
	} {
		_, err := Sweep(t.Context(), curves, SweepOptions{})
		require.ErrorContains(t, err, want)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Sweep(done, sweepCurves(t), SweepOptions{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestCurveByHand(t *testing.T) {
	c, err := NewCurve([]float32{1, 3, 2, 0}, 5)
	require.NoError(t, err)
	require.Equal(t, 9, c.Len())
	require.Equal(t, 5, c.Protected())
	dst := []float64{7, 7, 7, 7, 7, 7} // what it held does not matter
	require.Equal(t, []float64{6, 5, 2, 0, 0}, c.Losses(dst))
	require.Equal(t, []float64{2, 2, 2, 0}, c.Projected(dst))
	require.Equal(t, []float64{2, 2, 2, 0}, project([]float64{1, 3, 2, 0}))
	// With one entry of three kept, 5 are lost, but 4 on the straight line.
	for kept, want := range []float64{0, 1, 0, 0, 0} {
		require.Equal(t, want, c.sag(kept), "%d kept", kept)
	}
	empty, err := NewCurve(nil, 0)
	require.NoError(t, err, "a head may have nothing to lose")
	require.Equal(t, []float64{0}, empty.Losses(nil))
	require.Empty(t, empty.Projected(nil))
}

// TestAbsentUnits adds a unit that takes no part: it keeps nothing and nothing else
// changes.
func TestAbsentUnits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		curves, floors := drawCurves(t)
		total := rapid.IntRange(0, 40).Draw(t, "total")
		at := rapid.IntRange(0, len(curves)).Draw(t, "absent")
		with, high := slices.Insert(slices.Clone(curves), at, nil), slices.Insert(slices.Clone(floors), at, 3)
		ctx := context.Background()
		compare := func(what string, want, got Allocation, err error) {
			require.NoError(t, err, what)
			require.Zero(t, got.Keep[at], what)
			got.Keep = slices.Delete(slices.Clone(got.Keep), at, at+1)
			if got.Partial > at {
				got.Partial--
			}
			require.Equal(t, want, got, what)
		}
		greedy, err := Greedy(ctx, curves, floors, []int{total})
		require.NoError(t, err)
		other, err := Greedy(ctx, with, high, []int{total})
		require.NoError(t, err)
		compare("greedy", greedy[0], other[0], err)
		repaired, err := Repair(ctx, curves, floors, greedy[0])
		require.NoError(t, err)
		got, err := Repair(ctx, with, high, other[0])
		compare("repair", repaired, got, err)
		exact, err := Exact(ctx, curves, floors, total, ExactOptions{})
		require.NoError(t, err)
		got, err = Exact(ctx, with, high, total, ExactOptions{})
		compare("exact", exact, got, err)
	})
}

// insideBlock returns the ends of the projection's block that a count is
// strictly inside.
func insideBlock(c *Curve, kept int) (start, end int, inside bool) {
	g := c.Projected(nil)
	if kept <= 0 || kept >= len(g) || g[kept-1] != g[kept] {
		return 0, 0, false
	}
	for start = kept; start > 0 && g[start-1] == g[kept]; start-- {
	}
	for end = kept; end < len(g) && g[end] == g[kept]; end++ {
	}
	return start, end, true
}

// bestTrade tries every move that Repair may make and returns the least loss after
// one: a unit inside a block trades any amount up to the block's ends with one
// other, or the amount that reaches an end with two others.
func bestTrade(curves []*Curve, floors, keep []int) float64 {
	loss := func(keep []int) float64 {
		sum := 0.0
		for u, c := range curves {
			if keep[u] < max(floors[u], c.protected) || keep[u] > c.Len() {
				return 1e300
			}
			sum += c.Losses(nil)[keep[u]-c.protected]
		}
		return sum
	}
	best := loss(keep)
	try := func(shifts ...int) { // unit, by, unit, by …
		next := slices.Clone(keep)
		for i := 0; i < len(shifts); i += 2 {
			next[shifts[i]] += shifts[i+1]
		}
		best = min(best, loss(next))
	}
	for h, c := range curves {
		start, end, inside := insideBlock(c, keep[h]-c.protected)
		if !inside {
			continue
		}
		down, up := keep[h]-max(c.protected+start, floors[h]), c.protected+end-keep[h]
		for p := range curves {
			if p == h {
				continue
			}
			for x := -down; x <= up; x++ {
				try(h, x, p, -x)
			}
			for q := range curves {
				if q == h || q == p {
					continue
				}
				for x := 1; x < down; x++ {
					try(h, -down, p, x, q, down-x)
				}
				for x := 1; x < up; x++ {
					try(h, up, p, -x, q, x-up)
				}
			}
		}
	}
	return best
}

// TestRepairTakesTheBestTrade: the result is at least as good as any single trade,
// no trade that helps is left, and it says which unit is still inside a block.
func TestRepairTakesTheBestTrade(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	repaired, still := 0, 0
	for range 600 {
		var curves []*Curve
		var floors []int
		for range 2 + rng.IntN(4) {
			gains := make([]float32, 1+rng.IntN(8))
			for i := range gains {
				gains[i] = float32(rng.IntN(30))
			}
			c, err := NewCurve(gains, rng.IntN(2))
			require.NoError(t, err)
			curves, floors = append(curves, c), append(floors, rng.IntN(min(3, c.Len()+1)))
		}
		g, err := Greedy(t.Context(), curves, floors, []int{rng.IntN(20)})
		require.NoError(t, err)
		r, err := Repair(t.Context(), curves, floors, g[0])
		require.NoError(t, err)
		require.LessOrEqual(t, r.Loss, bestTrade(curves, floors, g[0].Keep), "the best trade")
		require.Equal(t, r.Loss, bestTrade(curves, floors, r.Keep), "a trade is left")
		require.Equal(t, r.Loss < g[0].Loss, r.Moves > 0, "moves")
		require.Equal(t, g[0].Bound, r.Bound)
		require.Equal(t, slices.Equal(g[0].Keep, r.Keep), r.Moves == 0, "moves")
		if r.Moves == 0 {
			continue
		}
		repaired++
		partial := -1
		for u, c := range curves {
			if _, _, inside := insideBlock(c, r.Keep[u]-c.protected); inside {
				partial = u
				still++
			}
		}
		require.Equal(t, partial, r.Partial, "the unit inside a block")
	}
	require.Greater(t, repaired, 50)
	require.Positive(t, still)
}

func TestRepairRefuses(t *testing.T) {
	c, err := NewCurve([]float32{1, 3, 2}, 1)
	require.NoError(t, err)
	curves := []*Curve{c, c}
	for want, keep := range map[string][]int{
		"unit 1 keeps 1 entries, expected 2 to 4": {4, 1},
		"unit 0 keeps 5 entries, expected 2 to 4": {5, 2},
		"allocation of 1 units for 2 curves":      {2},
	} {
		_, err := Repair(t.Context(), curves, []int{2, 2}, Allocation{Keep: keep})
		require.ErrorContains(t, err, want)
	}
	for _, keep := range [][]int{{4, 4}, {2, 2}, {4, 2}} {
		a := Allocation{Keep: keep, Loss: 6}
		_, err := Repair(t.Context(), curves, []int{2, 2}, a)
		require.NoError(t, err, "least and most are allowed")
	}
	_, err = Repair(t.Context(), curves, []int{2}, Allocation{Keep: []int{2, 2}})
	require.ErrorContains(t, err, "1 floors for 2 units")
	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Repair(done, curves, nil, Allocation{Keep: []int{2, 2}})
	require.ErrorIs(t, err, context.Canceled)
}

func TestExactOptions(t *testing.T) {
	curves := sweepCurves(t)[0]
	var done []int
	a, err := Exact(t.Context(), curves, []int{13, 0}, 30, ExactOptions{Quantum: 4, Progress: func(n, total int) {
		require.Equal(t, 2, total)
		done = append(done, n)
	}})
	require.NoError(t, err)
	require.Equal(t, []int{1, 2}, done)
	// 13 entries are fixed; of the other 17, four quanta are handed out.
	require.Equal(t, 29, a.Total)
	require.Zero(t, (a.Keep[0]-13)%4, "quanta begin at the floor")
	require.Zero(t, a.Keep[1]%4)
	require.Less(t, a.Bound, 0.0, "no bound with a quantum")
	require.Equal(t, -1, a.Partial, "blocks are of greedy's")
	for total, want := range map[int]int{0: 13, 12: 13, 13: 13, 16: 13, 17: 17, 1000: 120} {
		a, err = Exact(t.Context(), curves, []int{13, 0}, total, ExactOptions{Quantum: 4})
		require.NoError(t, err)
		require.Equal(t, want, a.Total, "total %d", total)
	}
}

// TestExactGivesAll: entries that gain nothing are kept all the same, and a unit
// takes no more than it has, floor or not.
func TestExactGivesAll(t *testing.T) {
	idle, err := NewCurve([]float32{0}, 0)
	require.NoError(t, err)
	two, err := NewCurve([]float32{1, 1}, 0)
	require.NoError(t, err)
	a, err := Exact(t.Context(), []*Curve{idle, two}, []int{0, 1}, 3, ExactOptions{})
	require.NoError(t, err)
	require.Equal(t, []int{1, 2}, a.Keep)
	require.Equal(t, -1, a.Partial)
}

// TestGreedySortsGains: of many units, the entries with the largest projected
// gains are kept, those of the higher unit first among equals.
func TestGreedySortsGains(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	type entry struct {
		gain float64
		unit int
	}
	var curves []*Curve
	var all []entry
	for u := range 60 {
		gains := make([]float32, rng.IntN(30))
		for i := range gains {
			gains[i] = float32(rng.IntN(6) * rng.IntN(9))
		}
		c, err := NewCurve(gains, 0)
		require.NoError(t, err)
		curves = append(curves, c)
		for _, g := range c.Projected(nil) {
			all = append(all, entry{g, u})
		}
	}
	slices.SortStableFunc(all, func(a, b entry) int { return cmp.Or(cmp.Compare(b.gain, a.gain), b.unit-a.unit) })
	for total := 0; total <= len(all); total += 37 {
		keep := make([]int, len(curves))
		for _, e := range all[:total] {
			keep[e.unit]++
		}
		a, err := Greedy(t.Context(), curves, nil, []int{total})
		require.NoError(t, err)
		require.Equal(t, keep, a[0].Keep, "total %d", total)
		partial := -1
		for u, c := range curves {
			if _, _, inside := insideBlock(c, keep[u]); inside {
				require.Equal(t, -1, partial, "two units inside blocks")
				partial = u
			}
		}
		require.Equal(t, partial, a[0].Partial, "total %d", total)
	}
}

// TestGreedyOfManyBlocks runs long enough to check whether it was cancelled.
func TestGreedyOfManyBlocks(t *testing.T) {
	gains := make([]float32, 20000)
	for i := range gains {
		gains[i] = float32(len(gains) - i)
	}
	c, err := NewCurve(gains, 0)
	require.NoError(t, err)
	a, err := Greedy(t.Context(), []*Curve{c}, nil, []int{18000})
	require.NoError(t, err)
	require.Equal(t, []int{18000}, a[0].Keep)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Greedy(done, []*Curve{c}, nil, []int{18000})
	require.ErrorIs(t, err, context.Canceled)
}

// TestRepairWithTwoPartners: two of three entries are given back in one move, one
// each to two units, although giving them back alone gains nothing.
func TestRepairWithTwoPartners(t *testing.T) {
	var curves []*Curve
	for _, gains := range [][]float32{{0, 0, 9}, {2}, {2}} {
		c, err := NewCurve(gains, 0)
		require.NoError(t, err)
		curves = append(curves, c)
	}
	g, err := Greedy(t.Context(), curves, nil, []int{2})
	require.NoError(t, err)
	require.Equal(t, []int{2, 0, 0}, g[0].Keep)
	require.Equal(t, 0, g[0].Partial)
	require.Equal(t, 13.0, g[0].Loss)
	require.Equal(t, 7.0, g[0].Bound) // 9 · 1/3 + 2 + 2
	require.Equal(t, 6.0, g[0].certificate())
	r, err := Repair(t.Context(), curves, nil, g[0])
	require.NoError(t, err)
	require.Equal(t, []int{0, 1, 1}, r.Keep)
	require.Equal(t, 1, r.Moves)
	require.Equal(t, 9.0, r.Loss)
	require.Equal(t, -1, r.Partial)
}
