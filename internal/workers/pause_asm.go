//go:build (amd64 || arm64) && !purego

package workers

// pause tells the processor that the thread is spinning.
func pause()
