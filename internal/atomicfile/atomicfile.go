package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write calls write with a new file beside path and renames that to path when
// it is complete, replacing an older file. On failure nothing is left behind
// and an older file stays. The file has the permissions perm.
func Write(path string, perm fs.FileMode, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) { // the name that was asked for says more
			err = fmt.Errorf("create %s: %w", path, pathErr.Err)
		}
		return err
	}
	defer func() {
		if err != nil {
			f.Close() // closed already if the rename failed
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Chmod(perm); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
