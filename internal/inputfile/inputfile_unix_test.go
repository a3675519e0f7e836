//go:build unix

package inputfile

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
)

// within fails the test if f blocks.
func within(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("waits")
	}
}

// TestOtherKinds puts other kinds of file in place of a regular one, for each way to read it.
func TestOtherKinds(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, syscall.Mkfifo(filepath.Join(folder, "pipe"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(folder, "folder"), 0o700))
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(folder, "device")))
	socket, err := net.Listen("unix", filepath.Join(folder, "socket"))
	require.NoError(t, err)
	defer socket.Close()
	for name, kind := range map[string]string{"pipe": "a named pipe", "folder": "a directory", "device": "a device", "socket": "a socket"} {
		for how, read := range map[string]func() ([]byte, error){
			"Read":   func() ([]byte, error) { return Read(filepath.Join(folder, name), 100) },
			"DirFS":  func() ([]byte, error) { return ReadFS(os.DirFS(folder), name, 100) },
			"Dir":    func() ([]byte, error) { return ReadFS(Dir(folder), name, 100) },
			"fs.Dir": func() ([]byte, error) { _, err := Dir(folder).Open(name); return nil, err },
		} {
			if how == "fs.Dir" && name == "folder" {
				continue // a file system opens folders
			}
			t.Run(how+" "+name, func(t *testing.T) {
				within(t, func() {
					_, err := read()
					require.ErrorIs(t, err, errNotRegular)
					require.ErrorContains(t, err, name)
					require.ErrorContains(t, err, "found "+kind+", expected a file")
				})
			})
		}
	}
}

// TestDir holds the file system to its contract.
func TestDir(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "a", "b"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "a", "x"), []byte("one"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "y"), nil, 0o600))
	require.NoError(t, fstest.TestFS(Dir(folder), "a/x", "y"))
}
