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
			register(matMulOp(t, false, 3, 96, 2), int8Op(t, 1, 96, 3), int8Op(t, 2, 320, 5), int8Op(t, 13, 576, 34), int8Op(t, 1, 896, 2))
		}
		for _, s := range []struct{ n, cols, rows int }{
			{1, 256, 1}, {1, 512, 7}, {1, 1280, 5}, {1, 4096, 3}, {2, 1024, 9}, {3, 768, 17}, {4, 512, 33}, {6, 512, 40}, {12, 256, 64}, {19, 768, 70},
		} {
			register(int8Op(t, s.n, s.cols, s.rows))
		}
	}
}

// int8Op rounds activations to the integer form that weights of type t read, and multiplies.
func int8Op(t tensor.Type, n, cols, rows int) op {
	o := matMulOp(t, false, n, cols, rows)
	o.name = fmt.Sprintf("MatMulInt8/%v/n%d,cols%d,rows%d", t, n, cols, rows)
	o.styles = []style{plain, hard, special}
	ldx, ldd := cols+3, rows+2
	product := func(c CPU, b []mem, r0, r1, lo, hi int) {
		x := int8Operand(c, t, b[1].f32()[r0*ldx:], ldx, r1-r0, cols)
		w := Matrix{Type: t, Rows: rows, Cols: cols, Data: b[2]}
		c.Multiply(b[0].f32()[r0*ldd:], ldd, &x, r1-r0, &w, lo, hi)
	}
	o.ways = []way{{"whole", func(c CPU, b []mem) { product(c, b, 0, n, 0, rows) }}}
	if n > 1 {
		o.ways = append(o.ways, way{"one row of x at a time", func(c CPU, b []mem) {
			for r := range n {
				product(c, b, r, r+1, 0, rows)
			}
		}}, way{"five rows of x at a time", func(c CPU, b []mem) {
			for r := 0; r < n; r += 5 {
				product(c, b, r, min(r+5, n), 0, rows)
			}
		}})
	}
	if rows > 3 {
		o.ways = append(o.ways, way{"three rows of w at a time", func(c CPU, b []mem) {
			for lo := 0; lo < rows; lo += 3 {
				product(c, b, 0, n, lo, min(lo+3, rows))
			}
		}})
	}
	return o
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
