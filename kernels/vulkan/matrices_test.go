//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/internal/vk"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// Products with matrix units. On a device that has them for bf16 these tests need
// nothing else. Mesa's software device has them for f16 from version 26 on:
//
//	LUKV_VULKAN_MATRICES=f16 LUKV_VULKAN_SUITE=sid go test -exec "$PWD/scripts/vulkan-new" ./kernels/vulkan
//
// runs all tests of the package with them, and fails if that is not possible.

// unitsDevice returns the device that the tests share, or skips if it has no matrix units.
func unitsDevice(t testing.TB) *Device {
	t.Helper()
	d := device(t)
	if d.matrixUnits == nil {
		t.Skipf("no matrix units: %s", d.Info().Matrices)
	}
	return d
}

// exact returns numbers that are exact in bf16 and f16, zero or from 2^-12 to 8 in
// magnitude: sums of their products are rounded in f32.
func exact(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.Ldexp(float64(r.IntN(511)-255), r.IntN(8)-12))
	}
	return x
}

// Three products over the same rows, with biases and added to what is there, compared
// with package kernels; and the same bits with every tiling, with rows divided in any
// way, and at any place in a tile.
func TestMatrixProducts(t *testing.T) {
	d := unitsDevice(t)
	checks := 0
	for _, s := range []struct {
		n, cols int
		rows    [3]int
	}{
		{1, 64, [3]int{16, 16, 16}}, {1, 9, [3]int{3, 1, 20}}, {1, 5003, [3]int{33, 5, 2}}, {2, 512, [3]int{17, 40, 8}},
		{15, 1025, [3]int{16, 31, 70}}, {16, 1500, [3]int{9, 64, 5}}, {17, 100, [3]int{130, 3, 33}}, {63, 1031, [3]int{20, 20, 20}},
		{64, 36, [3]int{64, 65, 1}}, {65, 1578, [3]int{129, 2, 15}}, {130, 1600, [3]int{7, 66, 16}},
	} {
		name := fmt.Sprintf("n%d,cols%d,rows%v", s.n, s.cols, s.rows)
		t.Run(name, func(t *testing.T) {
			r := rng(name)
			x := exact(r, s.n*s.cols)
			xr, _ := uploadRows(t, d, x, s.n, s.cols, tensor.BF16)
			var products []product
			var outs []*guarded
			var inits, wants, sums [][]float64
			for i, rows := range s.rows {
				w, init, b := exact(r, rows*s.cols), random(r, s.n*rows), random(r, rows)
				raw, _ := narrow(w, tensor.BF16)
				y, g := uploadRows(t, d, init, s.n, rows, tensor.F32)
				p := product{W: uploadWeights(t, d, raw, tensor.BF16, rows, s.cols), Dst: y}
				if i != 1 {
					p.Bias = upload(t, d, bytesOf(b)).view
				} else {
					clear(b)
				}
				products, outs, inits = append(products, p), append(outs, g), append(inits, wide(init))
				got := make([]float32, s.n*rows)
				kernels.CPU{}.MatMul(got, rows, x, s.cols, s.n, &kernels.Matrix{Type: tensor.BF16, Rows: rows, Cols: s.cols, Data: raw}, 0, rows)
				want, sum := wide(got), make([]float64, s.n*rows)
				for j := range want {
					want[j] += float64(init[j]) + float64(b[j%rows])
					sum[j] = math.Abs(float64(init[j])) + math.Abs(float64(b[j%rows]))
					for k := range s.cols {
						sum[j] += math.Abs(float64(x[j/rows*s.cols+k]) * float64(w[j%rows*s.cols+k]))
					}
				}
				wants, sums = append(wants, want), append(sums, sum)
			}
			// compute starts from the initial outputs and returns the new ones.
			compute := func(record func(c *commands, p []product)) (all [3][]float32) {
				p := append([]product(nil), products...)
				for i := range p {
					init := make([]float32, len(inits[i]))
					for j, v := range inits[i] {
						init[j] = float32(v)
					}
					p[i].Dst, outs[i] = uploadRows(t, d, init, s.n, s.rows[i], tensor.F32)
				}
				run(t, d, func(c *commands) { record(c, p) })
				for i := range p {
					all[i] = rowsOf(outs[i], p[i].Dst)
				}
				return all
			}
			got := compute(func(c *commands, p []product) { c.MatMul(xr, true, p...) })
			for i := range got {
				within(t, fmt.Sprintf("product %d", i), wants[i], got[i], func(j int) float64 { return matrixBound * sums[i][j] })
			}
			same := func(what string, all [3][]float32) {
				t.Helper()
				for i := range all {
					testnum.SameBits(t, fmt.Sprintf("%s, product %d", what, i), got[i], all[i])
				}
				checks++
			}
			for i, tiling := range d.matrixUnits.tilings {
				if _, fits := d.matrixUnits.fit(tiling, s.cols); fits {
					same(fmt.Sprintf("tiling %d", i), compute(func(c *commands, p []product) {
						c.tiling = i
						c.MatMul(xr, true, p...)
					}))
				}
			}
			for _, cut := range []int{1, 5, 16, 40} {
				if cut >= s.n {
					continue
				}
				same(fmt.Sprintf("%d rows at a time", cut), compute(func(c *commands, p []product) {
					for at := 0; at < s.n; at += cut {
						n := min(cut, s.n-at)
						for _, one := range p { // also one product at a time
							one.Dst = one.Dst.Part(at, n)
							c.MatMul(xr.Part(at, n), true, one)
						}
					}
				}))
			}
		})
	}
	fmt.Printf("matrix units: %d comparisons of bits with %s on %s\n", checks, d.Info().Matrices, d.Info().Name)
}

// GateUp gives the gated products, with the same bits for every tiling.
func TestMatrixGateUp(t *testing.T) {
	d := unitsDevice(t)
	for _, s := range []struct{ n, cols, rows int }{{1, 1100, 33}, {3, 4200, 16}, {16, 1520, 7}, {17, 64, 70}, {64, 72, 65}, {65, 1031, 40}} {
		for _, yt := range []tensor.Type{tensor.BF16, tensor.F32} {
			if yt == tensor.F32 && s.n != 17 {
				continue // no pass needs this
			}
			name := fmt.Sprintf("%v,n%d,cols%d,rows%d", yt, s.n, s.cols, s.rows)
			r := rng(name)
			xr, _ := uploadRows(t, d, exact(r, s.n*s.cols), s.n, s.cols, tensor.BF16)
			var p [2]product
			var products [2]*guarded
			for i := range p {
				raw, _ := narrow(exact(r, s.rows*s.cols), tensor.BF16)
				y, g := newRows(t, d, s.n, s.rows, tensor.F32)
				products[i] = g
				p[i] = product{W: uploadWeights(t, d, raw, tensor.BF16, s.rows, s.cols), Dst: y}
				if i == 0 || s.n != 3 {
					p[i].Bias = upload(t, d, bytesOf(random(r, s.rows))).view
				}
			}
			run(t, d, func(c *commands) { c.MatMul(xr, false, p[:]...) })
			gates, ups := rowsOf(products[0], p[0].Dst), rowsOf(products[1], p[1].Dst)
			for _, act := range kernels.Activations() {
				want := make([]float32, len(gates))
				kernels.CPU{}.Gated(act, want, gates, ups)
				bound, least := 2e-6, 1e-30
				if act != kernels.SiLU { // see gatedBound of package conformance
					bound = 4e-6
					for _, u := range ups {
						least = max(least, 1e-6*math.Abs(float64(u)))
					}
				}
				if yt == tensor.BF16 {
					bound = 1.0 / 128
				}
				var first []float32
				for i := range d.matrixUnits.tilings {
					if _, fits := d.matrixUnits.fit(d.matrixUnits.tilings[i], s.cols); !fits || i == 0 {
						continue // the first has no room for gates and ups
					}
					b, bg := newRows(t, d, s.n, s.rows, yt)
					run(t, d, func(c *commands) {
						c.tiling = i
						c.GateUp(b, xr, act, p[0], p[1])
					})
					got := rowsOf(bg, b)
					if first == nil {
						first = got
						within(t, name, wide(want), got, relative(wide(want), bound, least))
					}
					testnum.SameBits(t, fmt.Sprintf("%s, %v, tiling %d", name, act, i), first, got)
				}
			}
		}
	}
}

// What is after the columns of x and before and after its rows does not matter, even if
// it is NaN.
func TestMatrixGaps(t *testing.T) {
	d := unitsDevice(t)
	const n, cols, rows = 3, 75, 17
	r := rng("gaps")
	x := exact(r, n*cols)
	raw, _ := narrow(exact(r, rows*cols), tensor.BF16)
	w := uploadWeights(t, d, raw, tensor.BF16, rows, cols)
	var results [][]float32
	for _, fill := range []byte{0, 0xff} { // 0xffff is NaN
		data := make([]byte, 2*(n+2)*padded(cols))
		for i := range data {
			data[i] = fill
		}
		for i := range n {
			kernels.CPU{}.Narrow(data[2*(i+1)*padded(cols):][:2*cols], x[i*cols:(i+1)*cols], tensor.BF16)
		}
		y, g := newRows(t, d, n, rows, tensor.F32)
		xr := newRows2D(upload(t, d, data).view, tensor.BF16, n+2, cols)
		run(t, d, func(c *commands) { c.MatMul(xr.Part(1, n), false, product{W: w, Dst: y}) })
		results = append(results, rowsOf(g, y))
		for i, b := range g.raw() {
			if i/4%padded(rows) >= rows && b != 0xA5 {
				t.Fatalf("byte %d, after the outputs of a row, was overwritten", i)
			}
		}
	}
	testnum.SameBits(t, "gaps", results[0], results[1])
}

func TestMatrixSelection(t *testing.T) {
	t.Setenv(matricesVariable, "")
	open := func(o Options) (*Device, error) {
		d, err := openAny(o)
		if errors.Is(err, kernels.ErrNoDevice) {
			skipOrFail(t, err)
		}
		if d != nil {
			t.Cleanup(func() { ok(t, d.Close()) })
		}
		return d, err
	}
	d, err := open(Options{Matrices: "off"})
	ok(t, err)
	if got := d.Info().Matrices; d.matrixUnits != nil || got != "none: they are switched off" {
		t.Errorf("off: found %q", got)
	}
	can := map[vk.ComponentType]bool{}
	for _, s := range d.dev.Physical.Matrices {
		can[s.Type] = can[s.Type] || usable(s)
	}
	if d, err = open(Options{Matrices: "auto"}); err != nil || can[vk.ComponentBF16] != strings.HasPrefix(d.Info().Matrices, "bf16 ") {
		t.Errorf("auto on a device that has matrices of %v: found %+v and %v", can, d.Info(), err)
	}
	for _, o := range []Options{{Matrices: "bf16"}, {}} {
		if o.Matrices == "" {
			t.Setenv(matricesVariable, "yes")
		}
		if _, err := open(o); err == nil || !strings.Contains(err.Error(), "expected one of auto, off, f16") {
			t.Errorf("%q: found %v", o.Matrices, err)
		}
	}
	if _, err := Devices(); err == nil || !strings.Contains(err.Error(), `LUKV_VULKAN_MATRICES: found "yes"`) {
		t.Errorf("a list with an unknown mode: found %v", err)
	}
	t.Setenv(matricesVariable, "f16")
	d, err = open(Options{})
	if !can[vk.ComponentF16] {
		if err == nil || !strings.Contains(err.Error(), "matrices of f16: the device has no matrices of f16") {
			t.Errorf("f16 without such matrices: found %v", err)
		}
		return
	}
	ok(t, err)
	if d.matrixUnits == nil || !strings.HasPrefix(d.Info().Matrices, "f16 ") {
		t.Errorf("f16: found %q", d.Info().Matrices)
	}
	list, err := Devices()
	ok(t, err)
	if got := list[d.Info().Index].Matrices; !strings.HasPrefix(got, d.Info().Matrices+", if ") {
		t.Errorf("in the list: found %q", got)
	}
	broken := Options{checkUnits: func(*Device) error { return errors.New("broken") }}
	if _, err = open(broken); err == nil || !strings.Contains(err.Error(), "failed the check: broken") {
		t.Errorf("f16 that fails the check: found %v", err)
	}
}

// A device whose matrix units fail the check works without them, and says why.
func TestMatrixCheckFails(t *testing.T) {
	off := openTest(t, Options{Matrices: "off"})
	index := off.Info().Index
	in, list, err := connect(nil, false)
	ok(t, err)
	p := list[index]
	u, why := unitsOf(p, matricesF16)
	if u == nil {
		in.Destroy()
		t.Skip(why)
	}
	checked := false
	d, err := openChecked(in, p, describe(index, p), u, "", Options{CacheDir: "-", checkUnits: func(d *Device) error {
		checked = d.matrixUnits == u
		return errors.New("row 3 differs")
	}})
	ok(t, err)
	if want := "none: " + u.String() + " failed the check: row 3 differs"; !checked || d.matrixUnits != nil || d.Info().Matrices != want {
		t.Errorf("found %q, expected %q", d.Info().Matrices, want)
	}
	ok(t, session(d, 2))
	ok(t, d.Close())
}

// The check detects every difference that it should.
func TestCompareTrials(t *testing.T) {
	trials := []trial{{"plain", noUnits, false, 0}, {"other places", 1, false, 1}, {"small", 0, false, 0}, {"large", 5, false, 0}, {"both", 5, true, 0}, {"more", 1, true, 0}}
	results := func() [][]float32 {
		return [][]float32{{1, 2, 3, 4}, {0, 0, 3, 4.5}, {1, 2, 3, 4.5}, {1, 2, 3, 4.5}, {7, 8, 9, 10}, {7, 8, 9, 10}}
	}
	bound := func(r, o int) float64 { return 0.5 }
	ok(t, compareTrials(trials, results(), 2, bound))
	for i := 1; i < len(trials); i++ {
		r := results()
		r[i][3] = math.Nextafter32(r[i][3], 0)
		require.ErrorContains(t, compareTrials(trials, r, 2, bound), "row 1, output 1", "%d", i)
		r = results()
		r[i][2] = float32(math.NaN())
		require.Error(t, compareTrials(trials, r, 2, bound))
	}
	for _, plain := range []float32{3.9, 5.1, float32(math.NaN())} { // the others have 4.5
		r := results()
		r[0][3] = plain
		require.ErrorContains(t, compareTrials(trials, r, 2, bound), "within 0.5")
	}
}

// Tilings fit all kinds of devices, and large products get large tiles.
func TestTilings(t *testing.T) {
	device := func(kind vk.DeviceType, m, n, k, subgroup, shared, invocations uint32) *vk.PhysicalDevice {
		p := &vk.PhysicalDevice{
			Kind: kind, SubgroupSize: subgroup, MaxSubgroups: invocations / subgroup, FullSubgroups: true, MemoryModel: true,
			Matrices: []vk.MatrixShape{{Type: vk.ComponentF16, M: 16, N: 16, K: 16}, {Type: vk.ComponentBF16, M: 8, N: 8, K: 8}, {Type: vk.ComponentBF16, M: m, N: n, K: k}, {Type: vk.ComponentBF16, M: 64, N: 64, K: 64}},
		}
		p.Limits.SharedMemory, p.Limits.WorkgroupInvocations, p.Limits.WorkgroupSize[0] = shared, invocations, invocations
		return p
	}
	for name, s := range map[string]struct {
		p    *vk.PhysicalDevice
		want int // rows of the largest tile
	}{
		"nvidia": {device(vk.Discrete, 16, 16, 16, 32, 48<<10, 1024), 128}, "amd": {device(vk.Discrete, 16, 16, 16, 64, 64<<10, 1024), 128},
		"intel": {device(vk.Integrated, 8, 16, 16, 32, 64<<10, 1024), 128}, "small": {device(vk.Integrated, 16, 16, 16, 64, 16<<10, 256), 64},
		"software": {device(vk.Software, 8, 8, 8, 8, 32<<10, 1024), 64},
	} {
		t.Run(name, func(t *testing.T) {
			u, why := unitsOf(s.p, matricesAuto)
			require.NotNil(t, u, why)
			m, n, k := int(u.shape.M), int(u.shape.N), int(u.shape.K)
			for _, rows := range []int{1, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 512, 4096} {
				for _, outs := range []int{1, 64, 2048, 28672} {
					for _, cols := range []int{1, 512, 513, 4096, 20000} {
						for _, glu := range []bool{false, true} {
							x := u.tile(rows, outs, cols, glu)
							fits := fmt.Sprintf("%+v for %d rows, %d outputs and %d columns", x, rows, outs, cols)
							require.LessOrEqual(t, x.shared(u.shape), int(s.p.Limits.SharedMemory), fits)
							require.LessOrEqual(t, x.subgroups()*u.subgroup, int(s.p.Limits.WorkgroupInvocations), fits)
							require.Zero(t, x.rows%(x.subM*m), fits)
							require.Zero(t, x.outs%(x.subN*n), fits)
							require.True(t, x.columns == 2*k || x.columns == 4*k || x.columns == 8*k, fits)
							require.Zero(t, 64%x.columns, fits)
							if glu {
								require.Zero(t, x.outs%(2*x.subN*n), fits)
							}
							require.True(t, x.groups == 1 || x.groups/2*matrixBlock < cols, fits)
						}
					}
				}
			}
			require.Equal(t, s.want, u.tile(4096, 28672, 4096, false).rows)
			if s.p.Kind != vk.Software {
				require.Equal(t, 16, u.tile(1, 4096, 4096, false).rows)
				require.Equal(t, s.want, u.tile(4096, 28672, 4096, true).outs)
			}
		})
	}
	for want, change := range map[string]func(p *vk.PhysicalDevice){
		"the device has no matrices of f16 or bf16": func(p *vk.PhysicalDevice) { p.Matrices = nil },
		"f32 and whose sides divide 16, but f16 16×16×16, bf16 64×64×64": func(p *vk.PhysicalDevice) {
			p.Matrices = []vk.MatrixShape{p.Matrices[0], p.Matrices[3]}
		},
		"size of subgroups": func(p *vk.PhysicalDevice) { p.FullSubgroups = false },
		"memory model":      func(p *vk.PhysicalDevice) { p.MemoryModel = false },
		"too small":         func(p *vk.PhysicalDevice) { p.Limits.SharedMemory = 4 << 10 },
	} {
		p := device(vk.Discrete, 16, 16, 16, 32, 48<<10, 1024)
		change(p)
		u, why := unitsOf(p, matricesAuto)
		require.Nil(t, u)
		require.Contains(t, why, want)
	}
	u, _ := unitsOf(device(vk.Discrete, 16, 16, 16, 32, 48<<10, 1024), matricesF16)
	require.Equal(t, "f16 16×16×16", u.String())
	require.Equal(t, "matrixf16", u.shader())
}
