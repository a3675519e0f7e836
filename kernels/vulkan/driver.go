//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

func init() { kernels.RegisterDevice(driver{}) }

// driver is the kernels.DeviceDriver of this package.
type driver struct{}

func (driver) Name() string                           { return "vulkan" }
func (driver) Devices() ([]kernels.DeviceInfo, error) { return Devices() }

func (driver) Open(selector string) (kernels.Device, error) {
	d, err := Open(selector, Options{})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// matrix, vector and rowStore are what a Device stores for its users.
type matrix struct {
	weights
	buf *buffer
}

type vector struct {
	buf *buffer
	n   int
}

type rowStore struct {
	rowset
	buf *buffer
}

func (m *matrix) Free()   { m.buf.Free() }
func (v *vector) Free()   { v.buf.Free() }
func (r *rowStore) Free() { r.buf.Free() }

// Matrix copies weights to the device.
func (d *Device) Matrix(ctx context.Context, m kernels.Matrix) (kernels.DeviceMatrix, error) {
	if _, ok := typeCode(m.Type); !ok || m.Rows < 1 || m.Cols < 1 || len(m.Data) < m.Type.Bytes(m.Rows*m.Cols) {
		return nil, fmt.Errorf("copy weights to %s: found %d×%d of %v in %d bytes, expected F32, F16 or BF16 and all of them", d.info.Name, m.Rows, m.Cols, m.Type, len(m.Data))
	}
	buf, err := d.newLocalBuffer(weightBytes(m.Type, m.Rows, m.Cols))
	if err != nil {
		return nil, fmt.Errorf("copy %d×%d weights to the device: %w", m.Rows, m.Cols, err)
	}
	if err := d.uploadRows(ctx, buf.All(), m.Data[:m.Type.Bytes(m.Rows*m.Cols)], m.Type.Bytes(m.Cols), m.Type.Bytes(padded(m.Cols))); err != nil {
		buf.Free()
		return nil, fmt.Errorf("copy %d×%d weights to the device: %w", m.Rows, m.Cols, err)
	}
	return &matrix{weights{buf.All(), m.Type, m.Rows, m.Cols}, buf}, nil
}

// Vector copies numbers to the device.
func (d *Device) Vector(ctx context.Context, v []float32) (kernels.DeviceVector, error) {
	buf, err := d.newLocalBuffer(4 * int64(len(v)))
	if err != nil {
		return nil, fmt.Errorf("copy %d numbers to the device: %w", len(v), err)
	}
	if err := d.upload(ctx, buf.All(), floatBytes(v)); err != nil {
		buf.Free()
		return nil, fmt.Errorf("copy %d numbers to the device: %w", len(v), err)
	}
	return &vector{buf, len(v)}, nil
}

// Rows allocates n rows of cols numbers.
func (d *Device) Rows(n, cols int) (kernels.DeviceRows, error) {
	if n < 0 || cols < 0 {
		return nil, fmt.Errorf("take %d rows of %d numbers on %s: the size is negative", n, cols, d.info.Name)
	}
	buf, err := d.newLocalBuffer(4 * int64(n) * int64(padded(cols)))
	if err != nil {
		return nil, fmt.Errorf("take %d rows of %d numbers: %w", n, cols, err)
	}
	return &rowStore{newRowset(buf.All(), tensor.F32, n, cols), buf}, nil
}

// floatBytes returns the bytes of x. The processors that this package is built for
// have the device's byte order.
func floatBytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// floatsOf returns the memory of a host buffer as numbers.
func floatsOf(b *buffer) []float32 {
	m := b.Bytes()
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(m))), len(m)/4)
}
