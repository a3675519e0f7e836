//go:build !linux

package bench

func totalMemory() int64    { return 0 }
func freeMemory() int64     { return 0 }
func privateMemory() int64  { return 0 }
func resetPeak() bool       { return false }
func peakMemory() int64     { return 0 }
func kernelRelease() string { return "" }
