//go:build !amd64 || purego

package probe

import "unsafe"

func allReaders() map[string]func(unsafe.Pointer, int) {
	return map[string]func(unsafe.Pointer, int){readName: read}
}
