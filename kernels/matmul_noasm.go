//go:build !(amd64 || arm64) || purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

func (c CPU) tileRows() int { return 0 }

func (c CPU) roomyPanels(t tile, a *ahead, dst []float32, x unsafe.Pointer, size, n int, w *Matrix, lo, hi int) {
	panic("kernels: no assembly")
}

func (c CPU) tileF32(a *tile, t tensor.Type) { panic("kernels: no assembly") }
func (c CPU) tileDot(a *tile)                { panic("kernels: no assembly") }
