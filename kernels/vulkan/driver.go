//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"unsafe"

	"github.com/lukv/lukv/kernels"
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
