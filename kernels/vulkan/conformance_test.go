//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lukv/lukv/internal/testctx"
	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/internal/vk"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kernels/conformance"
	"github.com/lukv/lukv/tensor"
)

func TestConformance(t *testing.T) {
	bound := 0.0
	if device(t).matrixUnits != nil {
		bound = matrixBound
	}
	open := func(o Options) func(t testing.TB) kernels.Device {
		return func(t testing.TB) kernels.Device { return openTest(t, o) }
	}
	conformance.Run(t, conformance.Options{
		Open: open(Options{BlockBytes: 16 << 20}), BF16Products: bound,
		Lose: func(d kernels.Device) {
			v := d.(*Device)
			v.mu.Lock()
			defer v.mu.Unlock()
			v.inject = vk.DeviceLost("vkQueueSubmit2")
		},
		Small: open(Options{MaxBytes: 32 << 20, BlockBytes: 4 << 20}),
	})
}

// chain is a list of many products, each of the result of the one before.
type chain struct {
	e    *encoder
	x, y kernels.Rows
	w    kernels.DeviceMatrix
}

func newChain(t *testing.T, d *Device) *chain {
	const n, cols = 40, 96
	e, err := d.Encoder()
	ok(t, err)
	t.Cleanup(e.Close)
	c := &chain{e: e.(*encoder)}
	c.w, err = d.Matrix(t.Context(), kernels.F32Matrix(random(rand.New(rand.NewPCG(1, 1)), cols*cols), cols, cols))
	ok(t, err)
	t.Cleanup(c.w.Free)
	for _, r := range []*kernels.Rows{&c.x, &c.y} {
		b, err := d.Buffer(tensor.F32, n, cols)
		ok(t, err)
		t.Cleanup(b.Free)
		*r = kernels.Rows{Buffer: b, N: n}
	}
	return c
}

// list records the products and norms between them.
func (c *chain) list(t *testing.T, norm kernels.Buffer) kernels.CommandList {
	c.e.Begin()
	for range 10 {
		c.e.Norm(c.x, c.x, norm, 1e-5)
		c.e.MatMul(c.x, false, []kernels.Product{{Linear: kernels.Linear{W: c.w}, Dst: c.y}})
		c.e.Copy(c.x, c.y)
	}
	l, err := c.e.End()
	ok(t, err)
	return l
}

// A list in many parts gives the bits of one in a single part. It can be cancelled between
// them, and leaves nothing under way.
func TestListParts(t *testing.T) {
	d := device(t)
	c := newChain(t, d)
	norm, err := kernels.NewVector(t.Context(), d, slices.Repeat([]float32{1}, 96))
	ok(t, err)
	t.Cleanup(norm.Free)
	input, got := random(rand.New(rand.NewPCG(1, 2)), 40*96), make([]float32, 40*96)
	run := func(ctx context.Context, l kernels.CommandList) error {
		ok(t, d.Write(t.Context(), c.x, input))
		return c.e.Run(ctx, l)
	}
	whole := c.list(t, norm)
	ok(t, run(t.Context(), whole))
	want := make([]float32, len(got))
	ok(t, d.Read(t.Context(), want, c.y))

	c.e.partFlops = 1
	parts := c.list(t, norm)
	if n := len(parts.(*commandList).parts); n < 10 {
		t.Fatalf("the list has %d parts", n)
	}
	ok(t, run(t.Context(), parts))
	ok(t, d.Read(t.Context(), got, c.y))
	testnum.SameBits(t, "in many parts", want, got)
	for _, left := range []int{0, 1, 3, 6} {
		ok(t, d.idle(t.Context()))
		if err := c.e.Run(testctx.DoneAfter(t.Context(), left), parts); !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled after %d parts: %v", left, err)
		}
		if d.done < d.last {
			t.Errorf("work is under way after a cancelled run")
		}
	}
	ok(t, run(t.Context(), parts))
	ok(t, d.Read(t.Context(), got, c.y))
	testnum.SameBits(t, "after cancelled runs", want, got)
}

// Encoders of one device may be used at the same time.
func TestEncodersInParallel(t *testing.T) {
	d := device(t)
	norm, err := kernels.NewVector(t.Context(), d, slices.Repeat([]float32{1}, 96))
	ok(t, err)
	t.Cleanup(norm.Free)
	input := random(rand.New(rand.NewPCG(1, 2)), 40*96)
	results := make([][]float32, 4)
	t.Run("all", func(t *testing.T) {
		for i := range results {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				c := newChain(t, d)
				l := c.list(t, norm)
				results[i] = make([]float32, len(input))
				for range 3 {
					ok(t, d.Write(t.Context(), c.x, input))
					ok(t, c.e.Run(t.Context(), l))
					ok(t, d.Read(t.Context(), results[i], c.y))
				}
			})
		}
	})
	for _, r := range results[1:] {
		testnum.SameBits(t, "beside other encoders", results[0], r)
	}
}

// Arguments of commands are checked before anything is recorded.
func TestOperandsAreChecked(t *testing.T) {
	d := device(t)
	x, _ := newRows(t, d, 2, 16, tensor.F32)
	y, _ := newRows(t, d, 2, 8, tensor.F32)
	w := uploadWeights(t, d, make([]byte, 8*16*2), tensor.BF16, 8, 16)
	for name, record := range map[string]func(c *commands){
		"columns": func(c *commands) { c.MatMul(y, false, product{W: w, Dst: y}) },
		"dst":     func(c *commands) { c.MatMul(x, false, product{W: w, Dst: x}) },
		"type":    func(c *commands) { c.MatMul(rows2D{x.Mem, tensor.F16, 1, 16, 16}, false, product{W: w, Dst: y}) },
		"memory":  func(c *commands) { c.MatMul(rows2D{x.Mem, tensor.F32, 3, 16, 16}, false, product{W: w, Dst: y}) },
		"no rows": func(c *commands) { c.AddScaled(x, x.Part(0, 0), 1) },
		"unpadded": func(c *commands) {
			c.AddScaled(rows2D{x.Mem, tensor.F32, 1, 12, 12}, rows2D{x.Mem, tensor.F32, 1, 12, 12}, 1)
		},
		"no weights": func(c *commands) {
			c.MatMul(x, false, product{W: weights{Type: tensor.BF16, Rows: 8, Cols: 16}, Dst: y})
		},
		"layout": func(c *commands) { c.Compact(layout{Type: tensor.F32, HeadDim: 18, PageEntries: 64}, x.Mem, 0) },
	} {
		c, err := d.newCommands()
		ok(t, err)
		ok(t, c.Begin())
		record(c)
		if err := c.End(); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := d.submit(c); err == nil {
			t.Errorf("%s: commands with an error could be submitted", name)
		}
		c.Free()
	}
}
