//go:build !purego

package probe

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/cpu"
)

const readName = "128-bit loads, four at a time"

// readers returns the ways to read; the best counts.
func readers() []func(p unsafe.Pointer, n int) { return []func(unsafe.Pointer, int){read} }

func assembly() []Unit {
	list := []Unit{{Name: "FMLA 4×32 bit", Set: "neon", flop: 24 * 4 * 2, run: fmaNEON}}
	if runtime.GOOS == "darwin" || cpu.ARM64.HasASIMDDP {
		list = append(list, Unit{Name: "SDOT 16×8 bit", Set: "dotprod", flop: 24 * 16 * 2, run: dotNEON})
	}
	return list
}

// read loads every byte of [p, p+n) once; n is a multiple of 128.
//
//go:noescape
func read(p unsafe.Pointer, n int)

// fmaNEON adds 1·1 to each of 24 registers of 4 sums, n > 0 times.
func fmaNEON(n int)

// dotNEON adds dot products of 16 bytes to each of 24 registers of 4 sums, n > 0 times.
func dotNEON(n int)
