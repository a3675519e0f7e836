package command

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The results of conversions are tested next to their code, on whole models.
func TestConvertRefuses(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	fails(t, exitUsage, "builtin is inside the program", "convert", "builtin", out)
	fails(t, exitFailed, "none.gguf", "convert", filepath.Join(dir, "none.gguf"), out)
	bad := filepath.Join(dir, "bad.gguf")
	require.NoError(t, os.WriteFile(bad, []byte("GGML, an older format"), 0o600))
	fails(t, exitFailed, "expected at least 24", "convert", bad, out)
	fails(t, exitUsage, "--shard-size", "convert", bad, out, "--shard-size", "0")
	// The format's own example contains no model.
	fails(t, exitFailed, "llama.embedding_length", "convert", "../gguf/testdata/gguf/model.gguf", out, "--json")
	example, err := os.ReadFile("../gguf/testdata/gguf/model.gguf")
	require.NoError(t, err)
	other := filepath.Join(dir, "other.gguf")
	require.NoError(t, os.WriteFile(other, bytes.ReplaceAll(example, []byte("llama"), []byte("mamba")), 0o600))
	fails(t, exitRefused, "mamba", "convert", other, out)
	holds(t, dir, "bad.gguf", "other.gguf")
}
