package kvcache

import (
	"math"
	"testing"
	"unsafe"

	"github.com/lukv/lukv/examples/device"
	"github.com/lukv/lukv/internal/testdevice"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// place is where a test keeps its caches.
type place struct {
	name   string
	device *testdevice.Device // nil: host memory
	layers int                // on the device
}

// everywhere runs a test with caches on the host, on a device, and with their
// first layer on a device and the rest on the host.
func everywhere(t *testing.T, run func(t *testing.T, at place)) {
	for _, at := range []place{{name: "host"}, {name: "device", device: newFake()}, {name: "both", device: newFake(), layers: 1}} {
		t.Run(at.name, func(t *testing.T) {
			if at.device != nil {
				// Registered first, so it runs last, when the caches are closed.
				t.Cleanup(func() { at.device.WantEmpty(t) })
			}
			run(t, at)
		})
	}
}

func (at place) options(o Options) Options {
	if at.device != nil {
		o.Device, o.DeviceLayers = at.device, at.layers
	}
	return o
}

func (at place) open(t testing.TB, o Options) *Cache {
	t.Helper()
	return open(t, at.options(o))
}

// newFake returns a device in host memory that can be told to fail. It panics on use of a
// page that nobody holds, on a write to a page with several holders, and on a page table that
// missed a change.
func newFake() *testdevice.Device { return testdevice.New(device.New(kernels.CPU{})) }

// pass does what a list on the device does after a Reserve: it stores keys and
// values [n][HeadDim] in a head's entries from first on, through the head's table.
func pass(c *Cache, layer, head, first int, pos []int32, k, v []float32) {
	o, t := c.Options(), c.Table(layer, head).(*testdevice.Table)
	d, l := o.HeadDim, o.Layout(layer)
	for i, x := range pos {
		e := first + i
		err := t.Edit(e/o.PageEntries, func(block []byte) {
			e := e % o.PageEntries
			key, value := k[i*d:(i+1)*d], v[i*d:(i+1)*d]
			if l.IntKeys() {
				r := l.KeyRows()
				r.Store(kernels.CPU{}, unsafe.Pointer(&block[0]), e, key)
			} else { // the layout of a page, spelled out
				for j := range d {
					encode(block[(e/16*16*d+j*16+e%16)*l.Type.Bytes(1):], l.Type, key[j])
				}
			}
			if l.IntValues() {
				r := l.ValueRows()
				r.Store(kernels.CPU{}, unsafe.Pointer(&block[l.ValuesAt()]), e, value)
			} else {
				for j := range d {
					encode(block[l.ValuesAt()+(e*d+j)*l.ValueType().Bytes(1):], l.ValueType(), value[j])
				}
			}
			*(*int32)(unsafe.Pointer(&block[l.PositionsAt()+4*e])) = x
		})
		if err != nil {
			panic(err)
		}
	}
}

func encode(dst []byte, typ tensor.Type, x float32) {
	switch p := unsafe.Pointer(&dst[0]); typ {
	case tensor.F32:
		*(*uint32)(p) = math.Float32bits(x)
	case tensor.F16:
		*(*uint16)(p) = tensor.F32ToF16(x)
	case tensor.BF16:
		*(*uint16)(p) = tensor.F32ToBF16(x)
	}
}
