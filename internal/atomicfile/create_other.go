//go:build !linux

package atomicfile

import (
	"io/fs"
	"os"
)

func create(path string, perm fs.FileMode) (*os.File, func(string) error, error) {
	return named(path, perm)
}
