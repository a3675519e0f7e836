package checkpoint

import (
	"bytes"
	"io/fs"
	"time"

	"github.com/lukv/lukv/tokenizer"
)

// folder is a file system of files in memory, without further folders, that may have a
// tokenizer in place of its files.
type folder struct {
	texts     map[string][]byte
	tokenizer func() (*tokenizer.Tokenizer, error) // nil: in the files
}

func (f folder) Tokenizer() (*tokenizer.Tokenizer, error) {
	if f.tokenizer == nil {
		return nil, nil
	}
	return f.tokenizer()
}

func (f folder) Open(name string) (fs.File, error) {
	text, ok := f.texts[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &openFile{bytes.NewReader(text), info{name, int64(len(text))}}, nil
}

func (f folder) ReadFile(name string) ([]byte, error) {
	text, ok := f.texts[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return bytes.Clone(text), nil
}

// openFile is an open file of a folder.
type openFile struct {
	*bytes.Reader
	info info
}

func (f *openFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *openFile) Close() error               { return nil }

// info describes a file.
type info struct {
	name string
	size int64
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) Mode() fs.FileMode  { return 0o444 }
func (i info) ModTime() time.Time { return time.Time{} }
func (i info) IsDir() bool        { return false }
func (i info) Sys() any           { return nil }
