// Package testdevice wraps a device for tests: it counts calls and fails when told to.
package testdevice

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// Device is a kernels.Device with faults.
type Device struct {
	kernels.Device

	mu     sync.Mutex
	free   uint64 // what Memory reports, 0 for the truth
	calls  int    // that can fail
	at     int    // the call that fails, 0 for none
	fault  error  // its error; after ErrDeviceLost every later call fails, too
	paused bool
	counts Counts

	holders map[kernels.DevicePage]int
}

// Counts are numbers of calls, and of pages.
type Counts struct {
	Calls int // that can fail

	Recorded, Run, Reduced      int // lists; lists; reductions and reads of statistics
	PagesRead, Writes, Pools    int // pages; calls of PagePool.Write; pools that are open
	Tables, TableEntriesWritten int // that are not freed; by all calls of PageTable.Set
}

// New wraps a device, which has all that is optional.
func New(d kernels.Device) *Device {
	return &Device{Device: d, holders: map[kernels.DevicePage]int{}}
}

// FailAt makes the n-th of the following calls that can fail do so, counting from 1; 0 means
// none. A lost device stays lost.
func (d *Device) FailAt(n int, fault error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls, d.at, d.fault = 0, n, fault
}

// Failed reports whether the failing call was made, Lost whether it lost the device.
func (d *Device) Failed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at > 0 && d.calls >= d.at
}

func (d *Device) Lost() bool { return d.Failed() && errors.Is(d.fault, kernels.ErrDeviceLost) }

// Pause makes calls neither count nor fail until it is called with false.
func (d *Device) Pause(paused bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paused = paused
}

// Limit sets the bytes of free memory that Memory reports.
func (d *Device) Limit(bytes uint64) { d.free = bytes }

// Counts returns the counts so far.
func (d *Device) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// Holders returns how many hold each page.
func (d *Device) Holders() map[kernels.DevicePage]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.holders)
}

// Held returns how many things on the device were not freed.
func (d *Device) Held() int { return d.Device.Memory().Buffers }

// WantEmpty fails unless everything was freed.
func (d *Device) WantEmpty(t testing.TB) {
	t.Helper()
	require.Zero(t, d.Held(), "things held on the device")
}

// hit counts a call and returns its error.
func (d *Device) hit(count func(c *Counts)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.paused {
		return nil
	}
	d.calls++
	d.counts.Calls++
	if d.at > 0 && (d.calls == d.at || d.calls > d.at && errors.Is(d.fault, kernels.ErrDeviceLost)) {
		return fmt.Errorf("test device: call %d: %w", d.calls, d.fault)
	}
	if count != nil {
		count(&d.counts)
	}
	return nil
}

func (d *Device) count(f func(c *Counts)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(&d.counts)
}

func (d *Device) Memory() kernels.DeviceMemory {
	m := d.Device.Memory()
	if d.free > 0 {
		m.Free = d.free
	}
	return m
}

func (d *Device) Matrix(ctx context.Context, stack ...kernels.Matrix) (kernels.DeviceMatrix, error) {
	if err := d.hit(nil); err != nil {
		return nil, err
	}
	return d.Device.Matrix(ctx, stack...)
}

func (d *Device) Buffer(t tensor.Type, rows, cols int) (kernels.Buffer, error) {
	if err := d.hit(nil); err != nil {
		return nil, err
	}
	return d.Device.Buffer(t, rows, cols)
}

func (d *Device) Shared(use kernels.SharedUse, rows, cols int) (kernels.SharedBuffer, error) {
	if err := d.hit(nil); err != nil {
		return nil, err
	}
	return d.Device.Shared(use, rows, cols)
}

func (d *Device) Write(ctx context.Context, dst kernels.Rows, src []float32) error {
	if err := d.hit(nil); err != nil {
		return err
	}
	return d.Device.Write(ctx, dst, src)
}

func (d *Device) Read(ctx context.Context, dst []float32, src kernels.Rows) error {
	if err := d.hit(nil); err != nil {
		return err
	}
	return d.Device.Read(ctx, dst, src)
}

func (d *Device) Pages(l kernels.PageLayout) (kernels.PagePool, error) {
	if err := d.hit(func(c *Counts) { c.Pools++ }); err != nil {
		return nil, err
	}
	p, err := d.Device.Pages(l)
	return &pool{PagePool: p, d: d, bytes: l.Bytes()}, err
}

func (d *Device) Attention(s kernels.AttentionShape) (kernels.Attention, error) {
	if err := d.hit(nil); err != nil {
		return nil, err
	}
	a, err := d.Device.Attention(s)
	if err != nil {
		return nil, err
	}
	return &attention{a.(kernels.Reducer), d}, nil
}

func (d *Device) Encoder() (kernels.Encoder, error) {
	if err := d.hit(nil); err != nil {
		return nil, err
	}
	e, err := d.Device.Encoder()
	if err != nil {
		return nil, err
	}
	return &encoder{e.(complete), d}, nil
}

type pool struct {
	kernels.PagePool
	d      *Device
	bytes  int // of a page
	pages  int // that somebody holds
	closed bool
}

// Close also reports pages that somebody holds: they are probably forgotten.
func (p *pool) Close() error {
	if p.closed {
		return p.PagePool.Close()
	}
	p.closed = true
	p.d.count(func(c *Counts) { c.Pools-- })
	err := p.PagePool.Close()
	if err == nil && p.pages > 0 {
		err = fmt.Errorf("test device: close a pool: %d pages are still held", p.pages)
	}
	return err
}

func (p *pool) Alloc(dst []kernels.DevicePage, n int) ([]kernels.DevicePage, error) {
	if err := p.d.hit(nil); err != nil {
		return dst, err
	}
	had := len(dst)
	dst, err := p.PagePool.Alloc(dst, n)
	p.hold(dst[had:], 1)
	return dst, err
}

func (p *pool) hold(pages []kernels.DevicePage, n int) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	for _, x := range pages {
		if n > 0 && p.d.holders[x] == 0 {
			p.pages++
		}
		if p.d.holders[x] += n; p.d.holders[x] == 0 {
			delete(p.d.holders, x)
			p.pages--
		}
	}
}

func (p *pool) Ref(pages []kernels.DevicePage) {
	p.hold(pages, 1)
	p.PagePool.Ref(pages)
}

func (p *pool) Unref(pages []kernels.DevicePage) {
	p.hold(pages, -1)
	p.PagePool.Unref(pages)
}

func (p *pool) Read(ctx context.Context, blocks []byte, pages []kernels.DevicePage) error {
	if err := p.d.hit(func(c *Counts) { c.PagesRead += len(pages) }); err != nil {
		for i := range blocks { // a copy that failed leaves anything
			blocks[i] = 0x55
		}
		return err
	}
	return p.PagePool.Read(ctx, blocks, pages)
}

func (p *pool) Write(ctx context.Context, pages []kernels.DevicePage, blocks []byte) error {
	if err := p.d.hit(func(c *Counts) { c.Writes++ }); err != nil {
		return err
	}
	return p.PagePool.Write(ctx, pages, blocks)
}

func (p *pool) Copy(dst, src kernels.DevicePage) error {
	if err := p.d.hit(nil); err != nil {
		return err
	}
	return p.PagePool.Copy(dst, src)
}

func (p *pool) Compact(dst, src []kernels.DevicePage, slots []int32, from int) error {
	if err := p.d.hit(nil); err != nil {
		return err
	}
	return p.PagePool.Compact(dst, src, slots, from)
}

func (p *pool) Table() (kernels.PageTable, error) {
	if err := p.d.hit(func(c *Counts) { c.Tables++ }); err != nil {
		return nil, err
	}
	t, err := p.PagePool.Table()
	if err != nil {
		return nil, err
	}
	return &Table{PageTable: t, pool: p}, nil
}

// Table is the page table of a Device's pool.
type Table struct {
	kernels.PageTable
	Pages []kernels.DevicePage // that it holds
	pool  *pool
	freed bool
}

func (t *Table) Set(pages []kernels.DevicePage, from int) error {
	if err := t.pool.d.hit(func(c *Counts) { c.TableEntriesWritten += len(pages) - from }); err != nil {
		return err
	}
	t.Pages = append(t.Pages[:from], pages[from:]...)
	return t.PageTable.Set(pages, from)
}

func (t *Table) Free() {
	if !t.freed {
		t.freed = true
		t.pool.d.count(func(c *Counts) { c.Tables-- })
	}
	t.PageTable.Free()
}

// Edit changes a page of the table in place, as a list that runs on the device does.
func (t *Table) Edit(index int, change func(block []byte)) error {
	block, page := make([]byte, t.pool.bytes), t.Pages[index:index+1]
	if err := t.pool.PagePool.Read(context.Background(), block, page); err != nil {
		return err
	}
	change(block)
	return t.pool.PagePool.Write(context.Background(), page, block)
}

type encoder struct {
	complete
	d *Device
}

// complete is an encoder with all that is optional.
type complete interface {
	kernels.ExpertEncoder
	kernels.StatisticsEncoder
}

func (e *encoder) End() (kernels.CommandList, error) {
	if err := e.d.hit(func(c *Counts) { c.Recorded++ }); err != nil {
		return nil, err
	}
	return e.complete.End()
}

func (e *encoder) Run(ctx context.Context, list kernels.CommandList) error {
	if err := e.d.hit(func(c *Counts) { c.Run++ }); err != nil {
		return err
	}
	return e.complete.Run(ctx, list)
}

func (e *encoder) RopeAppend(a kernels.Attention, layer int, q, k, v, cosSin kernels.Rows) {
	e.complete.RopeAppend(a.(*attention).Reducer, layer, q, k, v, cosSin)
}

func (e *encoder) Attend(a kernels.Attention, layer int, dst, q kernels.Rows, stats bool) {
	e.complete.Attend(a.(*attention).Reducer, layer, dst, q, stats)
}

func (e *encoder) ColumnSums(s kernels.ColumnSums, a kernels.Attention, layer, seq int, q kernels.Rows, first, n int) {
	e.complete.ColumnSums(s, a.(*attention).Reducer, layer, seq, q, first, n)
}

type attention struct {
	kernels.Reducer
	d *Device
}

func (a *attention) reduce() error { return a.d.hit(func(c *Counts) { c.Reduced++ }) }

func (a *attention) SetHead(layer, seq, head int, t kernels.PageTable, entries, base int) {
	if of, ok := t.(*Table); ok {
		t = of.PageTable
	}
	a.Reducer.SetHead(layer, seq, head, t, entries, base)
}

func (a *attention) ReadStats(ctx context.Context, dst []kernels.Softmax, first, n int) error {
	if err := a.d.hit(nil); err != nil {
		return err
	}
	return a.Reducer.ReadStats(ctx, dst, first, n)
}

func (a *attention) KeyNorms(ctx context.Context, layer, seq int) ([][]float32, error) {
	if err := a.reduce(); err != nil {
		return nil, err
	}
	return a.Reducer.KeyNorms(ctx, layer, seq)
}

func (a *attention) ValueNorms(ctx context.Context, layer, seq int) ([][]float32, error) {
	if err := a.reduce(); err != nil {
		return nil, err
	}
	return a.Reducer.ValueNorms(ctx, layer, seq)
}

func (a *attention) MeanCosines(ctx context.Context, layer, seq int) ([][]float32, error) {
	if err := a.reduce(); err != nil {
		return nil, err
	}
	return a.Reducer.MeanCosines(ctx, layer, seq)
}

func (a *attention) OutputNorms(ctx context.Context, layer, seq int, projection kernels.DeviceMatrix, norm int) ([][]float32, error) {
	if err := a.reduce(); err != nil {
		return nil, err
	}
	return a.Reducer.OutputNorms(ctx, layer, seq, projection, norm)
}

func (a *attention) QuadraticForm(ctx context.Context, layer, seq int, linear, form []float32) ([][]float32, error) {
	if err := a.reduce(); err != nil {
		return nil, err
	}
	return a.Reducer.QuadraticForm(ctx, layer, seq, linear, form)
}

func (a *attention) KeyDistances(ctx context.Context, layer, seq int, frequencies []float64) ([][]float32, error) {
	if err := a.reduce(); err != nil {
		return nil, err
	}
	return a.Reducer.KeyDistances(ctx, layer, seq, frequencies)
}

func (a *attention) LinearForms(ctx context.Context, layer, seq int, keys, values []float32, frequencies []float64) ([][]float32, error) {
	if err := a.reduce(); err != nil {
		return nil, err
	}
	return a.Reducer.LinearForms(ctx, layer, seq, keys, values, frequencies)
}

func (a *attention) Moments(covariance bool) (kernels.Moments, error) {
	if err := a.d.hit(nil); err != nil {
		return nil, err
	}
	return a.Reducer.Moments(covariance)
}

func (a *attention) ReadMoments(ctx context.Context, m kernels.Moments, head int, mean, cov []float64) (int, error) {
	if err := a.reduce(); err != nil {
		return 0, err
	}
	return a.Reducer.ReadMoments(ctx, m, head, mean, cov)
}

func (a *attention) ColumnSums(entries int) (kernels.ColumnSums, error) {
	if err := a.d.hit(nil); err != nil {
		return nil, err
	}
	return a.Reducer.ColumnSums(entries)
}

func (a *attention) ReadColumnSums(ctx context.Context, s kernels.ColumnSums, layer, seq int) ([][]float32, error) {
	if err := a.reduce(); err != nil {
		return nil, err
	}
	return a.Reducer.ReadColumnSums(ctx, s, layer, seq)
}
