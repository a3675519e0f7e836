package mapfile

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"sync"
)

// File is a file opened for reading as one slice of bytes.
type File struct {
	path string
	mu   sync.Mutex
	data []byte // nil once closed, and for an empty file
	size int64
}

// Open makes the contents of the regular file at path available. Errors name
// the path; the cause stays in the chain (fs.ErrNotExist and so on).
func Open(path string) (*File, error) {
	// Opening a pipe would wait for a writer, so the kind is checked first, and
	// once more on what was really opened.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := checkRegular(path, info); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // a mapping outlives its descriptor
	if info, err = f.Stat(); err != nil {
		return nil, err
	}
	if err := checkRegular(path, info); err != nil {
		return nil, err
	}
	size := info.Size()
	if size < 0 || size > math.MaxInt {
		return nil, fmt.Errorf("open file %q: %d bytes do not fit the address space", path, size)
	}
	m := &File{path: path, size: size}
	if size == 0 {
		return m, nil // an empty mapping is an error on every system
	}
	if m.data, err = mapFile(f, int(size)); err != nil {
		return nil, fmt.Errorf("map file %q of %d bytes: %w", path, size, err)
	}
	return m, nil
}

func checkRegular(path string, info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	what := "a special file"
	if info.IsDir() {
		what = "a directory"
	}
	return fmt.Errorf("open file %q: it is %s, expected a regular file", path, what)
}

// Bytes returns the contents, nil for an empty file and after Close. The slice
// is valid until Close and must not be written.
func (f *File) Bytes() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.data
}

// Path returns the path that the file was opened by.
func (f *File) Path() string { return f.path }

// Size returns the number of bytes of the file when it was opened.
func (f *File) Size() int64 { return f.size }

// WillNeed asks the system to bring the whole file into memory soon and
// returns at once. It is a hint: without support for it, or for a closed file,
// it does nothing.
func (f *File) WillNeed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.data) > 0 {
		willNeed(f.data)
	}
}

// Close releases the contents. Closing again does nothing and returns nil.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.data == nil {
		return nil
	}
	data := f.data
	f.data = nil
	if err := unmapFile(data); err != nil {
		return fmt.Errorf("unmap file %q: %w", f.path, err)
	}
	return nil
}
