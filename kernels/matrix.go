package kernels

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// Matrix is a weight matrix [Rows, Cols], row-major, of a type that Type.Weights accepts.
// Rows are whole blocks of the type. Data is read in place and need not be aligned beyond
// Type.Align.
type Matrix struct {
	Type       tensor.Type
	Rows, Cols int
	Data       []byte
}

// F32Matrix returns data, [rows][cols], as a matrix. Nothing is copied on
// little-endian processors; the matrix is valid as long as data is.
func F32Matrix(data []float32, rows, cols int) Matrix {
	data = data[:rows*cols]
	m := Matrix{Type: tensor.F32, Rows: rows, Cols: cols}
	if littleEndian {
		m.Data = unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), 4*len(data))
		return m
	}
	for _, v := range data {
		m.Data = binary.LittleEndian.AppendUint32(m.Data, math.Float32bits(v))
	}
	return m
}

// Slice returns rows [lo, hi) of w, which share its memory.
func (w *Matrix) Slice(lo, hi int) Matrix {
	from, to := w.Type.Bytes(lo*w.Cols), w.Type.Bytes(hi*w.Cols)
	return Matrix{Type: w.Type, Rows: hi - lo, Cols: w.Cols, Data: w.Data[from:to]}
}

// at returns the address of column k of row o; k is at the beginning of a block.
func (w *Matrix) at(o, k int) unsafe.Pointer {
	return unsafe.Pointer(&w.Data[w.Type.Bytes(o*w.Cols+k)])
}

// widened returns len(buf) columns of row o from column k on, which are whole blocks. It uses
// buf unless they are stored as aligned f32.
func (w *Matrix) widened(buf []float32, o, k int) []float32 {
	src := w.Data[w.Type.Bytes(o*w.Cols+k):]
	if w.Type == tensor.F32 && littleEndian && uintptr(unsafe.Pointer(unsafe.SliceData(src)))%4 == 0 {
		return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(src[:4*len(buf)]))), len(buf))
	}
	w.Type.Widen(buf, src)
	return buf
}

// WidenRow sets dst to len(dst) columns of row o of w, from column k on, converted as by
// tensor.Type.Widen. Neither need be whole blocks.
func (c CPU) WidenRow(dst []float32, w *Matrix, o, k int) {
	n := w.Type.Block()
	for len(dst) > 0 {
		skip := k % n
		src := w.Data[w.Type.Bytes(o*w.Cols+k-skip):]
		if whole := len(dst) / n * n; skip == 0 && whole > 0 {
			c.Widen(dst[:whole], src, w.Type)
			dst, k = dst[whole:], k+whole
			continue
		}
		var block [256]float32
		c.Widen(block[:n], src, w.Type)
		done := copy(dst, block[skip:n])
		dst, k = dst[done:], k+done
	}
}
