package filelock

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTry(t *testing.T) {
	switch runtime.GOOS {
	case "darwin", "dragonfly", "freebsd", "linux", "netbsd", "openbsd", "windows":
	default:
		t.Skip("no locks on this system")
	}
	path := filepath.Join(t.TempDir(), "file")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	try := func(f *os.File) bool {
		ok, err := Try(f)
		require.NoError(t, err)
		return ok
	}
	first, second := open(), open()
	require.True(t, try(first))
	require.False(t, try(second), "one at a time")
	require.NoError(t, first.Close())
	require.True(t, try(second), "the lock ends with the file")
}
