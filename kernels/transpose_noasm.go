//go:build !(amd64 || arm64) || purego

package kernels

func (c CPU) transposeAsm(dst []byte, dstStep int, src []byte, srcStep, rows, cols int) bool {
	return false
}
