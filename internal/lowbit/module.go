package lowbit

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/tensor"
)

// module collects the tensors of one matrix.
type module struct {
	src        Source
	name       string
	rows, cols int
	used       []string
}

// Matrix is one weight matrix, [Rows, Cols], as stored. It is a view of the checkpoint
// and may be read by several goroutines.
type Matrix struct {
	Rows, Cols int
	Tensors    []string // names of the tensors that make it up

	rowsOf func(dst []float32, from, n int)
	ints   *integers // nil for matrices of floats
}

// Float32s writes n rows from row from on to dst, [n][Cols].
func (m *Matrix) Float32s(dst []float32, from, n int) { m.rowsOf(dst[:n*m.Cols], from, n) }

// get returns a tensor of the module. A suffix is what follows its name.
func (m *module) get(suffix string, types ...tensor.Type) (tensor.Tensor, error) {
	name := m.name + suffix
	t, file, ok := m.src.Tensor(name)
	if !ok {
		return t, fmt.Errorf("tensor %q is missing", name)
	}
	if !slices.Contains(types, t.Type) {
		return t, fmt.Errorf("checkpoint file %q: tensor %q is of type %v, expected %v", file, name, t.Type, types)
	}
	m.used = append(m.used, name)
	return t, nil
}

// shaped returns a tensor of the module that has the given shape.
func (m *module) shaped(suffix string, shape []int, types ...tensor.Type) (tensor.Tensor, error) {
	t, err := m.get(suffix, types...)
	if err != nil {
		return t, err
	}
	if !fits(t, shape) {
		return t, m.wrongShape(suffix, t, tensor.ShapeString(shape))
	}
	return t, nil
}

// fits reports whether a tensor has a shape; a scalar may have the shape [1] or [].
func fits(t tensor.Tensor, shape []int) bool {
	return t.HasShape(shape...) || slices.Equal(shape, []int{1}) && len(t.Shape) == 0
}

func (m *module) wrongShape(suffix string, t tensor.Tensor, expected string) error {
	return fmt.Errorf("tensor %q has shape %s, expected %s for a weight of %s",
		m.name+suffix, tensor.ShapeString(t.Shape), expected, tensor.ShapeString([]int{m.rows, m.cols}))
}

var floats = []tensor.Type{tensor.F32, tensor.F16, tensor.BF16}

// scales returns finite numbers of one of the given shapes, in the order of the file.
func (m *module) scales(suffix string, shapes ...[]int) ([]float32, []int, error) {
	t, err := m.get(suffix, floats...)
	if err != nil {
		return nil, nil, err
	}
	return m.numbers(suffix, t, shapes)
}

func (m *module) numbers(suffix string, t tensor.Tensor, shapes [][]int) ([]float32, []int, error) {
	for _, shape := range shapes {
		if !fits(t, shape) {
			continue
		}
		x := t.Float32s(nil)
		for i, v := range x {
			if !finite(v) {
				return nil, nil, fmt.Errorf("tensor %q: number %d is %v, expected a finite number", m.name+suffix, i, v)
			}
		}
		return x, shape, nil
	}
	expected := ""
	for i, shape := range shapes {
		if i > 0 {
			expected += " or "
		}
		expected += tensor.ShapeString(shape)
	}
	return nil, nil, m.wrongShape(suffix, t, expected)
}

func finite(v float32) bool { return v-v == 0 }

// word returns 32-bit word i of a tensor.
func word(t tensor.Tensor, i int) uint32 { return binary.LittleEndian.Uint32(t.Data[4*i:]) }

// words32 are the types of tensors of packed words.
var words32 = []tensor.Type{tensor.I32, tensor.U32}

// groupSize returns the columns of a group; 0 or −1 mean one group for the whole row.
func (m *module) groupSize(size int) (int, error) {
	switch {
	case size == -1 || size == 0:
		return m.cols, nil
	case size < 0:
		return 0, fmt.Errorf("groups of %d columns of %q", size, m.name)
	}
	return size, nil
}

// groups is groupSize for groups that must divide a row.
func (m *module) groups(size int) (int, error) {
	size, err := m.groupSize(size)
	if err == nil && m.cols%size != 0 {
		err = fmt.Errorf("groups of %d do not divide the %d columns of %q", size, m.cols, m.name)
	}
	return size, err
}

// integers is a matrix of small integers with a scale, and perhaps a zero point or an
// offset, for every group of columns: (q − zero)·scale or q·scale + offset.
type integers struct {
	m     *module
	group int // columns that share a scale
	count int // scales of a row

	low, high int16 // bounds of q

	unpack  func(dst []int16, from, n int) // rows of q
	scales  []float32                      // [rows][count]
	zeros   []int16                        // likewise, nil for none
	offsets []float32                      // likewise
	index   []int32                        // [cols] the group of every column, nil: in order
}

func (x *integers) matrix() *Matrix {
	return &Matrix{Rows: x.m.rows, Cols: x.m.cols, rowsOf: x.rowsOf, ints: x}
}

func (x *integers) rowsOf(dst []float32, from, n int) {
	q := make([]int16, len(dst))
	x.unpack(q, from, n)
	for r := range n {
		at := (from + r) * x.count
		row, out := q[r*x.m.cols:(r+1)*x.m.cols], dst[r*x.m.cols:(r+1)*x.m.cols]
		for c, v := range row {
			g := at + c/x.group
			if x.index != nil {
				g = at + int(x.index[c])
			}
			switch {
			case x.zeros != nil:
				out[c] = float32(v-x.zeros[g]) * x.scales[g]
			case x.offsets != nil:
				// q has at most 8 bits and a scale 11: the product is exact in binary64, and
				// so is nearly every sum; it is rounded once.
				out[c] = float32(float64(v)*float64(x.scales[g]) + float64(x.offsets[g]))
			default:
				out[c] = float32(v) * x.scales[g]
			}
		}
	}
}

// spread repeats one number, or one for each row, so that every row has its own.
func spread(x []float32, rows int) []float32 {
	if len(x) == rows {
		return x
	}
	out := make([]float32, rows)
	for i := range out {
		out[i] = x[0]
	}
	return out
}

// packedRows unpacks words of a row-major matrix, [rows, per]: the elements of a word
// begin with the low bits. What is stored is q + bias.
func packedRows(t tensor.Tensor, cols, bits int, bias int16) func(dst []int16, from, n int) {
	each, mask := 32/bits, uint32(1)<<bits-1
	per := (cols + each - 1) / each
	return func(dst []int16, from, n int) {
		for r := range n {
			out := dst[r*cols : (r+1)*cols]
			for c := range out {
				w := word(t, (from+r)*per+c/each)
				out[c] = int16(w>>(c%each*bits)&mask) - bias
			}
		}
	}
}

// groupIndex reads the group of every column, of which there are count with size columns; nil
// if they follow one another.
func (m *module) groupIndex(suffix string, size, count int) ([]int32, error) {
	t, err := m.shaped(suffix, []int{m.cols}, tensor.I32)
	if err != nil {
		return nil, err
	}
	out, scattered := make([]int32, m.cols), false
	for i := range out {
		g := int32(word(t, i))
		if g < 0 || int(g) >= count {
			return nil, fmt.Errorf("tensor %q: column %d is in group %d, expected one of %d", m.name+suffix, i, g, count)
		}
		out[i] = g
		scattered = scattered || int(g) != i/size
	}
	if !scattered {
		return nil, nil
	}
	return out, nil
}

// float8 is the value of an 8-bit float with 4 exponent bits and no infinities; its two
// NaNs are those of binary32.
var float8 = func() (table [256]float32) {
	for i := range table {
		e, f := i>>3&15, float64(i&7)
		v := math.Ldexp(1+f/8, e-7)
		switch {
		case i&127 == 127:
			v = math.NaN()
		case e == 0:
			v = math.Ldexp(f, -9)
		}
		if i >= 128 {
			v = -v
		}
		table[i] = float32(v)
	}
	return table
}()

// float4 is the value of a 4-bit float with 2 exponent bits.
var float4 = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}
