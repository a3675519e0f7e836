package kernels

import (
	"cmp"
	"fmt"

	"github.com/lukv/lukv/tensor"
)

func init() {
	f32 := func(name string, n int, r role) operand { return operand{name, tensor.F32, n, r} }
	whole := func(run func(c CPU, b []mem)) []way { return []way{{"whole", run}} }
	for _, n := range []int{0, 1, 7, 8, 15, 16, 17, 31, 33, 64, 100, 259} {
		name := func(op string) string { return fmt.Sprintf("%s/%d", op, n) }
		for _, a := range Activations() {
			register(op{name: name(cmp.Or(map[Activation]string{SiLU: "SwiGLU", GELUTanh: "GeGLU"}[a], a.String())), operands: []operand{f32("dst", n, out), f32("gate", n, in), f32("up", n, in)},
				ways: []way{
					{"whole", func(c CPU, b []mem) { c.Gated(a, b[0].f32(), b[1].f32(), b[2].f32()) }},
					{"in parts", func(c CPU, b []mem) {
						h := n / 3
						c.Gated(a, b[0].f32()[:h], b[1].f32(), b[2].f32())
						c.Gated(a, b[0].f32()[h:], b[1].f32()[h:], b[2].f32()[h:])
					}},
					{"one by one", func(c CPU, b []mem) {
						for i := range n {
							c.Gated(a, b[0].f32()[i:i+1], b[1].f32()[i:], b[2].f32()[i:])
						}
					}},
				}})
		}
		register(
			op{name: name("Dot"), operands: []operand{f32("dst", 1, out), f32("x", n, in), f32("y", n, in)},
				ways: whole(func(c CPU, b []mem) { b[0].f32()[0] = c.Dot(b[1].f32(), b[2].f32()) })},
			op{name: name("Add"), operands: []operand{f32("dst", n, inout), f32("x", n, in)},
				ways: whole(func(c CPU, b []mem) { c.Add(b[0].f32(), b[1].f32()) })},
			op{name: name("RMSNorm"), operands: []operand{f32("dst", n, out), f32("x", n, in), f32("w", n, in)},
				ways: []way{
					{"whole", func(c CPU, b []mem) { c.RMSNorm(b[0].f32(), b[1].f32(), b[2].f32(), 1e-5) }},
					{"in place", func(c CPU, b []mem) {
						copy(b[0], b[1])
						c.RMSNorm(b[0].f32(), b[0].f32(), b[2].f32(), 1e-5)
					}},
				}},
			op{name: name("Rope"), operands: []operand{f32("x", 2*n, inout), f32("cos", n, in), f32("sin", n, in)},
				ways: whole(func(c CPU, b []mem) { c.Rope(b[0].f32(), b[1].f32(), b[2].f32()) })},
			op{name: name("SoftCap"), operands: []operand{f32("x", n, inout)},
				ways: []way{
					{"whole", func(c CPU, b []mem) { c.SoftCap(b[0].f32(), 3) }},
					{"in parts", func(c CPU, b []mem) {
						c.SoftCap(b[0].f32()[:n/3], 3)
						c.SoftCap(b[0].f32()[n/3:], 3)
					}},
				}},
			op{name: name("Scale"), operands: []operand{f32("x", n, inout)},
				ways: whole(func(c CPU, b []mem) { c.Scale(b[0].f32(), 0.3) })},
			op{name: name("AddScaled"), operands: []operand{f32("dst", n, inout), f32("x", n, in)},
				ways: whole(func(c CPU, b []mem) { c.AddScaled(b[0].f32(), b[1].f32(), 0.3) })},
			op{name: name("Exp2"), operands: []operand{f32("dst", n, out), f32("x", n, in), f32("wide", n, out)},
				ways: []way{
					{"one by one", func(_ CPU, b []mem) { exps(Exp2, 100, b) }},
					{"as weights", func(c CPU, b []mem) {
						exps(itself, 100, b)
						c.softmaxWeights(b[0].f32(), Softmax{Sum: 1})
						c.softmaxWeights(b[2].f32(), Softmax{Sum: 1})
					}},
				}},
			op{name: name("Exp"), operands: []operand{f32("dst", n, out), f32("x", n, in), f32("wide", n, out)},
				ways: []way{
					{"one by one", func(_ CPU, b []mem) { exps(Exp, 70, b) }},
					{"whole", func(c CPU, b []mem) {
						exps(itself, 70, b)
						c.Exp(b[0].f32(), b[1].f32())
						c.Exp(b[2].f32(), b[2].f32())
					}},
				}},
			op{name: name("Argmax"), operands: []operand{{"dst", tensor.I64, 3, out}, f32("x", n, in), {"ties", tensor.I32, n, in}},
				ways: whole(func(c CPU, b []mem) {
					d := view[int64](b[0])
					d[0] = int64(c.Argmax(b[1].f32()))
					d[1] = int64(c.Argmax(b[1].f32()[n/2:]))
					// Few distinct values, so that ties are common.
					x := make([]float32, n)
					for i, v := range view[uint32](b[2]) {
						x[i] = float32(v % 5)
					}
					d[2] = int64(c.Argmax(x))
				})},
			op{name: name("RoundBF16"), operands: []operand{{"dst", tensor.BF16, n, out}, f32("x", n, in)},
				ways: whole(func(c CPU, b []mem) { c.RoundBF16(b[0].u16(), b[1].f32()) })},
			op{name: name("RoundedBF16"), operands: []operand{f32("x", n, inout)},
				ways: whole(func(c CPU, b []mem) { c.RoundedBF16(b[0].f32(), b[0].f32()) })},
		)
		for _, t := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
			register(
				op{name: fmt.Sprintf("Widen/%v/%d", t, n), operands: []operand{f32("dst", n, out), {"src", t, n, in}},
					ways: whole(func(c CPU, b []mem) { c.Widen(b[0].f32(), b[1], t) })},
				op{name: fmt.Sprintf("Narrow/%v/%d", t, n), operands: []operand{{"dst", t, n, out}, f32("src", n, in)},
					ways: whole(func(c CPU, b []mem) { c.Narrow(b[0], b[1].f32(), t) })},
			)
		}
	}
}

func itself(x float32) float32 { return x }

// exps sets each element of the first operand to f of that of the second, and each of
// the third to f of the same times factor.
func exps(f func(float32) float32, factor float32, b []mem) {
	dst, wide := b[0].f32(), b[2].f32()
	for i, x := range b[1].f32() {
		dst[i], wide[i] = f(x), f(x*factor)
	}
}
