//go:build !purego

package kernels

// detect: every arm64 processor that Go runs on has NEON with fused multiply-add.
func detect() CPU { return CPU{NEON: true} }
