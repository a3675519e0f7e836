//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// mixtureTest is a mixture of experts, as stacks and expert by expert.
type mixtureTest struct {
	d        *Device
	e        kernels.Encoder
	gate, up kernels.DeviceMatrix
	down     kernels.DeviceMatrix
	each     [experts][3]kernels.DeviceMatrix
}

const experts, chosenOf, mixCols, mixWidth = 5, 2, 40, 24

func newMixtureTest(t *testing.T, d *Device, r *rand.Rand) *mixtureTest {
	m := &mixtureTest{d: d}
	var err error
	m.e, err = d.Encoder()
	ok(t, err)
	t.Cleanup(m.e.Close)
	for i, to := range []*kernels.DeviceMatrix{&m.gate, &m.up, &m.down} {
		rows, cols := mixWidth, mixCols
		if i == 2 {
			rows, cols = cols, rows
		}
		var stack []kernels.Matrix
		for x := range experts {
			w := kernels.F32Matrix(random(r, rows*cols), rows, cols)
			stack = append(stack, w)
			m.each[x][i], err = d.Matrix(t.Context(), w)
			ok(t, err)
			t.Cleanup(m.each[x][i].Free)
		}
		*to, err = d.Matrix(t.Context(), stack...)
		ok(t, err)
		t.Cleanup((*to).Free)
	}
	return m
}

func (m *mixtureTest) buffer(t *testing.T, n, cols int, x []float32) kernels.Rows {
	b, err := m.d.Buffer(tensor.F32, n, cols)
	ok(t, err)
	t.Cleanup(b.Free)
	r := kernels.Rows{Buffer: b, N: n}
	if x != nil {
		ok(t, m.d.Write(t.Context(), r, x))
	}
	return r
}

func (m *mixtureTest) read(t *testing.T, r kernels.Rows, cols int) []float32 {
	x := make([]float32, r.N*cols)
	ok(t, m.d.Read(t.Context(), x, r))
	return x
}

func (m *mixtureTest) run(t *testing.T, record func(e kernels.Encoder)) {
	m.e.Begin()
	record(m.e)
	l, err := m.e.End()
	ok(t, err)
	defer l.Free()
	ok(t, m.e.Run(t.Context(), l))
}

// want returns the branch of rows x by plain products with every expert, and sums on the host.
func (m *mixtureTest) want(t *testing.T, x kernels.Rows, logits []float32) []float32 {
	inner, out := m.buffer(t, x.N, mixWidth, nil), m.buffer(t, x.N, mixCols, nil)
	var all [experts][]float32
	for i, w := range m.each {
		m.run(t, func(e kernels.Encoder) {
			e.GateUp(inner, x, kernels.SiLU, kernels.Linear{W: w[0]}, kernels.Linear{W: w[1]})
			e.MatMul(inner, false, []kernels.Product{{Linear: kernels.Linear{W: w[2]}, Dst: out}})
		})
		all[i] = m.read(t, out, mixCols)
	}
	y := make([]float32, x.N*mixCols)
	for i := range x.N {
		var ids [chosenOf]int32
		var weights [chosenOf]float32
		kernels.Route(ids[:], weights[:], logits[i*experts:(i+1)*experts], true)
		slices.Sort(ids[:])
		for j := range mixCols {
			for _, id := range ids {
				y[i*mixCols+j] += float32(all[id][i*mixCols+j] * 0.5)
			}
		}
	}
	return y
}

// TestExperts: two layers in one list, whose choices are made when it runs, in the same buffers,
// give the bits of plain products with each expert by itself, whether an expert has a row, some
// or many.
func TestExperts(t *testing.T) {
	d := device(t)
	r := rand.New(rand.NewPCG(3, 4))
	m := newMixtureTest(t, d, r)
	for _, n := range []int{1, 6, 70} {
		x, ids, weights := m.buffer(t, n, mixCols, random(r, n*mixCols)), m.buffer(t, n, chosenOf, nil), m.buffer(t, n, chosenOf, nil)
		half := m.buffer(t, n, chosenOf, slices.Repeat([]float32{0.5}, n*chosenOf))
		inner, out := m.buffer(t, n*chosenOf, mixWidth, nil), m.buffer(t, n*chosenOf, mixCols, nil)
		var y, logits [2]kernels.Rows
		var numbers [2][]float32
		for i := range y {
			numbers[i] = random(r, n*experts)
			y[i], logits[i] = m.buffer(t, n, mixCols, nil), m.buffer(t, n, experts, numbers[i])
		}
		m.run(t, func(of kernels.Encoder) {
			e := of.(kernels.ExpertEncoder)
			for i := range y {
				e.Route(ids, weights, logits[i], true)
				e.ExpertGateUp(inner, x, ids, kernels.SiLU, m.gate, m.up)
				e.ExpertMatMul(out, inner, ids, m.down)
				e.ExpertSum(y[i], out, half)
			}
		})
		for i := range y {
			testnum.SameBits(t, fmt.Sprintf("%d rows, layer %d", n, i), m.want(t, x, numbers[i]), m.read(t, y[i], mixCols))
		}
	}
}
