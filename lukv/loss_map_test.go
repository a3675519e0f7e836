package lukv

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLossMapPoolsWhatDescends(t *testing.T) {
	m, err := NewLossMap([]LossPoint{
		{Facts: 0.5, Answers: 20, Lost: 10}, {Facts: 0, Answers: 20, Lost: 1}, {Facts: 0.2, Answers: 20, Lost: 8}, {Facts: 0.3, Answers: 20, Lost: 4},
		{Facts: 1, Answers: 20, Lost: 19},
	})
	require.NoError(t, err)
	assert.InDeltaSlice(t, []float64{0, 0.25, 0.5, 1}, m.Facts, 1e-12)
	assert.InDeltaSlice(t, []float64{0.05, 0.3, 0.5, 0.95}, m.Answers, 1e-12)
	assert.Equal(t, []int{20, 40, 20, 20}, m.N)
	assert.InDelta(t, 0.05, m.At(0), 1e-12)
	assert.InDelta(t, 0.175, m.At(0.125), 1e-12)
	assert.InDelta(t, 0.5, m.At(0.5), 1e-12)
	assert.InDelta(t, 0.725, m.At(0.75), 1e-12)
	assert.InDelta(t, 0.95, m.At(1), 1e-12)
}

// Whatever the cuts, the map counts every answer once, has at most eight points, ascends,
// and does not depend on the order of the cuts.
func TestLossMapProperties(t *testing.T) {
	var cuts []LossPoint
	for i := range 100 {
		cuts = append(cuts, LossPoint{Facts: float64(i*37%11) / 10, Answers: i % 7, Lost: (i * i) % (i%7 + 1)})
	}
	m, err := NewLossMap(cuts)
	require.NoError(t, err)
	answers, lost, want, wantLost := 0, 0.0, 0, 0
	for i, n := range m.N {
		answers, lost = answers+n, lost+m.Answers[i]*float64(n)
		assert.GreaterOrEqual(t, n, lossMapPoint)
	}
	for _, c := range cuts {
		want, wantLost = want+c.Answers, wantLost+c.Lost
	}
	assert.Equal(t, want, answers)
	assert.InDelta(t, float64(wantLost), lost, 1e-9)
	assert.LessOrEqual(t, len(m.N), lossMapPoints+1)
	for x := 0.0; x < 1; x += 0.01 {
		assert.LessOrEqual(t, m.At(x), m.At(x+0.01))
	}
	for i, j := 0, len(cuts)-1; i < j; i, j = i+1, j-1 {
		cuts[i], cuts[j] = cuts[j], cuts[i]
	}
	again, err := NewLossMap(cuts)
	require.NoError(t, err)
	assert.InDeltaSlice(t, m.Answers, again.Answers, 1e-12)
	assert.Equal(t, m.N, again.N)

	_, err = NewLossMap([]LossPoint{{Answers: 31}})
	require.ErrorContains(t, err, "found 31 answers")
}

// A profile keeps its loss map, and one without has none.
func TestProfileKeepsLossMap(t *testing.T) {
	plain := testProfile(t, 2, 2, 64)
	var old bytes.Buffer
	require.NoError(t, plain.Write(&old))
	assert.NotContains(t, old.String(), "loss_map")
	withMap := testProfile(t, 2, 2, 64)
	withMap.LossMap = &LossMap{Facts: []float64{0, 0.5}, Answers: []float64{0.1, 0.7}, N: []int{40, 40}}
	var b bytes.Buffer
	require.NoError(t, withMap.Write(&b))
	again, err := ReadProfile(bytes.NewReader(b.Bytes()))
	require.NoError(t, err)
	assert.Equal(t, withMap.LossMap, again.LossMap)
	back, err := ReadProfile(bytes.NewReader(old.Bytes()))
	require.NoError(t, err)
	assert.Nil(t, back.LossMap)

	for _, bad := range []*LossMap{
		{}, {Facts: []float64{0}, Answers: []float64{2}, N: []int{1}}, {Facts: []float64{0, 0}, Answers: []float64{0, 0}, N: []int{1, 1}},
		{Facts: []float64{0, 1}, Answers: []float64{1, 0}, N: []int{1, 1}}, {Facts: []float64{0}, Answers: []float64{0}, N: []int{0}},
	} {
		withMap.LossMap = bad
		b.Reset()
		require.NoError(t, withMap.Write(&b))
		_, err := ReadProfile(strings.NewReader(b.String()))
		assert.ErrorContains(t, err, "loss map: ")
	}
}
