//go:build race

package kernels

import (
	"runtime"
	"unsafe"
)

// raceRead tells the race detector what assembly reads. Results of matrix products
// need no such word: Go code initialises them.
func raceRead[T any](s []T) {
	if len(s) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(s)), len(s)*int(unsafe.Sizeof(s[0])))
	}
}
