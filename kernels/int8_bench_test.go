package kernels

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/probe"
	"github.com/lukv/lukv/tensor"
)

// BenchmarkInt8 multiplies 1, 4, 16 and 512 rows of 8-bit activations by matrices that together
// do not fit the caches. It reports bytes of weights, operations and, for one row, the share
// of what a single thread reads.
func BenchmarkInt8(b *testing.B) {
	for _, t := range []tensor.Type{tensor.Q8_0, tensor.Q4_0, tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.IQ4_XS} {
		for _, cols := range []int{2048, 4096, 14336} {
			for _, n := range []int{1, 2, 4, 8, 16, 32, 512} {
				b.Run(fmt.Sprintf("%v/K%d/rows=%d", t, cols, n), func(b *testing.B) { benchmarkInt8(b, t, cols, n) })
			}
		}
	}
}

func benchmarkInt8(b *testing.B, t tensor.Type, cols, n int) {
	const rows = 1024
	size := t.Bytes(rows * cols)
	many := max(1, 512<<20/size)
	if n > 16 {
		many = 1
	}
	w := make([]Matrix, many)
	for i := range w {
		w[i] = Matrix{Type: t, Rows: rows, Cols: cols, Data: newMem(size)}
		fillRandom(rand.New(rand.NewPCG(1, uint64(i))), w[i].Data[:t.Bytes(cols)], operand{elem: t, n: cols}, plain)
		for o := 1; o < rows; o++ {
			copy(w[i].Data[t.Bytes(o*cols):], w[i].Data[:t.Bytes(cols)])
		}
	}
	x := make([]float32, n*cols)
	for i := range x {
		x[i] = float32(i%17) - 8
	}
	c := Detect()
	o := int8Operand(c, t, x, cols, n, cols)
	dst := make([]float32, n*rows)
	b.SetBytes(int64(size))
	i := 0
	for b.Loop() {
		c.Multiply(dst, rows, &o, n, &w[i%many], 0, rows)
		i++
	}
	seconds := b.Elapsed().Seconds() / float64(b.N)
	b.ReportMetric(2*float64(n)*rows*float64(cols)/seconds/1e9, "Gop/s")
	if c.AVX512VNNI && n > 1 {
		peak := probe.UnitOf("avx512vnni").Rate(1, 300*time.Millisecond)
		b.ReportMetric(2*float64(n)*rows*float64(cols)/seconds/peak, "of-peak")
	}
	if n == 1 {
		buf, err := probe.NewBuffer(256 << 20)
		require.NoError(b, err)
		defer buf.Close()
		b.ReportMetric(float64(size)/seconds/buf.Read(1, 300*time.Millisecond), "of-probe")
	}
}
