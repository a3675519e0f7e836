package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unsafe"
)

// Tensor is a view of an array: Type says how an element is stored, Shape gives
// the dimensions, outermost first, and Data holds the elements row by row,
// little-endian, exactly Bytes(Type, Shape) bytes. An empty Shape is a scalar.
//
// The zero Tensor stands for "no tensor" (see IsZero). Data is not owned; the
// package documentation says how long it is valid. Shape must not be changed.
type Tensor struct {
	Type  Type
	Shape []int
	Data  []byte
}

// Count returns the number of elements of an array of the given shape, 1 for
// an empty shape. It fails if a dimension is negative or the product is beyond the
// range of int.
func Count(shape []int) (int, error) {
	n := uint64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %s: dimension %d is negative", ShapeString(shape), d)
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > math.MaxInt {
			return 0, fmt.Errorf("shape %s: number of elements is out of range", ShapeString(shape))
		}
		n = lo
	}
	return int(n), nil
}

// Bytes returns the number of bytes that an array of the given type and shape
// takes. It fails if Count does, for an invalid type, if the size is beyond the
// range of int, and if the elements, for a quantised type those of a row, do not fill the
// last block.
func Bytes(t Type, shape []int) (int, error) {
	if !t.Valid() {
		return 0, fmt.Errorf("element type %v is invalid", t)
	}
	n, err := Count(shape)
	if err != nil {
		return 0, err
	}
	f := &formats[t]
	whole := n
	if t.Quantised() && len(shape) > 0 {
		whole = shape[len(shape)-1]
	}
	if whole%f.block != 0 || n%f.block != 0 {
		return 0, fmt.Errorf("%v%s: %d elements are not whole blocks of %d", t, ShapeString(shape), whole, f.block)
	}
	hi, size := bits.Mul64(uint64(n/f.block), uint64(f.bytes))
	if hi != 0 || size > math.MaxInt {
		return 0, fmt.Errorf("%v%s: size in bytes is out of range", t, ShapeString(shape))
	}
	return int(size), nil
}

// New returns a view of data, which it keeps without a copy, after checking
// that the type and shape are valid and that data has exactly their size. The
// shape is kept too.
func New(t Type, shape []int, data []byte) (Tensor, error) {
	n, err := Bytes(t, shape)
	if err != nil {
		return Tensor{}, err
	}
	if n != len(data) {
		return Tensor{}, fmt.Errorf("%v%s: got %d bytes, expected %d", t, ShapeString(shape), len(data), n)
	}
	return Tensor{Type: t, Shape: shape, Data: data}, nil
}

// Make returns a tensor of zeros in newly allocated memory, aligned for its
// type. It panics if Bytes returns an error.
func Make(t Type, shape ...int) Tensor {
	n, err := Bytes(t, shape)
	if err != nil {
		panic("tensor: " + err.Error())
	}
	return Tensor{Type: t, Shape: shape, Data: alignedBytes(n)}
}

// FromF32s returns a newly allocated tensor of type F32, F16 or BF16 with the
// given values, rounded to nearest even. It panics for any other type, or if
// the number of values does not fit the shape.
func FromF32s(t Type, values []float32, shape ...int) Tensor {
	x := Make(t, shape...)
	if x.Len() != len(values) {
		panic(fmt.Sprintf("tensor: %d values for shape %s", len(values), ShapeString(shape)))
	}
	switch t {
	case F32:
		for i, v := range values {
			binary.LittleEndian.PutUint32(x.Data[4*i:], math.Float32bits(v))
		}
	case F16:
		for i, v := range values {
			binary.LittleEndian.PutUint16(x.Data[2*i:], F32ToF16(v))
		}
	case BF16:
		for i, v := range values {
			binary.LittleEndian.PutUint16(x.Data[2*i:], F32ToBF16(v))
		}
	default:
		panic(fmt.Sprintf("tensor: cannot store float32 values as %v", t))
	}
	return x
}

// FromI64s returns a newly allocated I64 tensor with the given values. It
// panics if their number does not fit the shape.
func FromI64s(values []int64, shape ...int) Tensor {
	x := Make(I64, shape...)
	if x.Len() != len(values) {
		panic(fmt.Sprintf("tensor: %d values for shape %s", len(values), ShapeString(shape)))
	}
	for i, v := range values {
		binary.LittleEndian.PutUint64(x.Data[8*i:], uint64(v))
	}
	return x
}

// IsZero reports whether t is the zero Tensor, which stands for an absent one.
func (t Tensor) IsZero() bool { return t.Type == 0 }

// Len returns the number of elements, 0 for the zero Tensor.
func (t Tensor) Len() int {
	if t.IsZero() {
		return 0
	}
	f := &formats[t.Type]
	return len(t.Data) / f.bytes * f.block
}

// Row returns element i along the first dimension: for a [rows, cols] matrix,
// row i as a view of shape [cols]. It panics if t is a scalar or i is out of
// range, and for rows that are not whole blocks.
func (t Tensor) Row(i int) Tensor {
	if len(t.Shape) == 0 || i < 0 || i >= t.Shape[0] {
		panic(fmt.Sprintf("tensor: row %d of shape %s", i, ShapeString(t.Shape)))
	}
	size := t.Type.Bytes(t.Len() / t.Shape[0])
	return Tensor{Type: t.Type, Shape: t.Shape[1:], Data: t.Data[i*size : (i+1)*size : (i+1)*size]}
}

// F32s returns the elements of an F32 tensor. On a little-endian host, with
// Data aligned to 4 bytes, the result is a view that shares the memory and the
// lifetime of Data and must not be written; otherwise it is a copy. It panics
// for other types.
func (t Tensor) F32s() []float32 {
	if t.Type != F32 {
		panic(fmt.Sprintf("tensor: F32s of %v%s", t.Type, ShapeString(t.Shape)))
	}
	if v, ok := view[float32](t.Data); ok {
		return v
	}
	return t.AppendF32s(make([]float32, 0, t.Len()))
}

// U16s returns the stored 16-bit patterns of an F16, BF16, I16 or U16 tensor.
// On a little-endian host, with Data aligned to 2 bytes, the result is a view
// that shares the memory and the lifetime of Data and must not be written;
// otherwise it is a copy. It panics for other types.
func (t Tensor) U16s() []uint16 {
	switch t.Type {
	case F16, BF16, I16, U16:
	default:
		panic(fmt.Sprintf("tensor: U16s of %v%s", t.Type, ShapeString(t.Shape)))
	}
	if v, ok := view[uint16](t.Data); ok {
		return v
	}
	v := make([]uint16, t.Len())
	for i := range v {
		v[i] = binary.LittleEndian.Uint16(t.Data[2*i:])
	}
	return v
}

// AppendF32s appends the elements of a tensor, converted as by Type.Widen, to dst and
// returns the extended slice. It panics for types that Widen does not convert.
func (t Tensor) AppendF32s(dst []float32) []float32 {
	was, n := len(dst), t.Len()
	dst = slices.Grow(dst, n)[:was+n]
	t.Type.Widen(dst[was:], t.Data)
	return dst
}

// Float32s writes the elements of a floating-point tensor, converted as by
// AppendF32s, to the start of dst, which is used if its capacity suffices and
// replaced by a new slice if not. It returns the slice of length Len.
func (t Tensor) Float32s(dst []float32) []float32 {
	if cap(dst) < t.Len() {
		dst = make([]float32, 0, t.Len())
	}
	return t.AppendF32s(dst[:0])
}

// Int64s writes the elements of an integer or Bool tensor to the start of dst,
// which is used if its capacity suffices, and returns the slice of length Len.
// U64 values beyond the range of int64 wrap around. It panics for other types.
func (t Tensor) Int64s(dst []int64) []int64 {
	n := t.Len()
	if cap(dst) < n {
		dst = make([]int64, n)
	}
	dst = dst[:n]
	for i := range dst {
		d := t.Data[i*len(t.Data)/n:]
		switch t.Type {
		case I64, U64:
			dst[i] = int64(binary.LittleEndian.Uint64(d))
		case I32:
			dst[i] = int64(int32(binary.LittleEndian.Uint32(d)))
		case U32:
			dst[i] = int64(binary.LittleEndian.Uint32(d))
		case I16:
			dst[i] = int64(int16(binary.LittleEndian.Uint16(d)))
		case U16:
			dst[i] = int64(binary.LittleEndian.Uint16(d))
		case I8:
			dst[i] = int64(int8(d[0]))
		case U8, Bool:
			dst[i] = int64(d[0])
		default:
			panic(fmt.Sprintf("tensor: cannot read %v%s as integers", t.Type, ShapeString(t.Shape)))
		}
	}
	return dst
}

// HasShape reports whether the dimensions of t are exactly these.
func (t Tensor) HasShape(dims ...int) bool {
	if len(t.Shape) != len(dims) {
		return false
	}
	for i, d := range dims {
		if t.Shape[i] != d {
			return false
		}
	}
	return true
}

// String returns type and shape, such as "BF16[4096, 1024]".
func (t Tensor) String() string { return t.Type.String() + ShapeString(t.Shape) }

// ShapeString formats a shape for messages, such as "[4096, 1024]". Shapes of
// more than eight dimensions are abbreviated.
func ShapeString(shape []int) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, d := range shape {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == 8 {
			fmt.Fprintf(&b, "... (%d dimensions)", len(shape))
			break
		}
		b.WriteString(strconv.Itoa(d))
	}
	b.WriteByte(']')
	return b.String()
}

// littleEndian reports whether the host stores numbers as tensors do.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// view reinterprets b as a slice of T if the host's byte order and the
// alignment of b allow it.
func view[T float32 | uint16](b []byte) ([]T, bool) {
	var zero T
	size := int(unsafe.Sizeof(zero))
	if len(b) == 0 {
		return nil, true
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if !littleEndian || uintptr(p)%uintptr(size) != 0 {
		return nil, false
	}
	return unsafe.Slice((*T)(p), len(b)/size), true
}

// alignedBytes allocates n bytes that start at a multiple of 8; the allocator
// guarantees that only for slices of 8-byte elements.
func alignedBytes(n int) []byte {
	if n == 0 {
		return nil
	}
	words := make([]uint64, (n-1)/8+1)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), n)
}
