package convert

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/calibration"
	"github.com/lukv/lukv/tokenizer"
)

// TestRealModel compares a real model, made by scripts/real-model, with an
// independent program that reads the same GGUF: Python, float64, the format's own
// dequantiser, rotation of the rows as stored. Its figures are in
// testdata/real.json: the ids of the beginning of the calibration narrative (from
// the tokenizers package), their mean negative log-likelihood, the largest logits
// after them, and a greedy continuation.
func TestRealModel(t *testing.T) {
	dir := os.Getenv("LUKV_REAL_MODEL")
	if dir == "" {
		t.Skip("LUKV_REAL_MODEL names no folder made by scripts/real-model")
	}
	data, err := os.ReadFile("testdata/real.json")
	require.NoError(t, err)
	var want struct {
		Bytes  int       `json:"bytes"`
		IDs    []int32   `json:"ids"`
		NLL    float64   `json:"nll"`
		Top    []int     `json:"last_top"`
		Logits []float64 `json:"last_top_logits"`
		Prompt []int32   `json:"prompt"`
		Greedy []int32   `json:"greedy"`
	}
	require.NoError(t, json.Unmarshal(data, &want))
	m, err := model.Open(t.Context(), dir, model.WithPrecision(model.PrecisionF32))
	require.NoError(t, err)
	defer m.Close()
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	text := calibration.Narrative().Context[:want.Bytes]
	require.Equal(t, want.IDs, tok.Encode(text, tokenizer.EncodeOptions{}))

	s, err := m.NewSession(model.SessionOptions{})
	require.NoError(t, err)
	defer s.Close()
	nll := 0.0
	var last []float32
	require.NoError(t, s.PrefillEach(t.Context(), want.IDs, func(i int, logits []float32) error {
		if i+1 < len(want.IDs) {
			most, sum := float64(logits[0]), 0.0
			for _, x := range logits {
				most = max(most, float64(x))
			}
			for _, x := range logits {
				sum += math.Exp(float64(x) - most)
			}
			nll += most + math.Log(sum) - float64(logits[want.IDs[i+1]])
		}
		last = append(last[:0], logits...)
		return nil
	}))
	nll /= float64(len(want.IDs) - 1)
	worst := 0.0
	for i, id := range want.Top {
		worst = max(worst, math.Abs(float64(last[id])-want.Logits[i]))
	}
	t.Logf("perplexity %.4f, independent program %.4f; worst of the %d largest logits differs by %.2g",
		math.Exp(nll), math.Exp(want.NLL), len(want.Top), worst)
	require.InDelta(t, math.Exp(want.NLL), math.Exp(nll), 5e-5*math.Exp(want.NLL))
	require.Less(t, worst, 1e-3)

	g, err := m.NewSession(model.SessionOptions{})
	require.NoError(t, err)
	defer g.Close()
	require.NoError(t, g.Prefill(t.Context(), want.Prompt))
	var greedy []int32
	for x, err := range g.Generate(t.Context(), model.Sampling{MaxTokens: len(want.Greedy), IgnoreEOS: true}) {
		require.NoError(t, err)
		greedy = append(greedy, x.ID)
	}
	require.Equal(t, want.Greedy, greedy)
}
