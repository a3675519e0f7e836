//go:build !purego

package probe

import (
	"unsafe"

	"github.com/klauspost/cpuid/v2"
)

var (
	haveAVX2   = cpuid.CPU.Supports(cpuid.AVX2, cpuid.FMA3)
	haveAVX512 = haveAVX2 && cpuid.CPU.Supports(cpuid.AVX512F)
	haveVNNI   = haveAVX512 && cpuid.CPU.Supports(cpuid.AVX512VNNI)
	haveBF16   = haveAVX512 && cpuid.CPU.Supports(cpuid.AVX512BF16)
)

var readName = func() string {
	switch {
	case haveAVX512:
		return "512-bit loads, one stream or four with look-ahead"
	case haveAVX2:
		return "256-bit loads, one stream or four with look-ahead"
	}
	return "128-bit loads"
}()

// read reads n bytes at p, a multiple of 512.
func read(p unsafe.Pointer, n int) {
	switch {
	case haveAVX512:
		readAVX512(p, n)
	case haveAVX2:
		readAVX2(p, n)
	default:
		readSSE(p, n)
	}
}

// readers returns the ways to read n bytes at p, a multiple of 512; the best counts.
func readers() []func(p unsafe.Pointer, n int) {
	switch {
	case haveAVX512:
		return []func(unsafe.Pointer, int){read, streamsAVX512, nearAVX512, linesAVX512, pairsAVX512}
	case haveAVX2:
		return []func(unsafe.Pointer, int){read, streamsAVX2, nearAVX2, linesAVX2, pairsAVX2}
	}
	return []func(unsafe.Pointer, int){read}
}

func assembly() []Unit {
	var list []Unit
	if haveAVX2 {
		list = append(list, Unit{Name: "VFMADD231PS 256 bit", Set: "avx2", flop: 14 * 8 * 2, run: fmaAVX2})
	}
	if haveAVX512 {
		list = append(list, Unit{Name: "VFMADD231PS 512 bit", Set: "avx512", flop: 24 * 16 * 2, run: fmaAVX512})
	}
	if haveVNNI {
		list = append(list, Unit{Name: "VPDPBUSD 512 bit", Set: "avx512vnni", flop: 24 * 64 * 2, run: dotAVX512VNNI})
	}
	if haveBF16 {
		list = append(list, Unit{Name: "VDPBF16PS 512 bit", Set: "avx512bf16", flop: 24 * 32 * 2, run: dotAVX512BF16})
	}
	return list
}

// The readers load every byte of [p, p+n) once; n is a multiple of 512.

//go:noescape
func readSSE(p unsafe.Pointer, n int)

//go:noescape
func readAVX2(p unsafe.Pointer, n int)

//go:noescape
func readAVX512(p unsafe.Pointer, n int)

//go:noescape
func streamsAVX2(p unsafe.Pointer, n int)

//go:noescape
func streamsAVX512(p unsafe.Pointer, n int)

//go:noescape
func nearAVX2(p unsafe.Pointer, n int)

//go:noescape
func nearAVX512(p unsafe.Pointer, n int)

//go:noescape
func linesAVX2(p unsafe.Pointer, n int)

//go:noescape
func linesAVX512(p unsafe.Pointer, n int)

//go:noescape
func pairsAVX2(p unsafe.Pointer, n int)

//go:noescape
func pairsAVX512(p unsafe.Pointer, n int)

// fmaAVX2 adds 1·1 to each of 14 registers of 8 sums, n > 0 times.
func fmaAVX2(n int)

// fmaAVX512 adds 1·1 to each of 24 registers of 16 sums, n > 0 times.
func fmaAVX512(n int)

// dotAVX512VNNI adds 1·1 four times to each of 24 registers of 16 integers, n > 0 times.
func dotAVX512VNNI(n int)

// dotAVX512BF16 adds 1·1 twice to each of 24 registers of 16 sums, n > 0 times.
func dotAVX512BF16(n int)
