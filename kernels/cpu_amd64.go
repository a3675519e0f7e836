//go:build !purego

package kernels

import (
	"log/slog"
	"os"
	"sync"
	"unsafe"

	"github.com/klauspost/cpuid/v2"
)

// detect queries the processor; cpuid also checks that the operating system saves
// the wide registers.
func detect() CPU {
	p := &cpuid.CPU
	avx2 := p.Supports(cpuid.AVX2, cpuid.FMA3, cpuid.F16C)
	avx512 := avx2 && p.Supports(cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512DQ, cpuid.AVX512VL)
	c := CPU{AVX2: avx2, AVX512: avx512, AVX512VNNI: avx512 && p.Supports(cpuid.AVX512VNNI), AVX512BF16: avx512 && p.Supports(cpuid.AVX512BF16) && dotAgrees()}
	if avx2 {
		c.Streaming = streaming()
	}
	c.SlowDot = c.AVX512BF16 && p.VendorID == cpuid.Intel
	return c
}

var streaming = sync.OnceValue(func() Streaming {
	s, err := detectStreaming(cpuid.CPU.VendorID == cpuid.Intel, max(0, cpuid.CPU.Cache.L1D), os.Getenv("LUKV_STREAMING"))
	if err != nil {
		slog.Warn("LUKV_STREAMING is ignored", "err", err, "using", s)
	}
	return s
})

// dotAgrees reports whether VDPBF16PS rounds and flushes on this processor as the
// contract says. The manuals leave room for doubt, and one order of arithmetic is
// worth more than one instruction.
var dotAgrees = sync.OnceValue(func() bool {
	const rows, cols, k = 2, 4, 1024
	var x [rows * k]uint16
	var w [cols * k]uint16
	seed := uint32(1)
	next := func() uint16 {
		seed = seed*1664525 + 1013904223
		h := uint16(seed >> 16)
		if seed>>8&15 == 0 {
			return h & 0x807f // zero or subnormal
		}
		// Exponents around the one whose products are the smallest normal numbers.
		return h&0x807f | (60+h>>7&7)<<7
	}
	for i := range x {
		x[i] = next()
	}
	for i := range w {
		w[i] = next()
	}
	var got, want [rows * cols]float32
	t := tile{
		x: unsafe.Pointer(&x), ldx: 2 * k, w: unsafe.Pointer(&w), ldw: 2 * k, ldd: 4 * cols,
		rows: rows, cols: cols, step: 1, add: -1,
	}
	// One group at a time: a difference shows in a sum of only 32 products.
	for range k / 32 {
		t.dst = unsafe.Pointer(&want)
		tileDotAVX512(&t)
		t.dst = unsafe.Pointer(&got)
		tileDotAVX512BF16(&t)
		t.x, t.w = unsafe.Add(t.x, 64), unsafe.Add(t.w, 64)
		if got != want {
			return false
		}
	}
	return true
})
