package quantize

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
)

// embedded writes the embedded model to a folder.
func embedded(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.CopyFS(dir, builtin.Files()))
	return dir
}

// logProbs returns the log-probabilities of all next tokens after each token of a text.
func logProbs(t testing.TB, dir string, ids []int32) (out [][]float64) {
	t.Helper()
	m, err := model.Open(t.Context(), dir, model.WithPrecision(model.PrecisionF32))
	require.NoError(t, err)
	defer m.Close()
	s, err := m.NewSession(model.SessionOptions{})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.PrefillEach(t.Context(), ids, func(_ int, logits []float32) error {
		row, sum := make([]float64, len(logits)), 0.0
		for _, x := range logits {
			sum += math.Exp(float64(x))
		}
		for i, x := range logits {
			row[i] = float64(x) - math.Log(sum)
		}
		out = append(out, row)
		return nil
	}))
	return out
}

// divergence returns the mean divergence from one model's next tokens to another's.
func divergence(p, q [][]float64) float64 {
	kl := 0.0
	for i := range p {
		for j := range p[i] {
			kl += math.Exp(p[i][j]) * (p[i][j] - q[i][j])
		}
	}
	return kl / float64(len(p))
}

// text returns the tokens of calibration text i of the embedded model.
func text(t testing.TB, dir string, i, most int) []int32 {
	t.Helper()
	tok, err := tokenizer.Open(dir)
	require.NoError(t, err)
	ids := tok.Encode(builtin.Calibration()[i].Context, tokenizer.EncodeOptions{})
	return ids[:min(len(ids), most)]
}

// TestDivergence: rounded models say nearly what the source says.
func TestDivergence(t *testing.T) {
	dir := embedded(t)
	ids := text(t, dir, 0, 600)
	want := logProbs(t, dir, ids)
	for bits, most := range map[int]float64{8: 6e-4, 4: 0.08} {
		kl := divergence(want, logProbs(t, write(t, dir, bits).dir, ids))
		t.Logf("%d bits: %.2g", bits, kl)
		require.Less(t, kl, most)
		require.Positive(t, kl)
	}
}
