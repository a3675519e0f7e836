//go:build !(linux || darwin || dragonfly || freebsd || netbsd || openbsd)

package arena

var systemMemory = heapMemory
