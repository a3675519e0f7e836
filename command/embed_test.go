package command

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model/builtin"
)

// Vectors are those of the texts, whether these are arguments or lines; what the checkpoint
// says applies unless flags say otherwise.
func TestEmbed(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, builtin.Files()))
	code, _, msg := invoke(t, "", "embed", dir, "a text")
	require.Equal(t, exitUsage, code)
	require.Contains(t, msg, "--pooling")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "1_Pooling"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "modules.json"), []byte(`[{"path":"1_Pooling","type":"x.Pooling"}]`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "1_Pooling", "config.json"), []byte(`{"pooling_mode_mean_tokens":true}`), 0o600))
	lines := ok(t, "embed", dir, "a text", "another")
	code, fromInput, msg := invoke(t, "a text\r\nanother\n", "embed", dir)
	require.Equal(t, exitOK, code, msg)
	require.Equal(t, lines, fromInput)
	first, second, _ := strings.Cut(strings.TrimSpace(lines), "\n")
	require.NotEqual(t, first, second)
	require.Equal(t, first+"\n", ok(t, "embed", builtin.Name, "--pooling", "mean", "--no-normalize", "a text"))
	require.NotEqual(t, first+"\n", ok(t, "embed", dir, "--normalize", "a text"))
	var out struct {
		Format, Pooling string
		Normalized      bool
		Dimensions      int
		Texts           []embeddedText
	}
	require.NoError(t, json.Unmarshal([]byte(ok(t, "embed", dir, "--pooling", "last", "--dimensions", "3", "--json", "a text")), &out))
	require.Equal(t, "lukv embed 1", out.Format)
	require.Equal(t, "last", out.Pooling)
	require.True(t, out.Normalized)
	require.Len(t, out.Texts[0].Embedding, 3)
	for _, args := range [][]string{{"--dimensions", "-1"}, {"--dimensions", "100000"}, {""}} {
		code, _, msg := invoke(t, "", append([]string{"embed", dir}, append(args, "x")...)...)
		require.Equal(t, exitUsage, code, msg)
	}
}
