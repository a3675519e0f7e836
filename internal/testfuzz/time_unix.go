//go:build unix

package testfuzz

import (
	"syscall"
	"time"
)

// processorTime returns what the process has taken of the processor so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
