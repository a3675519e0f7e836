package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/lukv/lukv/internal/filelock"
)

// Write calls write with a new file and gives it the name path when it is
// complete, replacing any older file. On failure nothing is left behind and an
// older file stays. The file's permissions are perm, less those that the umask
// removes and those that an older file lacked.
func Write(path string, perm fs.FileMode, write func(io.Writer) error) error {
	if err := toPath(path, perm, write); err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) && pathErr.Path != path { // the requested name says more
			return fmt.Errorf("create %s: %w", path, pathErr.Err)
		}
		return err
	}
	return nil
}

// Check returns the error that Write would end with if its folder is missing or may not
// be written, or if a folder has its name: for programs that work long before they write.
// It changes nothing.
func Check(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() && (!info.Mode().IsRegular() || isDescriptor(path)) {
		return nil // a pipe may find its reader until then
	}
	checked := errors.New("checked")
	if err := Write(path, 0o600, func(io.Writer) error { return checked }); !errors.Is(err, checked) {
		return err
	}
	return nil
}

func toPath(path string, perm fs.FileMode, write func(io.Writer) error) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return &fs.PathError{Op: "create", Path: path, Err: errors.New("found a directory, expected a file")}
	case err == nil && (!info.Mode().IsRegular() || isDescriptor(path)):
		return through(path, write)
	case err == nil:
		perm &= info.Mode().Perm()
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	target, err := behindLinks(path)
	if err != nil {
		return err
	}
	removeStale(target)
	return replace(target, perm, write)
}

// through writes to an existing pipe, device or open file. A pipe that nobody
// reads is an error; it does not block.
func through(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	err = write(f)
	return errors.Join(err, f.Close())
}

// isDescriptor reports whether path names an open file of a process, which must
// be written in place.
func isDescriptor(path string) bool {
	abs, err := filepath.Abs(path)
	if err != nil {
		return false
	}
	for range maxLinks {
		dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
		if err != nil {
			return false
		}
		if ok, _ := filepath.Match("/proc/*/fd", dir); ok || dir == "/dev/fd" {
			return true
		}
		to, err := os.Readlink(abs)
		if err != nil {
			return false
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(dir, to)
		}
		abs = to
	}
	return false
}

const maxLinks = 40

// behindLinks follows links to the file that they point to, which need not exist
// yet.
func behindLinks(path string) (string, error) {
	for range maxLinks {
		to, err := os.Readlink(path)
		if err != nil {
			return path, nil
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return "", &fs.PathError{Op: "create", Path: path, Err: errors.New("too many links")}
}

// replace writes a new file in the folder of path and then gives it that name.
func replace(path string, perm fs.FileMode, write func(io.Writer) error) (err error) {
	f, finish, err := create(path, perm)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		f.Close()
		if !done {
			err = errors.Join(err, finish(""))
		}
	}()
	w := pieces{f: f}
	if err := write(&w); err != nil {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	// The umask may have left more than an older file had.
	if err := f.Chmod(perm & permOf(f)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	done = true
	if err := finish(path); err != nil {
		return err
	}
	if d, err := os.Open(filepath.Dir(path)); err == nil {
		_ = d.Sync() // makes the new name durable if folders can be synced
		d.Close()
	}
	return nil
}

// pieceBytes is how much is written to a file at once, at multiples of as much. Linux then
// caches the file in pages of 2 MiB where the file system can, and mapping such a file, as
// models are, costs one fault for each of them instead of one for every 64 KiB.
const pieceBytes = 4 << 20

// pieces gathers what is written to a file.
type pieces struct {
	f   *os.File
	buf []byte // at most pieceBytes
}

func (w *pieces) Write(p []byte) (n int, err error) {
	for len(p) > n {
		k := min(len(p)-n, pieceBytes-len(w.buf))
		w.buf = append(w.buf, p[n:n+k]...)
		n += k
		if len(w.buf) == pieceBytes {
			if err := w.flush(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func (w *pieces) flush() error {
	_, err := w.f.Write(w.buf)
	w.buf = w.buf[:0]
	return err
}

func permOf(f *os.File) fs.FileMode {
	if info, err := f.Stat(); err == nil {
		return info.Mode().Perm()
	}
	return 0o600
}

// named creates a file under a temporary name in the folder of path. It is locked
// while open, which distinguishes it from what killed programs left. finish gives
// it the name passed to it, or removes it if that is empty.
func named(path string, perm fs.FileMode) (f *os.File, finish func(string) error, err error) {
	for try := 0; ; try++ {
		temp := tempName(path)
		f, err = os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm|0o200)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrExist) || try == 100 {
			return nil, nil, err
		}
	}
	_, _ = filelock.Try(f)
	return f, func(name string) error {
		f.Close() // some systems rename and remove only closed files
		if name == "" {
			return os.Remove(f.Name())
		}
		err := os.Rename(f.Name(), name)
		if err != nil {
			os.Remove(f.Name())
		}
		return err
	}, nil
}

func tempName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+strconv.FormatUint(rand.Uint64(), 10)+".tmp")
}

// staleAge is how old a temporary file must be to count as left behind by a dead
// process: a live one may not have locked it yet.
const staleAge = time.Minute

// removeStale removes what killed programs left behind when writing path: files
// that are no longer locked.
func removeStale(path string) {
	left, err := regexp.Compile(`^\.` + regexp.QuoteMeta(filepath.Base(path)) + `\.[0-9]+\.tmp$`)
	if err != nil {
		return
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if !left.MatchString(name) {
			continue
		}
		temp := filepath.Join(filepath.Dir(path), name)
		info, err := os.Lstat(temp)
		if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < staleAge {
			continue
		}
		if f, err := os.OpenFile(temp, os.O_RDWR|syscall.O_NONBLOCK, 0); err == nil {
			free, _ := filelock.Try(f)
			f.Close()
			if free {
				os.Remove(temp)
			}
		}
	}
}
