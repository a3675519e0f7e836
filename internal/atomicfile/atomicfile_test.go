package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	text := func(s string, err error) func(io.Writer) error {
		return func(w io.Writer) error {
			io.WriteString(w, s)
			return err
		}
	}
	require.NoError(t, Write(path, 0o600, text("old", nil)))
	broken := errors.New("broken")
	require.ErrorIs(t, Write(path, 0o600, text("half", broken)), broken)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(got))
	require.NoError(t, Write(path, 0o600, text("new", nil)))
	got, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "new", string(got))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing left behind")
	missing := filepath.Join(dir, "no", "x")
	require.ErrorContains(t, Write(missing, 0o600, text("", nil)), missing)
}
