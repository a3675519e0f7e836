package command

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSizeOnDisk: a GGUF file counts under any name, as one of ollama's has no extension.
func TestSizeOnDisk(t *testing.T) {
	const file = "../model/testdata/gguf/qwen3-q4_0"
	paths, err := filepath.Glob(file + "/*.gguf")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	data, err := os.ReadFile(paths[0])
	require.NoError(t, err)
	plain := filepath.Join(t.TempDir(), "sha256-0")
	require.NoError(t, os.WriteFile(plain, data, 0o600))
	for _, path := range []string{paths[0], plain} {
		n, err := sizeOnDisk(path)
		require.NoError(t, err)
		require.EqualValues(t, len(data), n, path)
	}
}
