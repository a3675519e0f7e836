package inputfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestSize(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte("12345"), 0o600))
	for _, read := range []func(limit int64) ([]byte, error){
		func(limit int64) ([]byte, error) { return Read(name, limit) },
		func(limit int64) ([]byte, error) { return ReadFS(Dir(filepath.Dir(name)), "file", limit) },
		func(limit int64) ([]byte, error) {
			return ReadFS(fstest.MapFS{"file": {Data: []byte("12345")}}, "file", limit)
		},
	} {
		data, err := read(5)
		require.NoError(t, err)
		require.Equal(t, "12345", string(data))
		_, err = read(4)
		require.ErrorContains(t, err, "file: longer than 4 bytes")
	}
}

func TestMissing(t *testing.T) {
	folder := t.TempDir()
	_, err := Read(filepath.Join(folder, "none"), 1)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = ReadFS(Dir(folder), "none", 1)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = Dir(folder).Open("../none")
	require.ErrorIs(t, err, fs.ErrInvalid)
}
