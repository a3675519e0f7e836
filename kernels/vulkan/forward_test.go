//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// A small model, once on the device and once with package kernels: it shows that
// the operations make up a forward pass, that recorded decoding continues a
// prefill, and that neither chunks nor decoding change a bit.
const (
	fVocab, fHidden, fHeads, fKV, fDim, fInner, fLayers = 90, 96, 6, 2, 16, 160, 2
	fQ, fK                                              = fHeads * fDim, fKV * fDim
)

type forwardModel struct {
	raw map[string][]byte // bf16
	vec map[string][]float32
}

func forwardShapes() map[string][2]int {
	m := map[string][2]int{"embed": {fVocab, fHidden}, "head": {fVocab, fHidden}}
	for l := range fLayers {
		for n, s := range map[string][2]int{
			"q": {fQ, fHidden}, "k": {fK, fHidden}, "v": {fK, fHidden}, "o": {fHidden, fQ},
			"gate": {fInner, fHidden}, "up": {fInner, fHidden}, "down": {fHidden, fInner},
		} {
			m[fmt.Sprint(n, l)] = s
		}
	}
	return m
}

func newForwardModel() *forwardModel {
	m := &forwardModel{map[string][]byte{}, map[string][]float32{}}
	for name, s := range forwardShapes() {
		x := random(rng(name), s[0]*s[1])
		for i := range x {
			x[i] /= float32(math.Sqrt(float64(s[1])))
		}
		m.raw[name], _ = narrow(x, tensor.BF16)
	}
	for _, n := range []string{"norm", "attn0", "attn1", "mlp0", "mlp1"} {
		m.vec[n] = random(rng(n), fHidden)
	}
	return m
}

func turnsOf(pos int) []float32 {
	t := make([]float32, fDim)
	for i := range fDim / 2 {
		sin, cos := math.Sincos(float64(pos) * math.Pow(100, -float64(2*i)/fDim))
		t[i], t[fDim/2+i] = float32(cos), float32(sin)
	}
	return t
}

// reference computes the logits of every token on the CPU in f32, without a cache.
func (m *forwardModel) reference(tokens []int) []float32 {
	cpu, n := kernels.Detect(), len(tokens)
	mul := func(name string, x []float32) []float32 {
		s := forwardShapes()[name]
		y := make([]float32, n*s[0])
		w := kernels.Matrix{Type: tensor.BF16, Rows: s[0], Cols: s[1], Data: m.raw[name]}
		cpu.MatMul(y, s[0], x, s[1], n, &w, 0, s[0])
		return y
	}
	norm := func(name string, x []float32) []float32 {
		y := make([]float32, len(x))
		for i := range n {
			cpu.RMSNorm(y[i*fHidden:], x[i*fHidden:(i+1)*fHidden], m.vec[name], 1e-5)
		}
		return y
	}
	x := make([]float32, n*fHidden)
	for i, t := range tokens {
		cpu.Widen(x[i*fHidden:(i+1)*fHidden], m.raw["embed"][2*t*fHidden:2*(t+1)*fHidden], tensor.BF16)
	}
	for l := range fLayers {
		xn := norm(fmt.Sprint("attn", l), x)
		q, k, v := mul(fmt.Sprint("q", l), xn), mul(fmt.Sprint("k", l), xn), mul(fmt.Sprint("v", l), xn)
		att := make([]float32, n*fQ)
		for i := range n {
			t := turnsOf(i)
			for h := range fHeads {
				cpu.Rope(q[i*fQ+h*fDim:][:fDim], t[:fDim/2], t[fDim/2:])
			}
			for h := range fKV {
				cpu.Rope(k[i*fK+h*fDim:][:fDim], t[:fDim/2], t[fDim/2:])
			}
			for h := range fHeads {
				var keys, values [][]float32
				for j := range i + 1 {
					at := j*fK + h/(fHeads/fKV)*fDim
					keys, values = append(keys, k[at:at+fDim]), append(values, v[at:at+fDim])
				}
				for d, y := range softmaxRef(q[i*fQ+h*fDim:][:fDim], keys, values) {
					att[i*fQ+h*fDim+d] = float32(y)
				}
			}
		}
		cpu.Add(x, mul(fmt.Sprint("o", l), att))
		xn = norm(fmt.Sprint("mlp", l), x)
		gate := mul(fmt.Sprint("gate", l), xn)
		cpu.SwiGLU(gate, gate, mul(fmt.Sprint("up", l), xn))
		cpu.Add(x, mul(fmt.Sprint("down", l), gate))
	}
	return mul("head", norm("norm", x))
}

// forwardDevice is the model on a device with the buffers of passes of up to rows rows.
type forwardDevice struct {
	t     *testing.T
	d     *Device
	w     map[string]Weights
	v     map[string]View
	pool  *PagePool
	pages [fLayers][fKV][]Page
	table [fLayers][fKV]*Buffer
	heads [fLayers]*Heads
	shape Shape
	n     int // tokens held
}

func newForwardDevice(t *testing.T, d *Device, m *forwardModel) *forwardDevice {
	f := &forwardDevice{t: t, d: d, w: map[string]Weights{}, v: map[string]View{}, shape: Shape{Layout{tensor.F32, fDim, 16}, fHeads, fKV}}
	for name, s := range forwardShapes() {
		f.w[name] = uploadWeights(t, d, m.raw[name], tensor.BF16, s[0], s[1])
	}
	for name, x := range m.vec {
		f.v[name] = upload(t, d, bytesOf(x)).View
	}
	var err error
	f.pool, err = d.NewPagePool(f.shape.Layout)
	ok(t, err)
	t.Cleanup(f.pool.Close)
	for l := range fLayers {
		f.heads[l], err = d.NewHeads(fKV)
		ok(t, err)
		t.Cleanup(f.heads[l].Free)
		for h := range fKV {
			f.table[l][h], err = d.NewHostBuffer(8 * 40)
			ok(t, err)
			t.Cleanup(f.table[l][h].Free)
		}
	}
	return f
}

// forwardPass is a recorded pass over n rows.
type forwardPass struct {
	f                *forwardDevice
	cmd              *Commands
	n                int
	ids, turns, rows *Buffer
	work             *Work
	logits, best     *guarded
	logitRows        Rows
	spans            []Span
	maxItems         int
}

func (f *forwardDevice) record(n int, split bool) *forwardPass {
	t, d := f.t, f.d
	host := func(n int) *Buffer {
		b, err := d.NewHostBuffer(int64(n))
		ok(t, err)
		t.Cleanup(b.Free)
		return b
	}
	p := &forwardPass{f: f, n: n, ids: host(4 * n), turns: host(4 * fDim * n), rows: host(RowBytes * n), maxItems: 64}
	p.spans = []Span{{N: n, End: make([]int, fKV)}}
	var err error
	p.work, err = d.NewWork(f.shape, 0, 1, n)
	ok(t, err)
	t.Cleanup(p.work.Free)
	rows := func(cols int) Rows { r, _ := newRows(t, d, n, cols, tensor.F32); return r }
	x, xn, q, k, v, att, gate, up := rows(fHidden), rows(fHidden), rows(fQ), rows(fK), rows(fK), rows(fQ), rows(fInner), rows(fInner)
	p.logitRows, p.logits = newRows(t, d, n, fVocab, tensor.F32)
	p.best = alloc(t, d, 4*n)
	var parts View
	if split {
		parts = alloc(t, d, int(PartialBytes(fDim, p.maxItems))).View
	}
	c, err := d.NewCommands()
	ok(t, err)
	t.Cleanup(c.Free)
	ok(t, c.Begin())
	c.Embed(x, p.ids.All(), f.w["embed"])
	for l := range fLayers {
		w := func(name string) Weights { return f.w[fmt.Sprint(name, l)] }
		c.RMSNorm(xn, x, f.v[fmt.Sprint("attn", l)], 1e-5)
		c.MatMul(xn, false, Product{W: w("q"), Dst: q}, Product{W: w("k"), Dst: k}, Product{W: w("v"), Dst: v})
		c.RopeAppend(f.shape, q, k, v, p.turns.All(), p.rows.All(), f.heads[l])
		c.Attention(AttentionOp{Shape: f.shape, Q: q, Out: att, Heads: f.heads[l], Work: p.work, Partials: parts})
		c.MatMul(att, true, Product{W: w("o"), Dst: x})
		c.RMSNorm(xn, x, f.v[fmt.Sprint("mlp", l)], 1e-5)
		c.MatMul(xn, false, Product{W: w("gate"), Dst: gate}, Product{W: w("up"), Dst: up})
		c.SwiGLU(gate, gate, up)
		c.MatMul(gate, true, Product{W: w("down"), Dst: x})
	}
	c.RMSNorm(xn, x, f.v["norm"], 1e-5)
	c.MatMul(xn, false, Product{W: f.w["head"], Dst: p.logitRows})
	c.Argmax(p.best.View, p.logitRows)
	ok(t, c.End())
	p.cmd = c
	return p
}

// run appends the tokens and returns their logits and the last argmax.
func (p *forwardPass) run(tokens []int) ([]float32, int) {
	f := p.f
	require.Len(f.t, tokens, p.n)
	var info []RowInfo
	for i, tok := range tokens {
		binary.LittleEndian.PutUint32(p.ids.Bytes()[4*i:], uint32(tok))
		copy(p.turns.Bytes()[4*fDim*i:], bytesOf(turnsOf(f.n+i)))
		info = append(info, RowInfo{0, i, int32(f.n + i)})
	}
	PutRows(p.rows.Bytes(), info)
	for l := range fLayers {
		for h := range fKV {
			need := (f.n+p.n+f.shape.PageEntries-1)/f.shape.PageEntries - len(f.pages[l][h])
			var err error
			f.pages[l][h], err = f.pool.Alloc(f.pages[l][h], need)
			ok(f.t, err)
			f.pool.PutPages(f.table[l][h].Bytes(), f.pages[l][h])
			f.heads[l].Set(h, f.table[l][h].All(), f.n, 0)
			p.spans[0].End[h] = f.n + 1
		}
	}
	ok(f.t, p.work.Fill(p.spans, p.maxItems))
	ticket, err := f.d.Submit(p.cmd)
	ok(f.t, err)
	ok(f.t, f.d.Wait(context.Background(), ticket))
	f.n += p.n
	return rowsOf(p.logits, p.logitRows), int(binary.LittleEndian.Uint32(p.best.raw()[4*(p.n-1):]))
}

func TestForwardPass(t *testing.T) {
	d := device(t)
	m := newForwardModel()
	const n = 45
	tokens := repeat(n, func(i int) int { return i * i % fVocab })
	want := m.reference(tokens)

	whole := newForwardDevice(t, d, m)
	got, best := whole.record(n, false).run(tokens)
	within(t, "logits", wide(want), got, func(int) float64 { return 1e-4 })
	require.Equal(t, kernels.CPU{}.Argmax(got[(n-1)*fVocab:]), best)

	chunks := newForwardDevice(t, d, m)
	pre, decode := chunks.record(10, false), chunks.record(1, true)
	var other []float32
	for at := 0; at < n; {
		if at < 20 {
			x, _ := pre.run(tokens[at : at+10])
			other = append(other, x...)
			at += 10
			continue
		}
		x, b := decode.run(tokens[at : at+1])
		require.Equal(t, kernels.CPU{}.Argmax(x), b)
		other = append(other, x...)
		at++
	}
	sameBits(t, "two chunks and 25 decode steps", got, other)
	require.Equal(t, int64(fLayers*fKV*3)*chunks.pool.stride, chunks.pool.Bytes())
}

func TestPagePool(t *testing.T) {
	d := openTest(t, Options{MaxBytes: 12 << 20, BlockBytes: 6 << 20})
	p, err := d.NewPagePool(Layout{tensor.BF16, 64, 64})
	ok(t, err)
	a, err := p.Alloc(nil, 10)
	ok(t, err)
	require.Equal(t, 10*p.stride, p.Bytes())
	seen := map[uint64]bool{}
	raw := make([]byte, 80)
	p.PutPages(raw, a)
	for i := range 10 {
		at := binary.LittleEndian.Uint64(raw[8*i:])
		require.Equal(t, p.View(a[i]).address(), at)
		require.False(t, seen[at])
		seen[at] = true
	}
	p.Ref(a[:3])
	require.True(t, p.Shared(a[0]))
	require.False(t, p.Shared(a[3]))
	p.Unref(a)
	require.Equal(t, 3*p.stride, p.Bytes())
	_, err = p.Alloc(nil, 10000)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.Equal(t, 3*p.stride, p.Bytes(), "a failed Alloc takes nothing")
	p.Unref(a[:3])
	require.Zero(t, p.Bytes())
	require.Equal(t, 10*p.stride, p.HighWater())
	p.Trim()
	require.Zero(t, p.Taken())
	require.Zero(t, d.Memory().Buffers)
	p.Close()
	p.Close()
	_, err = p.Alloc(nil, 1)
	require.ErrorIs(t, err, ErrClosed)
}
