//go:build !(amd64 || arm64) || purego

package probe

import "unsafe"

const readName = "64-bit loads, compiled Go"

// readers returns the ways to read; the best counts.
func readers() []func(p unsafe.Pointer, n int) { return []func(unsafe.Pointer, int){read} }

func assembly() []Unit { return nil }

// read reads n bytes at p, a multiple of 64.
func read(p unsafe.Pointer, n int) {
	words := unsafe.Slice((*uint64)(p), n/8)
	var a, b, c, d uint64
	for ; len(words) >= 8; words = words[8:] {
		a ^= words[0] ^ words[4]
		b ^= words[1] ^ words[5]
		c ^= words[2] ^ words[6]
		d ^= words[3] ^ words[7]
	}
	sink.Store(uint32(a ^ b ^ c ^ d))
}
