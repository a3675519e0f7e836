//go:build !purego

package kernels

// detect returns NEON: every arm64 processor that Go runs on has it, with fused multiply-add.
func detect() CPU { return CPU{NEON: true} }
