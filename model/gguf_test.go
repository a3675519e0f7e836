package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/internal/testnum"
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

// TestGGUFFused: queries, keys and values in one matrix, and their biases in one vector,
// give the bits of separate tensors.
func TestGGUFFused(t *testing.T) {
	dir, cases := goldenGGUF(t)
	at := slices.IndexFunc(cases, func(c goldenCase) bool { return strings.HasPrefix(c.Name, "qwen3-") && len(c.Files) == 1 })
	if at < 0 {
		t.Skip("the folder has no Qwen 3 in one file")
	}
	src, err := gguf.Open(cases[at].path(dir))
	require.NoError(t, err)
	defer src.Close()
	random := rand.New(rand.NewPCG(4, 5))
	write := func(name string, shape []int, typ gguf.Type, parts ...[]byte) gguf.Entry {
		return gguf.Entry{Name: name, Type: typ, Shape: shape, Stream: func(w io.Writer) error {
			_, err := w.Write(slices.Concat(parts...))
			return err
		}}
	}
	var apart, fused []gguf.Entry
	for _, x := range src.Tensors() {
		layer, role, _ := strings.Cut(strings.TrimPrefix(x.Name, "blk."), ".")
		entry := write(x.Name, x.Shape, x.Type, x.Data)
		apart = append(apart, entry)
		projection := role == "attn_q.weight" || role == "attn_k.weight" || role == "attn_v.weight"
		if !projection {
			fused = append(fused, entry)
		}
		if projection || role == "attn_output.weight" {
			values := make([]float32, x.Shape[0])
			for i := range values {
				values[i] = float32(random.NormFloat64())
			}
			bias := write(strings.TrimSuffix(x.Name, "weight")+"bias", x.Shape[:1], gguf.F32, tensor.FromF32s(tensor.F32, values, len(values)).Data)
			apart = append(apart, bias)
			if !projection {
				fused = append(fused, bias)
			}
		}
		if role != "attn_v.weight" {
			continue
		}
		var weights, biases [][]byte
		rows := 0
		for _, part := range []string{"attn_q", "attn_k", "attn_v"} {
			w := src.Tensor("blk." + layer + "." + part + ".weight")
			weights = append(weights, w.Data)
			rows += w.Shape[0]
			i := slices.IndexFunc(apart, func(e gguf.Entry) bool { return e.Name == "blk."+layer+"."+part+".bias" })
			require.GreaterOrEqual(t, i, 0, "queries and keys come before values")
			var b bytes.Buffer
			require.NoError(t, apart[i].Stream(&b))
			biases = append(biases, b.Bytes())
		}
		fused = append(fused, write("blk."+layer+".attn_qkv.weight", []int{rows, x.Shape[1]}, x.Type, weights...),
			write("blk."+layer+".attn_qkv.bias", []int{rows}, gguf.F32, biases...))
	}
	tokens := randomTokens(40, 100, 5)
	var want []float32
	for i, entries := range [][]gguf.Entry{apart, fused} {
		path := filepath.Join(t.TempDir(), "model.gguf")
		require.NoError(t, gguf.WriteFile(path, src.Pairs(), entries))
		m, err := Open(t.Context(), path)
		require.NoError(t, err)
		defer m.Close()
		require.True(t, m.cfg.QKVBias)
		got := prefillLogits(t, newTestSession(t, m, SessionOptions{}), tokens)
		if i == 0 {
			want = got
		}
		testnum.SameBits(t, "one matrix", want, got)
	}
}
