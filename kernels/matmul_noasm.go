//go:build !(amd64 || arm64) || purego

package kernels

import "github.com/lukv/lukv/tensor"

func (c CPU) tileRows() int { return 0 }

func (c CPU) tiling(size, n int, w *Matrix) tiling { return tilesPlain }

func (c CPU) tileF32(a *tile, t tensor.Type) { panic("kernels: no assembly") }
func (c CPU) tileDot(a *tile)                { panic("kernels: no assembly") }
