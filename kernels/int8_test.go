package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// int8Operand returns rows of activations in the integer form that weights of type t read.
func int8Operand(c CPU, t tensor.Type, x []float32, ldx, n, cols int) Operand {
	f := FormFor(t, formsInt8)
	o := NewOperand(make([]float32, OperandWords(f, n, cols)), f, n, cols)
	for r := range n {
		c.SetOperand(&o, r, 0, x[r*ldx:r*ldx+cols])
		c.RoundOperand(&o, r, cols)
	}
	return o
}

// TestRoundInt8 compares with integers and scales from an independent program, in exact
// rationals: part of the golden set quant, case contract_a8_int8_channel.
func TestRoundInt8(t *testing.T) {
	f, err := safetensors.Open("testdata/int8/rounded.safetensors")
	require.NoError(t, err)
	defer f.Close()
	get := func(name string) tensor.Tensor {
		x, ok := f.Tensor(name)
		require.True(t, ok, name)
		return x
	}
	x, q, scale := get("x").Float32s(nil), get("x_q").Int64s(nil), get("x_scale").Float32s(nil)
	rows, cols := get("x").Shape[0], get("x").Shape[1]
	for _, c := range Variants() {
		o := int8Operand(c, tensor.Q4_K, x, cols, rows, cols)
		for r := range rows {
			row := o.int8[0].row(r)
			for i, want := range q[r*cols : (r+1)*cols] {
				require.Equal(t, want, int64(row.q[i]), "%v, row %d, element %d", c, r, i)
			}
			n := len(scale) / rows
			require.Equal(t, scale[r*n:(r+1)*n], row.scale[:n], "%v, row %d", c, r)
		}
	}
}

// TestRoundInt8Edges: blocks of zeros, of tiny numbers and of numbers that are not finite.
func TestRoundInt8Edges(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range Variants() {
		for _, block := range int8Blocks {
			for _, e := range []struct {
				x     float32
				q     int8
				scale float32
			}{
				{0, 0, 0}, {0x1p-101, 0, 0}, {-0x1p-100, -127, 0x1p-100 / 127}, {127, 127, 1}, {-math.MaxFloat32, -127, math.MaxFloat32 / 127},
				{inf, 0, nan}, {-inf, 0, nan}, {nan, 0, nan},
			} {
				x := make([]float32, 3*block)
				for i := range x {
					x[i] = float32(i%5) / 8 * e.x // 127/8·i is a tie for some i
				}
				x[block+7] = e.x
				if e.x-e.x != 0 {
					clear(x)
					x[block+7] = e.x
				}
				o := NewOperand(make([]float32, OperandWords(formsInt8, 1, len(x))), formsInt8, 1, len(x))
				c.SetOperand(&o, 0, 0, x)
				c.RoundOperand(&o, 0, len(x))
				row := o.int8[0].row(0)
				if block == 32 {
					row = o.int8[1].row(0)
				}
				require.Equal(t, e.q, row.q[block+7], "%v, %v in blocks of %d", c, e.x, block)
				if e.scale != e.scale {
					require.True(t, row.scale[1] != row.scale[1], "%v, %v", c, e.x)
					require.Zero(t, row.scale[0])
				} else {
					require.Equal(t, e.scale, row.scale[1], "%v, %v", c, e.x)
				}
			}
		}
	}
}

// TestInt8Value compares with sums in binary64 of exactly widened weights and rounded
// activations. Nothing else checks the definition: the operation table only compares it with
// itself.
func TestInt8Value(t *testing.T) {
	const n, rows = 7, 5
	for _, typ := range quantised() {
		for _, cols := range []int{256, 2304} {
			r := rand.New(rand.NewPCG(9, uint64(cols)))
			w := Matrix{Type: typ, Rows: rows, Cols: cols, Data: newMem(typ.Bytes(rows * cols))}
			fillRandom(r, w.Data, operand{elem: typ, n: rows * cols}, plain)
			wide := make([]float32, rows*cols)
			typ.Widen(wide, w.Data)
			x := mem(newMem(4 * n * cols))
			fillRandom(r, x, operand{elem: tensor.F32, n: n * cols}, plain)
			for _, c := range Variants() {
				o := int8Operand(c, typ, x.f32(), cols, n, cols)
				dst := make([]float32, n*rows)
				c.Multiply(dst, rows, &o, n, &w, 0, rows)
				form := &o.int8[0]
				if typ.Block() == 32 {
					form = &o.int8[1]
				}
				for i := range n {
					row := form.row(i)
					for j := range rows {
						var sum, size float64
						for k := range cols {
							p := float64(row.q[k]) * float64(row.scale[k/form.block]) * float64(wide[j*cols+k])
							sum += p
							size += math.Abs(p)
						}
						// A rounding of the scale and two of the chain for each block.
						require.InDelta(t, sum, float64(dst[i*rows+j]), size*float64(4+cols/typ.Block())*0x1p-23,
							fmt.Sprintf("%v %v, %d columns, row %d of x, row %d of w", c, typ, cols, i, j))
					}
				}
			}
		}
	}
}
