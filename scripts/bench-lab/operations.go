package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lukv/lukv/internal/bench"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// DeviceReport says how fast an accelerator is at best, and how close its operations
// come to that.
type DeviceReport struct {
	Name string             `json:"name"` // as it was opened
	Info kernels.DeviceInfo `json:"info"`

	Copy    float64 `json:"copy_bytes_per_second"`   // within its memory, read and written
	Product float64 `json:"product_flop_per_second"` // the best of the matrix products below

	Operations []Operation `json:"operations"`
}

// Operation is the measurement of one operation of an accelerator: medians over
// repetitions of a list that holds it many times.
type Operation struct {
	Name     string    `json:"name"`
	Shape    string    `json:"shape"`
	Bytes    int64     `json:"bytes"`          // weights; keys and values; a copy's source and target
	Flop     int64     `json:"flop,omitempty"` // multiplications and additions count 1 each
	Seconds  float64   `json:"seconds"`        // of one
	Low      float64   `json:"low_seconds"`
	High     float64   `json:"high_seconds"`
	Rate     float64   `json:"rate"` // in Unit
	Unit     string    `json:"unit"`
	Fraction float64   `json:"fraction"` // of Copy or Product
	Samples  []float64 `json:"samples"`  // seconds of one
	Error    string    `json:"error,omitempty"`
}

// Names of operations. Those up to OpDecodeAttention are limited by bandwidth.
const (
	OpCopy             = "copy"
	OpMatrixVector     = "matrix-vector"
	OpMatrixRows       = "matrix-rows"
	OpDecodeAttention  = "attention, decode"
	OpMatrixMatrix     = "matrix-matrix"
	OpPrefillAttention = "attention, prefill"
)

// deviceSizes are the dimensions that an accelerator is measured with.
type deviceSizes struct {
	copyRows      int // of copyCols numbers
	hidden, inner int
	matrices      int // enough that no cache holds them all
	few, many     []int

	heads, kvHeads, headDim int
	depth                   int // mean entries of a head if there is one sequence
	sequences               int // that together have as many entries
	chunk, chunkDepth       int // rows of prefill, and entries with them

	span time.Duration // of a list
}

const copyCols = 4096

// pageEntries is the page size of caches.
const pageEntries = 64

// sizesFor returns the sizes of a model of eight billion parameters, reduced for
// software devices, and until each operand takes at most an eighth of the free
// memory or is at its minimum.
func sizesFor(kind string, free uint64) deviceSizes {
	s := deviceSizes{
		copyRows: 16384, hidden: 4096, inner: 14336, matrices: 8, few: []int{4, 16}, many: []int{512, 2048},
		heads: 32, kvHeads: 8, headDim: 128, depth: 131072, sequences: 16, chunk: 512, chunkDepth: 8192,
		span: 50 * time.Millisecond,
	}
	if kind == "software" {
		s.copyRows, s.hidden, s.inner, s.matrices, s.many = 2048, 512, 1024, 4, []int{64, 256}
		s.heads, s.kvHeads, s.headDim, s.depth, s.sequences, s.chunk, s.chunkDepth = 8, 2, 64, 2048, 4, 64, 256
		s.span = 20 * time.Millisecond
	}
	for part := free / 8; ; {
		matrix := uint64(2 * s.hidden * s.inner)
		switch {
		case uint64(s.copyRows)*copyCols*4 > part && s.copyRows > 64:
			s.copyRows /= 2
		case uint64(s.matrices)*matrix > part && s.matrices > 2:
			s.matrices -= 2
		case uint64(s.matrices)*matrix > part && s.inner > 256:
			s.inner /= 2
		case uint64(s.depth*s.kvHeads*s.headDim*4) > part && s.depth > 1024:
			s.depth /= 2
		default:
			return s
		}
	}
}

// operations measures the operations of an accelerator.
func (s *settings) operations(ctx context.Context, name string) (any, error) {
	m, err := newMeter(ctx, name, s.reps)
	if err != nil {
		return nil, err
	}
	err = m.operations(ctx, s.progress)
	return m.report, errors.Join(err, m.close())
}

// meter measures an accelerator.
type meter struct {
	dev    kernels.Device
	sizes  deviceSizes
	reps   int
	report *DeviceReport
}

// newMeter opens an accelerator and measures how fast it copies.
func newMeter(ctx context.Context, name string, reps int) (*meter, error) {
	dev, err := kernels.OpenDevice(name)
	if err != nil {
		return nil, err
	}
	info := dev.Info()
	m := &meter{
		dev: dev, sizes: sizesFor(info.Kind, dev.Memory().Free), reps: reps,
		report: &DeviceReport{Name: name, Info: info},
	}
	if err := m.measureCopy(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("measure device %s: %w", name, err), m.close())
	}
	return m, nil
}

func (m *meter) close() error {
	return m.dev.Close()
}

// operations measures matrix products and attention. A measurement that fails is
// recorded with its error; a lost device ends them all.
func (m *meter) operations(ctx context.Context, progress func(what string)) error {
	for _, f := range []struct {
		what    string
		measure func(context.Context) error
	}{
		{"matrix products", m.measureProducts}, {OpDecodeAttention, m.measureDecode}, {OpPrefillAttention, m.measurePrefill},
	} {
		progress(f.what)
		err := f.measure(ctx)
		if err == nil {
			continue
		}
		if ctx.Err() != nil || errors.Is(err, kernels.ErrDeviceLost) {
			return fmt.Errorf("measure device %s: %s: %w", m.report.Name, f.what, err)
		}
		m.report.Operations = append(m.report.Operations, Operation{Name: f.what, Error: err.Error()})
	}
	r := m.report
	for _, o := range r.Operations {
		if o.Name == OpMatrixMatrix {
			r.Product = max(r.Product, o.Rate)
		}
	}
	for i := range r.Operations {
		o := &r.Operations[i]
		switch {
		case o.Unit == bench.BytesPerSecond:
			o.Fraction = o.Rate / r.Copy
		case r.Product > 0:
			o.Fraction = o.Rate / r.Product
		}
	}
	return nil
}

// timed is a list that holds one operation n times.
type timed struct {
	e    kernels.Encoder
	list kernels.CommandList
	n    int
}

// once runs the list and returns the seconds of one operation.
func (t *timed) once(ctx context.Context) (float64, error) {
	begin := time.Now()
	err := t.e.Run(ctx, t.list)
	return time.Since(begin).Seconds() / float64(t.n), err
}

// timed returns a list with as many operations as take about the span, at most 256.
// The caller frees it.
func (m *meter) timed(ctx context.Context, e kernels.Encoder, op func(i int)) (timed, error) {
	const most = 256
	for n := 1; ; {
		t := timed{e: e, n: n}
		e.Begin()
		for i := range n {
			op(i)
		}
		var err error
		if t.list, err = e.End(); err != nil {
			return timed{}, err
		}
		one, err := t.once(ctx)
		if err == nil { // its programs are compiled now
			one, err = t.once(ctx)
		}
		if err != nil {
			t.list.Free()
			return timed{}, err
		}
		want := min(most, max(1, int(m.sizes.span.Seconds()/one)))
		if want <= 2*n {
			return t, nil
		}
		t.list.Free()
		n = min(want, 8*n) // the time of a single one is mostly that of submitting it
	}
}

// measure measures an operation and records the result.
func (m *meter) measure(ctx context.Context, e kernels.Encoder, o Operation, op func(i int)) error {
	t, err := m.timed(ctx, e, op)
	if err != nil {
		return err
	}
	defer t.list.Free()
	for range m.reps {
		s, err := t.once(ctx)
		if err != nil {
			return err
		}
		o.Samples = append(o.Samples, s)
	}
	o.Seconds, o.Low, o.High = bench.Median(o.Samples), slices.Min(o.Samples), slices.Max(o.Samples)
	work := o.Bytes
	if o.Unit = bench.BytesPerSecond; o.Name == OpMatrixMatrix || o.Name == OpPrefillAttention {
		o.Unit, work = bench.FlopPerSecond, o.Flop
	}
	o.Rate = float64(work) / o.Seconds
	m.report.Operations = append(m.report.Operations, o)
	return nil
}

// workspace is an encoder with the memory that a measurement needs. The first error stays.
type workspace struct {
	m    *meter
	e    kernels.Encoder
	free []func()
	err  error
}

func (m *meter) workspace() *workspace {
	w := &workspace{m: m}
	if w.e, w.err = m.dev.Encoder(); w.err == nil {
		w.free = append(w.free, w.e.Close)
	}
	return w
}

func (w *workspace) close() {
	for _, f := range slices.Backward(w.free) {
		f()
	}
}

// rows returns rows of random numbers of ordinary size: a chip's power draw, and with it
// its clock, depends on the data.
func (w *workspace) rows(ctx context.Context, t tensor.Type, n, cols int) kernels.Rows {
	if w.err != nil {
		return kernels.Rows{}
	}
	b, err := w.m.dev.Buffer(t, n, cols)
	if err != nil {
		w.err = err
		return kernels.Rows{}
	}
	w.free = append(w.free, b.Free)
	rng := rand.New(rand.NewPCG(1, 3))
	x := make([]float32, n*cols)
	for i := range x {
		x[i] = rng.Float32() - 0.5
	}
	r := kernels.Rows{Buffer: b, N: n}
	w.err = w.m.dev.Write(ctx, r, x)
	return r
}

func (m *meter) measureCopy(ctx context.Context) error {
	n := m.sizes.copyRows
	w := m.workspace()
	defer w.close()
	from, to := w.rows(ctx, tensor.F32, n, copyCols), w.rows(ctx, tensor.F32, n, copyCols)
	if w.err != nil {
		return w.err
	}
	bytes := 4 * int64(n) * copyCols
	o := Operation{Name: OpCopy, Shape: bench.Size(bytes), Bytes: 2 * bytes}
	if err := m.measure(ctx, w.e, o, func(int) { w.e.Copy(to, from) }); err != nil {
		return err
	}
	m.report.Copy = m.report.Operations[0].Rate
	return nil
}

// randomBF16 returns the bytes of n bf16 numbers from -0.5 to 0.5.
func randomBF16(n int) []byte {
	rng := rand.New(rand.NewPCG(1, 4))
	out := make([]byte, 2*n)
	for i := range n {
		binary.LittleEndian.PutUint16(out[2*i:], uint16(math.Float32bits(rng.Float32()-0.5)>>16))
	}
	return out
}

// measureProducts measures the products of a feed-forward layer with bf16 weights.
func (m *meter) measureProducts(ctx context.Context) error {
	s := &m.sizes
	w := m.workspace()
	defer w.close()
	all := slices.Max(s.many)
	hidden, inner := w.rows(ctx, tensor.BF16, all, s.hidden), w.rows(ctx, tensor.BF16, all, s.inner)
	sum := w.rows(ctx, tensor.F32, all, s.hidden)
	if w.err != nil {
		return w.err
	}
	matrix := 2 * int64(s.hidden) * int64(s.inner)
	each := func(what string, matrices int64, op func(i, rows int)) error {
		for _, rows := range slices.Concat([]int{1}, s.few, s.many) {
			o := Operation{
				Name: OpMatrixRows, Shape: fmt.Sprintf("%d × %s", rows, what), Bytes: matrices * matrix, Flop: matrices * matrix * int64(rows),
			}
			switch {
			case rows == 1:
				o.Name = OpMatrixVector
			case rows >= s.many[0]:
				o.Name = OpMatrixMatrix
			}
			if err := m.measure(ctx, w.e, o, func(i int) { op(i, rows) }); err != nil {
				return err
			}
		}
		return nil
	}
	up, free, err := m.matrices(ctx, s.inner, s.hidden)
	if err != nil {
		return err
	}
	err = each(fmt.Sprintf("[%d, %d] twice, SwiGLU", s.inner, s.hidden), 2, func(i, rows int) {
		i = 2 * i % (s.matrices &^ 1)
		w.e.GateUp(inner.Part(0, rows), hidden.Part(0, rows), kernels.SiLU, kernels.Linear{W: up[i]}, kernels.Linear{W: up[i+1]})
	})
	free()
	if err != nil {
		return err
	}
	down, free, err := m.matrices(ctx, s.hidden, s.inner)
	if err != nil {
		return err
	}
	defer free()
	return each(fmt.Sprintf("[%d, %d]", s.hidden, s.inner), 1, func(i, rows int) {
		w.e.MatMul(inner.Part(0, rows), false, []kernels.Product{{Linear: kernels.Linear{W: down[i%len(down)]}, Dst: sum.Part(0, rows)}})
	})
}

// matrices copies as many random matrices to the device as no cache of it holds.
func (m *meter) matrices(ctx context.Context, rows, cols int) (list []kernels.DeviceMatrix, free func(), err error) {
	data := randomBF16(rows * cols)
	free = func() {
		for _, w := range list {
			w.Free()
		}
	}
	for range m.sizes.matrices {
		w, err := m.dev.Matrix(ctx, kernels.Matrix{Type: tensor.BF16, Rows: rows, Cols: cols, Data: data})
		if err != nil {
			free()
			return nil, nil, err
		}
		list = append(list, w)
	}
	return list, free, nil
}

// measureDecode measures attention of one row per sequence over ragged caches:
// of one long sequence, and of many.
func (m *meter) measureDecode(ctx context.Context) error {
	s := &m.sizes
	for _, n := range []int{1, s.sequences} {
		depth := max(s.depth/n, 2*pageEntries)
		lengths := func(head int) int { // from half to one and a half times the mean
			if s.kvHeads == 1 {
				return depth
			}
			return depth/2 + depth*head/(s.kvHeads-1)
		}
		o := Operation{Name: OpDecodeAttention, Shape: fmt.Sprintf("%d × %d entries, %s", n, depth, m.heads())}
		if err := m.attention(ctx, o, n, 1, lengths); err != nil {
			return err
		}
	}
	return nil
}

// measurePrefill measures attention of many rows of one sequence.
func (m *meter) measurePrefill(ctx context.Context) error {
	s := &m.sizes
	o := Operation{Name: OpPrefillAttention, Shape: fmt.Sprintf("%d rows, %d entries, %s", s.chunk, s.chunkDepth, m.heads())}
	return m.attention(ctx, o, 1, s.chunk, func(int) int { return s.chunkDepth })
}

func (m *meter) heads() string {
	return fmt.Sprintf("%d/%d heads of %d", m.sizes.heads, m.sizes.kvHeads, m.sizes.headDim)
}

// attention measures attention of the last rows of n sequences whose heads hold
// length(head) entries, including those of the rows.
func (m *meter) attention(ctx context.Context, o Operation, n, rows int, length func(head int) int) error {
	s := &m.sizes
	shape := kernels.AttentionShape{
		Rows: n * rows, Sequences: n, Heads: s.heads, KVHeads: s.kvHeads, HeadDim: s.headDim, Windows: []int{0},
		Scale: float32(math.Log2E / math.Sqrt(float64(s.headDim))),
		Page:  kernels.PageLayout{Type: tensor.BF16, HeadDim: s.headDim, PageEntries: pageEntries},
	}
	pool, err := m.dev.Pages(shape.Page)
	if err != nil {
		return err
	}
	defer pool.Close()
	a, err := m.dev.Attention(shape)
	if err != nil {
		return err
	}
	defer a.Free()
	w := m.workspace()
	defer w.close()
	q, out := w.rows(ctx, tensor.F32, n*rows, s.heads*s.headDim), w.rows(ctx, tensor.BF16, n*rows, s.heads*s.headDim)
	if w.err != nil {
		return w.err
	}

	block := randomBF16(shape.Page.Bytes() / 2)
	clear(block[len(block)-4*shape.Page.PageEntries:]) // positions
	var spans []kernels.RowSpan
	var positions []int32
	for seq := range n {
		spans = append(spans, kernels.RowSpan{Row: seq * rows, N: rows})
		for i := range rows {
			positions = append(positions, int32(length(s.kvHeads-1)-rows+i))
		}
		for head := range s.kvHeads {
			t, err := randomTable(ctx, pool, block, (length(head)+pageEntries-1)/pageEntries)
			if err != nil {
				return err
			}
			defer t.Free()
			a.SetHead(0, seq, head, t, length(head)-rows, 0)
			entries := int64(length(head))
			o.Bytes += 4 * entries * int64(s.headDim)
			seen := int64(rows)*entries - int64(rows)*int64(rows-1)/2 // a row does not see those after it
			o.Flop += 4 * seen * int64(s.headDim*s.heads/s.kvHeads)
		}
	}
	a.SetSpans(spans, positions)
	return m.measure(ctx, w.e, o, func(int) { w.e.Attend(a, 0, out, q, false) })
}

// randomTable returns a table of n new pages with the contents of block.
func randomTable(ctx context.Context, pool kernels.PagePool, block []byte, n int) (kernels.PageTable, error) {
	pages, err := pool.Alloc(nil, n)
	if err != nil {
		return nil, err
	}
	if err := pool.Write(ctx, pages[:1], block); err != nil {
		return nil, err
	}
	for _, page := range pages[1:] {
		if err := pool.Copy(page, pages[0]); err != nil {
			return nil, err
		}
	}
	t, err := pool.Table()
	if err != nil {
		return nil, err
	}
	if err := t.Set(pages, 0); err != nil {
		t.Free()
		return nil, err
	}
	return t, nil
}
