//go:build !linux

package workers

// yieldProcessor does nothing: a thread that waits for this processor gets it
// when the system sees fit.
func yieldProcessor() {}
