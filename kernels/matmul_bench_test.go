package kernels

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/lukv/lukv/tensor"
)

// BenchmarkMatMul reports bytes of weights per second where one row of
// activations streams a matrix from memory (n=1), and floating-point operations
// per second where many rows share it.
func BenchmarkMatMul(b *testing.B) {
	for _, c := range Variants() {
		for _, k := range []struct {
			name string
			t    tensor.Type
			dot  bool
		}{{"dot", tensor.BF16, true}, {"bf16", tensor.BF16, false}, {"f16", tensor.F16, false}, {"f32", tensor.F32, false}} {
			for _, s := range []struct{ n, cols, rows int }{{1, 2048, 32768}, {1, 8192, 8192}, {4, 2048, 32768}, {16, 2048, 2048}, {128, 2048, 2048}, {512, 2048, 2048}, {512, 8192, 2048}} {
				if c == (CPU{}) && s.n > 1 && (s.n != 16 || testing.Short()) {
					continue
				}
				b.Run(fmt.Sprintf("%v/%s/n=%d/cols=%d/rows=%d", c, k.name, s.n, s.cols, s.rows), func(b *testing.B) {
					benchMatMul(b, c, k.t, k.dot, s.n, s.cols, s.rows)
				})
			}
		}
	}
}

func benchMatMul(b *testing.B, c CPU, t tensor.Type, dot bool, n, cols, rows int) {
	w := Matrix{Type: t, Rows: rows, Cols: cols, Data: make([]byte, rows*cols*t.Size())}
	r := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(w.Data); i += 8 { // ordinary numbers in each of the types
		binary.LittleEndian.PutUint64(w.Data[i:], r.Uint64()&0x80ff80ff80ff80ff|0x3a003a003a003a00)
	}
	x, xb, dst := make([]float32, n*cols), make([]uint16, n*cols), make([]float32, n*rows)
	for i := range x {
		x[i] = r.Float32() - 0.5
	}
	c.RoundBF16(xb, x)
	b.SetBytes(int64(len(w.Data)))
	b.ReportAllocs()
	for b.Loop() {
		if dot {
			c.MatMulBF16(dst, rows, xb, cols, n, &w, 0, rows)
		} else {
			c.MatMul(dst, rows, x, cols, n, &w, 0, rows)
		}
	}
	b.ReportMetric(2*float64(n)*float64(rows)*float64(cols)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}
