package model

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tensor"
)

func TestMain(m *testing.M) {
	os.Setenv("LUKV_CHECK", "1")
	os.Exit(m.Run())
}

// testShape is a small random model.
type testShape struct {
	name    string
	layers  int
	hidden  int
	ffn     int
	heads   int
	kv      int
	dim     int
	window  int // of every odd layer
	biases  bool
	qkNorm  bool
	weights tensor.Type
}

var testShapes = []testShape{
	{name: "gqa-bf16", layers: 3, hidden: 64, ffn: 96, heads: 8, kv: 2, dim: 16, weights: tensor.BF16},
	{name: "mha-f16-biases", layers: 2, hidden: 48, ffn: 80, heads: 3, kv: 3, dim: 16, biases: true, weights: tensor.F16},
	{name: "window-f32-norms", layers: 4, hidden: 48, ffn: 64, heads: 6, kv: 2, dim: 32, window: 40, qkNorm: true, weights: tensor.F32},
	{name: "odd-bf16", layers: 2, hidden: 50, ffn: 70, heads: 5, kv: 1, dim: 10, weights: tensor.BF16},
}

func (s testShape) open(t testing.TB, opts ...Option) *Model {
	cfg := s.config()
	m, err := New(cfg, randomWeights(t, cfg, s.weights, 7), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// randomWeights makes weights for a configuration.
func randomWeights(t testing.TB, cfg *Config, typ tensor.Type, seed uint64) *weights.Weights {
	t.Helper()
	w, err := weights.Random(t.Context(), cfg, typ, seed)
	require.NoError(t, err)
	return w
}

func (s testShape) config() *Config {
	cfg := &Config{
		Arch: "llama", Layers: s.layers, Hidden: s.hidden, Intermediate: s.ffn, Heads: s.heads, KVHeads: s.kv,
		HeadDim: s.dim, Vocab: 97, MaxPositions: 1 << 20, NormEps: 1e-5, Rope: arch.RopeConfig{Theta: 10000},
		QKVBias: s.biases, OutBias: s.biases, MLPBias: s.biases, QKNorm: s.qkNorm,
		Windows: make([]int, s.layers), EOS: []int{96}, Type: s.weights,
	}
	for i := 1; i < s.layers; i += 2 {
		cfg.Windows[i] = s.window
	}
	return cfg
}

func (s testShape) String() string { return s.name }

func randomTokens(n int, vocab int, seed uint64) []int32 {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(r.IntN(vocab))
	}
	return out
}

func newTestSession(t testing.TB, m *Model, o SessionOptions) *Session {
	s, err := m.NewSession(o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// testProfile measures a small profile for a metric on the model itself.
func testProfile(t testing.TB, m *Model, metric lukv.MetricConfig, tokens []int32) *lukv.Profile {
	mt, err := lukv.NewMetric(metric)
	require.NoError(t, err)
	var data lukv.CalibrationData
	if lukv.NeedsRankings(mt) {
		data.Rankings = testRankings(m.cfg)
		mt = lukv.WithCalibration(mt, &data)
	}
	ctx := context.Background()
	ob, err := m.Observe(ctx, tokens, SessionOptions{}, mt)
	require.NoError(t, err)
	defer ob.Close()
	me, err := ob.Measure(ctx)
	require.NoError(t, err)
	imp, steps, err := me.Question(ctx, randomTokens(5, m.cfg.Vocab, 99), MeasureOptions{MaxTokens: 6, Sampling: Sampling{IgnoreEOS: true}}, lukv.NormLayer)
	require.NoError(t, err)
	require.Equal(t, 5, steps)
	id := lukv.DefaultProfileIdentity()
	id.Model, id.Metric, id.Protection = m.ID(), lukv.MetricConfigOf(mt), lukv.ProfiledProtection(mt)
	var excluded []int
	scores := make([][][]float32, m.cfg.Layers)
	for at := range scores {
		if m.cfg.Windows[at] > 0 {
			excluded = append(excluded, at)
			continue
		}
		s, err := ob.Scores(ctx, mt, at, 0)
		require.NoError(t, err)
		scores[at] = s
	}
	b, err := lukv.NewProfileBuilder(id, m.cfg.Layers, m.cfg.KVHeads, excluded)
	require.NoError(t, err)
	_, err = b.Add(ctx, 0, imp, scores)
	require.NoError(t, err)
	p, err := b.Profile()
	require.NoError(t, err)
	p.CalibrationData = data
	return p
}

// testRankings returns functions for the metric learned that were fitted to nothing.
func testRankings(c *Config) [][]lukv.Ranking {
	rng := rand.New(rand.NewPCG(3, 8))
	weights := func() []float32 {
		x := make([]float32, c.HeadDim)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}
	out := make([][]lukv.Ranking, c.Layers)
	for at := range out {
		for range c.KVHeads {
			out[at] = append(out[at], lukv.Ranking{Key: weights(), Value: weights(), KeySquares: 0.2, ValueSquares: -0.1, Constant: 1})
		}
	}
	return out
}

func policyName(p *lukv.Policy) string {
	return fmt.Sprintf("%s-%s-%g", p.Metric.Name, p.Allocator.Name, p.Ratio)
}

func debugFreeOSMemory() { debug.FreeOSMemory() }

func splitLines(text []byte) []string { return strings.Split(string(text), "\n") }

// countMappings returns the number of memory mappings of the process, 0 where
// that cannot be read.
func countMappings(testing.TB) int {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0
	}
	return len(splitLines(text))
}
