package model

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

func goldenGGUF(t testing.TB) (string, []goldenCase) {
	return goldenCases(t, "LUKV_GOLDEN_GGUF", filepath.Join("testdata", "gguf"))
}

// TestGoldenGGUF compares logits and greedy tokens of models run from GGUF files with
// independent references, in f32 precision for every instruction set that the processor has.
func TestGoldenGGUF(t *testing.T) {
	dir, cases := goldenGGUF(t)
	checkAllGolden(t, "golden GGUF models", dir, cases)
}

// TestGoldenGGUFInt8 holds the loss of 8-bit activations to what they cost by their
// definition: the Kullback-Leibler divergence from the golden distributions, mean and largest.
// Bits are the same for every instruction set, number of threads and chunk.
func TestGoldenGGUFInt8(t *testing.T) {
	dir, cases := goldenGGUF(t)
	checks := 0
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			var first []float32
			for _, cpu := range kernels.Variants() {
				for _, threads := range []int{1, 2} {
					logits, want, vocab := int8Logits(t, &c, dir, cpu, threads)
					if first == nil {
						first = logits
						mean, most := divergences(want, logits, vocab)
						require.LessOrEqual(t, mean, 1.5*c.KLMean, "mean divergence")
						require.LessOrEqual(t, most, 2*c.KLMax, "largest divergence")
						require.Positive(t, mean, "activations are rounded")
						checks += len(logits) / vocab
					}
					require.Equal(t, first, logits, "%v, %d threads", cpu, threads)
				}
			}
		})
	}
	fmt.Printf("golden GGUF models with 8-bit activations: %d checks\n", checks)
	require.NotZero(t, checks)
}

// int8Logits returns the logits at the golden positions, and the golden ones. The long prompt
// is prefilled in chunks that depend on the number of threads.
func int8Logits(t *testing.T, c *goldenCase, dir string, cpu kernels.CPU, threads int) (got, want []float32, vocab int) {
	m, err := Open(t.Context(), c.path(dir), WithCPU(cpu), WithThreads(threads))
	require.NoError(t, err)
	defer m.Close()
	require.Equal(t, PrecisionInt8, m.Precision())
	ref := references(t, filepath.Join(dir, c.Name, "golden.safetensors"))
	vocab = m.Config().Vocab
	s, err := m.NewSession(SessionOptions{CacheType: tensor.F32, ChunkTokens: 17 * threads})
	require.NoError(t, err)
	got = prefillLogits(t, s, ref["prompt48"].ints)
	require.NoError(t, s.Close())
	s, err = m.NewSession(SessionOptions{CacheType: tensor.F32, ChunkTokens: 33 * threads})
	require.NoError(t, err)
	all := prefillLogits(t, s, ref["prompt200"].ints)
	require.NoError(t, s.Close())
	return append(got, all[len(all)-8*vocab:]...), append(ref["logits48"].floats, ref["logits200_last8"].floats...), vocab
}

// divergences returns the mean and the largest divergence KL(want ‖ got) of rows of logits.
func divergences(want, got []float32, vocab int) (mean, most float64) {
	logProbs := func(row []float32) []float64 {
		top, sum := math.Inf(-1), 0.0
		for _, v := range row {
			top = max(top, float64(v))
		}
		out := make([]float64, len(row))
		for _, v := range row {
			sum += math.Exp(float64(v) - top)
		}
		for i, v := range row {
			out[i] = float64(v) - top - math.Log(sum)
		}
		return out
	}
	rows := len(want) / vocab
	for r := range rows {
		p, q := logProbs(want[r*vocab:(r+1)*vocab]), logProbs(got[r*vocab:(r+1)*vocab])
		kl := 0.0
		for i := range p {
			kl += math.Exp(p[i]) * (p[i] - q[i])
		}
		mean += kl / float64(rows)
		most = max(most, kl)
	}
	return mean, most
}

// TestGoldenGGUFMalformed: damaged files and those that are not understood are refused by a
// message that names the fault, before a token is produced.
func TestGoldenGGUFMalformed(t *testing.T) {
	dir, _ := goldenGGUF(t)
	dir = filepath.Join(dir, "malformed")
	text, err := os.ReadFile(filepath.Join(dir, "cases.json"))
	require.NoError(t, err)
	var cases []struct {
		Name, Open, Expect string
		Mention            []string `json:"error_should_mention"`
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		var index struct{ Cases json.RawMessage }
		require.NoError(t, json.Unmarshal(text, &index))
		require.NoError(t, json.Unmarshal(index.Cases, &cases))
	}
	require.NotEmpty(t, cases)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			err := runGGUF(t, filepath.Join(dir, c.Open))
			switch {
			case c.Expect == "ok":
				require.NoError(t, err)
			case c.Expect == "error" || err != nil:
				require.Error(t, err)
				lower := strings.ToLower(err.Error())
				require.True(t, slices.ContainsFunc(c.Mention, func(word string) bool { return strings.Contains(lower, strings.ToLower(word)) }),
					"%q mentions none of %q", err, c.Mention)
			}
		})
	}
	fmt.Printf("golden malformed GGUF models: %d checks\n", len(cases))
}

// runGGUF opens a file and prefills a few tokens.
func runGGUF(t *testing.T, path string) error {
	m, err := Open(t.Context(), path, WithThreads(1))
	if err != nil {
		return err
	}
	defer m.Close()
	if _, err := m.Tokenizer(); err != nil {
		return err
	}
	s, err := m.NewSession(SessionOptions{})
	if err != nil {
		return err
	}
	defer s.Close()
	tokens := make([]int32, 24)
	for i := range tokens {
		tokens[i] = int32(i * 7 % m.Config().Vocab)
	}
	if err := s.Prefill(t.Context(), tokens); err != nil {
		return err
	}
	for _, v := range s.Logits() {
		require.False(t, math.IsNaN(float64(v)) || math.IsInf(float64(v), 0))
	}
	return nil
}
