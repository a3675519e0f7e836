package model

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
)

// Hidden states after the last norm are those of the golden models, whatever the pieces of
// the prefill, beside other sessions or alone.
func TestHiddenStatesOfPrefills(t *testing.T) {
	dir, cases := goldenModels(t)
	tested := 0
	for _, c := range cases {
		if c.Debug == "" {
			continue
		}
		golden := references(t, filepath.Join(dir, c.Name, "golden.safetensors"))
		want := references(t, filepath.Join(dir, c.Name, c.Debug))["final_norm"]
		if want.floats == nil {
			continue
		}
		tested++
		m, err := Open(t.Context(), c.path(dir), WithPrecision(PrecisionF32))
		require.NoError(t, err, c.Name)
		tokens := golden["prompt48"].ints
		for _, piece := range []int{len(tokens), 5} {
			got, beside := make([]float32, 0, len(want.floats)), []float32(nil)
			s, p := startHidden(t, m, tokens, &got)
			other, q := startHidden(t, m, tokens[3:], &beside)
			for !p.Done() {
				parts := []Part{{Session: s, Prefill: p, N: min(piece, p.Remaining())}}
				if !q.Done() {
					parts = append(parts, Part{Session: other, Prefill: q, N: 1})
				}
				require.NoError(t, m.Pass(t.Context(), parts))
			}
			require.Less(t, testnum.Deviation(got, want.floats), 1e-5, c.Name)
			require.Nil(t, s.Logits())
			require.NoError(t, q.Close())
			require.NoError(t, errors.Join(s.Close(), other.Close()))
		}
		require.NoError(t, m.Close())
	}
	require.GreaterOrEqual(t, tested, 2)
}

func startHidden(t *testing.T, m *Model, tokens []int32, to *[]float32) (*Session, *PartialPrefill) {
	s, err := m.NewSession(SessionOptions{})
	require.NoError(t, err)
	p, err := s.StartPrefillHidden(tokens, func(_ int, state []float32) error {
		*to = append(*to, state...)
		return nil
	})
	require.NoError(t, err)
	return s, p
}

// An error of the callback ends the prefill; a session that has tokens is refused.
func TestHiddenStatesFail(t *testing.T) {
	dir, cases := goldenModels(t)
	m, err := Open(t.Context(), cases[0].path(dir))
	require.NoError(t, err)
	defer m.Close()
	s, err := m.NewSession(SessionOptions{})
	require.NoError(t, err)
	defer s.Close()
	enough := errors.New("enough")
	p, err := s.StartPrefillHidden([]int32{1, 2, 3}, func(i int, _ []float32) error { return enough })
	require.NoError(t, err)
	require.ErrorIs(t, p.Advance(context.Background(), 9), enough)
	require.NoError(t, s.Prefill(t.Context(), []int32{1, 2}))
	_, err = s.StartPrefillHidden([]int32{1}, func(int, []float32) error { return nil })
	require.ErrorContains(t, err, "empty session")
}

// The modules of sentence-transformers say how states become a vector.
func TestReadEmbedding(t *testing.T) {
	modules := func(names ...string) string {
		text := "["
		for i, n := range names {
			if i > 0 {
				text += ","
			}
			text += `{"idx":0,"name":"x","path":"` + map[string]string{"Pooling": "1_Pooling"}[n] + `","type":"sentence_transformers.models.` + n + `"}`
		}
		return text + "]"
	}
	last, mean := `{"pooling_mode_lasttoken":true,"pooling_mode_mean_tokens":false}`, `{"pooling_mode_mean_tokens":true}`
	for name, test := range map[string]struct {
		modules, pooling string
		want             Embedding
		err              string
	}{
		"last":      {modules("Transformer", "Pooling", "Normalize"), last, Embedding{PoolLast, true}, ""},
		"mean":      {modules("Transformer", "Pooling"), mean, Embedding{PoolMean, false}, ""},
		"cls":       {modules("Transformer", "Pooling"), `{"pooling_mode_cls_token":true}`, Embedding{}, "is not supported"},
		"two":       {modules("Transformer", "Pooling"), `{"pooling_mode_cls_token":true,"pooling_mode_mean_tokens":true}`, Embedding{}, "expected last or mean"},
		"none":      {modules("Transformer", "Pooling"), `{}`, Embedding{}, "expected last or mean"},
		"dense":     {modules("Transformer", "Pooling", "Dense"), last, Embedding{}, "models.Dense"},
		"no module": {"", last, Embedding{}, ErrNoEmbedding.Error()},
		"no JSON":   {"x", last, Embedding{}, "modules.json"},
		"outside":   {`[{"path":"../..","type":"a.Pooling"}]`, last, Embedding{}, "inside the checkpoint"},
		"no config": {`[{"path":"2_Pooling","type":"a.Pooling"}]`, last, Embedding{}, "2_Pooling/config.json"},
		"only half": {modules("Transformer"), last, Embedding{}, "no pooling"},
	} {
		files := fstest.MapFS{"1_Pooling/config.json": {Data: []byte(test.pooling)}}
		if test.modules != "" {
			files["modules.json"] = &fstest.MapFile{Data: []byte(test.modules)}
		}
		got, err := ReadEmbedding(files)
		if test.err != "" {
			require.ErrorContains(t, err, test.err, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, test.want, got, name)
	}
	_, err := ReadEmbedding(nil)
	require.ErrorIs(t, err, ErrNoEmbedding)
}
