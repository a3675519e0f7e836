// Package testgz reads test data that may be stored compressed: NAME.gz beside, or
// instead of, NAME.
package testgz

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// ReadFile returns the content of the file name or, if there is none, of name.gz unpacked.
func ReadFile(name string) ([]byte, error) {
	return fs.ReadFile(FS{os.DirFS(filepath.Dir(name))}, filepath.Base(name))
}

// FS is a file system in which NAME.gz also appears, unpacked, as NAME.
type FS struct{ fs.FS }

// Open opens name or, if it does not exist, name.gz unpacked.
func (f FS) Open(name string) (fs.File, error) {
	plain, err := f.FS.Open(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return plain, err
	}
	packed, packedErr := f.FS.Open(name + ".gz")
	if packedErr != nil {
		return nil, err
	}
	defer packed.Close()
	r, err := gzip.NewReader(packed)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	info, err := packed.Stat()
	if err != nil {
		return nil, err
	}
	return &file{bytes.NewReader(data), sized{info, int64(len(data))}}, nil
}

// file is an unpacked file in memory.
type file struct {
	*bytes.Reader
	info fs.FileInfo
}

func (f *file) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *file) Close() error               { return nil }

// sized is the information about a compressed file with the size of what it holds.
type sized struct {
	fs.FileInfo
	n int64
}

func (s sized) Size() int64 { return s.n }
