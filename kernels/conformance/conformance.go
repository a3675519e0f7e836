// Package conformance tests implementations of [kernels.Device]: run it from a test of your
// driver.
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Options{Open: open})
//	}
//
// It compares every operation, on ordinary, tiny and hard numbers, with the portable functions
// of package kernels, within the bound that the operation's row states, and with itself, bit
// for bit, when its rows are divided in other ways. Operands have guard rows around them that
// must not change. Then come attention over ragged pages, the reductions that metrics are made
// of, pools of pages, recorded lists, a small model in chunks and batches, and what happens
// when a device is lost or its memory is full.
//
// With -short, large shapes are left out. What is optional, [kernels.ExpertEncoder] and
// [kernels.Reducer], is tested where the device has it.
//
// A device that computes with a kernels.CPU must give its bits (Options.Exact).
package conformance

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// Options describe the device under test. Only Open is required.
type Options struct {
	// Open opens the device. The suite closes it.
	Open func(t testing.TB) kernels.Device

	// Exact requires the bits of the portable functions where others must only be within
	// their bounds, and tries infinities and NaN as well.
	Exact bool

	// BF16Products bounds the error of products of bf16 activations with bf16 weights,
	// relative to Σ|x·w|; 0 means that of other products, 2e-6.
	BF16Products float64

	// Allocates says that running a list may allocate on the Go heap. Lists that a model
	// runs for every token should not.
	Allocates bool

	// Lose makes the next list that runs on the device find it lost. Small opens a device
	// with less than 64 MiB of memory. If they are nil, losing a device or full memory is not tested.
	Lose  func(d kernels.Device)
	Small func(t testing.TB) kernels.Device
}

// Run tests a device.
func Run(t *testing.T, o Options) {
	if o.BF16Products == 0 {
		o.BF16Products = productBound
	}
	s := &suite{o: o, d: o.Open(t)}
	before := s.d.Memory().Buffers
	e, err := s.d.Encoder()
	ok(t, err)
	_, s.experts = e.(kernels.ExpertEncoder)
	_, s.reduces = e.(kernels.StatisticsEncoder)
	e.Close()
	t.Run("WeightTypes", s.weightTypes)
	t.Run("PageTypes", s.findPageTypes)
	t.Run("Operations", s.operations)
	t.Run("Copies", s.copies)
	t.Run("Arguments", s.arguments)
	t.Run("Integers", s.integers)
	t.Run("Attention", s.attention)
	t.Run("Reductions", s.reductions)
	t.Run("Statistics", s.statistics)
	t.Run("Pages", s.pages)
	t.Run("Lists", s.lists)
	t.Run("Model", s.model)
	t.Run("Lost", s.lost)
	t.Run("Memory", s.memory)
	if after := s.d.Memory().Buffers; after != before {
		t.Errorf("%d buffers are left", after-before)
	}
	for range 2 {
		ok(t, s.d.Close())
	}
}

type suite struct {
	o Options
	d kernels.Device

	types  []tensor.Type // of weights that the device takes
	floats int           // how many of them come first that are not blocks of integers

	experts, reduces bool // what is optional

	pageTypes []pageTypes // that the device takes
}

var cpu kernels.CPU // portable

// reducer returns an attention as what a device has whose encoders have statistics.
func (s *suite) reducer(t testing.TB, a kernels.Attention) kernels.Reducer {
	t.Helper()
	r, is := a.(kernels.Reducer)
	if is != s.reduces {
		t.Fatalf("found attention with reductions: %v, encoders with statistics: %v", is, s.reduces)
	}
	if !is {
		t.Skip("the device has no reductions (kernels.Reducer)")
	}
	return r
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// random returns a source of numbers for a test of the given name.
func random(name string) *rand.Rand { return rand.New(rand.NewPCG(testnum.Hash(name), 7)) }

// normal returns n normally distributed numbers.
func normal(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// narrow rounds numbers to a type and returns their bytes and the rounded numbers.
func narrow(x []float32, t tensor.Type) ([]byte, []float32) {
	raw, y := make([]byte, len(x)*t.Bytes(1)), make([]float32, len(x))
	cpu.Narrow(raw, x, t)
	cpu.Widen(y, raw, t)
	return raw, y
}

// rounded rounds numbers as buffers of a type do: for bf16 as activations are rounded.
func rounded(x []float32, t tensor.Type) []float32 {
	y := slices.Clone(x)
	if t == tensor.BF16 {
		cpu.RoundedBF16(y, x)
	}
	return y
}

// compare fails unless got has the bits of want, or if the device need not be exact, is
// within the bound of every element. Any NaN equals any other.
func (s *suite) compare(t testing.TB, what string, want, got []float32, bound func(i int) float64) {
	t.Helper()
	if len(want) != len(got) {
		t.Fatalf("%s: found %d values, expected %d", what, len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		switch {
		case math.Float32bits(w) == math.Float32bits(g) || w != w && g != g:
		case s.o.Exact:
			t.Fatalf("%s: element %d of %d: found %g (%#x), expected the bits of %g (%#x)", what, i, len(want), g, math.Float32bits(g), w, math.Float32bits(w))
		case !(math.Abs(float64(g)-float64(w)) <= bound(i)):
			t.Fatalf("%s: element %d of %d: found %g, expected %g within %g", what, i, len(want), g, w, bound(i))
		}
	}
}

// near is compare for references in float64, which no device has the bits of.
func near(t testing.TB, what string, want []float64, got []float32, bound func(i int) float64) {
	t.Helper()
	if len(want) != len(got) {
		t.Fatalf("%s: found %d values, expected %d", what, len(got), len(want))
	}
	for i, w := range want {
		if g := float64(got[i]); !(math.Abs(g-w) <= bound(i)) {
			t.Fatalf("%s: element %d of %d: found %g, expected %g within %g", what, i, len(want), g, w, bound(i))
		}
	}
}

func relative[T float32 | float64](want []T, bound float64) func(i int) float64 {
	return func(i int) float64 { return bound*math.Abs(float64(want[i])) + 1e-30 }
}

// rig makes and frees what one test needs on a device.
type rig struct {
	t testing.TB
	d kernels.Device
	e kernels.Encoder
}

func newRig(t testing.TB, d kernels.Device) *rig {
	t.Helper()
	e, err := d.Encoder()
	ok(t, err)
	t.Cleanup(e.Close)
	return &rig{t, d, e}
}

const (
	guards = 2       // rows on each side
	guard  = 1 << 34 // exact in bf16
)

// rows returns n rows of cols elements with the contents x, zeros if that is nil.
func (r *rig) rows(typ tensor.Type, n, cols int, x []float32) kernels.Rows {
	r.t.Helper()
	b, err := r.d.Buffer(typ, n+2*guards, cols)
	ok(r.t, err)
	r.t.Cleanup(func() {
		if !r.t.Failed() {
			r.check(b, n, cols)
		}
		b.Free()
	})
	all := slices.Repeat([]float32{guard}, (n+2*guards)*cols)
	clear(all[guards*cols : (guards+n)*cols])
	copy(all[guards*cols:(guards+n)*cols], x)
	ok(r.t, r.d.Write(context.Background(), kernels.Rows{Buffer: b, N: n + 2*guards}, all))
	return kernels.Rows{Buffer: b, First: guards, N: n}
}

// check fails if the guard rows around n rows have changed.
func (r *rig) check(b kernels.Buffer, n, cols int) {
	for _, first := range []int{0, guards + n} {
		for _, x := range r.read(kernels.Rows{Buffer: b, First: first, N: guards}, cols) {
			if x != guard {
				r.t.Errorf("a row next to an operand of %d rows of %d elements was overwritten", n, cols)
				return
			}
		}
	}
}

func (r *rig) read(of kernels.Rows, cols int) []float32 {
	r.t.Helper()
	x := make([]float32, of.N*cols)
	ok(r.t, r.d.Read(context.Background(), x, of))
	return x
}

func (r *rig) vector(x []float32) kernels.Buffer {
	r.t.Helper()
	b, err := kernels.NewVector(context.Background(), r.d, x)
	ok(r.t, err)
	r.t.Cleanup(b.Free)
	return b
}

func (r *rig) shared(use kernels.SharedUse, rows, cols int, x []float32) kernels.SharedBuffer {
	r.t.Helper()
	b, err := r.d.Shared(use, rows, cols)
	ok(r.t, err)
	r.t.Cleanup(b.Free)
	copy(b.Floats(), x)
	return b
}

func (r *rig) matrix(m kernels.Matrix) kernels.DeviceMatrix {
	r.t.Helper()
	w, err := r.d.Matrix(context.Background(), m)
	ok(r.t, err)
	r.t.Cleanup(w.Free)
	return w
}

// list records operations.
func (r *rig) list(record func(e kernels.Encoder)) kernels.CommandList {
	r.t.Helper()
	r.e.Begin()
	record(r.e)
	l, err := r.e.End()
	ok(r.t, err)
	return l
}

// run records operations and runs them once.
func (r *rig) run(record func(e kernels.Encoder)) {
	r.t.Helper()
	l := r.list(record)
	defer l.Free()
	ok(r.t, r.e.Run(context.Background(), l))
}
