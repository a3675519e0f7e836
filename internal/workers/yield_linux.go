package workers

import "golang.org/x/sys/unix"

// yieldProcessor lets the system run another thread on this processor, if one is waiting.
func yieldProcessor() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
