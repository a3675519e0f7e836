package solve

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The heads of effect.md's worked example: errors at a quarter, half, three
// quarters and all.
var (
	exampleGrid = []float64{.25, .5, .75, 1}
	exampleA    = []float64{1.361111111111111, .81, .3814878892733564, 0}
	exampleB    = []float64{.8, .9, .1, 0}
)

func weighted(w float64, y []float64) []float64 {
	out := slices.Clone(y)
	for i := range out {
		out[i] *= w
	}
	return out
}

func TestFractionsWorkedExample(t *testing.T) {
	at := func(loss [][]float64, removed int) []float64 {
		levels, err := Fractions(exampleGrid, loss)
		require.NoError(t, err)
		return levels[removed-1]
	}
	plain := [][]float64{exampleA, exampleB}
	require.InDeltaSlice(t, []float64{.75, .25}, at(plain, 50), 1e-12)
	require.InDeltaSlice(t, []float64{1, .5}, at(plain, 25), 1e-12)
	effects := [][]float64{weighted(.19166, exampleA), exampleB}
	require.InDeltaSlice(t, []float64{.25, .75}, at(effects, 50), 1e-12)
	require.InDeltaSlice(t, []float64{.5, 1}, at(effects, 25), 1e-12)
	for i, want := range []float64{2.2044, 1.7140, 1.5260} {
		require.InDelta(t, want, appendSegments(nil, 0, exampleGrid, exampleA)[i].slope, 5e-5)
	}
	b := appendSegments(nil, 1, exampleGrid, exampleB)
	require.Len(t, b, 2, "the hull drops the point at a half")
	require.InDelta(t, 1.4, b[0].slope, 1e-12)
	require.InDelta(t, .4, b[1].slope, 1e-12)
	require.InDelta(t, .3609, .19166*exampleA[0]+exampleB[2], 5e-5)
	require.InDelta(t, .8731, .19166*exampleA[2]+exampleB[0], 5e-5)
}

// hullAt returns the lower convex hull of (grid, y), flat after its minimum, at x:
// the least value of any chord, and of any point at x or to its left.
func hullAt(grid, y []float64, x float64) float64 {
	best := math.Inf(1)
	for i := range grid {
		if grid[i] <= x {
			best = min(best, y[i])
		}
		for j := i + 1; j < len(grid); j++ {
			if grid[i] <= x && x <= grid[j] {
				best = min(best, y[i]+(y[j]-y[i])*(x-grid[i])/(grid[j]-grid[i]))
			}
		}
	}
	return best
}

func objective(grid []float64, loss [][]float64, kept []float64) float64 {
	sum := 0.0
	for u, x := range kept {
		sum += hullAt(grid, loss[u], x)
	}
	return sum
}

// losses draws curves on a grid of equal steps, including rising and equal ones.
func losses(t *rapid.T, units int, grid []float64) [][]float64 {
	out := make([][]float64, units)
	for u := range out {
		for range grid {
			out[u] = append(out[u], float64(rapid.IntRange(0, 12).Draw(t, "loss")))
		}
	}
	return out
}

func sum(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += v
	}
	return s
}

// TestFractionsAgainstBruteForce tries every division of a total on a fine grid.
func TestFractionsAgainstBruteForce(t *testing.T) {
	grid := []float64{.2, .4, .6, .8, 1}
	rapid.Check(t, func(t *rapid.T) {
		units := rapid.IntRange(1, 4).Draw(t, "units")
		loss := losses(t, units, grid)
		levels, err := Fractions(grid, loss)
		require.NoError(t, err)
		const step = .2
		least := map[int]float64{} // by total in steps
		var try func(u, total int, value float64)
		try = func(u, total int, value float64) {
			if u == units {
				if old, ok := least[total]; !ok || value < old {
					least[total] = value
				}
				return
			}
			for k := 1; k <= 5; k++ {
				try(u+1, total+k, value+hullAt(grid, loss[u], float64(k)*step))
			}
		}
		try(0, 0, 0)
		for i, kept := range levels {
			total := float64(99-i) / 100 * float64(units)
			// Hulls bend only at grid points, so a total of whole steps has a best
			// division on the grid.
			if k := math.Round(total / step); math.Abs(total-k*step) < 1e-9 && int(k) >= units {
				require.InDelta(t, least[int(k)], objective(grid, loss, kept), 1e-9, "level %d", i+1)
			}
		}
	})
}

func TestFractionsProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		grid := []float64{.05}
		for x := .1; x < 1; x += rapid.Float64Range(.05, .4).Draw(t, "step") {
			grid = append(grid, x)
		}
		grid = append(grid, 1)
		units := rapid.IntRange(1, 6).Draw(t, "units")
		loss := losses(t, units, grid)
		levels, err := Fractions(grid, loss)
		require.NoError(t, err)
		shuffled := slices.Clone(loss)
		slices.Reverse(shuffled)
		other, err := Fractions(grid, shuffled)
		require.NoError(t, err)
		raised := slices.Clone(loss)
		raised[0] = weighted(3, raised[0])
		more, err := Fractions(grid, raised)
		require.NoError(t, err)
		var scaled [][]float64
		for _, y := range loss {
			scaled = append(scaled, weighted(.25, y))
		}
		same, err := Fractions(grid, scaled)
		require.NoError(t, err)
		require.Equal(t, levels, same, "losses scaled by a power of two")
		for i, kept := range levels {
			want := max(float64(99-i)/100, grid[0]) * float64(units)
			require.InDelta(t, want, sum(kept), 1e-9, "level %d", i+1)
			require.InDelta(t, objective(grid, loss, kept), objective(grid, shuffled, other[i]), 1e-9)
			require.GreaterOrEqual(t, more[i][0], kept[0]-1e-12, "three times the weight")
			for u, x := range kept {
				if x < grid[0] || x > 1 || i > 0 && x > levels[i-1][u] { // without a require call for each
					require.Failf(t, "out of bounds", "level %d unit %d: %v", i+1, u, x)
				}
			}
		}
		// The hull lies nowhere above its curve and meets it at its points.
		for _, y := range loss {
			lowest := slices.Min(y)
			for _, s := range appendSegments(nil, 0, grid, y) {
				if s.slope > 0 {
					require.InDelta(t, y[slices.Index(grid, s.lo)], hullAt(grid, y, s.lo), 1e-9)
				}
			}
			for i, x := range grid {
				require.LessOrEqual(t, hullAt(grid, y, x), max(y[i], lowest)+1e-9)
			}
		}
	})
}

// TestFractionsOfLines: losses that are linear within rounding meet every total, and no
// unit keeps more at a higher level.
func TestFractionsOfLines(t *testing.T) {
	grid := []float64{.02, .05, .1, .15, .2, .25, .3, .4, .5, .6, .7, .8, .9, 1}
	rapid.Check(t, func(t *rapid.T) {
		loss := make([][]float64, rapid.IntRange(1, 4).Draw(t, "units"))
		for u := range loss {
			c, end := rapid.Float64Range(1e-6, 1e6).Draw(t, "loss"), rapid.SampledFrom([]float64{1, .5}).Draw(t, "end")
			for _, x := range grid {
				loss[u] = append(loss[u], float64(c*max(0, end-x)))
			}
		}
		levels, err := Fractions(grid, loss)
		if err != nil {
			t.Fatal(err)
		}
		for i, kept := range levels {
			sum := 0.0
			for u, x := range kept {
				sum += x
				if i > 0 && x > levels[i-1][u]+1e-12 {
					t.Fatalf("unit %d keeps %v at level %d and %v at level %d", u, levels[i-1][u], i, x, i+1)
				}
			}
			n := float64(len(loss))
			if want := max(float64(Levels-i)/100, grid[0]) * n; math.Abs(sum-want) > 1e-9 {
				t.Fatalf("level %d keeps %v, expected %v", i+1, sum, want)
			}
		}
	})
}

// TestFractionsSpreadTheRest: what is left when nothing can be gained goes to all
// in proportion.
func TestFractionsSpreadTheRest(t *testing.T) {
	levels, err := Fractions([]float64{.1, .5, 1}, [][]float64{{1, 0, 0}, {0, 0, 0}})
	require.NoError(t, err)
	// Of 1.2, .2 is the least and .4 brings the first to .5; .6 is left for 1.4.
	require.InDeltaSlice(t, []float64{.5 + .5*.6/1.4, .1 + .9*.6/1.4}, levels[39], 1e-12)
	require.Equal(t, []float64{.1, .1}, levels[98], "the least is more than the total")
	levels, err = Fractions([]float64{1}, [][]float64{{3}, {0}})
	require.NoError(t, err)
	require.Equal(t, []float64{1, 1}, levels[50], "a grid of one point leaves no choice")
}

func TestFractionsRefuse(t *testing.T) {
	for want, bad := range map[string]func() error{
		"grid of 0 points": func() error { _, err := Fractions(nil, nil); return err },
		"grid point 1":     func() error { _, err := Fractions([]float64{.5, .5, 1}, nil); return err },
		"grid point 0":     func() error { _, err := Fractions([]float64{0, 1}, nil); return err },
		"not end at 1":     func() error { _, err := Fractions([]float64{.5}, nil); return err },
		"1 losses of unit": func() error { _, err := Fractions([]float64{.5, 1}, [][]float64{{1}}); return err },
		"loss -1 of unit":  func() error { _, err := Fractions([]float64{.5, 1}, [][]float64{{1, -1}}); return err },
		"loss NaN of unit": func() error { _, err := Fractions([]float64{.5, 1}, [][]float64{{math.NaN(), 1}}); return err },
	} {
		require.ErrorContains(t, bad(), want)
	}
}
