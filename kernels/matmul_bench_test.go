package kernels

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lukv/lukv/internal/probe"
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
	w := randomMatrix(t, rows, cols)
	r := rand.New(rand.NewPCG(1, 2))
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

// randomMatrix returns a matrix of ordinary numbers.
func randomMatrix(t tensor.Type, rows, cols int) Matrix {
	w := Matrix{Type: t, Rows: rows, Cols: cols, Data: make([]byte, rows*cols*t.Bytes(1))}
	r := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(w.Data); i += 8 {
		binary.LittleEndian.PutUint64(w.Data[i:], r.Uint64()&0x80ff80ff80ff80ff|0x3a003a003a003a00)
	}
	return w
}

// BenchmarkMatMulPrefill multiplies 512 rows the way the forward pass does: 64 rows of
// weights per call, weights that no cache holds, rows of activations further apart than
// they are long. It reports the 90th percentile of the calls (the best are lucky, the
// median is what other programs leave) and its fraction of the same percentile of
// the multiply-add probe, which alternates with it.
func BenchmarkMatMulPrefill(b *testing.B) {
	const n, rows, part, pad = 512, 2048, 64, 64
	for _, c := range Variants()[1:] {
		for _, k := range []struct {
			name string
			t    tensor.Type
			dot  bool
		}{{"dot", tensor.BF16, true}, {"bf16", tensor.BF16, false}, {"f16", tensor.F16, false}, {"f32", tensor.F32, false}} {
			for _, cols := range []int{768, 2048, 8192} {
				b.Run(fmt.Sprintf("%v/%s/cols=%d", c, k.name, cols), func(b *testing.B) {
					many := max(2, (96<<20)/(rows*cols*k.t.Bytes(1)))
					all := randomMatrix(k.t, many*rows, cols)
					x, xb, dst := make([]float32, n*(cols+pad)), make([]uint16, n*(cols+pad)), make([]float32, n*rows)
					for i := range x {
						x[i] = float32(i%1000)/1000 - 0.5
					}
					c.RoundBF16(xb, x)
					set := c.String()
					if c.AVX512BF16 && (c.SlowDot || !k.dot) {
						set = "avx512"
					}
					unit := probe.UnitOf(set)
					size := rows * cols * k.t.Bytes(1)
					var rates, probes []float64
					for i := 0; b.Loop(); i++ {
						w := Matrix{Type: k.t, Rows: rows, Cols: cols, Data: all.Data[i%many*size:][:size]}
						probes = append(probes, unit.Rate(1, time.Millisecond))
						for lo := 0; lo < rows; lo += part {
							begin := time.Now()
							if k.dot {
								c.MatMulBF16(dst, rows, xb, cols+pad, n, &w, lo, lo+part)
							} else {
								c.MatMul(dst, rows, x, cols+pad, n, &w, lo, lo+part)
							}
							rates = append(rates, 2*n*part*float64(cols)/time.Since(begin).Seconds())
						}
					}
					slices.Sort(rates)
					slices.Sort(probes)
					rate, peak := rates[len(rates)*9/10], probes[len(probes)*9/10]
					b.ReportMetric(rate/1e9, "GFLOP/s")
					b.ReportMetric(100*rate/peak, "peak%")
				})
			}
		}
	}
}
