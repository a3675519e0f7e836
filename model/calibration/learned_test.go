package calibration

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

// TestLearnedOrdersOtherTextsAsKVzip fits on some texts and compares the best fifth of
// another with KVzip's: the median over the heads of what they share exceeds that of the
// metrics that cost as much.
func TestLearnedOrdersOtherTextsAsKVzip(t *testing.T) {
	if testing.Short() {
		t.Skip("fits to several texts: some seconds")
	}
	ctx := context.Background()
	var texts []Text
	for _, c := range builtin.Calibration()[:3] {
		texts = append(texts, Text{Context: c.Context, Questions: []Question{{Question: c.Questions[0].Question}}})
	}
	profiles := make([]*lukv.Profile, 2)
	var seen []int
	for i := range profiles {
		m, err := builtin.Open(ctx, model.WithThreads(i+1))
		require.NoError(t, err)
		defer m.Close()
		profiles[i], err = Profile(ctx, m, texts[:2], ProfileOptions{
			Options: Options{Prompt: builtin.Prompt, MaxSteps: 1}, Metric: lukv.MetricConfig{Name: "learned"},
			Fitted: func(done, of int) {
				require.Equal(t, 2, of)
				seen = append(seen, done)
			},
		})
		require.NoError(t, err)
	}
	require.Equal(t, []int{0, 1, 2, 0, 1, 2}, seen)
	require.Equal(t, profiles[0], profiles[1], "with one thread and with two")
	testResumedFit(t, texts[:2], profiles[0])

	m, err := builtin.Open(ctx)
	require.NoError(t, err)
	defer m.Close()
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	metrics := map[string]lukv.Metric{}
	for _, name := range []string{"kvzip", "learned", "key_distance", "keydiff", "knorm"} {
		metric, err := lukv.NewMetric(lukv.MetricConfig{Name: name})
		require.NoError(t, err)
		metrics[name] = lukv.WithCalibration(metric, &profiles[0].CalibrationData)
	}
	head, _ := builtin.Prompt(texts[2].Context, "", "")
	ob, err := m.Observe(ctx, head.Encode(tok), model.SessionOptions{}, metrics["kvzip"])
	require.NoError(t, err)
	defer ob.Close()
	best := func(metric lukv.Metric, layer int) [][]int32 {
		s, err := ob.Scores(ctx, metric, layer, 0)
		require.NoError(t, err)
		out := make([][]int32, len(s))
		for h, row := range s {
			out[h] = lukv.Keep(nil, row, len(row)/5, lukv.Protection{})
		}
		return out
	}
	shared := map[string][]float64{}
	for at := range m.Config().Layers {
		want := best(metrics["kvzip"], at)
		for name, metric := range metrics {
			for h, kept := range best(metric, at) {
				n := 0
				for _, slot := range kept {
					if _, ok := slices.BinarySearch(want[h], slot); ok {
						n++
					}
				}
				shared[name] = append(shared[name], float64(n)/float64(len(kept)))
			}
		}
	}
	median := map[string]float64{}
	for name, x := range shared {
		slices.Sort(x)
		median[name] = (x[(len(x)-1)/2] + x[len(x)/2]) / 2
	}
	t.Log(median)
	require.Equal(t, 1.0, median["kvzip"])
	for _, other := range []string{"key_distance", "keydiff", "knorm"} {
		require.Greater(t, median["learned"], median[other]+0.05, other)
	}
}

// testResumedFit interrupts a fit after its first text: the same call goes on from there and
// makes the same profile.
func testResumedFit(t *testing.T, texts []Text, want *lukv.Profile) {
	m, err := builtin.Open(context.Background())
	require.NoError(t, err)
	defer m.Close()
	state := filepath.Join(t.TempDir(), "state")
	var seen []int
	ctx, cancel := context.WithCancel(context.Background())
	o := ProfileOptions{
		Options: Options{Prompt: builtin.Prompt, MaxSteps: 1}, Metric: lukv.MetricConfig{Name: "learned"}, State: state,
		Fitted: func(done, _ int) {
			if seen = append(seen, done); done == 1 {
				cancel()
			}
		},
	}
	defer func(every time.Duration) { saveEvery = every }(saveEvery)
	saveEvery = 0
	_, err = Profile(ctx, m, texts, o)
	require.ErrorIs(t, err, context.Canceled)
	require.FileExists(t, FitState(state))
	require.NoFileExists(t, state)
	other := o
	other.Metric.Params = `{"ridge":0.5}`
	_, err = Profile(context.Background(), m, texts, other)
	require.ErrorIs(t, err, lukv.ErrProfileMismatch)

	got, err := Profile(context.Background(), m, texts, o)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, []int{0, 1, 1, 2}, seen)

	// What cannot be solved is not kept: longer texts begin anew.
	few := []Text{{Context: "Too little.", Questions: texts[0].Questions}}
	_, err = Profile(context.Background(), m, few, ProfileOptions{
		Options: Options{Prompt: builtin.Prompt, MaxSteps: 1}, Metric: lukv.MetricConfig{Name: "learned"}, State: state + "2",
	})
	require.ErrorContains(t, err, "give longer texts")
	require.NoFileExists(t, FitState(state+"2"))
}
