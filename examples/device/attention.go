package device

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lukv/lukv/kernels"
)

// attention knows where rows are in caches.
type attention struct {
	thing
	kernels.AttentionShape
	spans     []kernels.RowSpan
	positions []int32
	heads     []head            // [layer][sequence][KV head]
	stats     []kernels.Softmax // [Rows][Heads]
	kept      []*thing          // statistics and sums
}

func (a *attention) Free() {
	for _, k := range a.kept {
		k.Free()
	}
	a.thing.Free()
}

// head is where a KV head of a sequence is.
type head struct {
	*table
	entries, base int
}

func (d *Device) Attention(s kernels.AttentionShape) (kernels.Attention, error) {
	if min(s.Rows, s.Sequences, s.Heads, s.KVHeads, s.HeadDim) < 1 || s.Heads%s.KVHeads != 0 || s.Page.HeadDim != s.HeadDim {
		return nil, fmt.Errorf("make attention: found %+v, expected positive sizes and whole groups of heads", s)
	}
	return &attention{
		thing: d.thing(), AttentionShape: s, stats: make([]kernels.Softmax, s.Rows*s.Heads),
		heads: make([]head, len(s.Windows)*s.Sequences*s.KVHeads),
	}, nil
}

func (a *attention) SetSpans(spans []kernels.RowSpan, positions []int32) {
	a.spans, a.positions = append(a.spans[:0], spans...), append(a.positions[:0], positions...)
}

func (a *attention) head(layer, seq, h int) *head {
	return &a.heads[(layer*a.Sequences+seq)*a.KVHeads+h]
}

func (a *attention) SetHead(layer, seq, h int, t kernels.PageTable, entries, base int) {
	pages, _ := t.(*table)
	*a.head(layer, seq, h) = head{pages, entries, base}
}

func (a *attention) ReadStats(_ context.Context, dst []kernels.Softmax, first, n int) error {
	if first < 0 || n < 0 || n > a.Rows-first || len(dst) < n*a.Heads {
		return fmt.Errorf("read softmax statistics: found rows [%d, %d+%d) of %d", first, first, n, a.Rows)
	}
	copy(dst, a.stats[first*a.Heads:(first+n)*a.Heads])
	return nil
}

// kv returns the first n entries of a head as kernels read them.
func (h *head) kv(n int) kernels.KV {
	l := h.p.l
	kv := kernels.KV{Type: l.Type, Values: l.Values, HeadDim: l.HeadDim, PageEntries: l.PageEntries, Base: h.base}
	for _, x := range h.pages[:(n+l.PageEntries-1)/l.PageEntries] {
		kv.Pages = append(kv.Pages, h.p.at(h.p.d.held(x).data))
	}
	return kv
}

// attention checks that an operation has an attention of this device with the layer.
func (e *encoder) attention(name string, of kernels.Attention, layer int) *attention {
	a, ok := of.(*attention)
	if !e.check(name, ok && !a.gone && a.d == e.d && layer >= 0 && layer < len(a.Windows), "there is no layer %d of an attention of this device", layer) {
		return nil
	}
	return a
}

func (e *encoder) RopeAppend(of kernels.Attention, layer int, q, k, v, turns kernels.Rows) {
	const op = "rope and append"
	a := e.attention(op, of, layer)
	if a == nil {
		return
	}
	d, cpu := a.HeadDim, e.d.cpu
	rq := e.rows(op, q, -1, a.Heads*d)
	rk, rv := e.rows(op, k, rq.n, a.KVHeads*d), e.rows(op, v, rq.n, a.KVHeads*d)
	var by rows
	if turns.Buffer != nil {
		by = e.rows(op, turns, rq.n, -1)
		e.check(op, by.cols == d || by.cols == d+1, "found %d cosines and sines, expected %d or one more", by.cols, d)
	}
	e.op(op, func() {
		for i := range rq.n {
			for _, r := range [][]float32{rq.row(i), rk.row(i)} {
				for x := range slices.Chunk(r, d) {
					if by.cols > 0 {
						cpu.Rope(x, by.row(i)[:d/2], by.row(i)[d/2:d])
					}
				}
			}
			if by.cols > d {
				cpu.Scale(rq.row(i), by.row(i)[d])
			}
			if a.BF16 {
				cpu.RoundedBF16(rq.row(i), rq.row(i))
			}
		}
		for seq, span := range a.spans {
			for h := range a.KVHeads {
				for i := span.Row; i < span.Row+span.N; i++ {
					a.head(layer, seq, h).store(cpu, i-span.Row, rk.row(i)[h*d:(h+1)*d], rv.row(i)[h*d:(h+1)*d], a.positions[i])
				}
			}
		}
	})
}

// store writes entry i of those that a pass appends.
func (h *head) store(cpu kernels.CPU, i int, key, value []float32, position int32) {
	p, e := h.p, h.entries+i
	data := p.d.owned(h.pages[e/p.l.PageEntries]).data
	e %= p.l.PageEntries
	keys, values := p.l.KeyRows(), p.l.ValueRows()
	keys.Store(cpu, p.at(data).K, e, key)
	values.Store(cpu, p.at(data).V, e, value)
	binary.LittleEndian.PutUint32(p.position(data, e), uint32(position))
}

func (e *encoder) Attend(of kernels.Attention, layer int, dst, q kernels.Rows, stats bool) {
	const op = "attention"
	a := e.attention(op, of, layer)
	if a == nil {
		return
	}
	from := e.rows(op, q, -1, a.Heads*a.HeadDim)
	to := e.rows(op, dst, from.n, from.cols)
	e.op(op, func() {
		out, group := make([]float32, len(from.v)), a.Heads/a.KVHeads
		for seq, span := range a.spans {
			for h := range a.KVHeads {
				c, at, st := a.head(layer, seq, h), span.Row*from.cols+h*group*a.HeadDim, make([]kernels.Softmax, span.N*group)
				args := kernels.AttentionArgs{
					Out: out[at:], Q: from.v[at:], Stride: from.cols, N: span.N, Group: group, BF16: a.BF16,
					End: c.base + c.entries + 1, Window: a.Windows[layer], Scale: a.Scale, Cap: a.Cap, KV: c.kv(c.entries + span.N), Stats: st,
				}
				e.d.cpu.Attention(&args, new(kernels.AttentionScratch))
				for i := 0; stats && i < len(st); i++ {
					a.stats[(span.Row+i/group)*a.Heads+h*group+i%group] = st[i]
				}
			}
		}
		to.set(e.d.cpu, 0, out)
	})
}
