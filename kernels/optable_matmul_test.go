package kernels

import (
	"fmt"

	"github.com/lukv/lukv/tensor"
)

func init() {
	types := []tensor.Type{tensor.F32, tensor.F16, tensor.BF16}
	for _, s := range []struct{ n, cols, rows int }{
		{1, 16, 1}, {1, 32, 5}, {1, 64, 9}, {1, 4160, 6},
		{2, 32, 4}, {2, 96, 7}, {3, 2048, 4}, {3, 160, 13}, {4, 32, 5},
		{5, 2080, 5}, {6, 96, 11}, {7, 64, 4}, {13, 128, 10}, {8, 4096, 8},
		{1, 1, 1}, {2, 15, 3}, {3, 33, 5}, {4, 2063, 4}, {2, 47, 6}, {6, 2049, 5},
		{1, 0, 3},
		{7, 32, 133}, {12, 2080, 12}, {6, 2048, 72}, // several panels, tiles in parts
	} {
		for _, t := range types {
			register(matMulOp(t, false, s.n, s.cols, s.rows))
		}
		register(matMulOp(tensor.BF16, true, s.n, s.cols, s.rows))
	}
}

// quantised lists the quantised types.
func quantised() (all []tensor.Type) {
	for t := tensor.Type(1); t.Valid(); t++ {
		if t.Quantised() {
			all = append(all, t)
		}
	}
	return all
}

func init() {
	for _, t := range quantised() {
		for _, s := range []struct{ n, cols, rows int }{{1, 256, 3}, {2, 512, 5}, {7, 2304, 4}, {25, 256, 6}} {
			register(matMulOp(t, false, s.n, s.cols, s.rows))
		}
		if t.Block() == 32 {
			register(matMulOp(t, false, 3, 96, 2))
		}
	}
}

// matMulOp is a product with f32 (dot: bf16) activations whose rows, like those of
// the result, are further apart than they are long.
func matMulOp(t tensor.Type, dot bool, n, cols, rows int) op {
	ldx, ldd := cols+3, rows+2
	name, xt := fmt.Sprintf("MatMul/%v", t), tensor.F32
	if dot {
		name, xt = "MatMulBF16/BF16", tensor.BF16
	}
	// product computes rows [r0,r1) of x times rows [lo,hi) of w.
	product := func(c CPU, b []mem, r0, r1, lo, hi int) {
		w := Matrix{Type: t, Rows: rows, Cols: cols, Data: b[2]}
		if dot {
			c.MatMulBF16(b[0].f32()[r0*ldd:], ldd, b[1].u16()[r0*ldx:], ldx, r1-r0, &w, lo, hi)
		} else {
			c.MatMul(b[0].f32()[r0*ldd:], ldd, b[1].f32()[r0*ldx:], ldx, r1-r0, &w, lo, hi)
		}
	}
	o := op{
		name: fmt.Sprintf("%s/n%d,cols%d,rows%d", name, n, cols, rows),
		operands: []operand{
			{"dst", tensor.F32, (n-1)*ldd + rows, out},
			{"x", xt, (n-1)*ldx + cols, in},
			{"w", t, rows * cols, in},
		},
		styles: []style{plain, hard, special, tiny},
		ways:   []way{{"whole", func(c CPU, b []mem) { product(c, b, 0, n, 0, rows) }}},
	}
	for _, chunk := range []int{1, 2, 5} {
		if chunk < n {
			o.ways = append(o.ways, way{fmt.Sprintf("%d rows of x at a time", chunk), func(c CPU, b []mem) {
				for r := 0; r < n; r += chunk {
					product(c, b, r, min(r+chunk, n), 0, rows)
				}
			}})
		}
	}
	for _, part := range []int{1, 3, 7} {
		if part < rows {
			o.ways = append(o.ways, way{fmt.Sprintf("%d rows of w at a time", part), func(c CPU, b []mem) {
				for lo := 0; lo < rows; lo += part {
					product(c, b, 0, n, lo, min(lo+part, rows))
				}
			}})
		}
	}
	return o
}
