package builtin

import (
	"encoding/json"
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
)

// TestEndToken: where no config names the end token, that of tokenizer_config.json ends an
// answer.
func TestEndToken(t *testing.T) {
	folder := fstest.MapFS{}
	for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"} {
		data, err := fs.ReadFile(files, name)
		require.NoError(t, err)
		folder[name] = &fstest.MapFile{Data: data}
	}
	var config map[string]any
	require.NoError(t, json.Unmarshal(folder["config.json"].Data, &config))
	delete(config, "eos_token_id")
	data, err := json.Marshal(config)
	require.NoError(t, err)
	folder["config.json"].Data = data

	m, err := model.OpenFS(t.Context(), folder)
	require.NoError(t, err)
	defer m.Close()
	require.Empty(t, m.Config().EOS)
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	s, err := m.NewSession(model.SessionOptions{})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Prefill(t.Context(), tok.Encode("Who is it?", tokenizer.EncodeOptions{})))
	n := 0
	for _, err := range s.Generate(t.Context(), model.Sampling{MaxTokens: 5, LogitBias: map[int32]float64{tok.EOS(): 100}}) {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, model.FinishStop, s.FinishReason())
	require.LessOrEqual(t, n, 1)
}
