//go:build unix

package serve

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDocumentsAreFiles: a pipe, an endless device and a folder in place of a document's
// file are set aside, and the server starts.
func TestDocumentsAreFiles(t *testing.T) {
	dir := t.TempDir()
	name := func(i int) string { return filepath.Join(dir, fmt.Sprintf("all-doc_%024x.document", i)) }
	require.NoError(t, syscall.Mkfifo(name(0), 0o600))
	require.NoError(t, os.Symlink("/dev/zero", name(1)))
	require.NoError(t, os.Mkdir(name(2), 0o700))
	s := New(Options{})
	require.NoError(t, s.OpenStore(dir))
	for i := range 3 {
		_, err := os.Lstat(name(i))
		require.ErrorIs(t, err, fs.ErrNotExist)
		_, err = os.Lstat(name(i) + ".damaged")
		require.NoError(t, err)
	}
	_, err := os.Stat("/dev/zero")
	require.NoError(t, err)
}

// TestUnreadableDocumentStays: a file that cannot be read at the moment says nothing about
// the document, which is neither set aside nor silently missing.
func TestUnreadableDocumentStays(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, fmt.Sprintf("all-doc_%024x.document", 1))
	require.NoError(t, os.Symlink(name, name)) // a loop, so that opening it fails
	require.ErrorIs(t, New(Options{}).OpenStore(dir), syscall.ELOOP)
	_, err := os.Lstat(name)
	require.NoError(t, err)
}
