package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// create makes a file in the folder of path that has no name until it is
// finished, so that it disappears if the process dies. On file systems without
// such files it makes a named one.
func create(path string, perm fs.FileMode) (f *os.File, finish func(string) error, err error) {
	dir := filepath.Dir(path)
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, uint32(perm|0o200))
	if err != nil {
		return named(path, perm)
	}
	f = os.NewFile(uintptr(fd), path)
	if _, err := os.Stat(descriptor(f)); err != nil { // without /proc it could not be given a name
		f.Close()
		return named(path, perm)
	}
	return f, func(name string) error {
		if name == "" {
			return nil
		}
		err := link(f, name)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		// A link cannot replace a file; a rename can.
		temp := tempName(name)
		if err := link(f, temp); err != nil {
			return err
		}
		if err := os.Rename(temp, name); err != nil {
			return errors.Join(err, os.Remove(temp))
		}
		return nil
	}, nil
}

func descriptor(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// link gives a name to an open file that has none.
func link(f *os.File, name string) error {
	err := unix.Linkat(unix.AT_FDCWD, descriptor(f), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return &fs.PathError{Op: "link", Path: name, Err: err}
	}
	return nil
}
