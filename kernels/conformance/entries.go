package conformance

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// pageTypes are the types of keys and values of pages; values may be 0 for that of keys.
type pageTypes struct{ keys, values tensor.Type }

func (t pageTypes) layout(dim, page int) kernels.PageLayout {
	return kernels.PageLayout{Type: t.keys, Values: t.values, HeadDim: dim, PageEntries: page}
}

func typesOf(l kernels.PageLayout) string {
	if l.Values == 0 {
		return l.Type.String()
	}
	return fmt.Sprintf("%v-%v", l.Type, l.Values)
}

// findPageTypes sets the types of pages that the device takes.
func (s *suite) findPageTypes(t *testing.T) {
	for _, f := range floatTypes {
		s.pageTypes = append(s.pageTypes, pageTypes{keys: f})
	}
	all := []pageTypes{{keys: tensor.I8}, {tensor.BF16, tensor.I8}}
	for x := tensor.F32; x.Valid(); x++ {
		if (kernels.PageLayout{Type: x}).IntKeys() && x != tensor.I8 {
			all = append(all, pageTypes{keys: x}, pageTypes{tensor.I8, x})
		}
	}
	for _, p := range all {
		pool, err := s.d.Pages(p.layout(32, 16))
		name := p.keys
		if p.values != 0 {
			name = p.values
		}
		switch {
		case err != nil && strings.Contains(err.Error(), name.String()):
			t.Logf("left out: pages of %v: %v", name, err)
		case err != nil:
			t.Errorf("pages of %v are refused, but not by name: %v", name, err)
		case name != tensor.I8:
			t.Errorf("pages of %v are taken, but the contract has none", name)
			ok(t, pool.Close())
		default:
			ok(t, pool.Close())
			s.pageTypes = append(s.pageTypes, p)
		}
	}
}

// side is the keys or the values of the host's pages, whose layout it spells out.
type side struct {
	t    tensor.Type
	keys bool
	at   int // offset in a page
	dim  int
	page int
}

func keysOf(l kernels.PageLayout) side { return side{l.Type, true, 0, l.HeadDim, l.PageEntries} }
func valuesOf(l kernels.PageLayout) side {
	return side{l.ValueType(), false, l.ValuesAt(), l.HeadDim, l.PageEntries}
}

// element returns the bytes of element i of an entry.
func (s side) element(block []byte, e, i int) []byte {
	n, size := 0, s.t.Bytes(1)
	switch {
	case s.t == tensor.I8 && s.keys:
		n = e/16*16*s.dim + i/2*32 + e%16*2 + i%2
	case s.t == tensor.I8:
		n = e/2*2*s.dim + 2*i + e%2
	case s.keys:
		n = e/16*16*s.dim + i*16 + e%16
	default:
		n = e*s.dim + i
	}
	return block[s.at+n*size:][:size]
}

// scale returns the bytes of an entry's scale, none if elements are not integers.
func (s side) scale(block []byte, e int) []byte {
	if s.t != tensor.I8 {
		return nil
	}
	return block[s.at+s.page*s.dim+4*e:][:4]
}

func (s side) store(block []byte, e int, x []float32) {
	if s.t == tensor.I8 {
		q, scale := integersOf(x)
		for i, v := range q {
			s.element(block, e, i)[0] = byte(v)
		}
		binary.LittleEndian.PutUint32(s.scale(block, e), math.Float32bits(scale))
		return
	}
	for i := range x {
		cpu.Narrow(s.element(block, e, i), x[i:i+1], s.t)
	}
}

func (s side) load(block []byte, e int) []float32 {
	x := make([]float32, s.dim)
	for i := range x {
		if s.t == tensor.I8 {
			x[i] = float32(int8(s.element(block, e, i)[0])) * math.Float32frombits(binary.LittleEndian.Uint32(s.scale(block, e)))
		} else {
			cpu.Widen(x[i:i+1], s.element(block, e, i), s.t)
		}
	}
	return x
}

// integersOf is the definition of integers of I8 with their scale.
func integersOf(x []float32) (q []int8, scale float32) {
	q = make([]int8, len(x))
	a := largest(x)
	switch {
	case math.IsInf(float64(a), 0) || a != a:
		return q, float32(math.NaN())
	case a < 0x1p-100:
		return q, 0
	}
	inv := 127 / a
	for i, v := range x {
		y := v * inv
		q[i] = int8(math.RoundToEven(float64(y)))
	}
	return q, a / 127
}

// largest returns the largest magnitude in x, NaN if there is one.
func largest(x []float32) (a float32) {
	for _, v := range x {
		a = max(a, float32(math.Abs(float64(v))))
	}
	return a
}

// hardRows returns n rows that are hard to round to integers.
func hardRows(name string, n, dim int) []float32 {
	rng := random(name)
	fixed := [][]float32{
		{0}, {float32(math.Copysign(0, -1)), 0}, {math.SmallestNonzeroFloat32, -1e-40},
		{0x1p-101, -0x1.fffffep-101}, {0x1p-100, 0x1p-101}, {-0x1p-100, 0x1.fffffep-101}, {0x1.8p-100, 1e-45},
		{math.MaxFloat32, -math.MaxFloat32 / 254, 1}, {-math.MaxFloat32, math.MaxFloat32 / 3, 1e-45},
		{127, 0.5, -0.5, 1.5, -1.5, 2.5, 63.5, -64.5, 126.5, -126.5, 125.5, -127}, {254, 1, -1, 3, -3, 5, 127, 253, -253},
		{1, 1e-45, -1e-40}, {float32(math.Inf(1)), 1}, {1, float32(math.Inf(-1)), 0}, {float32(math.NaN()), 3}, {5, float32(math.NaN())},
	}
	x := normal(rng, n*dim)
	for i := range n {
		row := x[i*dim : (i+1)*dim]
		if i < 2*len(fixed) {
			clear(row)
			// At the beginning of a row, and at its end.
			from := fixed[i/2][:min(dim, len(fixed[i/2]))]
			copy(row[i%2*(dim-len(from)):], from)
			continue
		}
		scale := float32(math.Exp2(float64(rng.IntN(220) - 99)))
		for j := range row {
			row[j] *= scale
		}
		if i%2 == 0 { // products that are halves, or nearly so
			row[rng.IntN(dim)] = 127 * scale * float32(1+rng.IntN(3))
			for j := range row {
				row[j] = scale * (float32(rng.IntN(127)) - 63.5)
			}
		}
	}
	return x
}

// integers appends keys and values that are hard to round, without rotation, to pages of
// integers: what is stored has the bits of the definition.
func (s *suite) integers(t *testing.T) {
	for _, types := range s.pageTypes {
		for _, dim := range []int{12, 64, 256} {
			l := types.layout(dim, 64)
			if !l.IntValues() {
				continue
			}
			t.Run(fmt.Sprintf("%v,dim%d", typesOf(l), dim), func(t *testing.T) {
				r := newRig(t, s.d)
				p := r.newPass(attentionCase{l: l, heads: 2, kv: 2, turning: still, rows: []int{150}, entries: [][]int{{3, 70}}})
				p.k, p.v = hardRows("keys", p.n*2, dim), hardRows("values", p.n*2, dim)
				if l.Type != tensor.I8 {
					p.k = normal(random("keys"), p.n*2*dim)
				}
				a, q, k, v, turns := p.start(r)
				r.run(func(e kernels.Encoder) { e.RopeAppend(a, 1, q, k, v, turns) })
				p.sameIntegers(r)
			})
		}
	}
}

// sameIntegers compares what rows were appended, without rotation, with the definition.
func (p *pass) sameIntegers(r *rig) {
	for h, x := range p.caches[0].heads {
		got := &cachedHead{blocks: make([]byte, len(x.blocks))}
		ok(r.t, p.pool.Read(context.Background(), got.blocks, x.pages))
		for i := range p.n {
			at := (i*p.kv + h) * p.l.HeadDim
			x.store(p.l, x.entries+i, p.k[at:at+p.l.HeadDim], p.v[at:at+p.l.HeadDim], p.positions[i])
			want, e := x.block(p.l, x.entries+i)
			have, _ := got.block(p.l, x.entries+i)
			for name, s := range map[string]side{"key": keysOf(p.l), "value": valuesOf(p.l)} {
				what := fmt.Sprintf("%s %d of head %d: ", name, i, h)
				var w, g []float32
				for j := range s.dim {
					w, g = append(w, float32(int8(s.element(want, e, j)[0]))), append(g, float32(int8(s.element(have, e, j)[0])))
				}
				if !slices.Equal(w, g) {
					r.t.Fatalf("%sfound integers %v, expected %v", what, g, w)
				}
				if s.t == tensor.I8 {
					testnum.SameBits(r.t, what+"scale", scaleOf(s, want, e), scaleOf(s, have, e))
				}
			}
		}
	}
}

// scaleOf returns an entry's scale; any NaN is the same.
func scaleOf(s side, block []byte, e int) []float32 {
	x := math.Float32frombits(binary.LittleEndian.Uint32(s.scale(block, e)))
	if x != x {
		x = float32(math.NaN())
	}
	return []float32{x}
}
