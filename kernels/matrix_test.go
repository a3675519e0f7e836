package kernels

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tensor"
)

// TestWidenRow: any part of a row has the values that the whole row has, for every type.
func TestWidenRow(t *testing.T) {
	const rows, cols = 3, 512
	for _, c := range Variants() {
		for _, typ := range append(quantised(), tensor.F32, tensor.F16, tensor.BF16) {
			w := Matrix{Type: typ, Rows: rows, Cols: cols, Data: newMem(typ.Bytes(rows * cols))}
			fillRandom(rand.New(rand.NewPCG(1, 2)), w.Data, operand{elem: typ, n: rows * cols}, plain)
			whole := make([]float32, rows*cols)
			typ.Widen(whole, w.Data)
			for _, part := range [][2]int{{0, 512}, {256, 512}, {1, 2}, {31, 33}, {96, 160}, {200, 460}, {500, 512}} {
				got := make([]float32, part[1]-part[0])
				c.WidenRow(got, &w, 1, part[0])
				require.Equal(t, whole[cols+part[0]:cols+part[1]], got, "%v %v %v", c, typ, part)
			}
			s := w.Slice(1, 3)
			got := make([]float32, cols)
			c.WidenRow(got, &s, 1, 0)
			require.Equal(t, whole[2*cols:], got, "%v %v", c, typ)
		}
	}
}
