package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/examples/device"
	"github.com/lukv/lukv/internal/testdevice"
	"github.com/lukv/lukv/kernels"
)

// nullDevice is a device on which operations take no time.
type nullDevice struct {
	*testdevice.Device
	noPages error
	closed  bool
}

func newNullDevice() *nullDevice {
	d := &nullDevice{Device: testdevice.New(device.New(kernels.CPU{}))}
	d.Limit(1 << 30)
	return d
}

func (d *nullDevice) Pages(l kernels.PageLayout) (kernels.PagePool, error) {
	if d.noPages != nil {
		return nil, d.noPages
	}
	return d.Device.Pages(l)
}

func (d *nullDevice) Encoder() (kernels.Encoder, error) {
	e, err := d.Device.Encoder()
	return &nullEncoder{e}, err
}

func (d *nullDevice) Close() error {
	d.closed = true
	return d.Device.Close()
}

// nullEncoder records no operations.
type nullEncoder struct{ kernels.Encoder }

func (*nullEncoder) Copy(_, _ kernels.Rows)                                              {}
func (*nullEncoder) MatMul(kernels.Rows, bool, []kernels.Product)                        {}
func (*nullEncoder) GateUp(_, _ kernels.Rows, _ kernels.Activation, _, _ kernels.Linear) {}
func (*nullEncoder) Attend(kernels.Attention, int, kernels.Rows, kernels.Rows, bool) {
}

// nullDriver opens the device that a test has set as next.
type nullDriver struct{ next *nullDevice }

var null = &nullDriver{}

func init() { kernels.RegisterDevice(null) }

func (*nullDriver) Name() string                           { return "null" }
func (*nullDriver) Devices() ([]kernels.DeviceInfo, error) { return nil, kernels.ErrNoDevice }

func (n *nullDriver) Open(string) (kernels.Device, error) {
	if n.next == nil {
		return nil, kernels.ErrNoDevice
	}
	return n.next, nil
}

func TestMeter(t *testing.T) {
	dev := newNullDevice()
	null.next = dev
	m, err := newMeter(t.Context(), "null", 3)
	require.NoError(t, err)
	require.NoError(t, m.operations(t.Context(), func(string) {}))
	require.NoError(t, m.close())
	assert.True(t, dev.closed)
	dev.WantEmpty(t)
	assert.Greater(t, dev.Counts().Calls, 30)

	count := map[string]int{}
	for _, o := range m.report.Operations {
		count[o.Name]++
		assert.Empty(t, o.Error)
		assert.Len(t, o.Samples, 3)
		assert.Positive(t, o.Rate, o.Shape)
		assert.LessOrEqual(t, o.Low, o.Seconds)
		assert.GreaterOrEqual(t, o.High, o.Seconds)
		assert.Positive(t, o.Fraction)
	}
	assert.Equal(t, map[string]int{
		OpCopy: 1, OpMatrixVector: 2, OpMatrixRows: 4, OpMatrixMatrix: 4, OpDecodeAttention: 2, OpPrefillAttention: 1,
	}, count)

	// Work computed by hand for the software device's sizes.
	by := func(name string, i int) Operation {
		for _, o := range m.report.Operations {
			if o.Name == name {
				if i == 0 {
					return o
				}
				i--
			}
		}
		t.Fatal(name)
		return Operation{}
	}
	assert.EqualValues(t, 2*4*2048*4096, by(OpCopy, 0).Bytes)
	assert.EqualValues(t, 2*2*512*1024, by(OpMatrixVector, 0).Bytes)
	assert.EqualValues(t, 2*512*1024, by(OpMatrixVector, 1).Bytes)
	assert.EqualValues(t, 2*64*512*1024, by(OpMatrixMatrix, 2).Flop)
	// Heads of 1024 and 3072 entries; keys and values of 64 bf16 numbers.
	assert.EqualValues(t, (1024+3072)*2*64*2, by(OpDecodeAttention, 0).Bytes)
	assert.EqualValues(t, 4*(256+768)*2*64*2, by(OpDecodeAttention, 1).Bytes)
	// 64 rows see 193 … 256 entries.
	assert.EqualValues(t, 8*4*64*(64*256-64*63/2), by(OpPrefillAttention, 0).Flop)
}

func TestMeterFails(t *testing.T) {
	null.next = newNullDevice()
	null.next.noPages = kernels.ErrDeviceMemory
	m, err := newMeter(t.Context(), "null", 1)
	require.NoError(t, err)
	require.NoError(t, m.operations(t.Context(), func(string) {}))
	last := m.report.Operations[len(m.report.Operations)-1]
	assert.Equal(t, OpPrefillAttention, last.Name)
	assert.Equal(t, kernels.ErrDeviceMemory.Error(), last.Error)
	require.NoError(t, m.close())
	null.next.WantEmpty(t)

	for _, calls := range []int{1, 2, 3, 5, 8, 13, 21, 34, 55} {
		null.next = newNullDevice()
		null.next.FailAt(calls, kernels.ErrDeviceLost)
		m, err := newMeter(t.Context(), "null", 1)
		if err == nil {
			err = m.operations(t.Context(), func(string) {})
			require.NoError(t, m.close())
		}
		require.ErrorIs(t, err, kernels.ErrDeviceLost, "%d calls", calls)
		null.next.WantEmpty(t)
		assert.True(t, null.next.closed)
	}
	null.next = nil
	_, err = newMeter(t.Context(), "null", 1)
	require.ErrorIs(t, err, kernels.ErrNoDevice)
}

// Sizes shrink with the memory, down to some floor.
func TestSizes(t *testing.T) {
	big := sizesFor("discrete", 140<<30)
	assert.GreaterOrEqual(t, 2*big.hidden*big.inner, 100<<20, "as the target asks for")
	assert.Equal(t, 131072, big.depth)
	for _, free := range []uint64{0, 1 << 20, 1 << 30, 8 << 30} {
		for _, kind := range []string{"software", "integrated"} {
			s := sizesFor(kind, free)
			assert.GreaterOrEqual(t, s.matrices, 2)
			assert.LessOrEqual(t, s.inner, big.inner)
			if free >= 1<<30 {
				assert.LessOrEqual(t, uint64(s.matrices*s.hidden*s.inner*2), free/8)
				assert.LessOrEqual(t, uint64(s.depth*s.kvHeads*s.headDim*4), free/8)
			}
		}
	}
}
