//go:build !purego

package kernels

import "github.com/klauspost/cpuid/v2"

// detect asks the processor; cpuid also checks that the operating system keeps
// the wide registers.
func detect() CPU {
	p := &cpuid.CPU
	avx2 := p.Supports(cpuid.AVX2, cpuid.FMA3, cpuid.F16C)
	avx512 := avx2 && p.Supports(cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512DQ, cpuid.AVX512VL)
	return CPU{AVX2: avx2, AVX512: avx512, AVX512BF16: avx512 && p.Supports(cpuid.AVX512BF16)}
}
