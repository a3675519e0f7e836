package main

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
)

// nullDevice is a device that computes nothing and records what it was asked for.
type nullDevice struct {
	info       kernels.DeviceInfo
	free       uint64
	live, most int
	noPages    error
	lostAfter  int // runs, 0: never
	runs       int
	closed     bool
	heads      map[[3]int]int // entries by layer, sequence and head
}

func (d *nullDevice) own() func() {
	d.live++
	d.most = max(d.most, d.live)
	return func() { d.live-- }
}

type freed struct{ f func() }

func (f *freed) Free() {
	if f.f != nil {
		f.f()
		f.f = nil
	}
}

func (d *nullDevice) Info() kernels.DeviceInfo     { return d.info }
func (d *nullDevice) Memory() kernels.DeviceMemory { return kernels.DeviceMemory{Free: d.free} }

func (d *nullDevice) Matrix(_ context.Context, m kernels.Matrix) (kernels.DeviceMatrix, error) {
	if len(m.Data) != m.Rows*m.Cols*m.Type.Bytes(1) {
		return nil, errors.New("matrix of another size")
	}
	return &freed{d.own()}, nil
}

func (d *nullDevice) Vector(context.Context, []float32) (kernels.DeviceVector, error) {
	return &freed{d.own()}, nil
}

func (d *nullDevice) Rows(int, int) (kernels.DeviceRows, error) { return &freed{d.own()}, nil }

func (d *nullDevice) Pages(l kernels.PageLayout) (kernels.PagePool, error) {
	if d.noPages != nil {
		return nil, d.noPages
	}
	return &nullPool{d: d, l: l, freed: freed{d.own()}}, nil
}

func (d *nullDevice) Pass(s kernels.PassShape) (kernels.Pass, error) {
	return &nullPass{d: d, s: s, in: make([]float32, s.Rows*s.Hidden), freed: freed{d.own()}}, nil
}

func (d *nullDevice) Close() error {
	d.closed = true
	return nil
}

type nullPool struct {
	kernels.PagePool
	d *nullDevice
	l kernels.PageLayout
	n int
	freed
}

func (p *nullPool) Alloc(dst []kernels.DevicePage, n int) ([]kernels.DevicePage, error) {
	for range n {
		p.n++
		dst = append(dst, kernels.DevicePage(p.n))
	}
	return dst, nil
}

func (p *nullPool) Write(_ context.Context, pages []kernels.DevicePage, blocks []byte) error {
	if len(blocks) != len(pages)*p.l.Bytes() {
		return errors.New("blocks of another size")
	}
	return nil
}

func (p *nullPool) Copy(dst, src kernels.DevicePage) error { return nil }

func (p *nullPool) Table() (kernels.PageTable, error) { return &nullTable{freed{p.d.own()}}, nil }

func (p *nullPool) Close() error {
	p.Free()
	return nil
}

type nullTable struct{ freed }

func (t *nullTable) Set([]kernels.DevicePage, int) error { return nil }

type nullPass struct {
	kernels.Pass
	d     *nullDevice
	s     kernels.PassShape
	in    []float32
	rows  int
	ops   int
	spans []kernels.PassSpan
	freed
}

func (p *nullPass) Begin(rows int)                                           { p.rows, p.ops = rows, 0 }
func (p *nullPass) SetInput()                                                { p.ops++ }
func (p *nullPass) StoreRows(kernels.DeviceRows, int)                        { p.ops++ }
func (p *nullPass) Norm(kernels.DeviceVector, float64)                       { p.ops++ }
func (p *nullPass) MatMul(kernels.Activation, bool, []kernels.DeviceProduct) { p.ops++ }
func (p *nullPass) Attend(int, bool)                                         { p.ops++ }
func (p *nullPass) GateUp(_, _ kernels.DeviceMatrix, _, _ kernels.DeviceVector) {
	p.ops++
}
func (p *nullPass) In() []float32                                { return p.in }
func (p *nullPass) SetSpans(spans []kernels.PassSpan, _ []int32) { p.spans = spans }
func (p *nullPass) SetHead(layer, seq, head int, _ kernels.PageTable, entries, _ int) {
	if p.d.heads == nil {
		p.d.heads = map[[3]int]int{}
	}
	p.d.heads[[3]int{layer, seq, head}] = entries
}
func (p *nullPass) Close() { p.Free() }

func (p *nullPass) End() (kernels.PassList, error) {
	if p.ops == 0 || p.rows < 1 || p.rows > p.s.Rows {
		return nil, errors.New("list that makes no sense")
	}
	return &freed{p.d.own()}, nil
}

func (p *nullPass) Run(ctx context.Context, _ kernels.PassList) error {
	if p.d.runs++; p.d.runs == p.d.lostAfter {
		return kernels.ErrDeviceLost
	}
	return ctx.Err()
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
	dev := &nullDevice{info: kernels.DeviceInfo{Name: "nothing", Kind: "software"}, free: 1 << 30}
	null.next = dev
	m, err := newMeter(t.Context(), "null", 3)
	require.NoError(t, err)
	require.NoError(t, m.operations(t.Context(), func(string) {}))
	require.NoError(t, m.close())
	assert.True(t, dev.closed)
	assert.Zero(t, dev.live, "everything is freed")
	assert.Greater(t, dev.most, 5)

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
	assert.Equal(t, 256-64, dev.heads[[3]int{0, 0, 1}])
}

func TestMeterFails(t *testing.T) {
	null.next = &nullDevice{info: kernels.DeviceInfo{Kind: "software"}, free: 1 << 30, noPages: kernels.ErrDeviceMemory}
	m, err := newMeter(t.Context(), "null", 1)
	require.NoError(t, err)
	require.NoError(t, m.operations(t.Context(), func(string) {}))
	last := m.report.Operations[len(m.report.Operations)-1]
	assert.Equal(t, OpPrefillAttention, last.Name)
	assert.Equal(t, kernels.ErrDeviceMemory.Error(), last.Error)
	require.NoError(t, m.close())
	assert.Zero(t, null.next.live)

	for _, runs := range []int{1, 2, 3, 5, 8, 13, 21, 34, 55} {
		null.next = &nullDevice{info: kernels.DeviceInfo{Kind: "software"}, free: 1 << 30, lostAfter: runs}
		m, err := newMeter(t.Context(), "null", 1)
		if err == nil {
			err = m.operations(t.Context(), func(string) {})
			require.NoError(t, m.close())
		}
		require.ErrorIs(t, err, kernels.ErrDeviceLost, "%d runs", runs)
		assert.Zero(t, null.next.live)
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
