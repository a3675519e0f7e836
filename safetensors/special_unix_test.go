//go:build unix

package safetensors

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOnlyRegularFiles puts a pipe, a device and a directory in place of weights and
// index: they are rejected at once, whereas reading could block or never end.
func TestOnlyRegularFiles(t *testing.T) {
	for what, make := range map[string]func(path string) error{
		"a special file":          func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a special file (device)": func(path string) error { return os.Symlink("/dev/zero", path) },
		"a directory":             func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		for _, name := range []string{SingleName, IndexName} {
			t.Run(what+" as "+name, func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, name)
				require.NoError(t, make(path))
				_, err := OpenCheckpoint(dir)
				require.ErrorContains(t, err, "expected a regular file")
				require.ErrorContains(t, err, path)
				_, err = Open(path)
				require.ErrorContains(t, err, "expected a regular file")
			})
		}
	}
}
