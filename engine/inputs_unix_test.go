//go:build unix

package engine

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
)

// TestStoredFilesAreFiles: a pipe, an endless device and a folder in place of a stored
// prefix are not files of the store, and are removed.
func TestStoredFilesAreFiles(t *testing.T) {
	m := openModel(t)
	dir := t.TempDir()
	d, err := openDisk(dir, 0, m, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	name := func(i int) string { return filepath.Join(d.dir, fmt.Sprintf("%032x.session", i)) }
	require.NoError(t, syscall.Mkfifo(name(0), 0o600))
	require.NoError(t, os.Symlink("/dev/zero", name(1)))
	require.NoError(t, os.Mkdir(name(2), 0o700))
	d.close()
	d, err = openDisk(dir, 0, m, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer d.close()
	require.Empty(t, d.files)
	require.Empty(t, stores(t, dir))
	_, err = os.Stat("/dev/zero")
	require.NoError(t, err)

	// A pipe that replaces a file later.
	require.NoError(t, syscall.Mkfifo(name(3), 0o600))
	_, _, err = d.read(t.Context(), &stored{name: filepath.Base(name(3))}, m, model.SessionOptions{}, nil)
	require.ErrorContains(t, err, "found a named pipe, expected a file")
}
