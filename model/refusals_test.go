package model

import (
	"bytes"
	"math"
	"os"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tokenizer"
)

// TestFillIsBounded: more positions than there is room for are refused before memory is made.
func TestFillIsBounded(t *testing.T) {
	m := testShapes[0].open(t)
	s, err := m.NewSession(SessionOptions{})
	require.NoError(t, err)
	defer s.Close()
	most := m.Config().MaxPositions
	for _, n := range []int{math.MaxInt, math.MaxInt32, most + 1} {
		require.ErrorIs(t, s.FillRandom(n, 1), ErrContextFull, "%d", n)
		require.Zero(t, s.Len())
	}
	for _, n := range []int{0, -1, math.MinInt} {
		require.ErrorContains(t, s.FillRandom(n, 1), "expected at least 1")
		require.Zero(t, s.Len())
	}
	require.NoError(t, s.FillRandom(10, 1))
	require.ErrorIs(t, s.FillRandom(most-9, 1), ErrContextFull)
	require.NoError(t, s.FillRandom(most-10, 1))
	require.Equal(t, most, s.Len())
}

// TestSessionOfAnotherPrecision: a session saved in one precision is refused in another, by
// every way of loading, and both are named.
func TestSessionOfAnotherPrecision(t *testing.T) {
	shape := testShapes[0]
	saved := map[Precision][]byte{}
	for _, p := range []Precision{PrecisionBF16, PrecisionF32} {
		s, err := shape.open(t, WithPrecision(p)).NewSession(SessionOptions{})
		require.NoError(t, err)
		require.NoError(t, s.Prefill(t.Context(), []int32{1, 2, 3}))
		var file bytes.Buffer
		require.NoError(t, s.SaveTo(t.Context(), &file, ""))
		require.NoError(t, s.Close())
		saved[p] = file.Bytes()
	}
	for _, p := range []Precision{PrecisionBF16, PrecisionF32} {
		m := shape.open(t, WithPrecision(p))
		for from, file := range saved {
			size := int64(len(file))
			info, err := ReadSessionInfo("file", bytes.NewReader(file), size)
			require.NoError(t, err)
			require.Equal(t, from, info.Precision)
			path := t.TempDir() + "/file"
			require.NoError(t, os.WriteFile(path, file, 0o600))
			for name, load := range map[string]func() (*Session, error){
				"from a reader": func() (*Session, error) {
					return m.LoadSessionFrom(t.Context(), "file", bytes.NewReader(file), size, SessionOptions{})
				},
				"from a file": func() (*Session, error) { return m.LoadSession(t.Context(), path, SessionOptions{}) },
				"with a prefill": func() (*Session, error) {
					return m.LoadAndPrefill(t.Context(), "file", bytes.NewReader(file), size, SessionOptions{}, []int32{4})
				},
			} {
				s, err := load()
				if from == p {
					require.NoError(t, err, name)
					require.NoError(t, s.Close())
					continue
				}
				require.ErrorIs(t, err, ErrWrongModel, name)
				require.ErrorContains(t, err, "computed in "+string(from), name)
				require.ErrorContains(t, err, "computes in "+string(p), name)
			}
		}
	}
}

// TestTokensAroundTexts: a tokenizer that puts tokens around texts which the model does not
// have is refused when it is loaded.
func TestTokensAroundTexts(t *testing.T) {
	for name, post := range map[string]string{
		"a template":      `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"x":{"id":"x","ids":[7],"tokens":["x"]}}}`,
		"after the text":  `{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"x","type_id":0}}],"pair":[],"special_tokens":{"x":{"id":"x","ids":[7],"tokens":["x"]}}}`,
		"BERT's":          `{"type":"BertProcessing","sep":["x",7],"cls":["a",0]}`,
		"within a chain":  `{"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"RobertaProcessing","sep":["a",0],"cls":["x",7]}]}`,
		"none at the end": ``,
	} {
		if post == "" {
			post = "null"
		}
		tok, err := tokenizer.Load(fstest.MapFS{"tokenizer.json": {Data: []byte(`{"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]},"added_tokens":[],"pre_tokenizer":null,"normalizer":null,"decoder":null,"post_processor":` + post + `}`)}})
		require.NoError(t, err, name)
		m := &Model{cfg: &Config{Vocab: 7}}
		if post == "null" {
			require.NoError(t, m.checkAround(tok), name)
			continue
		}
		require.ErrorContains(t, m.checkAround(tok), "found token 7 around texts, expected one of the model's vocabulary of 7", name)
		m.cfg.Vocab = 8
		require.NoError(t, m.checkAround(tok), name)
	}
}
