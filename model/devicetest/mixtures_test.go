//go:build (linux || darwin || windows) && (amd64 || arm64)

package devicetest

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/tensor"
)

// mixturePrompt is so long that experts have more rows than a tile.
const mixturePrompt = 160

// mixtureConfig has a layer without experts between those with them, and a shared one.
const mixtureConfig = `{"model_type": "qwen2_moe", "hidden_size": 256, "intermediate_size": 96, "num_hidden_layers": 3,
	"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 97, "max_position_embeddings": 4096,
	"rms_norm_eps": 1e-6, "rope_theta": 10000, "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16",
	"num_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 80,
	"norm_topk_prob": true, "mlp_only_layers": [1]}`

func openMixture(t testing.TB, typ tensor.Type, p model.Precision, opts ...model.Option) *model.Model {
	t.Helper()
	cfg, err := arch.Parse([]byte(mixtureConfig))
	require.NoError(t, err)
	w, err := weights.Random(t.Context(), cfg, typ, 7)
	require.NoError(t, err)
	m, err := model.New(cfg, w, append(opts, model.WithPrecision(p), model.WithThreads(2))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// TestMixtures: with experts, too, the bits of a row do not depend on the rows beside it, which
// decide how the products of experts are divided, and are near those of the processor, whole or
// with the first layers on the device.
func TestMixtures(t *testing.T) {
	d := device(t)
	ctx := context.Background()
	prompt, steps := randomTokens(mixturePrompt, 1), randomTokens(3, 2)
	for _, c := range []struct {
		typ       tensor.Type
		precision model.Precision
		cache     tensor.Type
		bound     float64
	}{
		{tensor.BF16, model.PrecisionF32, tensor.F32, 2e-5}, {tensor.BF16, model.PrecisionBF16, tensor.F32, flipBound},
		{tensor.Q4_K, model.PrecisionF32, tensor.F32, 2e-5}, {tensor.BF16, model.PrecisionF32, tensor.I8, integerBound},
	} {
		t.Run(fmt.Sprint(c.typ, "/", c.precision, "/", c.cache), func(t *testing.T) {
			host, o := openMixture(t, c.typ, c.precision), model.SessionOptions{CacheType: c.cache, ChunkTokens: 1000}
			ref := trace(t, session(t, host, o), prompt, steps)
			m := openMixture(t, c.typ, c.precision, model.WithOpenDevice(d))
			want := trace(t, session(t, m, o), prompt, steps)
			dev := testnum.Deviation(want, ref)
			t.Logf("deviation from the processor: %.2g", dev)
			require.Less(t, dev, c.bound)
			for _, chunk := range []int{1, 7, 64} {
				o.ChunkTokens = chunk
				n := min(mixturePrompt, 12*chunk)
				testnum.SameBits(t, "in chunks", want[:n*vocab], trace(t, session(t, m, o), prompt[:n], nil))
			}
			first := openMixture(t, c.typ, c.precision, model.WithOpenDevice(d), model.WithDeviceLayers(1))
			require.Equal(t, 1, first.DeviceLayers())
			require.Less(t, testnum.Deviation(trace(t, session(t, first, o), prompt[:40], nil), ref[:40*vocab]), c.bound)

			// In a batch with sessions of other lengths.
			among := session(t, m, o)
			require.NoError(t, among.Prefill(ctx, prompt))
			batch := []*model.Session{among}
			for i := range 12 {
				other := session(t, m, o)
				require.NoError(t, other.Prefill(ctx, prompt[:5+2*i]))
				batch = append(batch, other)
			}
			for i, id := range steps {
				require.NoError(t, m.Step(ctx, batch, slices.Repeat([]int32{id}, len(batch))))
				at := (mixturePrompt + i) * vocab
				testnum.SameBits(t, "in a batch", want[at:at+vocab], among.Logits())
			}
		})
	}
}

// TestMixturesCompress evicts 80 % of a prompt from a model with experts on a device: as many
// entries stay as on the processor, and the same ones where scores do not tie; other chunks, a
// saved session and a fork go on with the same bits.
func TestMixturesCompress(t *testing.T) {
	d := device(t)
	ctx := context.Background()
	prompt := randomTokens(mixturePrompt, 1)
	host, m := openMixture(t, tensor.BF16, model.PrecisionF32), openMixture(t, tensor.BF16, model.PrecisionF32, model.WithOpenDevice(d))
	for _, c := range []struct {
		metric string
		cache  tensor.Type
	}{{"snapkv", tensor.BF16}, {"knorm", tensor.BF16}, {"expected_attention", tensor.BF16}, {"key_distance", tensor.I8}} {
		metric := c.metric
		p := &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Allocator: lukv.AllocatorConfig{Name: "adakv"}, Ratio: 0.8}
		o := model.SessionOptions{Compression: p, CacheType: c.cache, ChunkTokens: 100}
		a, b := session(t, host, o), session(t, m, o)
		require.NoError(t, a.Prefill(ctx, prompt))
		require.NoError(t, b.Prefill(ctx, prompt))
		kept, differ := 0, 0
		for at := range m.Config().Layers {
			for h := range m.Config().KVHeads {
				x, y := a.Cache().Positions(at, h, nil), b.Cache().Positions(at, h, nil)
				kept += len(x)
				for _, pos := range x {
					if !slices.Contains(y, pos) {
						differ++
					}
				}
			}
		}
		require.Equal(t, a.Stats().Entries, b.Stats().Entries)
		require.LessOrEqual(t, differ, kept/50, metric)
		require.InDelta(t, mixturePrompt/5*m.Config().Layers*m.Config().KVHeads, kept, 20, metric)
		require.Equal(t, b.Stats().CacheBytes, b.Stats().DeviceBytes)

		o.ChunkTokens = 64
		chunks := session(t, m, o)
		require.NoError(t, chunks.Prefill(ctx, prompt))
		path := filepath.Join(t.TempDir(), "session")
		require.NoError(t, chunks.Save(ctx, path))
		loaded, err := m.LoadSession(ctx, path, model.SessionOptions{})
		require.NoError(t, err)
		fork, err := chunks.Fork()
		require.NoError(t, err)
		for _, id := range []int32{4, 2} {
			require.NoError(t, b.Append(ctx, id))
			for _, s := range []*model.Session{chunks, loaded, fork} {
				require.NoError(t, s.Append(ctx, id))
				testnum.SameBits(t, metric, b.Logits(), s.Logits())
			}
		}
		require.NoError(t, loaded.Close())
		require.NoError(t, fork.Close())
	}
}
