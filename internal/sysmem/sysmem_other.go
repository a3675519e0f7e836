//go:build !linux

package sysmem

func Total() int64     { return 0 }
func Available() int64 { return 0 }
