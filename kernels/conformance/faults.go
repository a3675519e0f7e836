package conformance

import (
	"errors"
	"maps"
	"testing"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// lost loses a device: every method fails with kernels.ErrDeviceLost, and what was taken can
// be freed.
func (s *suite) lost(t *testing.T) {
	if s.o.Lose == nil {
		t.Skip("Options.Lose is not set")
	}
	ctx, d := t.Context(), s.o.Open(t)
	e, err := d.Encoder()
	ok(t, err)
	l := kernels.PageLayout{Type: tensor.F32, HeadDim: 16, PageEntries: 16}
	pool, err := d.Pages(l)
	ok(t, err)
	pages, err := pool.Alloc(nil, 3)
	ok(t, err)
	table, err := pool.Table()
	ok(t, err)
	ok(t, table.Set(pages, 0))
	shape := kernels.AttentionShape{Rows: 2, Sequences: 1, Heads: 2, KVHeads: 1, HeadDim: 16, Windows: []int{0}, Scale: 1, Page: l}
	a, err := d.Attention(shape)
	ok(t, err)
	a.SetHead(0, 0, 0, table, 20, 0)
	b, err := d.Buffer(tensor.F32, 2, 16)
	ok(t, err)
	rows := kernels.Rows{Buffer: b, N: 2}
	e.Begin()
	e.AddScaled(rows, rows, 1)
	list, err := e.End()
	ok(t, err)
	ok(t, e.Run(ctx, list))
	reductions, free := map[string]func() error{}, []interface{ Free() }{table, a, b, list}
	if a, is := a.(kernels.Reducer); is {
		moments, err := a.Moments(true)
		ok(t, err)
		sums, err := a.ColumnSums(20)
		ok(t, err)
		x := make([]float32, 32)
		reductions = map[string]func() error{
			"KeyNorms":       func() error { _, err := a.KeyNorms(ctx, 0, 0); return err },
			"ValueNorms":     func() error { _, err := a.ValueNorms(ctx, 0, 0); return err },
			"MeanCosines":    func() error { _, err := a.MeanCosines(ctx, 0, 0); return err },
			"QuadraticForm":  func() error { _, err := a.QuadraticForm(ctx, 0, 0, x, nil); return err },
			"KeyDistances":   func() error { _, err := a.KeyDistances(ctx, 0, 0, make([]float64, 8)); return err },
			"LinearForms":    func() error { _, err := a.LinearForms(ctx, 0, 0, x[:16], x[:16], make([]float64, 8)); return err },
			"Moments":        func() error { _, err := a.Moments(true); return err },
			"ReadMoments":    func() error { _, err := a.ReadMoments(ctx, moments, 0, make([]float64, 16), nil); return err },
			"ColumnSums":     func() error { _, err := a.ColumnSums(3); return err },
			"ReadColumnSums": func() error { _, err := a.ReadColumnSums(ctx, sums, 0, 0); return err },
		}
		free = append([]interface{ Free() }{moments, sums}, free...)
	}
	s.o.Lose(d)
	check := func(name string, err error) {
		t.Helper()
		if !errors.Is(err, kernels.ErrDeviceLost) || errors.Is(err, kernels.ErrDeviceMemory) {
			t.Errorf("%s on a lost device: found %v, expected kernels.ErrDeviceLost", name, err)
		}
	}
	check("the run that finds out", e.Run(ctx, list))
	block, x := make([]byte, l.Bytes()), make([]float32, 32)
	calls := map[string]func() error{
		"Run": func() error { return e.Run(ctx, list) },
		"Matrix": func() error {
			_, err := d.Matrix(ctx, kernels.F32Matrix(x, 2, 16))
			return err
		},
		"Buffer":    func() error { _, err := d.Buffer(tensor.F32, 1, 1); return err },
		"Shared":    func() error { _, err := d.Shared(kernels.HostReads, 1, 1); return err },
		"Write":     func() error { return d.Write(ctx, rows, x) },
		"Read":      func() error { return d.Read(ctx, x, rows) },
		"Pages":     func() error { _, err := d.Pages(l); return err },
		"Attention": func() error { _, err := d.Attention(shape); return err },
		"Encoder":   func() error { _, err := d.Encoder(); return err },
		"End":       func() error { e.Begin(); e.AddScaled(rows, rows, 1); _, err := e.End(); return err },

		"PagePool.Alloc":   func() error { _, err := pool.Alloc(nil, 1); return err },
		"PagePool.Read":    func() error { return pool.Read(ctx, block, pages[:1]) },
		"PagePool.Write":   func() error { return pool.Write(ctx, pages[:1], block) },
		"PagePool.Copy":    func() error { return pool.Copy(pages[0], pages[1]) },
		"PagePool.Compact": func() error { return pool.Compact(pages, pages, []int32{1}, 0) },
		"PagePool.Table":   func() error { _, err := pool.Table(); return err },
		"PageTable.Set":    func() error { return table.Set(pages, 0) },

		"ReadStats": func() error { return a.ReadStats(ctx, make([]kernels.Softmax, 2), 0, 1) },
	}
	maps.Copy(calls, reductions)
	for name, call := range calls {
		check(name, call())
	}
	pool.Ref(pages)
	pool.Unref(pages)
	pool.Unref(pages)
	for _, x := range free {
		x.Free()
	}
	e.Close()
	ok(t, pool.Close())
	for range 2 {
		ok(t, d.Close())
	}
}

// memory fills a device: what does not fit is refused with kernels.ErrDeviceMemory, takes
// nothing, and fits once there is room.
func (s *suite) memory(t *testing.T) {
	if s.o.Small == nil {
		t.Skip("Options.Small is not set")
	}
	ctx, d := t.Context(), s.o.Small(t)
	l := kernels.PageLayout{Type: tensor.BF16, HeadDim: 64, PageEntries: 64}
	pool, err := d.Pages(l)
	ok(t, err)
	var buffers []kernels.Buffer
	for err == nil && len(buffers) < 100 {
		var b kernels.Buffer
		if b, err = d.Buffer(tensor.F32, 1024, 256); err == nil {
			buffers = append(buffers, b)
		}
	}
	refused := func(name string, err error) {
		t.Helper()
		if !errors.Is(err, kernels.ErrDeviceMemory) || errors.Is(err, kernels.ErrDeviceLost) {
			t.Errorf("%s without memory: found %v, expected kernels.ErrDeviceMemory", name, err)
		}
	}
	refused("Buffer", err)
	before := d.Memory()
	_, err = d.Buffer(tensor.F32, 1<<20, 1<<20)
	refused("a buffer of four tebibytes", err)
	_, err = d.Matrix(ctx, kernels.Matrix{Type: tensor.BF16, Rows: 1 << 10, Cols: 1 << 15, Data: make([]byte, 64<<20)})
	refused("Matrix", err)
	pages, err := pool.Alloc(nil, 64<<20/l.Bytes())
	refused("Alloc", err)
	if len(pages) != 0 || pool.Bytes() != 0 {
		t.Errorf("an Alloc that failed returned %d pages and holds %d bytes", len(pages), pool.Bytes())
	}
	if after := d.Memory(); after.Buffers != before.Buffers || after.Used != before.Used {
		t.Errorf("calls that failed hold memory: found %+v, expected %+v", after, before)
	}
	for _, b := range buffers {
		b.Free()
	}
	b, err := d.Buffer(tensor.F32, 1024, 256)
	ok(t, err)
	x := make([]float32, 256)
	ok(t, d.Read(ctx, x, kernels.Rows{Buffer: b, First: 1023, N: 1}))
	for _, v := range x {
		if v != 0 {
			t.Fatal("a new buffer in used memory is not zero")
		}
	}
	b.Free()
	ok(t, pool.Close())
	ok(t, d.Close())
}
