package kernels

import (
	"fmt"

	"github.com/lukv/lukv/tensor"
)

func init() {
	for _, shape := range [][2]int{{0, 3}, {1, 1}, {3, 5}, {4, 8}, {7, 17}, {8, 8}, {8, 16}, {9, 31}, {15, 64}, {16, 64}, {16, 80}, {16, 6}, {64, 16}, {128, 15}, {33, 40}} {
		rows, cols := shape[0], shape[1]
		for _, t := range []tensor.Type{tensor.F32, tensor.BF16} {
			for _, gap := range []int{0, 6} { // elements between rows
				size := t.Bytes(1)
				register(op{name: fmt.Sprintf("Transpose/%v/%dx%d+%d", t, rows, cols, gap),
					operands: []operand{{"dst", t, max(0, cols*(rows+gap)-gap), out}, {"src", t, max(0, rows*(cols+gap)-gap), in}},
					ways: []way{
						{"whole", func(c CPU, b []mem) {
							c.Transpose(b[0], size*(rows+gap), b[1], size*(cols+gap), rows, cols, size)
						}},
						{"one row at a time", func(c CPU, b []mem) {
							for i := range rows {
								c.Transpose(b[0][size*i:], size*(rows+gap), b[1][size*i*(cols+gap):], size*(cols+gap), 1, cols, size)
							}
						}},
					}})
			}
		}
	}
}
