package convert

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tensor"
)

// TestFilesAreClosed: after a conversion, and after one that fails, none of its files is open
// or mapped.
func TestFilesAreClosed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "source.gguf")
	f := embedded(t)
	convert := func(out string) error {
		require.NoError(t, os.WriteFile(path, f.bytes(t), 0o600))
		_, err := GGUF(t.Context(), path, filepath.Join(dir, out), Options{Type: tensor.BF16})
		return err
	}
	check := func() {
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		for line := range strings.Lines(string(maps)) {
			require.NotContains(t, line, dir)
		}
		open, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		for _, fd := range open {
			target, _ := os.Readlink("/proc/self/fd/" + fd.Name()) // gone, if it was that of the list
			require.NotContains(t, target, dir)
		}
	}
	require.NoError(t, convert("out"))
	check()
	copy(f.tensors[len(f.tensors)-1].data, []byte{0, 0, 0xc0, 0x7f}) // not a number
	require.ErrorContains(t, convert("failed"), "expected a finite number")
	check()
}
