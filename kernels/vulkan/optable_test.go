//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// The operation table of the device. Every operation is compared with the portable
// functions of package kernels (or with float64 if there is none) within the bound that
// it states, and with itself, bit for bit, under other batch shapes. Operands are between
// guard bytes, and the gaps between rows hold garbage.

func TestMatMul(t *testing.T) {
	d := device(t)
	checks := 0
	for _, s := range []struct{ n, cols, rows int }{
		{1, 16, 1}, {1, 64, 9}, {1, 4160, 6}, {1, 1024, 300}, {2, 96, 7}, {3, 2048, 4}, {5, 2080, 37},
		{9, 64, 70}, {33, 128, 40}, {17, 4100, 5}, {1, 7, 5}, {4, 33, 5}, {40, 100, 17}, {1, 9001, 3},
	} {
		for _, wt := range weightTypes {
			for _, xt := range []tensor.Type{tensor.F32, tensor.BF16} {
				name := fmt.Sprintf("MatMul/%v·%v/n%d,cols%d,rows%d", xt, wt, s.n, s.cols, s.rows)
				bound := 2e-6
				if d.units != nil && xt == tensor.BF16 && wt == tensor.BF16 {
					bound = matrixBound
				}
				t.Run(name, func(t *testing.T) {
					r := rng(name)
					_, x := narrow(random(r, s.n*s.cols), xt)
					raw, w := narrow(random(r, s.rows*s.cols), wt)
					xr, _ := uploadRows(t, d, x, s.n, s.cols, xt)
					dw := uploadWeights(t, d, raw, wt, s.rows, s.cols)
					y, yg := newRows(t, d, s.n, s.rows, tensor.F32)
					run(t, d, func(c *commands) { c.MatMul(xr, false, product{W: dw, Dst: y}) })
					got := rowsOf(yg, y)

					want := make([]float32, s.n*s.rows)
					m := kernels.Matrix{Type: wt, Rows: s.rows, Cols: s.cols, Data: raw}
					kernels.CPU{}.MatMul(want, s.rows, x, s.cols, s.n, &m, 0, s.rows)
					within(t, name, wide(want), got, func(i int) float64 {
						sum := 1e-30
						for k := range s.cols {
							sum += math.Abs(float64(x[i/s.rows*s.cols+k]) * float64(w[i%s.rows*s.cols+k]))
						}
						return bound * sum
					})
					// Same bits: row by row, and in chunks that use other shaders.
					for _, chunk := range []int{1, 3, 11} {
						if chunk >= s.n {
							continue
						}
						z, zg := newRows(t, d, s.n, s.rows, tensor.F32)
						run(t, d, func(c *commands) {
							for at := 0; at < s.n; at += chunk {
								c.MatMul(xr.Part(at, min(chunk, s.n-at)), false, product{W: dw, Dst: z.Part(at, min(chunk, s.n-at))})
							}
						})
						testnum.SameBits(t, fmt.Sprintf("%s, %d rows at a time", name, chunk), got, rowsOf(zg, z))
					}
					checks++
				})
			}
		}
	}
	fmt.Printf("device operation table: %d products on %s\n", checks, d.Info().Name)
}

func TestMatMulTogether(t *testing.T) {
	d := device(t)
	r := rng("together")
	const cols, n = 72, 6
	for _, rows := range []int{1, n} {
		x := random(r, rows*cols)
		xr, _ := uploadRows(t, d, x, rows, cols, tensor.F32)
		var products, alone []product
		var outs, refs []*guarded
		for _, w := range []int{40, 9, 33} {
			raw, _ := narrow(random(r, w*cols), tensor.BF16)
			dw := uploadWeights(t, d, raw, tensor.BF16, w, cols)
			bias := upload(t, d, bytesOf(random(r, w)))
			init := random(r, rows*w)
			a, ag := uploadRows(t, d, init, rows, w, tensor.F32)
			b, bg := uploadRows(t, d, init, rows, w, tensor.F32)
			products = append(products, product{W: dw, Dst: a, Bias: bias.view})
			alone = append(alone, product{W: dw, Dst: b, Bias: bias.view})
			outs, refs = append(outs, ag), append(refs, bg)
			if len(products) == 1 {
				// The expected result of one product with bias and add.
				z, zg := newRows(t, d, rows, w, tensor.F32)
				run(t, d, func(c *commands) { c.MatMul(xr, false, product{W: dw, Dst: z}) })
				plain, bv := rowsOf(zg, z), bias.f32()
				run(t, d, func(c *commands) { c.MatMul(xr, true, products[0]) })
				for i := range init {
					init[i] += plain[i] + bv[i%w]
				}
				testnum.SameBits(t, "product with bias and add", init, rowsOf(ag, a))
				run(t, d, func(c *commands) { c.Copy(b.Mem, a.Mem) })
			}
		}
		run(t, d, func(c *commands) { c.MatMul(xr, true, products...) })
		run(t, d, func(c *commands) {
			c.Together(func() {
				for _, p := range alone {
					c.MatMul(xr, true, p)
				}
			})
		})
		for i := range outs {
			testnum.SameBits(t, fmt.Sprintf("product %d of three over %d rows", i, rows), rowsOf(refs[i], alone[i].Dst), rowsOf(outs[i], products[i].Dst))
		}
	}
}

// GateUp gives the same bits as two products and SwiGLU, which have their own bounds.
func TestGateUp(t *testing.T) {
	d := device(t)
	for _, s := range []struct{ n, cols, rows int }{{1, 64, 9}, {1, 2056, 30}, {1, 8200, 5}, {3, 100, 37}, {8, 64, 32}, {9, 2080, 17}, {70, 33, 40}} {
		for _, wt := range weightTypes {
			for _, xt := range []tensor.Type{tensor.F32, tensor.BF16} {
				name := fmt.Sprintf("GateUp/%v·%v/n%d,cols%d,rows%d", xt, wt, s.n, s.cols, s.rows)
				r := rng(name)
				xr, _ := uploadRows(t, d, random(r, s.n*s.cols), s.n, s.cols, xt)
				var p [2]product
				for i := range p {
					raw, _ := narrow(random(r, s.rows*s.cols), wt)
					y, _ := newRows(t, d, s.n, s.rows, tensor.F32)
					p[i] = product{W: uploadWeights(t, d, raw, wt, s.rows, s.cols), Dst: y}
					if i == 0 || s.n != 3 {
						p[i].Bias = upload(t, d, bytesOf(random(r, s.rows))).view
					}
				}
				// Passes have inputs and outputs of one type.
				a, ag := newRows(t, d, s.n, s.rows, xt)
				b, bg := newRows(t, d, s.n, s.rows, xt)
				run(t, d, func(c *commands) {
					c.MatMul(xr, false, p[:]...)
					c.SwiGLU(a, p[0].Dst, p[1].Dst)
					c.GateUp(b, xr, p[0], p[1])
				})
				testnum.SameBits(t, name, rowsOf(ag, a), rowsOf(bg, b))
			}
		}
	}
}

func TestElementwise(t *testing.T) {
	d := device(t)
	cpu := kernels.CPU{}
	for _, s := range []struct{ n, cols int }{{1, 1}, {3, 7}, {2, 64}, {5, 1000}, {1, 4096}} {
		name := fmt.Sprintf("n%d,cols%d", s.n, s.cols)
		r := rng(name)
		x, w, z := random(r, s.n*s.cols), random(r, s.cols), random(r, s.n*s.cols)
		for i := range z {
			z[i] *= 20
		}
		xr, _ := uploadRows(t, d, x, s.n, s.cols, tensor.F32)
		zr, _ := uploadRows(t, d, z, s.n, s.cols, tensor.F32)
		wv := upload(t, d, bytesOf(w))
		norm, swiglu, sum := make([]float32, len(x)), make([]float32, len(x)), make([]float32, len(x))
		for i := range s.n {
			cpu.RMSNorm(norm[i*s.cols:], x[i*s.cols:(i+1)*s.cols], w, 1e-5)
		}
		cpu.SwiGLU(swiglu, z, x)
		copy(sum, x)
		cpu.Add(sum, z)
		for _, op := range []struct {
			name  string
			want  []float32
			types []tensor.Type
			rel   float64
			run   func(c *commands, y rowset)
		}{
			{"RMSNorm", norm, []tensor.Type{tensor.F32, tensor.BF16}, 2e-6, func(c *commands, y rowset) { c.RMSNorm(y, xr, wv.view, 1e-5) }},
			{"SwiGLU", swiglu, []tensor.Type{tensor.F32, tensor.BF16}, 2e-6, func(c *commands, y rowset) { c.SwiGLU(y, zr, xr) }},
			{"Convert", x, weightTypes, 0, func(c *commands, y rowset) { c.Convert(y, xr) }},
			{"Add", sum, []tensor.Type{tensor.F32}, 0, func(c *commands, y rowset) { c.Convert(y, xr); c.Add(y, zr) }},
		} {
			for _, yt := range op.types {
				y, yg := newRows(t, d, s.n, s.cols, yt)
				run(t, d, func(c *commands) { op.run(c, y) })
				what := fmt.Sprintf("%s/%v/%s", op.name, yt, name)
				_, want := narrow(op.want, yt)
				if op.rel == 0 {
					testnum.SameBits(t, what, want, rowsOf(yg, y))
					continue
				}
				unit := op.rel // a difference may change the rounding to bf16
				if yt == tensor.BF16 {
					unit = 1.0 / 128
				}
				within(t, what, wide(want), rowsOf(yg, y), relative(wide(want), unit, 1e-30))
			}
		}
	}
	// One row's norm does not depend on the others.
	x := random(rng("rows"), 5*256)
	wv := upload(t, d, bytesOf(random(rng("w"), 256)))
	xr, _ := uploadRows(t, d, x, 5, 256, tensor.F32)
	a, ag := newRows(t, d, 5, 256, tensor.F32)
	b, bg := newRows(t, d, 5, 256, tensor.F32)
	run(t, d, func(c *commands) {
		c.RMSNorm(a, xr, wv.view, 1e-6)
		for i := range 5 {
			c.RMSNorm(b.Part(i, 1), xr.Part(i, 1), wv.view, 1e-6)
		}
	})
	testnum.SameBits(t, "norm row by row", rowsOf(ag, a), rowsOf(bg, b))
	// Heads in place.
	h := upload(t, d, bytesOf(x))
	hw := random(rng("hw"), 64)
	hv := upload(t, d, bytesOf(hw))
	run(t, d, func(c *commands) { c.HeadNorm(rowset{h.view, tensor.F32, 5, 256, 256}, 64, hv.view, 1e-6) })
	want := make([]float32, len(x))
	for i := 0; i < len(x); i += 64 {
		cpu.RMSNorm(want[i:], x[i:i+64], hw, 1e-6)
	}
	within(t, "HeadNorm", wide(want), h.f32(), relative(wide(want), 2e-6, 1e-30))
}

func TestConvertRounding(t *testing.T) {
	d := device(t)
	// Ties, the limits of f16's range and its subnormal numbers.
	x := []float32{0, 1, -1, 65504, 65519, 65520, -70000, 1e-7, 6e-8, 2.98e-8, 2.99e-8, 6.1e-5, 6.2e-5, -3e-6, 1.0009765, 1.00048828125, 1.00146484375, 3.3895314e38}
	for range 2000 {
		x = append(x, math.Float32frombits(0x38000000+uint32(len(x))*7919%0x10000000))
	}
	for _, typ := range []tensor.Type{tensor.F16, tensor.BF16} {
		xr, _ := uploadRows(t, d, x, 1, len(x), tensor.F32)
		y, yg := newRows(t, d, 1, len(x), typ)
		run(t, d, func(c *commands) { c.Convert(y, xr) })
		raw, _ := narrow(x, typ)
		got := yg.raw()
		for i := range x {
			if w, g := binary.LittleEndian.Uint16(raw[2*i:]), binary.LittleEndian.Uint16(got[2*i:]); w != g {
				t.Fatalf("%g as %v: want %#x, got %#x", x[i], typ, w, g)
			}
		}
	}
}

func TestEmbed(t *testing.T) {
	d := device(t)
	for _, typ := range weightTypes {
		const vocab, cols = 50, 20
		raw, w := narrow(random(rng("embed"), vocab*cols), typ)
		table := uploadWeights(t, d, raw, typ, vocab, cols)
		ids := []uint32{7, 49, 0, 7, 50}
		idb := make([]byte, 4*len(ids))
		want := make([]float32, len(ids)*cols)
		for i, id := range ids {
			binary.LittleEndian.PutUint32(idb[4*i:], id)
			if id < vocab {
				copy(want[i*cols:(i+1)*cols], w[id*cols:])
			}
		}
		x, xg := newRows(t, d, len(ids), cols, tensor.F32)
		iv := upload(t, d, idb)
		run(t, d, func(c *commands) { c.Embed(x, iv.view, table) })
		testnum.SameBits(t, fmt.Sprintf("Embed/%v", typ), want, rowsOf(xg, x))
	}
}

func TestArgmax(t *testing.T) {
	d := device(t)
	inf := float32(math.Inf(1))
	for _, n := range []int{1, 5, 255, 256, 257, 3000} {
		rows := [][]float32{
			random(rng(fmt.Sprint("argmax", n)), n),
			repeat(n, func(i int) float32 { return float32(i * 7 % 5) }), // ties
			repeat(n, func(int) float32 { return -inf }),
			repeat(n, func(i int) float32 { return float32(-i) }),
		}
		var x []float32
		for _, r := range rows {
			x = append(x, r...)
		}
		xr, _ := uploadRows(t, d, x, len(rows), n, tensor.F32)
		out := alloc(t, d, 4*len(rows))
		run(t, d, func(c *commands) { c.Argmax(out.view, xr) })
		for i, r := range rows {
			if want, got := (kernels.CPU{}).Argmax(r), int(binary.LittleEndian.Uint32(out.raw()[4*i:])); want != got {
				t.Errorf("argmax of row %d of %d elements: want %d, got %d", i, n, want, got)
			}
		}
	}
}

func TestOperandsAreChecked(t *testing.T) {
	d := device(t)
	x, _ := newRows(t, d, 2, 16, tensor.F32)
	y, _ := newRows(t, d, 2, 8, tensor.F32)
	w := uploadWeights(t, d, make([]byte, 8*16*2), tensor.BF16, 8, 16)
	for name, record := range map[string]func(c *commands){
		"columns":  func(c *commands) { c.MatMul(y, false, product{W: w, Dst: y}) },
		"dst":      func(c *commands) { c.MatMul(x, false, product{W: w, Dst: x}) },
		"type":     func(c *commands) { c.MatMul(rowset{x.Mem, tensor.F16, 1, 16, 16}, false, product{W: w, Dst: y}) },
		"memory":   func(c *commands) { c.MatMul(rowset{x.Mem, tensor.F32, 3, 16, 16}, false, product{W: w, Dst: y}) },
		"no rows":  func(c *commands) { c.Add(x, x.Part(0, 0)); c.Add(x, y) },
		"unpadded": func(c *commands) { c.Add(rowset{x.Mem, tensor.F32, 1, 12, 12}, rowset{x.Mem, tensor.F32, 1, 12, 12}) },
		"no weights": func(c *commands) {
			c.MatMul(x, false, product{W: weights{Type: tensor.BF16, Rows: 8, Cols: 16}, Dst: y})
		},
		"layout": func(c *commands) { c.Compact(layout{tensor.F32, 18, 64}, x.Mem, 0) },
	} {
		c, err := d.newCommands()
		ok(t, err)
		ok(t, c.Begin())
		record(c)
		if err := c.End(); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			t.Log(err)
		}
		if _, err := d.submit(c); err == nil {
			t.Errorf("%s: commands with an error could be submitted", name)
		}
		c.Free()
	}
}
