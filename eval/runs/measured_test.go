package runs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReadMeasured(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	settings := `{"model":"m","precision":"bf16","cache_type":"auto","data":[{"name":"q"}]}`
	items := write("items.jsonl", `{"format":"lukv answers 2","settings_hash":"h","settings":`+settings+"}\n"+`{"item":0,"task":"t","method":"full","score":1}`+"\n")
	kl := write("kl.json", `{"format":"lukv eval divergence 1","settings":`+settings+`,"items":[{"item":3,"task":"t","method":"a/b/0.5","kl":0.25}]}`)
	out := folder(t, answers(map[string]int{"full": 3}, 3))
	all, err := ReadMeasured(items, kl, out)
	require.NoError(t, err)
	assert.Equal(t, Settings{Model: "m", Cache: "bf16", From: "bf16", Data: []byte(`[{"name":"q"}]`)}, all[0].Settings)
	assert.Len(t, all[0].Answers, 1)
	assert.Empty(t, all[0].Divergences)
	assert.Equal(t, all[0].Settings, all[1].Settings)
	assert.Empty(t, all[1].Answers)
	assert.Equal(t, 0.25, all[1].Divergences[0].KL)
	assert.Equal(t, 3, all[1].Divergences[0].Item)
	assert.Len(t, all[2].Answers, 6)
	assert.Equal(t, "f32", settingsOf([]byte(`{"precision":"f32","cache_type":"auto"}`)).Cache)
	assert.Equal(t, "int8", settingsOf([]byte(`{"precision":"f32","cache_type":"int8"}`)).Cache)

	assert.Equal(t, "bf16", settingsOf([]byte(`{"cache_type":"int8","reference_cache":"bf16"}`)).From)
	assert.Equal(t, "int8 of other", settingsOf([]byte(`{"model":"m","cache_type":"int8","reference_model":"other"}`)).From)

	for _, bad := range []string{
		write("empty.json", `{"format":"lukv eval divergence 1","items":[]}`), write("cut.json", `{"format":"lukv eval divergence 1","items":[{"item":`),
		write("not.json", `[]`), write("nothing", ""), filepath.Join(dir, "missing"),
	} {
		_, err := ReadMeasured(bad)
		assert.ErrorContains(t, err, "read run "+bad)
	}
}
