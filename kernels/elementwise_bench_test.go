package kernels

import (
	"fmt"
	"testing"

	"github.com/lukv/lukv/tensor"
)

// BenchmarkElementwise reports bytes read and written per second, within the caches.
func BenchmarkElementwise(b *testing.B) {
	const n = 4096
	x, y, z := make([]float32, n), make([]float32, n), make([]float32, n)
	for i := range x {
		x[i], y[i] = float32(i%17)-8, float32(i%5)
	}
	half := make([]byte, 2*n)
	bits := make([]uint16, n)
	for _, op := range []struct {
		name  string
		bytes int64
		run   func(c CPU)
	}{
		{"RMSNorm", 16 * n, func(c CPU) { c.RMSNorm(z, x, y, 1e-5) }},
		{"Rope", 16 * n, func(c CPU) { c.Rope(x, y[:n/2], z[:n/2]) }},
		{"Gated", 12 * n, func(c CPU) { c.Gated(SiLU, z, x, y) }},
		{"Dot", 8 * n, func(c CPU) { c.Dot(x, y) }},
		{"Add", 12 * n, func(c CPU) { c.Add(z, x) }},
		{"Argmax", 4 * n, func(c CPU) { c.Argmax(x) }},
		{"RoundBF16", 6 * n, func(c CPU) { c.RoundBF16(bits, x) }},
		{"WidenF16", 6 * n, func(c CPU) { c.Widen(z, half, tensor.F16) }},
		{"NarrowF16", 6 * n, func(c CPU) { c.Narrow(half, x, tensor.F16) }},
	} {
		for _, c := range Variants() {
			b.Run(fmt.Sprintf("%s/%v", op.name, c), func(b *testing.B) {
				b.SetBytes(op.bytes)
				b.ReportAllocs()
				for b.Loop() {
					op.run(c)
				}
			})
		}
	}
}
