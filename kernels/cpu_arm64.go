//go:build !purego

package kernels

import (
	"runtime"

	"golang.org/x/sys/cpu"
)

// detect returns NEON: every arm64 processor that Go runs on has it, with fused multiply-add.
// All of Apple's that macOS runs on have dot products; its older releases do not say so.
func detect() CPU {
	return CPU{NEON: true, DotProd: runtime.GOOS == "darwin" || cpu.ARM64.HasASIMDDP}
}
