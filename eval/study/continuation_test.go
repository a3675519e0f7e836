package study

import (
	"context"
	"math"
	"testing"

	"github.com/lukv/lukv/model/sampling"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/calibration"
	"github.com/lukv/lukv/tokenizer"
)

// The losses are those of sessions prefilled under the policy itself, summed by
// hand.
func TestContinuation(t *testing.T) {
	m := open(t)
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	text := tok.Encode(calibration.Narrative().Context, tokenizer.EncodeOptions{})
	const prefix, tokens = 200, 70
	o := ContinuationOptions{Texts: [][]int32{text}, Start: []int32{tok.BOS()}, Prefix: prefix, Tokens: tokens, Windows: 2, Ratios: []float64{0, 0.5, 0.9},
		Shapes: []Shape{
			{"a", lukv.Policy{Metric: lukv.MetricConfig{Name: "snapkv"}}},
			{"b", lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Allocator: lukv.AllocatorConfig{Name: "adakv"}}},
		}}
	var last [2]int
	o.Progress = func(_, done, total int) { last = [2]int{done, total} }
	figures, err := Continuation(t.Context(), m, o)
	require.NoError(t, err)
	assert.Equal(t, [2]int{13, 14}, last)
	f := figure(t, figures, "continuation")
	loss := func(policy *lukv.Policy) float64 {
		sum := 0.0
		for w := range 2 {
			s, err := m.NewSession(model.SessionOptions{Compression: policy})
			require.NoError(t, err)
			defer s.Close()
			from := w * (prefix + tokens)
			require.NoError(t, s.Prefill(t.Context(), append([]int32{tok.BOS()}, text[from:from+prefix]...)))
			for _, id := range text[from+prefix : from+prefix+tokens] {
				sum -= sampling.LogProb(s.Logits(), id)
				require.NoError(t, s.Append(t.Context(), id))
			}
		}
		return sum / (2 * tokens)
	}
	full := loss(nil)
	for i, s := range o.Shapes {
		l := line(t, f.Lines, s.Name)
		assert.Equal(t, o.Ratios, l.X)
		assert.Zero(t, l.Y[0])
		for k, r := range o.Ratios[1:] {
			p := o.Shapes[i].Policy
			p.Ratio = r
			assert.InDelta(t, loss(&p)-full, l.Y[k+1], 1e-9, s.Name)
			assert.Less(t, l.Low[k+1], l.Y[k+1])
			assert.InDelta(t, l.Y[k+1]-l.Low[k+1], l.High[k+1]-l.Y[k+1], 1e-12)
		}
	}

	_, err = Continuation(t.Context(), m, ContinuationOptions{Texts: [][]int32{text[:100]}, Prefix: 90, Tokens: 11, Windows: 1, Shapes: o.Shapes})
	require.ErrorContains(t, err, "100 tokens, expected at least 101")
	_, err = Continuation(t.Context(), m, ContinuationOptions{})
	require.ErrorContains(t, err, "no policies")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Continuation(ctx, m, o)
	require.ErrorIs(t, err, context.Canceled)
}

// With 96 values, the interval is that of the means of three blocks.
func TestBlockMean(t *testing.T) {
	var x []float64
	for i := range 96 {
		x = append(x, float64(i/32)) // blocks of 0, 1 and 2: deviation 1
	}
	mean, half := blockMean(x)
	assert.InDelta(t, 1, mean, 1e-12)
	assert.InDelta(t, 1.96/math.Sqrt(3), half, 1e-12)
	mean, half = blockMean(x[:40])
	assert.InDelta(t, 0.2, mean, 1e-12)
	assert.Zero(t, half, "one whole block")
}
