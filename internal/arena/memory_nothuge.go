//go:build !linux

package arena

var hugeMemory = systemMemory
