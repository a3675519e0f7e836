//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"fmt"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// matrix is a kernels.DeviceMatrix.
type matrix struct {
	weights
	buf *buffer
}

func (m *matrix) Free() { m.buf.Free() }

// rowBuffer is a kernels.Buffer. Rows of shared memory have no gaps.
type rowBuffer struct {
	rows2D
	buf    *buffer
	shared bool
}

func (r *rowBuffer) Free() { r.buf.Free() }

// Floats returns the numbers of shared memory.
func (r *rowBuffer) Floats() []float32 { return floatsOf(r.buf)[: r.N*r.Cols : r.N*r.Cols] }

// Matrix copies weights to the device.
func (d *Device) Matrix(ctx context.Context, stack ...kernels.Matrix) (kernels.DeviceMatrix, error) {
	if len(stack) == 0 {
		return nil, fmt.Errorf("copy weights to %s: found none", d.info.Name)
	}
	first := stack[0]
	_, known := weightCode(first.Type)
	for _, m := range stack {
		if m.Type != first.Type || m.Rows != first.Rows || m.Cols != first.Cols {
			return nil, fmt.Errorf("copy weights to %s: found %d×%d of %v after %d×%d of %v, expected matrices of one shape and type", d.info.Name, m.Rows, m.Cols, m.Type, first.Rows, first.Cols, first.Type)
		}
		if !known || m.Rows < 1 || m.Cols < 1 || m.Cols%m.Type.Block() != 0 || len(m.Data) < m.Type.Bytes(m.Rows*m.Cols) {
			return nil, fmt.Errorf("copy weights to %s: found %d×%d of %v in %d bytes, expected F32, F16, BF16 or whole blocks of integers, and all of them", d.info.Name, m.Rows, m.Cols, m.Type, len(m.Data))
		}
	}
	rows, size := first.Rows*len(stack), weightBytes(first.Type, first.Rows, first.Cols)
	buf, err := d.newLocalBuffer(size * int64(len(stack)))
	if err != nil {
		return nil, fmt.Errorf("copy %d×%d weights to the device: %w", rows, first.Cols, err)
	}
	row := first.Type.Bytes(first.Cols)
	for i, m := range stack {
		if err := d.uploadRows(ctx, buf.At(int64(i)*size, size), m.Data[:m.Rows*row], row, rowPitch(m.Type, m.Cols)); err != nil {
			buf.Free()
			return nil, fmt.Errorf("copy %d×%d weights to the device: %w", rows, first.Cols, err)
		}
	}
	return &matrix{weights{buf.All(), first.Type, rows, first.Cols}, buf}, nil
}

// Buffer allocates rows of f32 or bf16 on the device.
func (d *Device) Buffer(t tensor.Type, rows, cols int) (kernels.Buffer, error) {
	if t != tensor.F32 && t != tensor.BF16 || rows < 0 || cols < 0 {
		return nil, fmt.Errorf("make a buffer on %s: found %d rows of %d elements of type %v, expected F32 or BF16 and no negative size", d.info.Name, rows, cols, t)
	}
	buf, err := d.newLocalBuffer(int64(rows) * int64(padded(cols)) * int64(t.Bytes(1)))
	if err == nil && buf.Size() > 0 {
		// Gaps between rows, too, so that no shader that reads them meets NaN.
		if err = d.once(func(c *commands) { c.Zero(buf.All()) }); err != nil {
			buf.Free()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make a buffer of %d rows of %d elements: %w", rows, cols, err)
	}
	return &rowBuffer{rows2D: newRows2D(buf.All(), t, rows, cols), buf: buf}, nil
}

// Shared allocates rows of f32 in memory that the host uses in place.
func (d *Device) Shared(use kernels.SharedUse, rows, cols int) (kernels.SharedBuffer, error) {
	if rows < 0 || cols < 0 {
		return nil, fmt.Errorf("make a shared buffer on %s: found %d rows of %d elements, expected no negative size", d.info.Name, rows, cols)
	}
	allocate := d.newParamBuffer
	if use == kernels.HostReads {
		allocate = d.newHostBuffer
	}
	buf, err := allocate(4 * int64(rows) * int64(cols))
	if err != nil {
		return nil, fmt.Errorf("make a shared buffer of %d rows of %d elements: %w", rows, cols, err)
	}
	clear(buf.Bytes())
	return &rowBuffer{rows2D{Mem: buf.All(), Type: tensor.F32, N: rows, Cols: cols, Stride: cols}, buf, true}, nil
}

// bufferOf returns the memory of a buffer of d.
func (d *Device) bufferOf(b kernels.Buffer) (*rowBuffer, error) {
	r, ok := b.(*rowBuffer)
	if !ok || r == nil || r.buf.block == nil || r.buf.d != d {
		return nil, fmt.Errorf("the buffer is not on %s, or was freed", d.info.Name)
	}
	return r, nil
}

// rowsOf returns the memory of rows of a buffer of d.
func (d *Device) rowsOf(r kernels.Rows) (rows2D, error) {
	b, err := d.bufferOf(r.Buffer)
	if err != nil {
		return rows2D{}, err
	}
	if r.First < 0 || r.N < 0 || r.N > b.N-r.First {
		return rows2D{}, fmt.Errorf("found rows [%d, %d+%d) of a buffer of %d rows", r.First, r.First, r.N, b.N)
	}
	return b.Part(r.First, r.N), nil
}

// matrixOf returns the memory of a matrix of d.
func (d *Device) matrixOf(m kernels.DeviceMatrix) (weights, error) {
	w, ok := m.(*matrix)
	if !ok || w == nil || w.buf.block == nil || w.buf.d != d {
		return weights{}, fmt.Errorf("the matrix is not on %s, or was freed", d.info.Name)
	}
	return w.weights, nil
}

// Write copies numbers to rows.
func (d *Device) Write(ctx context.Context, dst kernels.Rows, src []float32) error {
	r, err := d.transfer(dst, len(src))
	if err != nil {
		return fmt.Errorf("write a buffer: %w", err)
	}
	raw := floatBytes(src[:r.N*r.Cols])
	if r.Type != tensor.F32 {
		raw = make([]byte, r.N*r.Cols*r.Type.Bytes(1))
		kernels.CPU{}.Narrow(raw, src[:r.N*r.Cols], r.Type)
	}
	if len(raw) == 0 {
		return nil
	}
	size := r.Type.Bytes(1)
	if err := d.uploadRows(ctx, r.Mem, raw, r.Cols*size, r.Stride*size); err != nil {
		return fmt.Errorf("write a buffer: %w", err)
	}
	return nil
}

// Read copies rows to numbers.
func (d *Device) Read(ctx context.Context, dst []float32, src kernels.Rows) error {
	r, err := d.transfer(src, len(dst))
	if err != nil {
		return fmt.Errorf("read a buffer: %w", err)
	}
	if r.N == 0 {
		return nil
	}
	size := r.Type.Bytes(1)
	raw := floatBytes(dst[:r.N*r.Cols])
	if r.Stride != r.Cols || r.Type != tensor.F32 {
		raw = make([]byte, r.bytes())
	}
	if err := d.download(ctx, raw, r.Mem); err != nil {
		return fmt.Errorf("read a buffer: %w", err)
	}
	if r.Stride != r.Cols || r.Type != tensor.F32 {
		for i := range r.N {
			kernels.CPU{}.Widen(dst[i*r.Cols:(i+1)*r.Cols], raw[i*r.Stride*size:(i*r.Stride+r.Cols)*size], r.Type)
		}
	}
	return nil
}

// transfer checks that n numbers are enough for rows that are copied from or to the host.
func (d *Device) transfer(rows kernels.Rows, n int) (rows2D, error) {
	r, err := d.rowsOf(rows)
	if err == nil && n < r.N*r.Cols {
		err = fmt.Errorf("found %d numbers for %d rows of %d", n, r.N, r.Cols)
	}
	if err == nil {
		err = d.ready()
	}
	return r, err
}
