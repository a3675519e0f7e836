package serve

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
)

// embedder serves the embedded model as one of embeddings: the last token's, normalised.
func embedder(t testing.TB) *testServer {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, builtin.Files()))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "1_Pooling"), 0o700))
	for name, text := range map[string]string{
		"modules.json":          `[{"path":"","type":"s.Transformer"},{"path":"1_Pooling","type":"s.Pooling"},{"path":"2_Normalize","type":"s.Normalize"}]`,
		"1_Pooling/config.json": `{"pooling_mode_lasttoken":true}`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	m, err := model.Open(t.Context(), dir)
	require.NoError(t, err)
	return serveModel(t, m, Options{}, engine.Options{})
}

// embeddings asks for embeddings and returns the answer.
func (ts *testServer) embeddings(t *testing.T, body object) (out struct {
	Data []struct {
		Index  int
		Vector json.RawMessage `json:"embedding"`
	}
	Usage embeddingUsage
}) {
	ts.post(t, "/v1/embeddings", body, &out)
	return out
}

// Texts, tokens, one or several, as numbers or base64, give the same vectors, of length 1.
func TestEmbeddings(t *testing.T) {
	ts := embedder(t)
	v := ts.s.models.find("needle/llama").loaded
	ids := v.tok.Encode("The mill stands still.", tokenizer.EncodeOptions{AddSpecial: true})
	one := ts.embeddings(t, object{"model": "needle/llama", "input": "The mill stands still."})
	require.Equal(t, embeddingUsage{len(ids), len(ids)}, one.Usage)
	var vector []float32
	require.NoError(t, json.Unmarshal(one.Data[0].Vector, &vector))
	require.Len(t, vector, v.m.Config().Hidden)
	require.InDelta(t, 1, norm(vector), 1e-6)
	several := ts.embeddings(t, object{"model": "needle/llama", "input": []string{"Something else.", "The mill stands still."}})
	require.Equal(t, 1, several.Data[1].Index)
	require.JSONEq(t, string(one.Data[0].Vector), string(several.Data[1].Vector))
	require.NotEqual(t, string(one.Data[0].Vector), string(several.Data[0].Vector))
	tokens := ts.embeddings(t, object{"model": "needle/llama", "input": ids})
	require.JSONEq(t, string(one.Data[0].Vector), string(tokens.Data[0].Vector))
	lists := ts.embeddings(t, object{"model": "needle/llama", "input": [][]int32{ids, ids}, "encoding_format": "base64"})
	var text string
	require.NoError(t, json.Unmarshal(lists.Data[1].Vector, &text))
	raw, err := base64.StdEncoding.DecodeString(text)
	require.NoError(t, err)
	for i, x := range vector {
		require.Equal(t, math.Float32bits(x), binary.LittleEndian.Uint32(raw[4*i:]))
	}
	short := ts.embeddings(t, object{"model": "needle/llama", "input": ids, "dimensions": 5})
	var cut []float32
	require.NoError(t, json.Unmarshal(short.Data[0].Vector, &cut))
	require.Len(t, cut, 5)
	require.InDelta(t, 1, norm(cut), 1e-6)
	require.InDelta(t, float64(vector[1]/vector[0]), float64(cut[1]/cut[0]), 1e-4)
}

func norm(x []float32) (sum float64) {
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum)
}

// What cannot be is refused by the field's name.
func TestEmbeddingsRefused(t *testing.T) {
	ts := embedder(t)
	hidden := ts.s.models.find("needle/llama").loaded.m.Config().Hidden
	long := make([]int32, 3000)
	for want, body := range map[string]object{
		"input is missing":   {"model": "needle/llama"},
		"model is missing":   {"input": "x"},
		"input: found an em": {"model": "needle/llama", "input": []string{}},
		"encoding_format":    {"model": "needle/llama", "input": "x", "encoding_format": "hex"},
		"dimensions: found":  {"model": "needle/llama", "input": "x", "dimensions": hidden + 1},
		"dimensions":         {"model": "needle/llama", "input": "x", "dimensions": 0},
		"maximum context":    {"model": "needle/llama", "input": long},
		"input: found a n":   {"model": "needle/llama", "input": 5},
	} {
		data, err := json.Marshal(body)
		require.NoError(t, err)
		status, text, _ := ts.do(t, "POST", "/v1/embeddings", string(data))
		require.Equal(t, http.StatusBadRequest, status, text)
		require.Contains(t, text, want)
	}
	plain := start(t, Options{}, engine.Options{})
	status, text, _ := plain.do(t, "POST", "/v1/embeddings", `{"model":"needle/llama","input":"x"}`)
	require.Equal(t, http.StatusNotImplemented, status)
	require.Contains(t, text, "has no embeddings")
}
