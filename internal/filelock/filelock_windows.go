package filelock

import (
	"os"
	"syscall"
	"unsafe"
)

var lockFileEx = syscall.NewLazyDLL("kernel32.dll").NewProc("LockFileEx")

const (
	lockFailImmediately = 1
	lockExclusive       = 2
	errorLockViolation  = syscall.Errno(33)
)

// Try takes the exclusive lock of an open file, on its first byte, without
// waiting and reports whether it succeeded. Closing the file releases the lock.
func Try(f *os.File) (bool, error) {
	var at syscall.Overlapped
	r, _, err := lockFileEx.Call(f.Fd(), lockFailImmediately|lockExclusive, 0, 1, 0, uintptr(unsafe.Pointer(&at)))
	switch {
	case r != 0:
		return true, nil
	case err == errorLockViolation || err == syscall.ERROR_IO_PENDING:
		return false, nil
	}
	return false, err
}
