package quantize

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"github.com/lukv/lukv/internal/workers"
	"github.com/lukv/lukv/tensor"
)

// integers is a matrix on its way to integers with a scale for every group of columns, which
// stands for the value integer × scale. A scale is chosen for the least squared error, weighted by
// importance, among those that map the group's largest magnitude to a number of the grid;
// errors are those of the stored scale. A group of zeros has the smallest scale that is
// stored. Sums are in binary64, with every product rounded before it is added, so that the
// bytes are the same on all processors.
type integers struct {
	name       string        // of the module
	src        tensor.Tensor // of floats
	from       int           // the row of src, counted over all leading dimensions, that is row 0
	rows, cols int
	bits       int         // 8 or 4
	group      int         // columns that share a scale
	scaleType  tensor.Type // BF16 or F16
	importance []float32   // [cols], nil: all columns count alike

	scales []byte // [rows][cols/group] of scaleType, nil until they are known
}

// top returns the largest integer; the smallest is one less of 4 bits, and its negative of 8.
func (m *integers) top() float64 { return float64(int(1)<<(m.bits-1) - 1) }

func (m *integers) bottom() float64 {
	if m.bits == 4 {
		return -8
	}
	return -127
}

// grid are the numbers to which the largest magnitude may be mapped: up to the last integer on
// the longer side. To clip it by more gives a smaller squared error still, but models that
// differ more from the source.
func (m *integers) grid() (first, step float64, n int) {
	if m.bits == 4 {
		return 6, 0.1, 21
	}
	return 120, 1, 8
}

// scaled stores a scale and returns its stored value. Scales are such that both BF16 and F16
// hold them, so that a reader may use either: below 2^-17, where F16 has fewer digits than
// BF16, multiples of 2^-24, and never 0.
func (m *integers) scaled(dst []byte, scale float64) float64 {
	h := uint16(0)
	if m.scaleType == tensor.F16 {
		h = max(1, tensor.F32ToF16(float32(scale)))
		binary.LittleEndian.PutUint16(dst, h)
		return float64(tensor.F16ToF32(h))
	}
	if scale < 0x1p-17 {
		scale = max(1, math.RoundToEven(scale*0x1p24)) * 0x1p-24
	}
	h = tensor.F32ToBF16(float32(scale))
	binary.LittleEndian.PutUint16(dst, h)
	return float64(math.Float32frombits(uint32(h) << 16))
}

// rounded returns the integer for x.
func (m *integers) rounded(x float32, scale float64) float64 {
	return min(max(math.RoundToEven(float64(x)/scale), m.bottom()), m.top())
}

// toInteger rounds a small number to an even integer when it is added and taken away again.
const toInteger = 3 << 51

// maxScale bounds scales: F16 holds no larger ones.
const maxScale = 65504

// scaleOf chooses the scale of a group and stores it. It returns the index of an element that
// has no place in any scale, -1 if there is none.
func (m *integers) scaleOf(dst []byte, x, weight []float32) int {
	largest := float32(0)
	for i, v := range x {
		if !(max(v, -v) <= maxScale*float32(m.top())) {
			return i
		}
		largest = max(largest, v, -v)
	}
	first, step, n := m.grid()
	least, best := math.Inf(1), float64(largest)/first
	var stored [2]byte
	low, high := m.bottom(), m.top()
	for i := range n {
		// An element halfway between two integers has the same error with either, so that a
		// product with the inverse may take the place of a quotient here.
		try := float64(largest) / (first + float64(i)*step)
		scale, e := m.scaled(stored[:], try), 0.0
		inverse := 1 / scale
		for j, v := range x {
			q := float64(float64(v)*inverse) + toInteger
			q -= toInteger
			if q < low {
				q = low
			} else if q > high {
				q = high
			}
			r := float64(v) - float64(scale*q)
			r = float64(r * r)
			if weight != nil {
				r = float64(r * float64(weight[j]))
			}
			e += r
		}
		if e < least {
			least, best = e, try
		}
	}
	m.scaled(dst, best)
	return -1
}

// rowBatch is how many elements are worked on at a time, about: enough to divide among the
// processors.
const rowBatch = 1 << 20

// rowTask runs fn on rows of a matrix.
type rowTask struct {
	m    *integers
	from int
	x    [][]float32 // [workers][cols]
	fn   func(row int, x []float32) error

	mu  sync.Mutex
	row int // of err
	err error
}

func (t *rowTask) Run(lo, hi, worker int) {
	m, typ := t.m, t.m.src.Type
	for row := t.from + lo; row < t.from+hi; row++ {
		typ.Widen(t.x[worker], m.src.Data[typ.Bytes((m.from+row)*m.cols):])
		if err := t.fn(row, t.x[worker]); err != nil {
			t.mu.Lock()
			if t.err == nil || row < t.row {
				t.row, t.err = row, err
			}
			t.mu.Unlock()
		}
	}
}

// each calls fn for every row, by all processors, some rows at a time; after those from row
// from on it calls done, which may be nil.
func (m *integers) each(ctx context.Context, pool *workers.Pool, fn func(row int, x []float32) error, done func(from, n int) error) error {
	t := &rowTask{m: m, fn: fn}
	for range pool.Threads() {
		t.x = append(t.x, make([]float32, m.cols))
	}
	step := max(1, rowBatch/m.cols)
	for from := 0; from < m.rows; from += step {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := min(step, m.rows-from)
		t.from = from
		pool.Run(n, 1, t)
		if t.err != nil {
			return t.err
		}
		if done != nil {
			if err := done(from, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// choose chooses all scales.
func (m *integers) choose(ctx context.Context, pool *workers.Pool, progress func(elements int64)) error {
	count := m.cols / m.group
	scales := make([]byte, 2*m.rows*count)
	err := m.each(ctx, pool, func(row int, x []float32) error {
		for g := range count {
			at, weight := g*m.group, m.importance
			if weight != nil {
				weight = weight[at : at+m.group]
			}
			if i := m.scaleOf(scales[2*(row*count+g):], x[at:at+m.group], weight); i >= 0 {
				return fmt.Errorf("row %d, column %d of the weight of %q is %v, expected a number between ±%g",
					row, at+i, m.name, x[at+i], maxScale*m.top())
			}
		}
		return nil
	}, func(_, n int) error {
		progress(int64(n) * int64(m.cols))
		return nil
	})
	if err == nil {
		m.scales = scales
	}
	return err
}

// scale returns scale i of all.
func (m *integers) scale(i int) float64 {
	b := m.scales[2*i:]
	if m.scaleType == tensor.F16 {
		return float64(tensor.F16ToF32(binary.LittleEndian.Uint16(b)))
	}
	return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16))
}

// rowBytes returns the bytes of a row of integers: one each, or words of eight, the first in
// the lowest bits, with 8 added.
func (m *integers) rowBytes() int { return m.cols * m.bits / 8 }

// pack calls write with the integers of all rows, in order. The scales must have been chosen.
func (m *integers) pack(ctx context.Context, pool *workers.Pool, write func([]byte) error) error {
	count, size := m.cols/m.group, m.rowBytes()
	step := max(1, rowBatch/m.cols)
	out := make([]byte, min(step, m.rows)*size)
	return m.each(ctx, pool, func(row int, x []float32) error {
		dst := out[row%step*size : (row%step+1)*size]
		scale := 0.0
		for c, v := range x {
			if c%m.group == 0 {
				scale = m.scale(row*count + c/m.group)
			}
			q := int8(m.rounded(v, scale))
			switch {
			case m.bits == 8:
				dst[c] = byte(q)
			case c%2 == 0:
				dst[c/2] = byte(q + 8)
			default:
				dst[c/2] |= byte(q+8) << 4
			}
		}
		return nil
	}, func(_, n int) error { return write(out[:n*size]) })
}
