package model

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// writeModel writes a small checkpoint and returns its folder.
func writeModel(t *testing.T, seed uint64) string {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type": "llama", "num_hidden_layers": 3,
		"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16,
		"vocab_size": 97, "max_position_embeddings": 4096, "eos_token_id": 96}`), 0o600))
	cfg, err := arch.Load(dir)
	require.NoError(t, err)
	var tensors []safetensors.Named
	randomWeights(t, cfg, tensor.BF16, seed).Each(func(name string, x tensor.Tensor) {
		tensors = append(tensors, safetensors.Named{Name: name, Tensor: x})
	})
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), tensors, nil))
	return dir
}

// TestWeightsThatBecomeShorter: exporting again over the file in use costs the calls
// that run into it, not the process.
func TestWeightsThatBecomeShorter(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not shorten a file that is mapped")
	}
	ctx := context.Background()
	policy := &lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: 0.5}
	for _, threads := range []int{1, 3} {
		dir := writeModel(t, 1)
		m, err := Open(ctx, dir, WithThreads(threads))
		require.NoError(t, err)
		defer m.Close()
		s := newTestSession(t, m, SessionOptions{})
		require.NoError(t, s.Prefill(ctx, randomTokens(30, 97, 1)))
		require.NoError(t, os.Truncate(filepath.Join(dir, "model.safetensors"), 8192))

		require.ErrorIs(t, s.Append(ctx, 1), weights.ErrChanged)
		require.ErrorIs(t, s.Prefill(ctx, randomTokens(30, 97, 2)), weights.ErrChanged)
		require.Equal(t, 30, s.Len())
		require.NotNil(t, s.Logits(), "what was computed before stays")
		f, err := s.Fork()
		require.NoError(t, err)
		require.NoError(t, f.Close())
		c := newTestSession(t, m, SessionOptions{Compression: policy})
		require.ErrorIs(t, c.Prefill(ctx, randomTokens(60, 97, 2)), weights.ErrChanged)
		require.Zero(t, c.Len())
		_, err = m.Digest(ctx)
		require.ErrorIs(t, err, weights.ErrChanged)
		require.Empty(t, m.ID())
	}
}

// TestDigest: the digest reveals a change of a single byte that the identity does not
// see, and a session of other weights is refused if both digests are known.
func TestDigest(t *testing.T) {
	ctx := context.Background()
	dir := writeModel(t, 1)
	open := func() *Model {
		m, err := Open(ctx, dir, WithThreads(1))
		require.NoError(t, err)
		t.Cleanup(func() { m.Close() })
		return m
	}
	m := open()
	digest, err := m.Digest(ctx)
	require.NoError(t, err)
	again, err := m.Digest(ctx)
	require.NoError(t, err)
	require.Equal(t, digest, again)
	s := newTestSession(t, m, SessionOptions{})
	require.NoError(t, s.Prefill(ctx, []int32{1, 2, 3}))
	path := filepath.Join(t.TempDir(), "session")
	require.NoError(t, s.Save(t.Context(), path))

	// One byte in the middle of a matrix, between the samples of the identity.
	file := filepath.Join(dir, "model.safetensors")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	text[len(text)/2+333] ^= 4
	require.NoError(t, os.WriteFile(file+".new", text, 0o600))
	require.NoError(t, os.Rename(file+".new", file))
	other := open()
	require.Equal(t, m.ID(), other.ID(), "the test's own premise")
	loaded, err := other.LoadSession(t.Context(), path, SessionOptions{})
	require.NoError(t, err, "nobody asked")
	require.NoError(t, loaded.Close())
	changed, err := other.Digest(ctx)
	require.NoError(t, err)
	require.NotEqual(t, digest, changed)
	_, err = other.LoadSession(t.Context(), path, SessionOptions{})
	require.ErrorIs(t, err, ErrWrongModel)

	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err = open().Digest(done)
	require.ErrorIs(t, err, context.Canceled)
}

// TestLogitsThatAreNoNumbers: damaged weights give an error that names where it
// shows first, and leave the session as it was.
func TestLogitsThatAreNoNumbers(t *testing.T) {
	ctx := context.Background()
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		for want, damage := range map[string]func(w *weights.Weights) tensor.Tensor{
			"first in the keys of layer 1":   func(w *weights.Weights) tensor.Tensor { return w.Layers[1].Tensors[arch.RoleK] },
			"first in the values of layer 2": func(w *weights.Weights) tensor.Tensor { return w.Layers[2].Tensors[arch.RoleV] },
			"after the attention of the last layer": func(w *weights.Weights) tensor.Tensor {
				return w.Layers[2].Tensors[arch.RoleDown]
			},
		} {
			for name, policy := range map[string]*lukv.Policy{"whole": nil, "compressed": {Metric: lukv.MetricConfig{Name: "knorm"}, Ratio: 0.5}} {
				cfg := testShapes[0].config()
				w := randomWeights(t, cfg, tensor.F32, 7)
				m, err := New(cfg, w, WithThreads(2))
				require.NoError(t, err)
				defer m.Close()
				s := newTestSession(t, m, SessionOptions{Compression: policy, CacheType: tensor.F32})
				good := newTestSession(t, m, SessionOptions{})
				require.NoError(t, good.Prefill(ctx, randomTokens(40, 97, 1)))
				binary.LittleEndian.PutUint32(damage(w).Data, math.Float32bits(bad))
				err = s.Prefill(ctx, randomTokens(40, 97, 1))
				require.ErrorIs(t, err, ErrNotFinite, name)
				require.ErrorContains(t, err, want, name)
				require.Zero(t, s.Len())
				require.ErrorIs(t, good.Append(ctx, 3), ErrNotFinite)
				require.Equal(t, 40, good.Len())
			}
		}
	}
}

// TestBounds: counts from outside are checked before memory is made for them.
func TestBounds(t *testing.T) {
	cfg := testShapes[0].config()
	_, err := New(cfg, randomWeights(t, cfg, tensor.BF16, 7), WithThreads(100_000))
	require.ErrorContains(t, err, "100000 threads, expected at most 1024")
	for n := range 3 {
		m := testShapes[0].open(t, WithThreads(1+n))
		require.Equal(t, 1+n, m.Threads())
	}
	m := testShapes[0].open(t)
	require.Equal(t, runtime.GOMAXPROCS(0), m.Threads(), "the default")
	for want, o := range map[string]SessionOptions{
		"chunks of 1000000000 tokens": {ChunkTokens: 1e9}, "at most 1000000000 tokens": {MaxTokens: 1e9},
		"2048 entries per page": {PageEntries: 2048}, "chunk tokens -1": {ChunkTokens: -1},
	} {
		_, err := m.NewSession(o)
		require.ErrorContains(t, err, want)
	}
}
