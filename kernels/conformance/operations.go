package conformance

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// Bounds of errors, relative to the result, or for products to Σ|x·w|. A difference may
// change the rounding to bf16.
const (
	productBound = 2e-6
	elementBound = 2e-6
	bf16Bound    = 1.0 / 128
)

// floatTypes are the types of weights that every device takes, blockTypes those that it may
// refuse by name.
var (
	floatTypes = []tensor.Type{tensor.F32, tensor.F16, tensor.BF16}
	blockTypes = quantised()
)

func quantised() (all []tensor.Type) {
	for t := tensor.F32; t.Valid(); t++ {
		if t.Quantised() {
			all = append(all, t)
		}
	}
	return all
}

// weightTypes sets the types of weights that the device takes.
func (s *suite) weightTypes(t *testing.T) {
	s.floats, s.types = len(floatTypes), slices.Clone(floatTypes)
	for _, b := range blockTypes {
		w, err := s.d.Matrix(t.Context(), kernels.Matrix{Type: b, Rows: 1, Cols: 256, Data: make([]byte, b.Bytes(256))})
		switch {
		case err == nil:
			w.Free()
			s.types = append(s.types, b)
		case strings.Contains(err.Error(), b.String()):
			t.Logf("left out: weights of %v: %v", b, err)
		default:
			t.Errorf("weights of %v are refused, but not by name: %v", b, err)
		}
	}
	for _, b := range s.types[s.floats:] {
		if w, err := s.d.Matrix(t.Context(), kernels.Matrix{Type: b, Rows: 2, Cols: 16, Data: make([]byte, b.Bytes(256))}); err == nil {
			w.Free()
			t.Errorf("rows of 16 columns of %v are not whole blocks, but were taken", b)
		}
	}
}

// whole rounds columns up to whole blocks of any type of integers.
func whole(cols int, t tensor.Type) int {
	if t.Quantised() {
		return (cols + 255) &^ 255
	}
	return cols
}

// operation is one operation with one shape on one kind of numbers.
type operation struct {
	name    string
	dst     tensor.Type
	n, cols int       // of dst
	initial []float32 // contents of dst, nil for zeros
	want    []float32
	bound   func(i int) float64

	// record records rows first … first+n-1 of the operation, which dst holds.
	record func(e kernels.Encoder, dst kernels.Rows, first, n int)
}

// operations runs the table of operations.
func (s *suite) operations(t *testing.T) {
	styles := []testnum.Style{testnum.Plain, testnum.Tiny}
	if s.o.Exact {
		styles = []testnum.Style{testnum.Plain, testnum.Hard, testnum.Special, testnum.Tiny}
	}
	builds := []func(r *rig, st testnum.Style) []operation{s.norms, s.headNorms, s.products, s.gates, s.sums, s.embeddings, s.maxima}
	if s.experts {
		builds = append(builds, s.routes, s.expertProducts, s.expertGates, s.expertSums)
	} else {
		t.Log("not tested: experts, which the device lacks (kernels.ExpertEncoder)")
	}
	count := 0
	for _, style := range styles {
		for _, build := range builds {
			r := newRig(t, s.d)
			for _, o := range build(r, style) {
				s.operation(t, r, o)
				count++
			}
		}
	}
	t.Logf("%d operations on %s", count, s.d.Info().Name)
}

func (s *suite) operation(t *testing.T, r *rig, o operation) {
	t.Helper()
	whole := r.rows(o.dst, o.n, o.cols, o.initial)
	r.run(func(e kernels.Encoder) { o.record(e, whole, 0, o.n) })
	got := r.read(whole, o.cols)
	s.compare(t, o.name, rounded(o.want, o.dst), got, o.bound)
	for _, chunk := range []int{1, 3, 11} {
		if chunk >= o.n {
			continue
		}
		parts := r.rows(o.dst, o.n, o.cols, o.initial)
		r.run(func(e kernels.Encoder) {
			for first := 0; first < o.n; first += chunk {
				n := min(chunk, o.n-first)
				o.record(e, parts.Part(first, n), first, n)
			}
		})
		sameBits(t, fmt.Sprintf("%s, %d rows at a time", o.name, chunk), got, r.read(parts, o.cols))
	}
}

// sameBits is testnum.SameBits where any NaN equals any other.
func sameBits(t testing.TB, what string, want, got []float32) {
	t.Helper()
	for _, x := range [][]float32{want, got} {
		for i, v := range x {
			if v != v {
				x[i] = float32(math.NaN())
			}
		}
	}
	testnum.SameBits(t, what, want, got)
}

// numbers returns n random numbers of a style, rounded as buffers of a type are.
func numbers(name string, st testnum.Style, n int, t tensor.Type) []float32 {
	r, x := random(name), make([]float32, n)
	for i := range x {
		x[i] = math.Float32frombits(testnum.Bits(r, st, 8, 23))
	}
	return rounded(x, t)
}

func (s *suite) norms(r *rig, st testnum.Style) (list []operation) {
	for _, shape := range [][2]int{{1, 1}, {3, 7}, {2, 64}, {5, 1000}, {1, 4096}, {70, 24}} {
		for _, typ := range []tensor.Type{tensor.F32, tensor.BF16} {
			n, cols := shape[0], shape[1]
			name := fmt.Sprintf("Norm/%v/%d×%d/%v", typ, n, cols, st)
			x, w, want := numbers(name, st, n*cols, tensor.F32), numbers(name+" w", st, cols, tensor.F32), make([]float32, n*cols)
			for i := range n {
				cpu.RMSNorm(want[i*cols:(i+1)*cols], x[i*cols:(i+1)*cols], w, 1e-5)
			}
			src, weight := r.rows(tensor.F32, n, cols, x), r.vector(w)
			list = append(list, operation{
				name: name, dst: typ, n: n, cols: cols, want: want, bound: elements(typ, want),
				record: func(e kernels.Encoder, dst kernels.Rows, first, n int) { e.Norm(dst, src.Part(first, n), weight, 1e-5) },
			})
		}
	}
	return list
}

// elements returns the bound of results that are stored as a type.
func elements(t tensor.Type, want []float32) func(int) float64 {
	if t == tensor.BF16 {
		return relative(want, bf16Bound)
	}
	return relative(want, elementBound)
}

func (s *suite) headNorms(r *rig, st testnum.Style) (list []operation) {
	for _, shape := range [][3]int{{5, 4, 64}, {1, 3, 8}, {20, 2, 128}, {4, 1, 90}} {
		n, heads, dim := shape[0], shape[1], shape[2]
		name := fmt.Sprintf("HeadNorm/%d×%d×%d/%v", n, heads, dim, st)
		x, w := numbers(name, st, n*heads*dim, tensor.F32), numbers(name+" w", st, dim, tensor.F32)
		want := slices.Clone(x)
		for head := range slices.Chunk(want, dim) {
			cpu.RMSNorm(head, head, w, 1e-6)
		}
		weight := r.vector(w)
		list = append(list, operation{
			name: name, dst: tensor.F32, n: n, cols: heads * dim, initial: x, want: want, bound: relative(want, elementBound),
			record: func(e kernels.Encoder, dst kernels.Rows, _, _ int) { e.HeadNorm(dst, weight, 1e-6) },
		})
	}
	return list
}

// blocks returns n random elements of a type of blocks, as bytes and as numbers. All bytes
// are random; blocks with scales beyond those of weights are drawn again unless the style
// has infinities and NaN.
func blocks(name string, st testnum.Style, n int, t tensor.Type) (raw []byte, wide []float32) {
	r := random(name)
	raw, wide = make([]byte, t.Bytes(n)), make([]float32, n)
	for at := 0; at < n; at += t.Block() {
		block, x := raw[t.Bytes(at):t.Bytes(at+t.Block())], wide[at:at+t.Block()]
		for again := true; again; {
			for i := range block {
				block[i] = byte(r.Uint32())
			}
			cpu.Widen(x, block, t)
			again = st != testnum.Special && slices.ContainsFunc(x, func(v float32) bool { return !(math.Abs(float64(v)) < 1e6) })
		}
	}
	return raw, wide
}

// randomScales reports whether operations of a style are run with blocks, whose scales are of
// all sizes in any case.
func randomScales(st testnum.Style) bool { return st == testnum.Plain || st == testnum.Special }

// weights are random weights, on both sides.
type weights struct {
	kernels.Matrix
	wide []float32
	kernels.Linear
	bias []float32
}

func (r *rig) weights(name string, st testnum.Style, t tensor.Type, rows, cols int, bias bool) (w weights) {
	var raw []byte
	var wide []float32
	if t.Quantised() {
		raw, wide = blocks(name, st, rows*cols, t)
	} else {
		raw, wide = narrow(numbers(name, st, rows*cols, t), t)
	}
	w.Matrix, w.wide = kernels.Matrix{Type: t, Rows: rows, Cols: cols, Data: raw}, wide
	w.W = r.matrix(w.Matrix)
	if bias {
		w.bias = numbers(name+" bias", st, rows, tensor.F32)
		w.Bias = r.vector(w.bias)
	}
	return w
}

// multiply returns x·wᵀ + bias for n rows of a type.
func (s *suite) multiply(w *weights, x []float32, n int, t tensor.Type) []float32 {
	y := make([]float32, n*w.Rows)
	if s.o.Exact && t == tensor.BF16 && w.Type == tensor.BF16 {
		raw := make([]uint16, len(x))
		cpu.RoundBF16(raw, x)
		cpu.MatMulBF16(y, w.Rows, raw, w.Cols, n, &w.Matrix, 0, w.Rows)
	} else {
		cpu.MatMul(y, w.Rows, x, w.Cols, n, &w.Matrix, 0, w.Rows)
	}
	for i := 0; w.bias != nil && i < n; i++ {
		cpu.Add(y[i*w.Rows:(i+1)*w.Rows], w.bias)
	}
	return y
}

// bound returns the bound of the error of a product.
func (s *suite) bound(w *weights, x []float32, t tensor.Type) func(i int) float64 {
	limit := productBound
	if t == tensor.BF16 && w.Type == tensor.BF16 {
		limit = s.o.BF16Products
	}
	return func(i int) float64 {
		sum, row, o := 0.0, i/w.Rows, i%w.Rows
		for k := range w.Cols {
			sum += math.Abs(float64(x[row*w.Cols+k]) * float64(w.wide[o*w.Cols+k]))
		}
		if w.bias != nil {
			sum += math.Abs(float64(w.bias[o]))
		}
		return limit*sum + 1e-30
	}
}

func (s *suite) products(r *rig, st testnum.Style) (list []operation) {
	for at, shape := range [][3]int{
		{1, 16, 1}, {1, 64, 9}, {1, 4160, 6}, {1, 1024, 300}, {2, 96, 7}, {3, 2048, 4}, {5, 2080, 37},
		{9, 64, 70}, {33, 128, 40}, {17, 4100, 5}, {1, 7, 5}, {4, 33, 5}, {40, 100, 17}, {1, 9001, 3},
	} {
		if testing.Short() && shape[0]*shape[1]*shape[2] > 20000 {
			continue
		}
		for i, wt := range s.types {
			for j, xt := range []tensor.Type{tensor.F32, tensor.BF16} {
				if i >= s.floats && ((at+i+j)%2 == 1 || !randomScales(st)) {
					continue // blocks with either in turn
				}
				n, cols, rows := shape[0], whole(shape[1], wt), shape[2]
				name := fmt.Sprintf("MatMul/%v·%v/n%d,cols%d,rows%d/%v", xt, wt, n, cols, rows, st)
				x, w := numbers(name, st, n*cols, xt), r.weights(name+" w", st, wt, rows, cols, i%3 == j)
				want, bound := s.multiply(&w, x, n, xt), s.bound(&w, x, xt)
				src := r.rows(xt, n, cols, x)
				o := operation{name: name, dst: tensor.F32, n: n, cols: rows, want: want, bound: bound}
				if add := (i+j)%2 == 1; add {
					o.initial = numbers(name+" sum", st, n*rows, tensor.F32)
					cpu.Add(o.want, o.initial)
					o.bound = func(i int) float64 { return bound(i) + 1e-7*math.Abs(float64(o.initial[i])) }
				}
				o.record = func(e kernels.Encoder, dst kernels.Rows, first, n int) {
					e.MatMul(src.Part(first, n), o.initial != nil, []kernels.Product{{Linear: w.Linear, Dst: dst}})
				}
				list = append(list, o)
			}
		}
	}
	return append(list, s.manyProducts(r, st)...)
}

// manyProducts are products of one source in one operation, of several types: each has
// the bits that it has alone.
func (s *suite) manyProducts(r *rig, st testnum.Style) (list []operation) {
	const n, cols = 6, 256
	x := numbers("many products", st, n*cols, tensor.F32)
	src := r.rows(tensor.F32, n, cols, x)
	var products []kernels.Product
	var all []weights
	for i, rows := range []int{40, 9, 33, 8, 50, 7, 20, 12} {
		w := r.weights(fmt.Sprint("product ", i), st, s.types[min(i/2, len(s.types)-1-i%2)], rows, cols, i%2 == 0)
		all = append(all, w)
		products = append(products, kernels.Product{Linear: w.Linear, Dst: r.rows(tensor.F32, n, rows, nil)})
	}
	for i := range products {
		w := &all[i]
		list = append(list, operation{
			name: fmt.Sprintf("MatMul/product %d of several/%v", i, st), dst: tensor.F32, n: n, cols: w.Rows,
			want: s.multiply(w, x, n, tensor.F32), bound: s.bound(w, x, tensor.F32),
			record: func(e kernels.Encoder, dst kernels.Rows, first, n int) {
				some := slices.Clone(products)
				for j := range some {
					some[j].Dst = some[j].Dst.Part(first, n)
				}
				some[i].Dst = dst
				e.MatMul(src.Part(first, n), false, some)
			},
		})
	}
	return list
}

func (s *suite) gates(r *rig, st testnum.Style) (list []operation) {
	// Of a single column, what is gated is a number as it is.
	for i, shape := range [][3]int{{1, 64, 9}, {1, 2056, 30}, {1, 8200, 5}, {3, 100, 37}, {8, 64, 32}, {9, 2080, 17}, {70, 33, 40}, {5, 1, 1001}, {33, 1, 12}} {
		if testing.Short() && shape[0]*shape[1]*shape[2] > 20000 {
			continue
		}
		for k, wt := range s.types {
			for j, xt := range []tensor.Type{tensor.F32, tensor.BF16} {
				ut := wt
				if k >= s.floats {
					if (i+k+j)%2 == 1 || !randomScales(st) {
						continue
					}
					if i%3 == 1 { // the two need not be of one type
						ut = s.types[s.floats+(k+2)%(len(s.types)-s.floats)]
					}
				}
				n, cols, rows := shape[0], whole(shape[1], wt), shape[2]
				all := kernels.Activations()
				act := all[(i+j)%len(all)]
				name := fmt.Sprintf("GateUp/%v/%v·%v/n%d,cols%d,rows%d/%v", act, xt, wt, n, cols, rows, st)
				x := numbers(name, st, n*cols, xt)
				gate, up := r.weights(name+" gate", st, wt, rows, cols, i%2 == 0), r.weights(name+" up", st, ut, rows, cols, i%3 == 0)
				g, u := s.multiply(&gate, x, n, xt), s.multiply(&up, x, n, xt)
				want := make([]float32, len(g))
				cpu.Gated(act, want, g, u)
				src, gb, ub := r.rows(xt, n, cols, x), s.bound(&gate, x, xt), s.bound(&up, x, xt)
				list = append(list, operation{
					name: name, dst: xt, n: n, cols: rows, want: want,
					bound: gatedBound(act, g, u, want, gb, ub, xt),
					record: func(e kernels.Encoder, dst kernels.Rows, first, n int) {
						e.GateUp(dst, src.Part(first, n), act, gate.Linear, up.Linear)
					},
				})
			}
		}
	}
	return list
}

// gatedBound returns the bound of gated products within their bounds, stored as a type.
func gatedBound(act kernels.Activation, g, u, want []float32, gb, ub func(int) float64, t tensor.Type) func(int) float64 {
	own, far := elementBound, 0.0
	if act != kernels.SiLU { // far below 0 the GELU is e^y of a large y, whose rounding it multiplies
		own, far = 2*elementBound, 1e-6
	}
	return func(i int) float64 {
		// The slope of activations is below 1.13, their size below that of the argument.
		size := math.Abs(float64(u[i]))
		limit := 1.13*gb(i)*(size+ub(i)) + ub(i)*math.Abs(float64(g[i])) + own*math.Abs(float64(want[i])) + far*size + 1e-30
		if t == tensor.BF16 {
			limit += bf16Bound * math.Abs(float64(want[i]))
		}
		return limit
	}
}

func (s *suite) sums(r *rig, st testnum.Style) (list []operation) {
	for _, shape := range [][2]int{{1, 1}, {5, 1000}, {33, 12}} {
		for _, scale := range []float32{1, 0.22} {
			n, cols := shape[0], shape[1]
			name := fmt.Sprintf("AddScaled/%g/%d×%d/%v", scale, n, cols, st)
			x, y := numbers(name, st, n*cols, tensor.F32), numbers(name+" y", st, n*cols, tensor.F32)
			want := slices.Clone(y)
			cpu.AddScaled(want, x, scale)
			src := r.rows(tensor.F32, n, cols, x)
			list = append(list, operation{
				name: name, dst: tensor.F32, n: n, cols: cols, initial: y, want: want, bound: relative(want, 1e-30),
				record: func(e kernels.Encoder, dst kernels.Rows, first, n int) { e.AddScaled(dst, src.Part(first, n), scale) },
			})
		}
	}
	return list
}

func (s *suite) embeddings(r *rig, st testnum.Style) (list []operation) {
	const vocab = 50
	ids := []float32{7, 49, 0, 7, 50, 12, -1, 1e9}
	numbers := r.shared(kernels.HostWrites, len(ids), 1, ids)
	for _, t := range s.types {
		cols := whole(20, t)
		name := fmt.Sprintf("Embed/%v/%v", t, st)
		w, want := r.weights(name, st, t, vocab, cols, false), make([]float32, len(ids)*cols)
		for i, id := range ids {
			if id >= 0 && id < vocab {
				copy(want[i*cols:(i+1)*cols], w.wide[int(id)*cols:])
			}
		}
		list = append(list, operation{
			name: name, dst: tensor.F32, n: len(ids), cols: cols, want: want, bound: func(int) float64 { return 1e-37 },
			record: func(e kernels.Encoder, dst kernels.Rows, first, n int) {
				e.Embed(dst, w.W, kernels.Rows{Buffer: numbers, First: first, N: n})
			},
		})
	}
	return list
}

func (s *suite) maxima(r *rig, st testnum.Style) (list []operation) {
	inf := float32(math.Inf(1))
	for _, cols := range []int{1, 5, 255, 256, 257, 3000} {
		name := fmt.Sprintf("ArgMax/%d/%v", cols, st)
		x := numbers(name, st, 4*cols, tensor.F32)
		for i := range cols {
			x[cols+i], x[2*cols+i], x[3*cols+i] = float32(i*7%5), -inf, float32(-i)
		}
		want := make([]float32, 4)
		for i := range want {
			want[i] = float32(cpu.Argmax(x[i*cols : (i+1)*cols]))
		}
		src := r.rows(tensor.F32, 4, cols, x)
		list = append(list, operation{
			name: name, dst: tensor.F32, n: 4, cols: 1, want: want, bound: func(int) float64 { return 0 },
			record: func(e kernels.Encoder, dst kernels.Rows, first, n int) { e.ArgMax(dst, src.Part(first, n)) },
		})
	}
	return list
}

// copies copies rows of all sizes within the device and between it and the host.
func (s *suite) copies(t *testing.T) {
	r := newRig(t, s.d)
	for _, shape := range [][2]int{{1, 1}, {3, 7}, {4, 64}, {70, 4096}} {
		n, cols := shape[0], shape[1]
		x := normal(random("copies"), n*cols)
		for _, typ := range []tensor.Type{tensor.F32, tensor.BF16} {
			want := rounded(x, typ)
			a, b := r.rows(typ, n, cols, x), r.rows(typ, n, cols, nil)
			testnum.SameBits(t, "written and read", want, r.read(a, cols))
			r.run(func(e kernels.Encoder) { e.Copy(b, a) })
			testnum.SameBits(t, "copied", want, r.read(b, cols))
			r.run(func(e kernels.Encoder) { e.Copy(a.Part(0, 1), b.Part(n-1, 1)) })
			testnum.SameBits(t, "one row", want[(n-1)*cols:], r.read(a.Part(0, 1), cols))
			wide := r.rows(tensor.F32, n, cols, x)
			r.run(func(e kernels.Encoder) { e.Copy(a, wide) })
			testnum.SameBits(t, "copied to a type", want, r.read(a, cols))
		}
		in, out := r.shared(kernels.HostWrites, n, cols, x), r.shared(kernels.HostReads, n, cols, nil)
		a := r.rows(tensor.F32, n, cols, nil)
		r.run(func(e kernels.Encoder) {
			e.Copy(a, kernels.Rows{Buffer: in, N: n})
			e.Copy(kernels.Rows{Buffer: out, N: n}, a)
		})
		testnum.SameBits(t, "through shared memory", x, out.Floats())
		r.run(func(e kernels.Encoder) { e.Copy(kernels.Rows{Buffer: out, N: 1}, a.Part(n-1, 1)) })
		testnum.SameBits(t, "one row of shared memory", x[(n-1)*cols:], out.Floats()[:cols])
	}
	if err := s.d.Write(t.Context(), r.rows(tensor.F32, 2, 4, nil), make([]float32, 7)); err == nil {
		t.Error("two rows of four were written with seven numbers")
	}
	if err := s.d.Read(t.Context(), make([]float32, 7), r.rows(tensor.F32, 2, 4, nil)); err == nil {
		t.Error("two rows of four were read to seven numbers")
	}
}
