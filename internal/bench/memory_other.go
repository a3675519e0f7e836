//go:build !linux

package bench

func privateMemory() int64  { return 0 }
func resetPeak() bool       { return false }
func peakMemory() int64     { return 0 }
func kernelRelease() string { return "" }

func watchPrivate(func() int64) (stop func() int64) { return func() int64 { return 0 } }
