package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/bench"
	"github.com/lukv/lukv/internal/testctx"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
)

func quick() settings {
	return settings{reps: 2, threads: 1, batch: 1, tokens: 4, weights: tensor.BF16, progress: func(string) {}}
}

// A start is measured warm and, where the system drops file pages, cold; temporary
// checkpoints are removed.
func TestStart(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s := quick()
	x, err := s.start(t.Context(), "150m:1")
	require.NoError(t, err)
	st := x.(Start)
	assert.Positive(t, st.Warm)
	assert.Len(t, st.WarmSamples, s.reps)
	assert.Greater(t, st.Bytes, int64(20e6))
	assert.Equal(t, st.Cold > 0, len(st.ColdSamples) == s.reps)
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	assert.Empty(t, left)

	_, err = s.start(t.Context(), filepath.Join(t.TempDir(), "none"))
	require.ErrorContains(t, err, "shape")
	_, err = s.start(t.Context(), t.TempDir())
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "to the first token")
}

// A written config is equivalent to the shape's.
func TestWrittenConfig(t *testing.T) {
	for _, name := range arch.Shapes() {
		cfg, err := arch.ShapeConfig(name)
		require.NoError(t, err)
		text, err := configJSON(cfg)
		if !slices.Contains(plain, cfg.Arch) {
			require.ErrorContains(t, err, cfg.Arch)
			continue
		}
		require.NoError(t, err)
		back, err := arch.Parse(text)
		require.NoError(t, err)
		back.Generation = cfg.Generation // a shape has none
		assert.Equal(t, cfg, back, name)
	}
	s := quick()
	_, err := s.write(t.Context(), "llama-9", t.TempDir())
	require.ErrorContains(t, err, "llama-9")
}

// Written weights are those that shapes have in memory.
func TestWrittenWeights(t *testing.T) {
	cfg, err := bench.ShapeConfig("150m:1")
	require.NoError(t, err)
	cfg.Vocab = 300
	for _, typ := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
		dir := t.TempDir()
		require.NoError(t, writeCheckpoint(t.Context(), dir, cfg, typ))
		disk, err := model.Open(t.Context(), dir, model.WithThreads(1))
		require.NoError(t, err)
		defer disk.Close()
		memory, err := bench.Random("small", cfg, typ).Open(t.Context(), model.WithThreads(1))
		require.NoError(t, err)
		defer memory.Close()
		assert.Equal(t, memory.Config().Type, disk.Config().Type)
		assert.Equal(t, memory.WeightBytes(), disk.WeightBytes())
		var logits [2][]float32
		for i, m := range []*model.Model{disk, memory} {
			session, err := m.NewSession(model.SessionOptions{MaxTokens: 8})
			require.NoError(t, err)
			defer session.Close()
			require.NoError(t, session.Prefill(t.Context(), []int32{1, 2, 3}))
			logits[i] = session.Logits()
		}
		assert.Equal(t, logits[1], logits[0])
	}
}

func TestDropPages(t *testing.T) {
	dir := t.TempDir()
	if runtime.GOOS != "linux" {
		assert.False(t, dropPages(dir))
		return
	}
	path := filepath.Join(dir, "x")
	require.NoError(t, os.WriteFile(path, make([]byte, 8<<20), 0o600))
	// Whether the system drops the pages depends on the file system, so the result
	// is only logged.
	t.Log("pages dropped:", dropPages(dir))
	assert.False(t, dropPages(filepath.Join(dir, "none")))
}

// Making random weights ends with its context.
func TestWeightsAreInterrupted(t *testing.T) {
	s := quick()
	ctx := testctx.DoneAfter(t.Context(), 4)
	_, err := s.write(ctx, "llama-3.2-1b", t.TempDir())
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, ctx.Looks(), 2000, "asked again and again")
}

// Sampling is measured for every setting, as a share of a step.
func TestDraw(t *testing.T) {
	s := quick()
	s.batch = 2
	x, err := s.draw(t.Context(), "150m:1")
	require.NoError(t, err)
	list := x.(map[string]any)["drawing"].([]Drawing)
	require.Len(t, list, 3)
	assert.Equal(t, "greedy", list[0].Settings)
	for _, d := range list {
		assert.Positive(t, d.Seconds)
		assert.Positive(t, d.Share)
		assert.Less(t, d.Share, 1.0)
	}
}

func TestRefuses(t *testing.T) {
	for _, args := range [][]string{
		nil, {"start"}, {"fly", "150m"}, {"write", "150m"}, {"start", "150m", "more"}, {"-reps", "0", "start", "150m"},
		{"-threads", "-1", "start", "150m"}, {"-weights", "int4", "start", "150m"}, {"-busy", "-1", "busy", "150m"},
	} {
		require.Error(t, run(t.Context(), args, os.Stdin, os.Stdout, os.Stderr), args)
	}
}
