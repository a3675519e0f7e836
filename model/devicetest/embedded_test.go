//go:build (linux || darwin || windows) && (amd64 || arm64)

package devicetest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

// TestEmbeddedModel compresses a context of the embedded model, with its profiles and with
// every type of cache, by the metrics that those were made for: the device keeps what the
// processor keeps, but for scores that tie within rounding, and goes on doing so while it
// decodes.
func TestEmbeddedModel(t *testing.T) {
	d := device(t)
	text := builtin.Samples()[0].Context
	var sides [2]*model.Model
	for i, opts := range [][]model.Option{nil, {model.WithOpenDevice(d)}} {
		m, err := builtin.Open(t.Context(), append(opts, model.WithPrecision(model.PrecisionF32), model.WithThreads(2))...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		sides[i] = m
	}
	tok, err := sides[0].Tokenizer()
	require.NoError(t, err)
	prompt := tok.Encode(text, tokenizer.EncodeOptions{})
	prompt, steps := prompt[:min(len(prompt), 600)], prompt[:24]
	for _, cache := range []tensor.Type{tensor.F32, tensor.BF16, tensor.I8} {
		for _, metric := range []string{"learned", "key_distance"} {
			t.Run(metric+"/"+cache.String(), func(t *testing.T) {
				own := lukv.MetricConfig{Name: metric}
				profile, err := builtin.OutputErrorProfile(own)
				require.NoError(t, err)
				o := model.SessionOptions{CacheType: cache, Compression: &lukv.Policy{
					Metric: own, Allocator: lukv.AllocatorConfig{Name: "lukv"}, Profile: profile, Ratio: 0.8,
					Decode: lukv.DecodeConfig{Mode: "periodic", Metric: &own, Ratio: 0.85, Interval: 8},
				}}
				if cache == tensor.F32 {
					sameScores(t, sides, own, profile, prompt)
				}
				var kept, later [2][][]int32
				for i, m := range sides {
					s := session(t, m, o)
					require.NoError(t, s.Prefill(t.Context(), prompt))
					kept[i] = keptBy(s)
					for _, id := range steps {
						require.NoError(t, s.Append(t.Context(), id))
					}
					later[i] = keptBy(s)
				}
				all, differ := differences(kept[0], kept[1])
				_, differLater := differences(later[0], later[1])
				t.Logf("%d kept, %d differ, %d after %d more tokens", all, differ, differLater, len(steps))
				require.LessOrEqual(t, differ, all/100)
				require.LessOrEqual(t, differLater, all/50)
				o.ChunkTokens = 100
				s := session(t, sides[1], o)
				require.NoError(t, s.Prefill(t.Context(), prompt))
				require.Equal(t, kept[1], keptBy(s))
			})
		}
	}
}

// sameScores compares the scores of every layer: entries that one side keeps and the other does
// not are ties within the rounding of scores. In the first layer equal tokens tie.
func sameScores(t *testing.T, sides [2]*model.Model, own lukv.MetricConfig, profile *lukv.Profile, prompt []int32) {
	metric, err := lukv.NewMetric(own)
	require.NoError(t, err)
	metric = lukv.WithCalibration(metric, &profile.CalibrationData)
	var all [2][]lukv.Scores
	for i, m := range sides {
		ob, err := m.Observe(t.Context(), prompt, model.SessionOptions{CacheType: tensor.F32}, metric)
		require.NoError(t, err)
		defer ob.Close()
		for at := range m.Config().Layers {
			s, err := ob.Scores(t.Context(), metric, at, 0)
			require.NoError(t, err)
			all[i] = append(all[i], s)
		}
	}
	for at, layer := range all[0] {
		for h, row := range layer {
			scale := float64(slices.Max(row) - slices.Min(row))
			for slot, want := range row {
				require.InDelta(t, want, all[1][at][h][slot], 1e-4*scale, "layer %d, head %d, slot %d", at, h, slot)
			}
		}
	}
}
