package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

func init() { kernels.RegisterDevice(driver{}) }

type driver struct{}

func (driver) Name() string { return "example" }
func (driver) Devices() ([]kernels.DeviceInfo, error) {
	return []kernels.DeviceInfo{New(kernels.Detect()).Info()}, nil
}
func (driver) Open(string) (kernels.Device, error) { return New(kernels.Detect()), nil }

// Device is a kernels.Device in host memory.
type Device struct {
	cpu kernels.CPU

	mu     sync.Mutex
	live   int // things that were not freed
	pages  map[kernels.DevicePage]*page
	serial kernels.DevicePage
}

// New returns a device that computes with cpu.
func New(cpu kernels.CPU) *Device {
	return &Device{cpu: cpu, pages: map[kernels.DevicePage]*page{}}
}

func (d *Device) Info() kernels.DeviceInfo {
	return kernels.DeviceInfo{Name: "example", Kind: "software", Driver: "loops over " + d.cpu.String()}
}

// Memory counts everything that was not freed, lists and page tables included, as a
// buffer: the host keeps account of the memory itself.
func (d *Device) Memory() kernels.DeviceMemory {
	d.mu.Lock()
	defer d.mu.Unlock()
	return kernels.DeviceMemory{Free: 1 << 40, Total: 1 << 40, Buffers: d.live}
}

func (d *Device) Close() error { return nil }

// thing is something on the device that can be freed.
type thing struct {
	d    *Device
	gone bool
}

func (d *Device) thing() thing {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live++
	return thing{d: d}
}

func (t *thing) Free() {
	t.d.mu.Lock()
	defer t.d.mu.Unlock()
	if !t.gone {
		t.gone = true
		t.d.live--
	}
}

type matrix struct {
	thing
	kernels.Matrix
}

func (d *Device) Matrix(ctx context.Context, stack ...kernels.Matrix) (kernels.DeviceMatrix, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if len(stack) == 0 {
		return nil, errors.New("copy weights: there are none")
	}
	all := stack[0]
	all.Rows, all.Data = 0, nil
	for _, m := range stack {
		if !m.Type.Weights() || m.Cols%m.Type.Block() != 0 || m.Type != all.Type || m.Cols != all.Cols || m.Rows != stack[0].Rows {
			return nil, fmt.Errorf("copy weights: found %d×%d of type %v after %d×%d of type %v", m.Rows, m.Cols, m.Type, stack[0].Rows, all.Cols, all.Type)
		}
		all.Rows, all.Data = all.Rows+m.Rows, append(all.Data, m.Data...)
	}
	return &matrix{d.thing(), all}, nil
}

// buffer holds rows without gaps; those of bf16 hold rounded numbers.
type buffer struct {
	thing
	t          tensor.Type
	rows, cols int
	v          []float32
}

func (b *buffer) Floats() []float32 { return b.v }

func (d *Device) Buffer(t tensor.Type, rows, cols int) (kernels.Buffer, error) {
	if rows < 0 || cols < 0 || t != tensor.F32 && t != tensor.BF16 {
		return nil, fmt.Errorf("make a buffer: found %d rows of %d elements of type %v", rows, cols, t)
	}
	return &buffer{d.thing(), t, rows, cols, make([]float32, rows*cols)}, nil
}

func (d *Device) Shared(_ kernels.SharedUse, rows, cols int) (kernels.SharedBuffer, error) {
	b, err := d.Buffer(tensor.F32, rows, cols)
	if err != nil {
		return nil, err
	}
	return b.(*buffer), nil
}

func (d *Device) Write(_ context.Context, dst kernels.Rows, src []float32) error {
	to, err := d.rows(dst, -1)
	if err == nil && len(src) < len(to.v) {
		err = fmt.Errorf("found %d numbers, expected %d", len(src), len(to.v))
	}
	if err != nil {
		return fmt.Errorf("write a buffer: %w", err)
	}
	to.set(d.cpu, 0, src[:len(to.v)])
	return nil
}

func (d *Device) Read(_ context.Context, dst []float32, src kernels.Rows) error {
	from, err := d.rows(src, -1)
	if err == nil && len(dst) < len(from.v) {
		err = fmt.Errorf("found room for %d numbers, expected %d", len(dst), len(from.v))
	}
	if err != nil {
		return fmt.Errorf("read a buffer: %w", err)
	}
	copy(dst, from.v)
	return nil
}

// rows is the memory of rows of a buffer.
type rows struct {
	t       tensor.Type
	n, cols int
	v       []float32 // [n][cols]
}

// rows returns the memory of rows of cols elements, of any number if cols is negative.
func (d *Device) rows(r kernels.Rows, cols int) (rows, error) {
	b, ok := r.Buffer.(*buffer)
	switch {
	case !ok || b == nil || b.gone || b.d != d:
		return rows{}, errors.New("the buffer is not of this device, or was freed")
	case r.First < 0 || r.N < 0 || r.N > b.rows-r.First || cols >= 0 && b.cols != cols:
		return rows{}, fmt.Errorf("found rows [%d, %d+%d) of %d with %d elements, expected %d", r.First, r.First, r.N, b.rows, b.cols, cols)
	}
	return rows{b.t, r.N, b.cols, b.v[r.First*b.cols : (r.First+r.N)*b.cols]}, nil
}

func (r *rows) row(i int) []float32 { return r.v[i*r.cols : (i+1)*r.cols] }

// set stores numbers from row i on, rounded as the rows' type says.
func (r *rows) set(cpu kernels.CPU, i int, x []float32) {
	if dst := r.v[i*r.cols:]; r.t == tensor.BF16 {
		cpu.RoundedBF16(dst[:len(x)], x)
	} else {
		copy(dst, x)
	}
}

// encoder records operations as functions.
type encoder struct {
	thing
	lists []*list

	open bool
	ops  []func()
	err  error
}

type list struct {
	thing
	e   *encoder
	ops []func()
}

func (d *Device) Encoder() (kernels.Encoder, error) { return &encoder{thing: d.thing()}, nil }

func (e *encoder) Close() {
	for _, l := range e.lists {
		l.Free()
	}
	e.Free()
}

func (e *encoder) Begin() { e.open, e.ops, e.err = true, nil, nil }

func (e *encoder) End() (kernels.CommandList, error) {
	if !e.open {
		return nil, errors.New("record operations: Begin is missing")
	}
	if e.open = false; e.err != nil {
		return nil, fmt.Errorf("record operations: %w", e.err)
	}
	l := &list{e.d.thing(), e, e.ops}
	e.lists = append(slices.DeleteFunc(e.lists, func(l *list) bool { return l.gone }), l)
	return l, nil
}

func (e *encoder) Run(ctx context.Context, of kernels.CommandList) error {
	l, ok := of.(*list)
	if !ok || l.e != e || l.gone {
		return errors.New("run a list: it is not of this encoder, or was freed")
	}
	for _, op := range l.ops {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		op()
	}
	return nil
}

// op records an operation unless its arguments do not fit.
func (e *encoder) op(name string, f func()) {
	if !e.open {
		e.check(name, false, "Begin is missing")
	}
	if e.err == nil {
		e.ops = append(e.ops, f)
	}
}

func (e *encoder) check(name string, ok bool, format string, args ...any) bool {
	if !ok && e.err == nil {
		e.err = fmt.Errorf(name+": "+format, args...)
	}
	return e.err == nil
}

func (e *encoder) rows(name string, r kernels.Rows, n, cols int) rows {
	x, err := e.d.rows(r, cols)
	e.check(name, err == nil, "%v", err)
	e.check(name, n < 0 || x.n == n, "found %d rows, expected %d", x.n, n)
	return x
}

// vector returns the numbers of a buffer of one row.
func (e *encoder) vector(name string, b kernels.Buffer, n int) []float32 {
	return e.rows(name, kernels.Rows{Buffer: b, N: 1}, 1, n).v
}

func (e *encoder) matrix(name string, m kernels.DeviceMatrix, cols int) *kernels.Matrix {
	w, ok := m.(*matrix)
	if !e.check(name, ok && w != nil && !w.gone && w.d == e.d, "the matrix is not of this device, or was freed") {
		return &kernels.Matrix{}
	}
	e.check(name, w.Cols == cols, "found weights of %d columns, expected %d", w.Cols, cols)
	return &w.Matrix
}

func (e *encoder) Copy(dst, src kernels.Rows) {
	from := e.rows("copy", src, -1, -1)
	to := e.rows("copy", dst, from.n, from.cols)
	e.check("copy", to.t == from.t || to.t == tensor.BF16, "found %v and %v", to.t, from.t)
	e.op("copy", func() { to.set(e.d.cpu, 0, from.v) })
}

func (e *encoder) Embed(dst kernels.Rows, table kernels.DeviceMatrix, ids kernels.Rows) {
	to := e.rows("embed", dst, -1, -1)
	from, w := e.rows("embed", ids, to.n, 1), e.matrix("embed", table, to.cols)
	e.op("embed", func() {
		for i, id := range from.v {
			x := to.row(i)
			if clear(x); id >= 0 && id < float32(w.Rows) {
				e.d.cpu.WidenRow(x, w, int(id), 0)
			}
		}
	})
}

func (e *encoder) Norm(dst, src kernels.Rows, weight kernels.Buffer, eps float64) {
	from := e.rows("norm", src, -1, -1)
	to, w := e.rows("norm", dst, from.n, from.cols), e.vector("norm", weight, from.cols)
	e.op("norm", func() {
		y := make([]float32, from.cols)
		for i := range from.n {
			e.d.cpu.RMSNorm(y, from.row(i), w, eps)
			to.set(e.d.cpu, i, y)
		}
	})
}

func (e *encoder) HeadNorm(x kernels.Rows, weight kernels.Buffer, eps float64) {
	r, w := e.rows("head norm", x, -1, -1), e.vector("head norm", weight, -1)
	if !e.check("head norm", len(w) > 0 && r.cols%len(w) == 0, "found rows of %d elements for heads of %d", r.cols, len(w)) {
		return
	}
	e.op("head norm", func() {
		for head := range slices.Chunk(r.v, len(w)) {
			e.d.cpu.RMSNorm(head, head, w, eps)
		}
	})
}

// multiply sets y, [n][rows of w], to the product of x and w.
func (x *rows) multiply(cpu kernels.CPU, y []float32, w *kernels.Matrix) {
	if x.t == tensor.BF16 && w.Type == tensor.BF16 {
		narrow := make([]uint16, len(x.v))
		cpu.RoundBF16(narrow, x.v)
		cpu.MatMulBF16(y, w.Rows, narrow, x.cols, x.n, w, 0, w.Rows)
	} else {
		cpu.MatMul(y, w.Rows, x.v, x.cols, x.n, w, 0, w.Rows)
	}
}

// linear returns a function that computes a product of x.
func (e *encoder) linear(name string, x rows, l kernels.Linear) (w *kernels.Matrix, multiply func() []float32) {
	w = e.matrix(name, l.W, x.cols)
	var bias []float32
	if l.Bias != nil {
		bias = e.vector(name, l.Bias, w.Rows)
	}
	return w, func() []float32 {
		y := make([]float32, x.n*w.Rows)
		x.multiply(e.d.cpu, y, w)
		for i := 0; bias != nil && i < x.n; i++ {
			e.d.cpu.Add(y[i*w.Rows:(i+1)*w.Rows], bias)
		}
		return y
	}
}

func (e *encoder) MatMul(src kernels.Rows, add bool, products []kernels.Product) {
	x := e.rows("product", src, -1, -1)
	for _, p := range products {
		w, multiply := e.linear("product", x, p.Linear)
		to := e.rows("product", p.Dst, x.n, w.Rows)
		e.op("product", func() {
			if y := multiply(); add {
				e.d.cpu.Add(to.v, y)
			} else {
				to.set(e.d.cpu, 0, y)
			}
		})
	}
}

func (e *encoder) GateUp(dst, src kernels.Rows, a kernels.Activation, gate, up kernels.Linear) {
	x := e.rows("gate and up", src, -1, -1)
	w, g := e.linear("gate and up", x, gate)
	to := e.rows("gate and up", dst, x.n, w.Rows)
	v, u := e.linear("gate and up", x, up)
	e.check("gate and up", v.Rows == w.Rows, "found %d gates and %d ups", w.Rows, v.Rows)
	e.op("gate and up", func() {
		y := g()
		e.d.cpu.Gated(a, y, y, u())
		to.set(e.d.cpu, 0, y)
	})
}

func (e *encoder) AddScaled(dst, src kernels.Rows, scale float32) {
	from := e.rows("add", src, -1, -1)
	to := e.rows("add", dst, from.n, from.cols)
	e.op("add", func() { e.d.cpu.AddScaled(to.v, from.v, scale) })
}

func (e *encoder) ArgMax(dst, src kernels.Rows) {
	from := e.rows("arg-max", src, -1, -1)
	to := e.rows("arg-max", dst, from.n, 1)
	e.op("arg-max", func() {
		for i := range from.n {
			to.v[i] = float32(e.d.cpu.Argmax(from.row(i)))
		}
	})
}
