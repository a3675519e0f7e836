package kernels

import (
	"math/bits"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// Forms is a set of the forms in which matrix products read activations.
type Forms uint8

// The forms, from the widest to the narrowest.
const (
	FormF32     Forms = 1 << iota // as they are
	FormBF16                      // rounded to bf16
	FormInt8                      // rounded to 8-bit integers with a scale for each block of 256, see int8.go
	FormInt8x32                   // the same with a scale for each block of 32
)

// products returns the forms of activations by which weights of type t can be multiplied, on
// every instruction set.
func products(t tensor.Type) Forms {
	switch {
	case !t.Weights():
		return 0
	case t == tensor.BF16:
		return FormF32 | FormBF16
	}
	for i, block := range int8Blocks {
		if t.Block() == block {
			return FormF32 | FormInt8<<i
		}
	}
	return FormF32
}

// FormFor returns the form of activations that products with weights of type t read: of those
// allowed the narrowest by which such weights can be multiplied, 0 if there is none.
func FormFor(t tensor.Type, allowed Forms) Forms {
	f := products(t) & allowed
	if f == 0 {
		return 0
	}
	return 1 << (bits.Len8(uint8(f)) - 1)
}

func checkProduct(w *Matrix, f Forms) {
	if FormFor(w.Type, f) != f {
		panic("kernels: no such product with weights of type " + w.Type.String())
	}
}

// Operand is the left side of matrix products, [rows][columns], in the forms that they
// read.
type Operand struct {
	forms  Forms
	stride int // elements from one row to the next

	f32  []float32 // [rows][stride], nil without FormF32 and the integer forms, which are made from it
	bf16 []uint16  // [rows][stride], nil without FormBF16
	int8 [2]int8Rows
}

const formsInt8 = FormInt8 | FormInt8x32

// operandStride is the row distance of operands: not a power of two, so that rows do not
// fall on the same cache sets.
func operandStride(cols int) int { return cols + 64 }

// int8Blocks are the lengths of blocks of FormInt8 and FormInt8x32.
var int8Blocks = [2]int{256, 32}

// OperandWords returns the size of an operand of the given forms in float32.
func OperandWords(f Forms, rows, cols int) int {
	n := rows * operandStride(cols)
	words := 0
	if f&(FormF32|formsInt8) != 0 {
		words = n
	}
	if f&FormBF16 != 0 {
		words += (n + 1) / 2
	}
	for i, block := range int8Blocks {
		if f&(FormInt8<<i) != 0 {
			r := newInt8Rows(block, cols)
			words += r.bytes(rows) / 4
		}
	}
	return words
}

// NewOperand makes an operand in the first OperandWords elements of mem.
func NewOperand(mem []float32, f Forms, rows, cols int) Operand {
	o := Operand{forms: f, stride: operandStride(cols)}
	n := rows * o.stride
	if f&(FormF32|formsInt8) != 0 {
		o.f32, mem = mem[:n:n], mem[n:]
	}
	if f&FormBF16 != 0 {
		o.bf16 = unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(mem[:(n+1)/2]))), n)
		mem = mem[(n+1)/2:]
	}
	for i, block := range int8Blocks {
		if f&(FormInt8<<i) != 0 {
			r := newInt8Rows(block, cols)
			words := r.bytes(rows) / 4
			r.mem = unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(mem[:words]))), 4*words)
			o.int8[i], mem = r, mem[words:]
		}
	}
	return o
}

// SetOperand sets len(x) columns of a row of o, from column col on, to x in every form but
// the integer ones, which RoundOperand makes when a row is complete.
func (c CPU) SetOperand(o *Operand, row, col int, x []float32) {
	at := row*o.stride + col
	if o.f32 != nil {
		copy(o.f32[at:at+len(x)], x)
	}
	if o.bf16 != nil {
		c.RoundBF16(o.bf16[at:at+len(x)], x)
	}
}

// RoundOperand makes the integer forms of cols columns of a row of o, if it has any. Call it
// after the row's last SetOperand and before the next product.
func (c CPU) RoundOperand(o *Operand, row, cols int) {
	for i := range o.int8 {
		if r := &o.int8[i]; r.mem != nil {
			r.set(c, row, o.f32[row*o.stride:][:cols])
		}
	}
}

// Multiply computes rows [lo, hi) of the product of w with the first n rows of x, which are
// stored ldd apart, in the narrowest form that x has and w is multiplied by.
func (c CPU) Multiply(dst []float32, ldd int, x *Operand, n int, w *Matrix, lo, hi int) {
	switch FormFor(w.Type, x.forms) {
	case FormInt8:
		c.matMulInt8(dst, ldd, &x.int8[0], n, w, lo, hi)
	case FormInt8x32:
		c.matMulInt8(dst, ldd, &x.int8[1], n, w, lo, hi)
	case FormBF16:
		c.MatMulBF16(dst, ldd, x.bf16, x.stride, n, w, lo, hi)
	default:
		c.MatMul(dst, ldd, x.f32, x.stride, n, w, lo, hi)
	}
}
