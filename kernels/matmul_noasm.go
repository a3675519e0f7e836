//go:build !(amd64 || arm64) || purego

package kernels

import "github.com/lukv/lukv/tensor"

const tileSums = 0

func (c CPU) tileRows() int                  { return 0 }
func (c CPU) tilesInParts(int, *Matrix) bool { return false }
func (c CPU) tileF32(a *tile, t tensor.Type) { panic("kernels: no assembly") }
func (c CPU) tileDot(a *tile)                { panic("kernels: no assembly") }
