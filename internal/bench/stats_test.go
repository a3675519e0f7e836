package bench

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	assert.Equal(t, 0.0, Median(nil))
	assert.Equal(t, 3.0, Median([]float64{5, 3, 1}))
	assert.Equal(t, 2.5, Median([]float64{4, 1, 2, 3}))
}

// Values from counting arrangements by hand.
func TestMannWhitneyExact(t *testing.T) {
	seq := func(from, n int) []float64 {
		out := make([]float64, n)
		for i := range out {
			out[i] = float64(from + i)
		}
		return out
	}
	for _, c := range []struct {
		a, b []float64
		want float64
	}{
		{nil, seq(1, 3), 1},
		{seq(1, 1), seq(2, 1), 1},
		{seq(1, 3), seq(4, 3), 2.0 / 20},
		{seq(4, 4), seq(0, 4), 2.0 / 70},
		{seq(1, 5), seq(6, 5), 2.0 / 252},
		{[]float64{1, 2, 4}, []float64{3, 5, 6}, 4.0 / 20}, // rank sum 7: 6 and 7, and their mirrors
		{[]float64{7, 7, 7}, []float64{7, 7}, 1},           // all tied
		{[]float64{1, 1}, []float64{2, 2}, 2.0 / 6},        // ties within the sides
	} {
		assert.InDelta(t, c.want, MannWhitney(c.a, c.b), 1e-12, "%v %v", c.a, c.b)
		assert.InDelta(t, c.want, MannWhitney(c.b, c.a), 1e-12, "%v %v", c.b, c.a)
	}
}

// The approximation for many observations agrees with the exact values.
func TestMannWhitneyApproximation(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 5 {
		a, b := make([]float64, 30), make([]float64, 30)
		shift := rng.Float64()
		for i := range a {
			a[i], b[i] = math.Round(10*rng.NormFloat64()), math.Round(10*(rng.NormFloat64()+shift))
		}
		ranks := doubledRanks(a, b)
		for _, distance := range []int{0, 50, 200, 400, 700} {
			assert.InDelta(t, exactTail(ranks, 30, distance), normalTail(ranks, 30, distance), 0.01)
		}
	}
	a, b := make([]float64, 50), make([]float64, 50)
	assert.Equal(t, 1.0, MannWhitney(a, b))
	for i := range a {
		a[i] = 1
	}
	assert.Less(t, MannWhitney(a, b), 1e-9)
}

func write(t *testing.T, name, text string) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func TestCompareGoBenchmarks(t *testing.T) {
	run := func(ns ...string) string {
		var b strings.Builder
		b.WriteString("goos: linux\ncpu: some\nBenchmarkBroken\n")
		for _, x := range ns {
			b.WriteString("BenchmarkMatMul/rows=1-2   \t 100\t " + x + " ns/op\t 12.5 MB/s\n")
		}
		return b.String() + "PASS\nok  \tpkg\t1.2s\n"
	}
	old, err := ReadSeries([]string{write(t, "old.txt", run("100", "101", "102", "103", "104"))})
	require.NoError(t, err)
	faster, err := ReadSeries([]string{write(t, "a.txt", run("80", "81", "82")), write(t, "b.txt", run("83", "84"))})
	require.NoError(t, err)
	list, err := Compare(old, faster)
	require.NoError(t, err)
	require.Len(t, list, 2)
	d := list[0]
	assert.Equal(t, "BenchmarkMatMul/rows=1-2", d.Name)
	assert.Equal(t, "ns/op", d.Unit)
	assert.Equal(t, []float64{102, 82}, []float64{d.Old, d.New})
	assert.InDelta(t, 82.0/102-1, d.Change, 1e-12)
	assert.InDelta(t, 2.0/252, d.P, 1e-12)
	assert.True(t, d.Significant)
	assert.False(t, list[1].Significant)
	var b strings.Builder
	require.NoError(t, WriteDifferences(&b, list))
	assert.Contains(t, b.String(), "-19.6%")
	assert.Contains(t, b.String(), "~ (+0.0%)")
	assert.NotContains(t, b.String(), "too few")

	few, err := ReadSeries([]string{write(t, "few.txt", run("1"))})
	require.NoError(t, err)
	list, err = Compare(old, few)
	require.NoError(t, err)
	b.Reset()
	require.NoError(t, WriteDifferences(&b, list))
	assert.Contains(t, b.String(), "too few")
}

func TestReadSeriesRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "found none"},
		{"{", "report: "},
		{`{"format":"other"}`, `found format "other", expected "lukv bench 1"`},
		{"BenchmarkX-2 10 many ns/op\n", `found "many", expected a number`},
	} {
		_, err := ReadSeries([]string{write(t, "x", c.text)})
		require.ErrorContains(t, err, c.want)
	}
	_, err := ReadSeries([]string{filepath.Join(t.TempDir(), "none")})
	require.ErrorIs(t, err, os.ErrNotExist)

	a := &Series{}
	a.add("x", UnitSpeed, 1)
	b := &Series{}
	b.add("y", UnitSpeed, 1)
	_, err = Compare(a, b)
	require.ErrorContains(t, err, "no point in common")
}

// Each of several reports is one observation.
func TestReadSeriesOfReports(t *testing.T) {
	const report = `{"format":"lukv bench 1",
		"points":[
		{"model":"m","test":"decode","tokens":4,"samples":[
			{"tokens_per_second":10,"read_fraction":0.5},{"tokens_per_second":12,"read_fraction":0.6},
			{"tokens_per_second":99,"read_fraction":9,"disturbed":true},{"tokens_per_second":14,"read_fraction":0.7}]},
		{"model":"m","test":"prefill","tokens":4,"error":"does not fit","samples":null}]}`
	one, err := ReadSeries([]string{write(t, "a", report)})
	require.NoError(t, err)
	key := one.names[0]
	require.Equal(t, UnitSpeed, key.unit)
	assert.Equal(t, []float64{10, 12, 14}, one.values[key])
	two, err := ReadSeries([]string{write(t, "a", report), write(t, "b", report)})
	require.NoError(t, err)
	assert.Equal(t, []float64{12, 12}, two.values[key])
	require.Len(t, two.names, 2)
	assert.Equal(t, []float64{0.6, 0.6}, two.values[two.names[1]])
}
