package bench

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testctx"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tensor"
)

func TestStart(t *testing.T) {
	temp := t.TempDir()
	o := quick()
	o.Start = true
	r, err := Run(t.Context(), []*Source{written("tiny", tiny(0), tensor.F32, temp)}, o)
	require.NoError(t, err)
	require.Empty(t, r.Points, "nothing else was asked for")
	require.Len(t, r.Starts, 1)
	st := r.Starts[0]
	assert.Positive(t, st.Warm)
	assert.Len(t, st.WarmSamples, o.Reps)
	assert.Greater(t, st.Bytes, int64(4*2*300*64))
	assert.Equal(t, st.Cold > 0, len(st.ColdSamples) == o.Reps)
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	assert.Empty(t, left, "the checkpoint is removed")

	// The memory of a mapped model; without --start, there is no cold start.
	o = quick()
	o.Prefill, o.Decode = []int{300}, []int{3}
	s := written("tiny", tiny(0), tensor.BF16, temp)
	dir, err := s.folder(t.Context())
	require.NoError(t, err)
	defer s.release()
	r, err = Run(t.Context(), []*Source{Folder("disk", dir)}, o)
	require.NoError(t, err)
	require.Len(t, r.Starts, 1)
	assert.Zero(t, r.Starts[0].Cold)
	require.Len(t, r.Points, 2)
	if runtime.GOOS == "linux" {
		for _, p := range r.Points {
			assert.Positive(t, p.PrivateBytes, p.Key)
			assert.Positive(t, p.PrivatePeakBytes, p.Key)
		}
	}

	_, err = Run(t.Context(), []*Source{Folder("none", filepath.Join(temp, "none"))}, o)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "none to the first token")
}

// A written config says what the shape says.
func TestWrittenConfig(t *testing.T) {
	for _, name := range model.Shapes() {
		cfg, err := model.ShapeConfig(name)
		require.NoError(t, err)
		text, err := configJSON(cfg)
		require.NoError(t, err)
		back, err := model.ParseConfig(text)
		require.NoError(t, err)
		back.Generation = cfg.Generation // a shape has none
		assert.Equal(t, cfg, back, name)
	}
	_, err := Written("llama-9", tensor.BF16, "")
	require.ErrorContains(t, err, "llama-9")
}

// Written weights are the random ones.
func TestWrittenWeights(t *testing.T) {
	for _, typ := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
		cfg := tiny(0)
		s := written("tiny", cfg, typ, t.TempDir())
		defer s.release()
		disk, err := s.open(t.Context())
		require.NoError(t, err)
		defer disk.Close()
		memory, err := Random("tiny", cfg, typ).open(t.Context())
		require.NoError(t, err)
		defer memory.Close()
		assert.Equal(t, memory.Config().Type, disk.Config().Type)
		assert.Equal(t, memory.WeightBytes(), disk.WeightBytes())
		var logits [2][]float32
		for i, m := range []*model.Model{disk, memory} {
			session, err := m.NewSession(model.SessionOptions{})
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

// TestWeightsAreInterrupted: making random weights ends with its context.
func TestWeightsAreInterrupted(t *testing.T) {
	for _, make := range []func(string, tensor.Type) (*Source, error){
		Shape, func(name string, typ tensor.Type) (*Source, error) { return Written(name, typ, t.TempDir()) },
	} {
		s, err := make("llama-3.2-1b", tensor.BF16)
		require.NoError(t, err)
		ctx := testctx.DoneAfter(t.Context(), 4)
		_, err = s.open(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.Less(t, ctx.Looks(), 2000, "asked again and again")
	}
}
