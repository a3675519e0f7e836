//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"slices"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// rows2D is a matrix of activations [N, Cols] on the device: row r begins at
// element r·Stride of Mem. Type is F32, or BF16 where an operation says so.
// Stride is a multiple of 8 (see padded) and Mem is aligned to 16 bytes; the contents
// between a row's Cols elements and the next row do not matter.
type rows2D struct {
	Mem     view
	Type    tensor.Type
	N, Cols int
	Stride  int
}

// padded rounds n elements up to a multiple of 8, where the next row may begin.
func padded(n int) int { return (n + 7) &^ 7 }

// bytes is the size of the rows with their gaps.
func (r rows2D) bytes() int64 { return int64(r.N) * int64(r.Stride) * int64(r.Type.Bytes(1)) }

// newRows2D describes n rows of cols elements at the beginning of mem.
func newRows2D(mem view, t tensor.Type, n, cols int) rows2D {
	return rows2D{Mem: mem, Type: t, N: n, Cols: cols, Stride: padded(cols)}
}

// First returns the first n rows.
func (r rows2D) First(n int) rows2D {
	r.N = n
	return r
}

// Part returns rows first … first+n-1.
func (r rows2D) Part(first, n int) rows2D {
	off := int64(first) * int64(r.Stride) * int64(r.Type.Bytes(1))
	r.Mem, r.N = r.Mem.At(off, r.Mem.Size()-off), n
	return r
}

// weights is a matrix [Rows, Cols] of a type that typeCode knows on the device; its rows are
// rowPitch bytes apart, with zeros after the last column (uploadRows).
type weights struct {
	Mem        view
	Type       tensor.Type
	Rows, Cols int
}

// weightBytes is the size of weights on the device.
func weightBytes(t tensor.Type, rows, cols int) int64 {
	return int64(rows) * int64(rowPitch(t, cols))
}

// rowPitch returns how many bytes rows of weights are apart: 8 elements begin with one of 4
// or 8 words, and whole blocks as in a file end with up to 15 zeros.
func rowPitch(t tensor.Type, cols int) int {
	if t.Quantised() {
		return (t.Bytes(cols) + 15) &^ 15
	}
	return padded(cols) * t.Bytes(1)
}

// blockCodes are the types of blocks, in the order of shaders/quants.glsl from 3 on.
var blockCodes = []tensor.Type{
	tensor.Q8_0, tensor.Q4_0, tensor.Q4_1, tensor.Q5_0, tensor.Q5_1, tensor.Q2_K, tensor.Q3_K, tensor.Q4_K, tensor.Q5_K,
	tensor.Q6_K, tensor.IQ4_NL, tensor.IQ4_XS, tensor.MXFP4,
}

// weightCode is typeCode for weights, which blocks of integers are, too.
func weightCode(t tensor.Type) (uint32, bool) {
	if i := slices.Index(blockCodes, t); i >= 0 {
		return uint32(3 + i), true
	}
	return typeCode(t)
}

func typeCode(t tensor.Type) (uint32, bool) {
	switch t {
	case tensor.F32:
		return 0, true
	case tensor.F16:
		return 1, true
	case tensor.BF16:
		return 2, true
	}
	return 0, false
}

// rows checks a matrix of activations.
func (c *commands) rows(op, name string, r rows2D, cols int, types ...tensor.Type) (code uint32) {
	code, _ = typeCode(r.Type)
	ok := false
	for _, t := range types {
		ok = ok || r.Type == t
	}
	switch {
	case r.Mem.None():
		c.fail(op, "%s: found no memory", name)
	case !ok:
		c.fail(op, "%s: found type %v, expected one of %v", name, r.Type, types)
	case r.N < 0 || r.Cols != cols || r.Stride < cols || r.Stride%8 != 0:
		c.fail(op, "%s: found %d rows of %d elements %d apart, expected rows of %d, a multiple of 8 apart", name, r.N, r.Cols, r.Stride, cols)
	case r.Mem.Size() < r.bytes():
		c.fail(op, "%s: found %d bytes, expected %d for %d rows %d apart", name, r.Mem.Size(), r.bytes(), r.N, r.Stride)
	case int64(r.N)*int64(r.Stride) >= 1<<31:
		c.fail(op, "%s: %d rows %d apart have too many elements", name, r.N, r.Stride)
	case r.Mem.address()%16 != 0:
		c.fail(op, "%s: the address %#x is not a multiple of 16", name, r.Mem.address())
	}
	return code
}

// floats checks a vector of n f32 elements; none says whether it may be missing.
func (c *commands) floats(op, name string, v view, n int, none bool) {
	switch {
	case v.None() && none:
	case v.None():
		c.fail(op, "%s: found no memory", name)
	case v.Size() < 4*int64(n):
		c.fail(op, "%s: found %d bytes, expected %d", name, v.Size(), 4*int64(n))
	case v.address()%4 != 0:
		c.fail(op, "%s: the address %#x is not a multiple of 4", name, v.address())
	}
}

func (c *commands) weights(op string, w weights) (code uint32) {
	code, ok := weightCode(w.Type)
	ok = ok && w.Cols%w.Type.Block() == 0
	need := int64(0)
	if ok {
		need = weightBytes(w.Type, w.Rows, w.Cols)
	}
	switch {
	case !ok:
		c.fail(op, "weights: found %d columns of type %v, expected F32, F16, BF16 or whole blocks of integers", w.Cols, w.Type)
	case w.Mem.None() || w.Mem.Size() < need:
		c.fail(op, "weights: found %d bytes, expected %d for %d×%d of %v", w.Mem.Size(), need, w.Rows, w.Cols, w.Type)
	case w.Mem.address()%16 != 0:
		c.fail(op, "weights: the address %#x is not a multiple of 16", w.Mem.address())
	case int64(w.Rows)*int64(padded(w.Cols)/8) >= 1<<31 || w.Type.Quantised() && need >= 1<<34:
		c.fail(op, "weights: %d×%d has too many elements", w.Rows, w.Cols)
	}
	return code
}

// product is one matrix product over the input of a MatMul: Dst = x·Wᵀ + Bias.
type product struct {
	W    weights
	Dst  rows2D // [N, W.Rows] f32
	Bias view   // [W.Rows] f32 or none
}

// splitMax is the maximum number of teams that share the blocks of one output of a
// matrix-vector product.
const splitMax = 4

// MatMul computes up to three products of the rows x, [N, Cols] of type F32 or
// BF16, with weights of one type. With add, the result is added to Dst instead of
// replacing it. The bits of an element depend only on its row of x and its row of W.
// Bound against package kernels: |error| ≤ 2e-6·Σ|x·w| for K up to 16384, and
// 1e-5·Σ|x·w| if the device's matrix units are used (BF16 by BF16).
func (c *commands) MatMul(x rows2D, add bool, products ...product) {
	const op = "matrix product"
	if !c.ready(op) {
		return
	}
	if len(products) < 1 || len(products) > 3 {
		c.fail(op, "%d products, expected 1 to 3", len(products))
		return
	}
	cols, wt := products[0].W.Cols, products[0].W.Type
	xt := c.rows(op, "x", x, cols, tensor.F32, tensor.BF16)
	if cols < 1 {
		c.fail(op, "weights have %d columns, expected at least 1", cols)
	}
	var code uint32
	for _, p := range products {
		code = c.weights(op, p.W)
		c.rows(op, "dst", p.Dst, p.W.Rows, tensor.F32)
		c.floats(op, "bias", p.Bias, p.W.Rows, true)
		if p.W.Cols != cols || p.W.Type != wt {
			c.fail(op, "weights: found %v with %d columns beside %v with %d, expected the same", p.W.Type, p.W.Cols, wt, cols)
		}
		if p.Dst.N < x.N {
			c.fail(op, "dst: found %d rows, expected %d", p.Dst.N, x.N)
		}
	}
	if c.err != nil || x.N == 0 {
		return
	}
	flags := x.N
	if add {
		flags |= 1 << 31
	}
	p := c.matMulArgs(x, flags, products)
	if u := c.unitsFor(x, wt); u != nil {
		u.multiply(c, op, x, products, &p)
		return
	}
	size, outs, rows, split := tileOf(x.N, cols)
	outs /= split
	tiles := 0
	for _, pr := range products {
		tiles += (pr.W.Rows + outs - 1) / outs
	}
	c.dispatch(op, "matmul"+size, []uint32{code, xt, uint32(split)}, &p, tiles, (x.N+rows-1)/rows, 1)
}

// unitsFor returns the matrix units for products of x with weights of a type, nil
// for the plain shaders. It must not depend on the number of rows or the size of the
// weights: each kind of shader has its own order of sums.
func (c *commands) unitsFor(x rows2D, wt tensor.Type) *matrixUnits {
	if x.Type != tensor.BF16 || wt != tensor.BF16 || c.tiling == noUnits {
		return nil
	}
	return c.d.matrixUnits
}

// tileOf returns the variant of the product shaders for n rows, how many outputs and
// rows a workgroup computes (not counting split), and how many teams share an output.
func tileOf(n, cols int) (size string, outs, rows, split int) {
	switch {
	case n == 1:
		for split = 1; split < splitMax && split*2048 < cols; split *= 2 {
		}
		return "1", 16, 1, split
	case n <= 8:
		return "4", 32, 4, 1
	}
	return "8", 16, 32, 1
}

// matMulArgs returns the argument block of the product shaders.
func (c *commands) matMulArgs(x rows2D, flags int, products []product) (p push) {
	p.addr(x.Mem)
	for _, get := range []func(product) view{
		func(p product) view { return p.W.Mem }, func(p product) view { return p.Dst.Mem }, func(p product) view { return p.Bias },
	} {
		for i := range 3 {
			if i < len(products) {
				p.addr(get(products[i]))
			} else {
				p.u64(0)
			}
		}
	}
	var n, ld [3]int
	for i, pr := range products {
		n[i], ld[i] = pr.W.Rows, pr.Dst.Stride
	}
	p.u32(n[:]...)
	p.u32(ld[:]...)
	p.u32(flags, x.Stride, x.Cols, padded(x.Cols))
	return p
}

// GateUp sets y, [N, W.Rows] of type F32 or BF16, to the gated products of x with gate and
// up, whose Dst is not used: the same sums as those of separate operations, in one.
func (c *commands) GateUp(y, x rows2D, a kernels.Activation, gate, up product) {
	const op = "gate and up"
	if !c.ready(op) {
		return
	}
	cols, n := gate.W.Cols, gate.W.Rows
	xt := c.rows(op, "x", x, cols, tensor.F32, tensor.BF16)
	yt := c.rows(op, "y", y, n, tensor.F32, tensor.BF16)
	code, upCode := c.weights(op, gate.W), c.weights(op, up.W)
	c.floats(op, "gate's bias", gate.Bias, n, true)
	c.floats(op, "up's bias", up.Bias, n, true)
	if up.W.Cols != cols || up.W.Rows != n || cols < 1 {
		c.fail(op, "weights: found %d×%d beside %d×%d, expected the same", up.W.Rows, up.W.Cols, n, cols)
	}
	if y.N < x.N {
		c.fail(op, "y: found %d rows, expected %d", y.N, x.N)
	}
	if c.err != nil || x.N == 0 {
		return
	}
	gate.Dst, up.Dst = y, y
	p := c.matMulArgs(x, x.N, []product{gate, up})
	if u := c.unitsFor(x, gate.W.Type); u != nil && up.W.Type == gate.W.Type {
		u.gateUp(c, op, x, n, yt, uint32(a), &p)
		return
	}
	size, outs, rows, split := tileOf(x.N, cols)
	if x.N > 1 {
		outs /= 2
	}
	outs /= split
	c.dispatch(op, "gateup"+size, []uint32{code, xt, uint32(split), yt, upCode, 0, uint32(a)}, &p, (n+outs-1)/outs, (x.N+rows-1)/rows, 1)
}

// RMSNorm sets y[r] = x[r]/√(mean(x[r]²)+eps)·w for every row; y is F32 or BF16
// and may be x. w is [Cols] f32. Bound: relative error 2e-6, plus the rounding of y.
func (c *commands) RMSNorm(y, x rows2D, w view, eps float64) {
	const op = "rms norm"
	if !c.ready(op) {
		return
	}
	yt := c.rows(op, "y", y, x.Cols, tensor.F32, tensor.BF16)
	c.rows(op, "x", x, x.Cols, tensor.F32)
	c.floats(op, "w", w, x.Cols, false)
	if y.N < x.N {
		c.fail(op, "y: found %d rows, expected %d", y.N, x.N)
	}
	c.norm(op, y.Mem, x.Mem, w, yt, x.N, x.Cols, x.Stride, y.Stride, eps)
}

// HeadNorm normalises every head of x, [N, heads·headDim] f32, in place; Stride
// must be Cols if there are several. w is [headDim] f32.
func (c *commands) HeadNorm(x rows2D, headDim int, w view, eps float64) {
	const op = "head norm"
	if !c.ready(op) {
		return
	}
	c.rows(op, "x", x, x.Cols, tensor.F32)
	c.floats(op, "w", w, headDim, false)
	pitch := headDim
	if headDim == x.Cols {
		pitch = x.Stride
	}
	if headDim < 1 || x.Cols%headDim != 0 || pitch != x.Stride && x.Stride != x.Cols {
		c.fail(op, "x: found rows of %d elements %d apart, expected whole heads of %d without gaps", x.Cols, x.Stride, headDim)
		return
	}
	c.norm(op, x.Mem, x.Mem, w, 0, x.N*(x.Cols/headDim), headDim, pitch, pitch, eps)
}

func (c *commands) norm(op string, y, x, w view, yt uint32, rows, n, ldx, ldy int, eps float64) {
	var p push
	p.addr(x)
	p.addr(w)
	p.addr(y)
	p.u32(n, ldx, ldy, rows)
	p.f32(float32(eps))
	gx, gy := grid(rows)
	c.dispatch(op, "norm", []uint32{yt}, &p, gx, gy, 1)
}

// grid folds n workgroups into two dimensions.
func grid(n int) (x, y int) {
	const fold = 32768
	if n <= fold {
		return n, min(n, 1)
	}
	return fold, (n + fold - 1) / fold
}

// AddScaled sets y += s·x; both are f32. A product is rounded before it is added: the result
// is exact.
func (c *commands) AddScaled(y, x rows2D, s float32) {
	const op = "add"
	if !c.ready(op) {
		return
	}
	c.rows(op, "y", y, x.Cols, tensor.F32)
	c.rows(op, "x", x, x.Cols, tensor.F32)
	if y.N != x.N {
		c.fail(op, "found %d rows for %d", x.N, y.N)
	}
	var p push
	p.addr(x.Mem)
	p.addr(y.Mem)
	p.u32(x.Cols, x.Stride, y.Stride)
	p.f32(s)
	c.dispatch(op, "add", nil, &p, (x.Cols+255)/256, x.N, 1)
}

// Round sets y, bf16, to x, f32, rounded to nearest even.
func (c *commands) Round(y, x rows2D) {
	const op = "round"
	if !c.ready(op) {
		return
	}
	c.rows(op, "y", y, x.Cols, tensor.BF16)
	c.rows(op, "x", x, x.Cols, tensor.F32)
	if y.N != x.N {
		c.fail(op, "found %d rows of %d", y.N, x.N)
	}
	var p push
	p.addr(x.Mem)
	p.addr(y.Mem)
	p.u32(x.Cols, x.Stride, y.Stride)
	c.dispatch(op, "round", nil, &p, (x.Cols+511)/512, x.N, 1)
}

// Embed sets row r of x, f32, to row ids[r] of the table. ids is [x.N] whole f32 numbers,
// one a row, and is read when the commands run; an id beyond the table gives zeros. Exact,
// except for subnormal numbers on some devices.
func (c *commands) Embed(x, ids rows2D, table weights) {
	const op = "embed"
	if !c.ready(op) {
		return
	}
	code := c.weights(op, table)
	c.rows(op, "x", x, table.Cols, tensor.F32)
	c.column(op, "ids", ids, x.N)
	var p push
	p.addr(ids.Mem)
	p.addr(table.Mem)
	p.addr(x.Mem)
	p.u32(table.Cols, padded(table.Cols), x.Stride, table.Rows, ids.Stride)
	c.dispatch(op, "embed", []uint32{code}, &p, (table.Cols+255)/256, x.N, 1)
}

// ArgMax sets row r of out, one f32 element, to the index of the largest element of row r
// of x, the first among equals; NaN is never the largest. Exact.
func (c *commands) ArgMax(out, x rows2D) {
	const op = "arg-max"
	if !c.ready(op) {
		return
	}
	c.rows(op, "x", x, x.Cols, tensor.F32)
	c.column(op, "out", out, x.N)
	var p push
	p.addr(x.Mem)
	p.addr(out.Mem)
	p.u32(x.Cols, x.Stride, out.Stride)
	c.dispatch(op, "argmax", nil, &p, x.N, 1, 1)
}

// column checks n rows of one f32 element, which may be in shared memory.
func (c *commands) column(op, name string, r rows2D, n int) {
	c.floats(op, name, r.Mem, (n-1)*r.Stride+1, false)
	if r.Type != tensor.F32 || r.Cols != 1 || r.N != n {
		c.fail(op, "%s: found %d rows of %d elements of type %v, expected %d of one F32", name, r.N, r.Cols, r.Type, n)
	}
}
