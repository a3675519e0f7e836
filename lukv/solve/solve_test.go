package solve

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawCurves draws a few small curves with integer gains, so that all sums are
// exact, and floors for them.
func drawCurves(t *rapid.T) (curves []*Curve, floors []int) {
	units := rapid.IntRange(1, 5).Draw(t, "units")
	most := rapid.SampledFrom([]int{1, 3, 40}).Draw(t, "largest gain")
	for u := range units {
		gains := rapid.SliceOfN(rapid.IntRange(0, most), 0, 7).Draw(t, fmt.Sprint("gains ", u))
		wide := make([]float32, len(gains))
		for i, g := range gains {
			wide[i] = float32(g)
		}
		c, err := NewCurve(wide, rapid.IntRange(0, 2).Draw(t, "protected"))
		if err != nil {
			t.Fatal(err)
		}
		curves = append(curves, c)
		floors = append(floors, rapid.IntRange(0, c.Len()).Draw(t, "floor"))
	}
	return curves, floors
}

// brute walks all allocations of total entries and returns the least loss and
// the lexicographically first allocation that has it.
func brute(curves []*Curve, floors []int, total int) (float64, []int) {
	best, at := math.Inf(1), []int(nil)
	keep := make([]int, len(curves))
	var walk func(u, left int, loss float64)
	walk = func(u, left int, loss float64) {
		if u == len(curves) {
			if left == 0 && loss < best {
				best, at = loss, slices.Clone(keep)
			}
			return
		}
		c := curves[u]
		losses := c.Losses(nil)
		for b := max(floors[u], c.protected); b <= min(c.Len(), left); b++ {
			keep[u] = b
			walk(u+1, left-b, loss+losses[b-c.protected])
		}
	}
	walk(0, total, 0)
	return best, at
}

// TestSolversAgainstBruteForce: the exact programme equals enumeration, the
// optimum lies between greedy's bound and its loss, repair between greedy and
// the optimum.
func TestSolversAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		curves, floors := drawCurves(t)
		least, all := 0, 0
		for u, c := range curves {
			least += max(floors[u], c.protected)
			all += c.Len()
		}
		total := rapid.IntRange(least, all).Draw(t, "total")
		optimum, lex := brute(curves, floors, total)

		ctx := context.Background()
		exact, err := Exact(ctx, curves, floors, total, ExactOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if exact.Loss != optimum || !slices.Equal(exact.Keep, lex) || exact.Total != total {
			t.Fatalf("exact: loss %v keep %v total %d, want %v %v %d", exact.Loss, exact.Keep, exact.Total, optimum, lex, total)
		}
		greedy, err := Greedy(ctx, curves, floors, []int{total})
		if err != nil {
			t.Fatal(err)
		}
		g := greedy[0]
		checkAllocation(t, "greedy", curves, floors, g, total)
		if g.Loss < optimum || g.Bound > optimum+1e-9 || g.certificate() < g.Loss-optimum-1e-9 {
			t.Fatalf("greedy: loss %v bound %v, optimum %v", g.Loss, g.Bound, optimum)
		}
		r, err := Repair(ctx, curves, floors, g)
		if err != nil {
			t.Fatal(err)
		}
		checkAllocation(t, "repair", curves, floors, r, total)
		if r.Loss > g.Loss || r.Loss < optimum {
			t.Fatalf("repair: loss %v, greedy %v, optimum %v", r.Loss, g.Loss, optimum)
		}
		if g.certificate() == 0 && r.Moves != 0 {
			t.Fatalf("repair moved %d times although greedy was optimal", r.Moves)
		}
	})
}

func checkAllocation(t *rapid.T, name string, curves []*Curve, floors []int, a Allocation, total int) {
	sum, loss := 0, 0.0
	for u, b := range a.Keep {
		c := curves[u]
		if b < max(floors[u], c.protected) || b > c.Len() {
			t.Fatalf("%s: unit %d keeps %d, expected %d to %d", name, u, b, max(floors[u], c.protected), c.Len())
		}
		sum += b
		loss += c.Losses(nil)[b-c.protected]
	}
	if sum != total || a.Total != total || a.Loss != loss {
		t.Fatalf("%s: sum %d total %d loss %v, expected %d and %v", name, sum, a.Total, a.Loss, total, loss)
	}
}

// TestProjection: non-increasing, same sum, running sums nowhere below those
// of the gains, and least squares: no closer than any monotone step towards
// the gains can be (optimality by the block conditions).
func TestProjection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gains := rapid.SliceOfN(rapid.Float64Range(0, 1000), 0, 40).Draw(t, "gains")
		g := project(gains)
		if len(g) != len(gains) {
			t.Fatalf("length %d, want %d", len(g), len(gains))
		}
		raw, proj := 0.0, 0.0
		for i := range g {
			if i > 0 && g[i] > g[i-1]*(1+1e-12) {
				t.Fatalf("g[%d] = %v > g[%d] = %v", i, g[i], i-1, g[i-1])
			}
			raw += gains[i]
			proj += g[i]
			if proj < raw-1e-9*(1+raw) {
				t.Fatalf("running sum %v at %d below the gains' %v", proj, i, raw)
			}
			// At a block end the running sums meet: together with
			// monotonicity and the inequality above, that characterises the
			// projection.
			if (i+1 == len(g) || g[i+1] != g[i]) && math.Abs(proj-raw) > 1e-9*(1+raw) {
				t.Fatalf("block ending at %d: running sums %v and %v", i, proj, raw)
			}
		}
	})
}

// TestGreedyLevelsAgree: one sweep over many totals gives what single runs
// give, in any order of totals, and budgets grow with the total.
func TestGreedyLevelsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		curves, floors := drawCurves(t)
		totals := rapid.SliceOfN(rapid.IntRange(-2, 40), 1, 8).Draw(t, "totals")
		many, err := Greedy(context.Background(), curves, floors, totals)
		if err != nil {
			t.Fatal(err)
		}
		for i, total := range totals {
			one, err := Greedy(context.Background(), curves, floors, []int{total})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(one[0].Keep, many[i].Keep) || one[0].Loss != many[i].Loss || one[0].Bound != many[i].Bound || one[0].Partial != many[i].Partial {
				t.Fatalf("total %d: alone %+v, among others %+v", total, one[0], many[i])
			}
			for j, other := range totals {
				for u := range curves {
					if total <= other && many[i].Keep[u] > many[j].Keep[u] {
						t.Fatalf("unit %d keeps %d of %d and %d of %d", u, many[i].Keep[u], total, many[j].Keep[u], other)
					}
				}
			}
		}
	})
}

func TestExactQuantum(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	curves := make([]*Curve, 6)
	entries := 0
	for u := range curves {
		gains := make([]float32, 30+rng.IntN(30))
		for i := range gains {
			gains[i] = float32(rng.IntN(1000)) / float32(i+3)
		}
		var err error
		curves[u], err = NewCurve(gains, 2)
		require.NoError(t, err)
		entries += curves[u].Len()
	}
	ctx := t.Context()
	for _, total := range []int{20, 96, 150, entries} {
		exact, err := Exact(ctx, curves, nil, total, ExactOptions{})
		require.NoError(t, err)
		require.Equal(t, total, exact.Total)
		require.Zero(t, exact.certificate())
		for _, q := range []int{2, 8, 16} {
			coarse, err := Exact(ctx, curves, nil, total, ExactOptions{Quantum: q})
			require.NoError(t, err)
			require.LessOrEqual(t, coarse.Total, total)
			require.GreaterOrEqual(t, coarse.Loss, exact.Loss-1e-9)
			require.Equal(t, q, coarse.Quantum)
			for u, b := range coarse.Keep {
				require.True(t, (b-2)%q == 0 || b == curves[u].Len(), "unit %d keeps %d with quantum %d", u, b, q)
			}
		}
	}
	big := make([]*Curve, 512)
	for u := range big {
		var err error
		big[u], err = NewCurve(make([]float32, 4096), 0)
		require.NoError(t, err)
	}
	_, err := Exact(ctx, big, nil, 512*4096, ExactOptions{})
	require.ErrorContains(t, err, "use a quantum of at least")
}

// TestRepairBeatsGreedy checks that repair achieves something: on random
// tables it must close a good part of greedy's distance to the optimum.
func TestRepairBeatsGreedy(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var greedyExcess, repairExcess float64
	better := 0
	for range 40 {
		curves := make([]*Curve, 8)
		for u := range curves {
			gains := make([]float32, 48)
			for i := range gains {
				gains[i] = float32(rng.IntN(500))
			}
			var err error
			curves[u], err = NewCurve(gains, 0)
			require.NoError(t, err)
		}
		total := 40 + rng.IntN(300)
		g, err := Greedy(t.Context(), curves, nil, []int{total})
		require.NoError(t, err)
		r, err := Repair(t.Context(), curves, nil, g[0])
		require.NoError(t, err)
		x, err := Exact(t.Context(), curves, nil, total, ExactOptions{})
		require.NoError(t, err)
		require.LessOrEqual(t, r.Loss, g[0].Loss)
		require.GreaterOrEqual(t, r.Loss, x.Loss)
		require.LessOrEqual(t, r.Loss-x.Loss, r.certificate()+1e-9)
		greedyExcess += g[0].Loss/x.Loss - 1
		repairExcess += r.Loss/x.Loss - 1
		if r.Loss < g[0].Loss {
			better++
		}
	}
	t.Logf("mean excess over 40 instances: greedy %.4f %%, with repair %.4f %%; repair helped in %d", greedyExcess/40*100, repairExcess/40*100, better)
	require.Less(t, repairExcess, greedyExcess/2)
	require.Greater(t, better, 5)
}

func TestSolveErrors(t *testing.T) {
	ok := []float32{1, 2}
	for name, err := range map[string]error{
		"gain NaN":        second(NewCurve([]float32{1, float32(math.NaN())}, 0)),
		"gain -1":         second(NewCurve([]float32{1, -1}, 0)),
		"gain +Inf":       second(NewCurve([]float32{float32(math.Inf(1))}, 0)),
		"-1 protected":    second(NewCurve(ok, -1)),
		"no layer takes":  second(Sweep(t.Context(), [][]*Curve{nil}, SweepOptions{})),
		"lacks the curve": second(Sweep(t.Context(), [][]*Curve{{nil}}, SweepOptions{})),
		"1 floors for 0":  second(Greedy(t.Context(), nil, []int{1}, nil)),
	} {
		require.ErrorContains(t, err, name)
	}
	c, err := NewCurve([]float32{1, 3, 2}, 0)
	require.NoError(t, err)
	_, err = Sweep(t.Context(), [][]*Curve{{c}}, SweepOptions{Scope: "page"})
	require.ErrorContains(t, err, `unknown scope "page"`)

	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Exact(done, []*Curve{c}, nil, 2, ExactOptions{})
	require.ErrorIs(t, err, context.Canceled)
}

func second[T any](_ T, err error) error { return err }

// project returns the non-increasing sequence closest to gains in least
// squares, a new slice of the same length. The running sums of the result are
// the upper concave envelope of the running sums of gains.
func project(gains []float64) []float64 {
	out := make([]float64, 0, len(gains))
	for _, b := range pava(gains) {
		mean := b.sum / float64(b.n)
		for range b.n {
			out = append(out, mean)
		}
	}
	return out
}

// certificate is the proven distance from the optimum.
func (a *Allocation) certificate() float64 { return max(0, a.Loss-a.Bound) }
