// Package inputfile opens untrusted files: only regular files, up to a given
// size. A pipe, a device, a socket or a folder in place of a file is reported as
// such in an error; it never blocks or yields endless data.
package inputfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Open opens a regular file for reading, without blocking. It checks the kind of
// file after opening it, so that nothing can take its place in between.
func Open(name string) (*os.File, error) {
	f, _, err := open(name)
	return f, err
}

// OpenSized is like Open, but also returns the size of the file in bytes.
func OpenSized(name string) (*os.File, int64, error) {
	f, info, err := open(name)
	if err != nil {
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func open(name string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		// A socket cannot be opened at all; its kind says more than the error.
		if info, statErr := os.Stat(name); statErr == nil && info.Mode()&fs.ModeSocket != 0 {
			err = regular(name, info)
		}
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = regular(name, info)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// Read returns the contents of a regular file of at most limit bytes.
func Read(name string, limit int64) ([]byte, error) {
	f, size, err := OpenSized(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, name, size, limit)
}

// ReadFS is like Read, but for a file in any file system. It checks the kind of
// file before opening it as well; with a file system of package os, another file
// can take its place in between, with [Dir] it cannot.
func ReadFS(fsys fs.FS, name string, limit int64) ([]byte, error) {
	info, err := fs.Stat(fsys, name)
	if err == nil {
		err = regular(name, info)
	}
	if err != nil {
		return nil, err
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err == nil {
		err = regular(name, info)
	}
	if err != nil {
		return nil, err
	}
	return readAll(f, name, info.Size(), limit)
}

// readAll reads f to its end. It does not trust the claimed size: that only
// determines the initial buffer, so that most files are read in one piece.
func readAll(f io.Reader, name string, claimed, limit int64) ([]byte, error) {
	var data bytes.Buffer
	// A buffer with less than MinRead left grows even at the end of the file.
	data.Grow(int(max(0, min(claimed, limit))) + bytes.MinRead)
	if _, err := data.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(data.Len()) > limit {
		return nil, fmt.Errorf("read %s: longer than %d bytes", name, limit)
	}
	return data.Bytes(), nil
}

// errNotRegular is what errors about other kinds of file are.
var errNotRegular = errors.New("not a regular file")

// notRegular names another kind of file.
type notRegular string

func (kind notRegular) Error() string        { return "found " + string(kind) + ", expected a file" }
func (kind notRegular) Is(target error) bool { return target == errNotRegular }

// regular returns an error that names the kind of file if it is not a regular one.
func regular(name string, info fs.FileInfo) error {
	kind := ""
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		kind = "a directory"
	case mode&fs.ModeNamedPipe != 0:
		kind = "a named pipe"
	case mode&fs.ModeSocket != 0:
		kind = "a socket"
	case mode&fs.ModeDevice != 0:
		kind = "a device"
	default:
		kind = "a special file"
	}
	return &fs.PathError{Op: "open", Path: name, Err: notRegular(kind)}
}

// Dir is like os.DirFS, but for a folder of untrusted files: its Open opens only
// regular files, as [Open] does, and folders.
func Dir(root string) fs.FS { return dir{os.DirFS(root), root} }

type dir struct {
	fs.FS
	root string
}

func (d dir) Open(name string) (fs.File, error) {
	path, err := d.path("open", name)
	if err != nil {
		return nil, err
	}
	f, err := Open(path)
	if err == nil {
		return f, nil
	}
	if info, statErr := fs.Stat(d.FS, name); statErr == nil && info.IsDir() {
		return d.FS.Open(name)
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		p.Path = name
	}
	return nil, err
}

func (d dir) Stat(name string) (fs.FileInfo, error) { return fs.Stat(d.FS, name) }

func (d dir) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(d.FS, name) }

// path returns the operating system's path of a file.
func (d dir) path(op, name string) (string, error) {
	local, err := filepath.Localize(name)
	if !fs.ValidPath(name) || err != nil {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return filepath.Join(d.root, local), nil
}
