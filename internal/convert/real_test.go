package convert

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/calibration"
	"github.com/lukv/lukv/model/sampling"
	"github.com/lukv/lukv/tokenizer"
)

// TestRealModel compares a real model, in its GGUF file or as a folder that
// scripts/real-model makes of it, with an independent program that reads the file:
// Python, float64, the format's own dequantiser, rotation of the rows as stored. Its figures are in
// testdata/real.json: the ids of the beginning of the calibration narrative (from
// the tokenizers package), their mean negative log-likelihood, the largest logits
// after them, and a greedy continuation.
func TestRealModel(t *testing.T) {
	dir := os.Getenv("LUKV_REAL_MODEL")
	if dir == "" {
		t.Skip("LUKV_REAL_MODEL names no model of scripts/real-model")
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
			nll -= sampling.LogProb(logits, want.IDs[i+1])
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

// TestRealModelInt8 bounds what 8-bit activations change in the file of the real model: the
// divergence from products in f32.
func TestRealModelInt8(t *testing.T) {
	path := os.Getenv("LUKV_REAL_MODEL")
	if !strings.HasSuffix(path, ".gguf") {
		t.Skip("LUKV_REAL_MODEL names no GGUF file")
	}
	const tokens = 512
	each := func(p model.Precision, visit func(i int, logits []float32)) {
		m, err := model.Open(t.Context(), path, model.WithPrecision(p))
		require.NoError(t, err)
		defer m.Close()
		tok, err := m.Tokenizer()
		require.NoError(t, err)
		s, err := m.NewSession(model.SessionOptions{})
		require.NoError(t, err)
		defer s.Close()
		ids := tok.Encode(calibration.Narrative().Context, tokenizer.EncodeOptions{})[:tokens]
		require.NoError(t, s.PrefillEach(t.Context(), ids, func(i int, logits []float32) error {
			visit(i, logits)
			return nil
		}))
	}
	var exact [tokens][]float32
	each(model.PrecisionF32, func(i int, logits []float32) { exact[i] = slices.Clone(logits) })
	kl, same := 0.0, 0
	each(model.PrecisionInt8, func(i int, logits []float32) {
		kl += sampling.Divergence(exact[i], logits)
		if exact[i][slices.Index(logits, slices.Max(logits))] == slices.Max(exact[i]) {
			same++
		}
	})
	t.Logf("%.6f nats a token from f32, the same first choice at %d of %d", kl/tokens, same, tokens)
	require.Positive(t, kl)
	require.Less(t, kl/tokens, 0.005)
}
