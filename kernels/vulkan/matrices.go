//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/lukv/lukv/internal/vk"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// matrixUnits are the matrix units that a device's products of bf16 by bf16 use: one
// shape and one order of sums (shaders/matrix.comp) for every number of rows.
type matrixUnits struct {
	shape    vk.MatrixShape
	subgroup int
	limits   unitLimits
	tilings  [len(tilings)]tiling
}

// unitLimits are limits for a workgroup.
type unitLimits struct {
	shared, invocations, subgroups int
}

// Values of Options.Matrices other than "".
const (
	matricesAuto = "auto"
	matricesOff  = "off"
	matricesF16  = "f16"

	matricesVariable = "LUKV_VULKAN_MATRICES"
)

// matrixMode returns the mode that the option or the environment selects.
func matrixMode(option string) (string, error) {
	name, mode := "Options.Matrices", option
	if mode == "" {
		name, mode = matricesVariable, cmp.Or(os.Getenv(matricesVariable), matricesAuto)
	}
	switch mode {
	case matricesAuto, matricesOff, matricesF16:
		return mode, nil
	}
	return "", fmt.Errorf("open a vulkan device: %s: found %q, expected one of %s, %s, %s", name, mode, matricesAuto, matricesOff, matricesF16)
}

// unitsOf returns the matrix units of a device for a mode, or nil and the reason if
// there are none.
func unitsOf(p *vk.PhysicalDevice, mode string) (*matrixUnits, string) {
	kind, name := vk.ComponentBF16, "bf16"
	switch mode {
	case matricesOff:
		return nil, "they are switched off"
	case matricesF16:
		kind, name = vk.ComponentF16, "f16"
	}
	var best vk.MatrixShape
	for _, s := range p.Matrices {
		if s.Type == kind && usable(s) && better(s, best) {
			best = s
		}
	}
	size := int(p.SubgroupSize)
	switch {
	case best.M == 0 && len(p.Matrices) == 0:
		return nil, "the device has no matrices of f16 or bf16 that sum up in f32"
	case best.M == 0:
		var found []string
		for _, s := range p.Matrices {
			found = append(found, shapeName(s))
		}
		return nil, fmt.Sprintf("the device has no matrices of %s that sum up in f32 and whose sides divide 16, but %s", name, strings.Join(found, ", "))
	case !p.FullSubgroups || size < 1 || size&(size-1) != 0:
		return nil, "the device does not let shaders choose the size of subgroups"
	case !p.MemoryModel:
		return nil, "the device lacks vulkan's memory model"
	}
	u := &matrixUnits{shape: best, subgroup: size, limits: unitLimits{
		shared: int(p.Limits.SharedMemory), invocations: int(min(p.Limits.WorkgroupInvocations, p.Limits.WorkgroupSize[0])),
		subgroups: int(p.MaxSubgroups),
	}}
	for i, t := range tilings {
		if p.Kind == vk.Software {
			// Keep the number of matrices rather than of elements: software compiles
			// every product of elements separately, and again for every turn.
			if i != 0 && i != 4 {
				t.depth = 1
			}
			t.rows, t.outs, t.columns = t.rows/16*int(best.M), t.outs/16*int(best.N), t.columns/16*int(best.K)
		}
		u.tilings[i] = t
	}
	if _, ok := u.fit(u.tilings[1], 1); !ok {
		return nil, "the device's workgroups are too small"
	}
	return u, ""
}

// usable reports whether all tilings are multiples of a shape.
func usable(s vk.MatrixShape) bool {
	divides := func(x, of uint32) bool { return x > 0 && of%x == 0 }
	return divides(s.M, 16) && divides(s.N, 16) && s.N%2 == 0 && (s.K == 8 || s.K == 16)
}

// better prefers 16×16×16, which drivers of several vendors offer, then the larger shape.
func better(s, than vk.MatrixShape) bool {
	rank := func(s vk.MatrixShape) uint32 {
		if s.M == 16 && s.N == 16 && s.K == 16 {
			return math.MaxUint32
		}
		return s.M * s.N * s.K
	}
	return rank(s) > rank(than)
}

func (u *matrixUnits) String() string { return shapeName(u.shape) }

func shapeName(s vk.MatrixShape) string {
	name := "bf16"
	if s.Type == vk.ComponentF16 {
		name = "f16"
	}
	return fmt.Sprintf("%s %d×%d×%d", name, s.M, s.N, s.K)
}

func (u *matrixUnits) shader() string {
	if u.shape.Type == vk.ComponentF16 {
		return "matrixf16"
	}
	return "matrixbf16"
}

// tiling is how a workgroup of matrix.comp computes: a tile of rows rows of x by outs
// rows of w, from columns columns at a time, by groups that take blocks of columns in
// turn, each of subM × subN subgroups. It reads depth turns ahead.
type tiling struct {
	rows, outs, columns, buffers int
	subM, subN, groups, depth    int
}

// tilings, from few rows to many. With few rows, reading the weights is the bottleneck:
// those tilings have small tiles, and groups that read blocks side by side. With many
// rows, a subgroup computes 32 × 32 or 64 × 32 outputs, which fit in registers twice: as
// a block's sums and as their total. The first has no room for gates and their ups.
var tilings = [...]tiling{
	{rows: 16, outs: 16, columns: 64, buffers: 1, subM: 1, subN: 1, groups: 8, depth: 2},
	{rows: 16, outs: 32, columns: 64, buffers: 1, subM: 1, subN: 1, groups: 8, depth: 1},
	{rows: 32, outs: 32, columns: 32, buffers: 1, subM: 2, subN: 1, groups: 4, depth: 2},
	{rows: 64, outs: 32, columns: 32, buffers: 1, subM: 4, subN: 1, groups: 2, depth: 2},
	{rows: 64, outs: 64, columns: 32, buffers: 2, subM: 2, subN: 2, groups: 1, depth: 2},
	{rows: 128, outs: 128, columns: 32, buffers: 2, subM: 2, subN: 4, groups: 1, depth: 2},
}

const (
	matrixBlock = 512 // of columns, as in matrix.comp

	// fullTiles is a number of workgroups that keeps a large device busy. With fewer,
	// smaller tiles are worth the additional reads.
	fullTiles = 96
)

// tile returns the tiling for n rows of cols elements and outs rows of weights. It does
// not affect the bits of the result.
func (u *matrixUnits) tile(n, outs, cols int, glu bool) tiling {
	tiles := func(t tiling) int { return (n + t.rows - 1) / t.rows * ((outs + t.outs - 1) / t.outs) }
	ts := &u.tilings
	want := len(ts) - 1
	switch {
	case n <= ts[0].rows && !glu && (n <= 4 || tiles(ts[1]) < 2*fullTiles):
		want = 0
	case n <= ts[1].rows:
		want = 1
	case n <= ts[2].rows:
		want = 2
	case n <= ts[3].rows && tiles(ts[4]) < fullTiles:
		want = 3
	case tiles(ts[5]) < fullTiles:
		want = 4
	}
	for {
		if t, ok := u.fit(ts[want], cols); ok || want <= 1 {
			return t
		}
		want--
	}
}

// fit makes a tiling fit the device and the number of columns by reducing the groups and
// then the buffers. It reports whether that was enough.
func (u *matrixUnits) fit(t tiling, cols int) (tiling, bool) {
	blocks := (cols + matrixBlock - 1) / matrixBlock
	for t.groups/2 >= blocks && t.groups > 1 {
		t.groups /= 2
	}
	for {
		l := &u.limits
		if t.shared(u.shape) <= l.shared && t.subgroups() <= l.subgroups && t.subgroups()*u.subgroup <= l.invocations {
			return t, true
		}
		switch {
		case t.groups > 1:
			t.groups /= 2
		case t.buffers > 1:
			t.buffers = 1
		default:
			return t, false
		}
	}
}

func (t tiling) subgroups() int { return t.groups * t.subM * t.subN }

// shared returns the bytes of shared memory that matrix.comp needs.
func (t tiling) shared(s vk.MatrixShape) int {
	sums := t.subM * t.subN * int(s.M*s.N)
	if t.groups > 1 {
		sums = t.groups * t.rows * t.outs
	}
	return 16*t.groups*t.buffers*(t.rows+t.outs)*(t.columns/8+1) + 4*sums
}

// multiply records the products of c.MatMul.
func (u *matrixUnits) multiply(c *commands, op string, x rows2D, products []product, p *push) {
	var rows [3]int
	for i, pr := range products {
		rows[i] = pr.W.Rows
	}
	t := u.choose(c, x, rows[0]+rows[1]+rows[2], false)
	tiles := 0
	for _, n := range rows {
		tiles += (n + t.outs - 1) / t.outs
	}
	u.dispatch(c, op, t, x.N, tiles, p, 0, 0, 0)
}

// gateUp records the products of c.GateUp with the given number of gates.
func (u *matrixUnits) gateUp(c *commands, op string, x rows2D, gates int, yt, activation uint32, p *push) {
	t := u.choose(c, x, 2*gates, true)
	u.dispatch(c, op, t, x.N, (2*gates+t.outs-1)/t.outs, p, 1, yt, activation)
}

func (u *matrixUnits) choose(c *commands, x rows2D, outs int, glu bool) tiling {
	if c.tiling >= 0 {
		t, _ := u.fit(u.tilings[c.tiling], x.Cols)
		return t
	}
	return u.tile(x.N, outs, x.Cols, glu)
}

func (u *matrixUnits) dispatch(c *commands, op string, t tiling, n, tiles int, p *push, glu, yt, activation uint32) {
	s := &u.shape
	constants := []uint32{
		uint32(t.subgroups() * u.subgroup), s.M, s.N, s.K, uint32(u.subgroup), uint32(t.rows), uint32(t.outs),
		uint32(t.columns), uint32(t.buffers), uint32(t.subM), uint32(t.subN), uint32(t.groups), uint32(t.depth), glu, yt, activation,
	}
	c.dispatchSized(op, u.shader(), uint32(u.subgroup), constants, p, (n+t.rows-1)/t.rows, tiles, 1)
}

// matrixBound times Σ|x·w| bounds the error of products with matrix units.
const matrixBound = 1e-5

// trial is one of several ways to compute the same product.
type trial struct {
	name   string
	tiling int  // an index of tilings, or noUnits
	glu    bool // gate and up
	first  int  // row of the first tile
}

// checkUnits checks that the device's matrix units keep this package's promises: the
// bits of a row depend neither on the tiling nor on its place in a tile, and results are
// within the bound of those of the plain shaders.
func checkUnits(d *Device) error {
	const n, cols, outs = 133, 1101, 139 // more than a tile, and a remainder everywhere
	trials := []trial{{"plain shaders", noUnits, false, 0}, {"rows at other places", 1, false, 5}}
	for i, t := range d.matrixUnits.tilings {
		if _, ok := d.matrixUnits.fit(t, cols); !ok {
			continue
		}
		name := fmt.Sprintf("tiles of %d×%d", t.rows, t.outs)
		trials = append(trials, trial{name, i, false, 0})
		if i == 1 || i == len(tilings)-1 { // one for few rows, and the largest
			trials = append(trials, trial{name + ", gate and up", i, true, 0})
		}
	}
	// Numbers that are exact in bf16 and f16, and so different in size that another order
	// of sums shows.
	seed := uint32(1)
	numbers := func(n int) []float32 {
		list := make([]float32, n)
		for i := range list {
			seed = seed*1664525 + 1013904223
			list[i] = float32(math.Ldexp(float64(int(seed>>24)-128), int(seed>>16&7)-9))
		}
		return list
	}
	x, w, b := numbers(n*cols), numbers(2*outs*cols), numbers(outs)
	results, err := d.tryUnits(trials, n, cols, outs, x, w, b)
	if err != nil {
		return err
	}
	return compareTrials(trials, results, outs, func(r, o int) float64 {
		sum := math.Abs(float64(b[o]))
		for k := range cols {
			sum += math.Abs(float64(x[r*cols+k]) * float64(w[o*cols+k]))
		}
		return matrixBound * sum
	})
}

// compareTrials fails unless results of one kind have the same bits and those of plain
// products are within the bound of the results of the plain shaders, which come first.
func compareTrials(trials []trial, results [][]float32, outs int, bound func(r, o int) float64) error {
	same := map[bool][]float32{} // by kind; the last results of each have all rows
	for t, trial := range trials[1:] {
		same[trial.glu] = results[t+1]
	}
	for t, trial := range trials[1:] {
		for i := trial.first * outs; i < len(results[t+1]); i++ {
			r, o := i/outs, i%outs
			got, want := results[t+1][i], same[trial.glu][i]
			if math.Float32bits(got) != math.Float32bits(want) {
				return fmt.Errorf("%s: row %d, output %d: found %g, expected the bits of %g", trial.name, r, o, got, want)
			}
		}
	}
	for i, plain := range results[0] {
		r, o := i/outs, i%outs
		got, most := same[false][i], bound(r, o)
		if e := math.Abs(float64(got) - float64(plain)); !(e <= most) {
			return fmt.Errorf("row %d, output %d: found %g, expected %g within %g", r, o, got, plain, most)
		}
	}
	return nil
}

// tryUnits computes n rows of x by outs rows of w, or by outs gates and as many ups,
// once for each trial, and returns the results [n][outs].
func (d *Device) tryUnits(trials []trial, n, cols, outs int, x, w, b []float32) ([][]float32, error) {
	ctx := context.Background()
	upload := func(x []float32) (weights, func(), error) {
		raw := make([]byte, 2*len(x))
		kernels.CPU{}.Narrow(raw, x, tensor.BF16)
		m, err := d.Matrix(ctx, kernels.Matrix{Type: tensor.BF16, Rows: len(x) / cols, Cols: cols, Data: raw})
		if err != nil {
			return weights{}, nil, err
		}
		return m.(*matrix).weights, m.Free, nil
	}
	dx, free, err := upload(x)
	if err != nil {
		return nil, err
	}
	defer free()
	dw, free, err := upload(w)
	if err != nil {
		return nil, err
	}
	defer free()
	bias, err := kernels.NewVector(ctx, d, b)
	if err != nil {
		return nil, err
	}
	defer bias.Free()
	one := newRows2D(view{}, tensor.F32, n, outs)
	all, err := d.newLocalBuffer(one.bytes() * int64(len(trials)))
	if err != nil {
		return nil, err
	}
	defer all.Free()

	half := weightBytes(tensor.BF16, outs, cols)
	gate := product{W: weights{dw.Mem.At(0, half), tensor.BF16, outs, cols}, Bias: bias.(*rowBuffer).Mem}
	up := product{W: weights{dw.Mem.At(half, half), tensor.BF16, outs, cols}}
	rows := newRows2D(dx.Mem, tensor.BF16, n, cols)
	err = d.run(ctx, func(c *commands) {
		c.Zero(all.All())
		for i, t := range trials {
			c.tiling = t.tiling
			y := one
			y.Mem = all.At(one.bytes()*int64(i), one.bytes())
			gate.Dst = y.Part(t.first, n-t.first)
			if t.glu {
				c.GateUp(y, rows, kernels.SiLU, gate, up)
			} else {
				c.MatMul(rows.Part(t.first, n-t.first), false, gate)
			}
		}
	})
	raw := make([]float32, all.Size()/4)
	if err == nil {
		err = d.download(ctx, floatBytes(raw), all.All())
	}
	if err != nil {
		return nil, err
	}
	results := make([][]float32, len(trials))
	for i := range results {
		for r := range n {
			at := (i*n + r) * one.Stride
			results[i] = append(results[i], raw[at:at+outs]...)
		}
	}
	return results, nil
}
