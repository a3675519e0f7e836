package mapfile

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"sync"
	"sync/atomic"
)

// File is a file opened for reading as one slice of bytes.
type File struct {
	path string
	info fs.FileInfo
	mu   sync.Mutex
	data []byte // nil once closed, and for an empty file
	size int64

	stop  atomic.Bool   // tells the goroutine of WillNeed to end
	ended chan struct{} // closed when that has ended; nil before WillNeed
}

// Open makes the contents of the regular file at path available. Errors name the
// path and wrap the cause (fs.ErrNotExist and so on).
func Open(path string) (*File, error) {
	// Opening a pipe would wait for a writer, so the kind is checked first, and
	// again on what was actually opened.
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
	defer f.Close() // a mapping outlives it
	m := &File{path: path}
	if err := m.open(f); err != nil {
		return nil, err
	}
	return m, nil
}

// open maps an open file.
func (f *File) open(from *os.File) (err error) {
	if f.info, err = from.Stat(); err != nil {
		return err
	}
	if err := checkRegular(f.path, f.info); err != nil {
		return err
	}
	f.size = f.info.Size()
	if f.size < 0 || f.size > math.MaxInt {
		return fmt.Errorf("open file %q: %d bytes do not fit the address space", f.path, f.size)
	}
	if f.size == 0 {
		return nil // an empty mapping is an error on every system
	}
	if f.data, err = mapFile(from, int(f.size)); err != nil {
		return fmt.Errorf("map file %q of %d bytes: %w", f.path, f.size, err)
	}
	large(f.data)
	return nil
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

// Info describes the file as of when it was opened.
func (f *File) Info() fs.FileInfo { return f.info }

// Path returns the path with which the file was opened.
func (f *File) Path() string { return f.path }

// Size returns the size of the file in bytes when it was opened.
func (f *File) Size() int64 { return f.size }

// WillNeed starts to read the first limit bytes of the file into memory, front to
// back, by large reads, and creates their page table entries, which would otherwise
// cost faults when they are first touched. More bytes than the system has memory for
// would evict what was read before. It returns at once and works in the background
// until it is done or the file is closed. It is a hint: failures and lack of support
// by the system are ignored, and a file that is already in memory costs next to
// nothing. Calling it again, on a closed file, or with no bytes does nothing.
func (f *File) WillNeed(limit int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.data) == 0 || f.ended != nil || limit <= 0 {
		return
	}
	f.ended = make(chan struct{})
	go func(data []byte) {
		defer close(f.ended)
		for at := 0; at < len(data) && !f.stop.Load(); at += aheadPart {
			if part := data[at:min(at+aheadPart, len(data))]; !enter(part) && !willNeed(part) {
				return
			}
		}
	}(f.data[:min(f.size, limit)])
}

// aheadPart is how many bytes WillNeed asks for at a time, a multiple of every page
// size. Close waits for the last.
const aheadPart = 4 << 20

// Close releases the contents. Closing again does nothing and returns nil.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.data == nil {
		return nil
	}
	data := f.data
	f.data = nil
	if f.ended != nil {
		f.stop.Store(true)
		<-f.ended
	}
	if err := unmapFile(data); err != nil {
		return fmt.Errorf("unmap file %q: %w", f.path, err)
	}
	return nil
}
